package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const certificates = "etc/ssl/certs/ca-certificates.crt"

// An entry of a layer is a file from here, a file with content, or a symbolic link.
type entry struct {
	source  string
	content []byte
	link    string // where it leads, as it is written in the link
	mode    int64
}

// collect finds every file of the image, by its path there.
func collect(files []file) (map[string]entry, error) {
	roots, err := authorities()
	if err != nil {
		return nil, err
	}
	entries := map[string]entry{
		certificates: {content: roots, mode: 0o644},
		"etc/passwd": {content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n"), mode: 0o644},
		"etc/group":  {content: []byte("root:x:0:\nnonroot:x:65532:\n"), mode: 0o644},
	}
	for _, f := range files {
		err := filepath.WalkDir(f.source, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			if !info.Mode().IsRegular() {
				return fmt.Errorf("%s is not a regular file: only files and folders of them go into an image", p)
			}
			rel, err := filepath.Rel(f.source, p)
			if err != nil {
				return err
			}
			target := strings.TrimPrefix(path.Join(f.target, filepath.ToSlash(rel)), "/")
			if _, ok := entries[target]; ok {
				return fmt.Errorf("two files for /%s in the image", target)
			}
			entries[target] = entry{source: p, mode: modeOf(info)}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// modeOf is the mode that a file has in the image: the one here depends on the
// umask; whether it runs does not.
func modeOf(info fs.FileInfo) int64 {
	if info.Mode()&0o111 != 0 {
		return 0o755
	}
	return 0o644
}

// collectTree finds every file and symbolic link below a folder, which becomes
// the image's root.
func collectTree(root string) (map[string]entry, error) {
	entries := map[string]entry{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		target := filepath.ToSlash(rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(p)
			if err != nil {
				return err
			}
			entries[target] = entry{link: link, mode: 0o777}
		case d.Type().IsRegular():
			entries[target] = entry{source: p, mode: modeOf(info)}
		default:
			return fmt.Errorf("%s is neither a file nor a symbolic link: nothing else goes into an image", p)
		}
		return nil
	})
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("%s has no files for a layer", root)
	}
	return entries, err
}

// authorities returns Mozilla's certificate authorities in PEM, sorted. Roots
// that are trusted only under a constraint are left out: a PEM file cannot
// carry it.
func authorities() ([]byte, error) {
	var certs []*x509.Certificate
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		c, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities of x509roots: %w", err)
		}
		certs = append(certs, c)
	}
	slices.SortFunc(certs, func(a, b *x509.Certificate) int {
		return bytes.Compare(a.Raw, b.Raw)
	})
	var out bytes.Buffer
	for _, c := range certs {
		fmt.Fprintf(&out, "# %s\n", cmp.Or(c.Subject.CommonName, strings.Join(c.Subject.Organization, " ")))
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// newLayer makes a layer of the entries and of more folders, in a file in the
// folder work.
func newLayer(work string, entries map[string]entry, folders ...string) (v1.Layer, error) {
	f, err := os.CreateTemp(work, "layer-*")
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(writeLayer(z, entries, folders), z.Close(), f.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(f.Name(), tarball.WithMediaType(types.OCILayer))
}

// writeLayer writes the entries, with the folders that they need and those
// named, in order of their names.
func writeLayer(w io.Writer, entries map[string]entry, more []string) error {
	folders := map[string]bool{}
	for _, p := range more {
		folders[p] = true
	}
	for p := range entries {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			folders[d] = true
		}
	}
	paths := make([]string, 0, len(entries)+len(folders))
	for p := range entries {
		if folders[p] {
			return fmt.Errorf("/%s is both a file and a folder in the image", p)
		}
		paths = append(paths, p)
	}
	for p := range folders {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	t := tar.NewWriter(w)
	for _, p := range paths {
		h := &tar.Header{Name: p, Typeflag: tar.TypeReg, Mode: entries[p].mode, ModTime: epoch, Format: tar.FormatPAX}
		if folders[p] {
			h.Name, h.Typeflag, h.Mode = p+"/", tar.TypeDir, 0o755
			if p == "tmp" {
				h.Mode = 0o1777
			}
			if err := t.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		if err := writeEntry(t, h, entries[p]); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeEntry(t *tar.Writer, h *tar.Header, e entry) error {
	if e.link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return t.WriteHeader(h)
	}
	content := io.Reader(bytes.NewReader(e.content))
	h.Size = int64(len(e.content))
	if e.source != "" {
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		content, h.Size = f, info.Size()
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}
