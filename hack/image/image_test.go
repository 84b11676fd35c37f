package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// program writes a folder with an executable and a data file and returns it.
func program(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"app": 0o700, "data/model.json": 0o600} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("content of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// untar unpacks a tar file into a new folder, which it returns.
func untar(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		p := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type item struct {
	mode    int64
	kind    byte
	content string
	time    time.Time
	link    string
}

// filesOf returns every entry of the image's file system.
func filesOf(t *testing.T, image v1.Image) map[string]item {
	t.Helper()
	r := mutate.Extract(image)
	defer r.Close()
	items := map[string]item{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return items
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		items[strings.TrimSuffix(h.Name, "/")] = item{h.Mode, h.Typeflag, string(b), h.ModTime.UTC(), h.Linkname}
	}
}

func checkImage(t *testing.T, image v1.Image) {
	t.Helper()
	items := filesOf(t, image)
	for name, want := range map[string]item{
		"app":             {0o755, tar.TypeReg, "content of app", epoch, ""},
		"data/model.json": {0o644, tar.TypeReg, "content of data/model.json", epoch, ""},
		"data":            {0o755, tar.TypeDir, "", epoch, ""},
		"tmp":             {0o1777, tar.TypeDir, "", epoch, ""},
	} {
		if items[name] != want {
			t.Errorf("/%s is %+v, want %+v", name, items[name], want)
		}
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(items[certificates].content)) {
		t.Errorf("/%s has no certificate", certificates)
	}
	if !strings.Contains(items["etc/passwd"].content, ":65532:65532:") {
		t.Errorf("/etc/passwd has no user 65532: %q", items["etc/passwd"].content)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	if config.OS != "linux" || config.Architecture != "arm64" || c.User != "65532:65532" || c.Labels["a"] != "b=c" ||
		strings.Join(c.Entrypoint, "|") != "/app|serve" || !strings.Contains(strings.Join(c.Env, " "), "X=y") {
		t.Errorf("config is %+v", config)
	}
}

// buildArgs are the arguments that checkImage's image is made with.
func buildArgs(dir string) []string {
	return []string{"-platform", "linux/arm64", "-entrypoint", "/app serve", "-env", "X=y", "-label", "a=b=c",
		dir + "/app=/app", dir + "/data=/data"}
}

func TestLayout(t *testing.T) {
	dir := program(t)
	var first []byte
	for i := range 2 {
		file := filepath.Join(t.TempDir(), "image.tar")
		var out bytes.Buffer
		args := append([]string{"-o", file, "-t", "ghcr.io/outrider-dev/try:v1"}, buildArgs(dir)...)
		if err := run(context.Background(), args, &out); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = b
			// Neither the time nor the umask of a build may change the image.
			if err := os.Chtimes(dir+"/app", time.Now(), time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir+"/app", 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if !bytes.Equal(b, first) {
			t.Error("the same files gave two different images")
		}
		folder := untar(t, file)
		index, err := layout.ImageIndexFromPath(folder)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(manifest.Manifests) != 1 {
			t.Fatalf("%d images in the layout, want 1", len(manifest.Manifests))
		}
		d := manifest.Manifests[0]
		if d.Annotations["io.containerd.image.name"] != "ghcr.io/outrider-dev/try:v1" || d.Annotations["org.opencontainers.image.ref.name"] != "v1" {
			t.Errorf("annotations are %v", d.Annotations)
		}
		if want := "ghcr.io/outrider-dev/try:v1@" + d.Digest.String() + "\n"; out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image)
		raw, err := image.RawManifest()
		if err != nil {
			t.Fatal(err)
		}
		var m struct{ MediaType string }
		if err := json.Unmarshal(raw, &m); err != nil || m.MediaType != "application/vnd.oci.image.manifest.v1+json" {
			t.Errorf("manifest has media type %q (%v)", m.MediaType, err)
		}
		left, err := os.ReadDir(filepath.Dir(file))
		if err != nil || len(left) != 1 {
			t.Errorf("beside the image lie %v (%v)", left, err)
		}
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer server.Close()
	tag := strings.TrimPrefix(server.URL, "http://") + "/outrider/try:v2"
	args := append([]string{"-push", "-q", "-t", tag}, buildArgs(program(t))...)
	if err := run(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	checkImage(t, image)
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	referrers, err := remote.Referrers(ref.Digest(digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := referrers.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("what refers to the image is %+v (%v), want its bill of materials", manifest, err)
	}
	artifact, err := remote.Get(ref.Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	m, err := v1.ParseManifest(bytes.NewReader(artifact.Manifest))
	if err != nil || len(m.Layers) != 1 || m.ArtifactType != string(cycloneDX) || m.Subject.Digest != digest {
		t.Fatalf("the artifact is %s (%v)", artifact.Manifest, err)
	}
	l, err := remote.Layer(ref.Digest(m.Layers[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	bill := decodeBill(t, r)
	if want := url.QueryEscape(digest.String()); !strings.Contains(bill.Metadata.Component.PackageURL, want) {
		t.Errorf("the bill of materials is of %s, want the digest %s in it", bill.Metadata.Component.PackageURL, want)
	}
}

func TestBadArguments(t *testing.T) {
	dir := program(t)
	out := filepath.Join(t.TempDir(), "o.tar")
	ok := []string{"-o", out, "-t", "ghcr.io/a/b:c"}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing to do", []string{"-t", "ghcr.io/a/b:c"}, "-o FILE, -push or both"},
		{"no tag", []string{"-o", out, "-t", "ghcr.io/a/b"}, "want registry/repository:tag"},
		{"no registry", []string{"-o", out, "-t", "b:c"}, "want registry/repository:tag"},
		{"bad tag", []string{"-o", out, "-t", "ghcr.io/a/B:c"}, "want registry/repository:tag"},
		{"no =", append(ok, "bin/app"), "want SOURCE=/TARGET"},
		{"relative target", append(ok, "bin/app=app"), "want SOURCE=/TARGET"},
		{"no such file", append(ok, dir+"/none=/none"), "no such file"},
		{"twice", append(ok, dir+"/app=/x", dir+"/app=/x"), "two files for /x"},
		{"file and folder", append(ok, dir+"/app=/x", dir+"/app=/x/y"), "both a file and a folder"},
		{"device", append(ok, "/dev/null=/null"), "not a regular file"},
		{"platform", append(ok, "-platform", "linux", dir+"/app=/app"), "want os/architecture"},
		{"second platform", append(ok, "-platform", "linux/amd64,linux", dir+"/app=/app"), `"linux": want os/architecture`},
		{"one file for two bills", append(ok, "-platform", "linux/amd64,linux/arm64", "-sbom", "x.json", dir+"/app=/app"), "write {arch} into its name"},
		{"empty layer", append(ok, "-layer", t.TempDir(), dir+"/app=/app"), "no files for a layer"},
		{"no layer", append(ok, "-layer", dir+"/{arch}", dir+"/app=/app"), "no such file"},
		{"env", append(ok, "-env", "=y"), "want NAME=value"},
		{"no folder", []string{"-o", "/no/such/folder/o.tar", "-t", "ghcr.io/a/b:c", dir + "/app=/app"}, "/no/such/folder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(context.Background(), c.args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			if _, err := os.Stat(out); err == nil {
				t.Error("a file was written all the same")
			}
		})
	}
}
