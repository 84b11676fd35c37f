package main

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes the image as an OCI image layout in a tar file. The file
// appears at once and whole, because another build may be reading it.
func writeLayout(output, ref string, image v1.Image) (err error) {
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
	err = l.AppendImage(image, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          ref,
		"org.opencontainers.image.ref.name": ref[strings.LastIndex(ref, ":")+1:],
	}))
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
		content, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o644, Size: int64(len(content)), ModTime: epoch}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return t.Close()
}
