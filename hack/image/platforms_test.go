package main

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// write puts files with contents below a folder; a content that begins with "->"
// is a symbolic link.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		p := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		if target, ok := strings.CutPrefix(content, "->"); ok && err == nil {
			err = os.Symlink(target, p)
		} else if err == nil {
			err = os.WriteFile(p, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// twoPlatforms is a folder with programs and a layer for two architectures. This
// test is the program in Go.
func twoPlatforms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"amd64", "arm64"} {
		write(t, dir, map[string]string{
			"tree-" + a + "/lib":                            "->usr/lib",
			"tree-" + a + "/usr/lib/libc.so.6":              "a library for " + a,
			"tree-" + a + "/usr/lib/os-release":             "NAME=\"Debian GNU/Linux\"\nID=debian\nVERSION_ID=\"12\"\n",
			"tree-" + a + "/var/lib/dpkg/status.d/libc6":    "Package: libc6\nArchitecture: " + a + "\nVersion: 2.36-9+deb12u14\nDescription: GNU C Library\n Contains the standard libraries.\n",
			"tree-" + a + "/share/n-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: NVIDIA-nccl\nVersion: 2.28.9\nLicense: Proprietary\n\nText: that is no field\n",
		})
		if err := os.WriteFile(filepath.Join(dir, "app-"+a), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func decodeBill(t *testing.T, r io.Reader) *cyclonedx.BOM {
	t.Helper()
	bill := new(cyclonedx.BOM)
	if err := cyclonedx.NewBOMDecoder(r, cyclonedx.BOMFileFormatJSON).Decode(bill); err != nil {
		t.Fatal(err)
	}
	return bill
}

// TestPlatforms: an index has an image for each platform, of its own files, with
// the layers in their order and a bill of materials; a second build is the same.
func TestPlatforms(t *testing.T) {
	dir := twoPlatforms(t)
	var before []byte
	for range 2 {
		out := t.TempDir()
		args := []string{"-q", "-o", out + "/image.tar", "-sbom", out + "/{arch}.json", "-t", "ghcr.io/outrider-dev/try:v1",
			"-platform", "linux/amd64,linux/arm64", "-layer", dir + "/tree-{arch}", "-entrypoint", "/app", dir + "/app-{arch}=/app"}
		if err := run(context.Background(), args, io.Discard); err != nil {
			t.Fatal(err)
		}
		all := []byte{}
		for _, name := range []string{"image.tar", "amd64.json", "arm64.json"} {
			b, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		if before != nil {
			if !bytes.Equal(all, before) {
				t.Error("the same files gave two different images or bills of materials")
			}
			continue
		}
		before = all
		checkPlatforms(t, out)
	}
}

func checkPlatforms(t *testing.T, out string) {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(untar(t, out+"/image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := outer.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Annotations["io.containerd.image.name"] != "ghcr.io/outrider-dev/try:v1" {
		t.Fatalf("the layout has %+v (%v)", m, err)
	}
	index, err := outer.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, d := range m.Manifests {
		platforms = append(platforms, d.Platform.String())
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil || config.Architecture != d.Platform.Architecture || len(config.RootFS.DiffIDs) != 2 {
			t.Errorf("%s: config %+v (%v)", d.Platform, config, err)
		}
		items := filesOf(t, image)
		if got, want := items["usr/lib/libc.so.6"].content, "a library for "+d.Platform.Architecture; got != want {
			t.Errorf("%s: the library is %q, want %q", d.Platform, got, want)
		}
		if l := items["lib"]; l.kind != tar.TypeSymlink || l.link != "usr/lib" {
			t.Errorf("%s: /lib is %+v, want a link to usr/lib", d.Platform, l)
		}
		checkBill(t, filepath.Join(out, d.Platform.Architecture+".json"), d.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(platforms, want) {
		t.Errorf("platforms %v, want %v", platforms, want)
	}
}

func checkBill(t *testing.T, file, architecture string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	bill := decodeBill(t, f)
	have := map[string]cyclonedx.Component{}
	for _, c := range *bill.Components {
		have[c.BOMRef] = c
	}
	for _, ref := range []string{
		"file:/app",
		"pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=" + architecture + "&distro=debian-12",
		"pkg:pypi/nvidia-nccl@2.28.9",
	} {
		if _, ok := have[ref]; !ok {
			t.Errorf("%s: the bill of materials lacks %s", architecture, ref)
		}
	}
	if l := have["pkg:pypi/nvidia-nccl@2.28.9"].Licenses; l == nil || (*l)[0].License.Name != "Proprietary" {
		t.Errorf("the wheel's licence is %v", l)
	}
	var modules, direct []string
	for _, d := range *bill.Dependencies {
		switch d.Ref {
		case "file:/app":
			modules = *d.Dependencies
		case "image":
			direct = *d.Dependencies
		}
	}
	hasModule := func(refs []string, module string) bool {
		return slices.ContainsFunc(refs, func(r string) bool { return strings.HasPrefix(r, "pkg:golang/"+module+"@") })
	}
	for _, module := range []string{"std", "github.com/google/go-containerregistry"} {
		if !hasModule(modules, module) || hasModule(direct, module) {
			t.Errorf("%s is not what the program alone depends on: program %v, image %v", module, modules, direct)
		}
	}
	if !slices.Contains(direct, "file:/app") || !slices.Contains(direct, "pkg:pypi/nvidia-nccl@2.28.9") {
		t.Errorf("the image depends on %v", direct)
	}
}
