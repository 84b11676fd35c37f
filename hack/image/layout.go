package main

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes the image or index as an OCI image layout in a tar file. The
// file appears at once and whole, because another build may be reading it.
func writeLayout(output, ref string, r *result) (err error) {
	work, err := os.MkdirTemp(filepath.Dir(output), ".image-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", output, err)
	}
	defer func() {
		if e := os.RemoveAll(work); err == nil {
			err = e
		}
	}()
	folder := filepath.Join(work, "layout")
	l, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	names := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          ref,
		"org.opencontainers.image.ref.name": ref[strings.LastIndex(ref, ":")+1:],
	})
	if r.index != nil {
		err = l.AppendIndex(r.index, names)
	} else {
		err = l.AppendImage(r.images[0].image, names)
	}
	if err != nil {
		return err
	}
	tarFile := filepath.Join(work, "image.tar")
	if err := tarFolder(tarFile, folder); err != nil {
		return err
	}
	return os.Rename(tarFile, output)
}

// tarFolder writes the files of a folder to a tar file, in order of their names.
func tarFolder(output, folder string) (err error) {
	out, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() {
		if e := out.Close(); err == nil {
			err = e
		}
	}()
	t := tar.NewWriter(out)
	err = filepath.Walk(folder, func(p string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		rel, err := filepath.Rel(folder, p)
		if err != nil {
			return err
		}
		return writeEntry(t, &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, ModTime: epoch}, entry{source: p})
	})
	if err != nil {
		return err
	}
	return t.Close()
}
