package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// epoch is the time of everything in an image, so that the time of a build
// leaves no trace in it.
var epoch = time.Unix(0, 0).UTC()

// A file goes from source on this machine, a file or a folder, to target.
type file struct{ source, target string }

type options struct {
	platform    *v1.Platform
	entrypoint  string
	user        string
	env, labels []string
	files       []file
}

// An entry is a file in the layer: from here, or with content.
type entry struct {
	source  string
	content []byte
	mode    int64
}

// build makes the image.
func build(o options) (v1.Image, error) {
	entries, err := collect(o.files)
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	if err := writeLayer(&layer, entries); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   l,
		History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "outrider hack/image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = o.platform.OS, o.platform.Architecture, o.platform.Variant
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: strings.Fields(o.entrypoint),
		Env:        append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/", "SSL_CERT_FILE=/" + certificates}, o.env...),
		User:       o.user,
		WorkingDir: "/",
	}
	for _, l := range o.labels {
		if config.Config.Labels == nil {
			config.Config.Labels = map[string]string{}
		}
		name, value, _ := strings.Cut(l, "=")
		config.Config.Labels[name] = value
	}
	return mutate.ConfigFile(image, config)
}

const certificates = "etc/ssl/certs/ca-certificates.crt"

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
			// The mode here depends on the umask; whether it runs does not.
			mode := int64(0o644)
			if info.Mode()&0o111 != 0 {
				mode = 0o755
			}
			entries[target] = entry{source: p, mode: mode}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return entries, nil
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

// writeLayer writes the entries, with the folders that they need, in order of
// their names.
func writeLayer(w io.Writer, entries map[string]entry) error {
	folders := map[string]bool{"tmp": true}
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
		content := entries[p].content
		if content == nil {
			var err error
			if content, err = os.ReadFile(entries[p].source); err != nil {
				return err
			}
		}
		h.Size = int64(len(content))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(content); err != nil {
			return err
		}
	}
	return t.Close()
}
