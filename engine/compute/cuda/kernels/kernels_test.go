package kernels

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda/nvrtc"
	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// compiler skips a test where there is no run-time compiler. It needs no GPU.
func compiler(t *testing.T) {
	t.Helper()
	err := nvrtc.Open()
	var missing *dl.MissingError
	if errors.As(err, &missing) {
		t.Skipf("NOT RUN: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Every kernel compiles for every kind of card that has code of its own, and those of each
// pass for every architecture that is served, without a remark.
func TestSourcesCompile(t *testing.T) {
	compiler(t)
	everyPass := []string{"attention_few.cu", "elementwise.cu", "linear.cu", "narrow.cu", "quant.cu"}
	for architecture, of := range map[string]struct{ clusters, all bool }{
		"sm_80": {false, true}, "sm_86": {false, false}, "sm_89": {false, true}, "sm_90a": {true, true},
		"sm_100": {true, false}, "sm_103": {true, false}, "sm_120": {true, true}, "sm_121": {true, false},
	} {
		for _, s := range Sources() {
			if !of.all && !slices.Contains(everyPass, s.Name) {
				continue
			}
			t.Run(architecture+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				code, log, err := nvrtc.Compile(s.Name, s.Text, architecture)
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				if log = strings.TrimSpace(log); log != "" {
					t.Errorf("the compiler remarks:\n%s", log)
				}
				for _, m := range regexp.MustCompile(`__global__ void (?:(?:__cluster_dims__\([^)]*\) )?(?:__launch_bounds__\([^)]*\) ))?(\w+)\(const`).FindAllStringSubmatch(s.Text, -1) {
					clusters := !of.clusters && strings.Contains(m[1], "cluster")
					wide := architecture != "sm_90a" && strings.HasPrefix(m[1], "wide")
					if m[1] != "name" && !clusters && !wide && !bytes.Contains(code, []byte(m[1])) {
						t.Errorf("kernel %s is not in the code", m[1])
					}
				}
				if folder := os.Getenv("OUTRIDER_TEST_CUBINS"); folder != "" {
					if err := os.WriteFile(filepath.Join(folder, s.Name+"."+architecture+".cubin"), code, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

func TestErrorsNameTheLine(t *testing.T) {
	compiler(t)
	_, _, err := nvrtc.Compile("bad.cu", "extern \"C\" __global__ void f() { int x = y; }", "sm_80")
	var compile *nvrtc.CompileError
	if !errors.As(err, &compile) || !strings.Contains(err.Error(), "bad.cu(1)") {
		t.Errorf("%v: it must say bad.cu(1)", err)
	}
	if _, _, err := nvrtc.Compile("bad.cu", "", "sm_1"); err == nil {
		t.Error("compiled for sm_1")
	}
}

func TestCacheRefusesDamagedFiles(t *testing.T) {
	c, s := Cache{Folder: filepath.Join(t.TempDir(), "new"), Key: "k"}, Source{"a.cu", "text"}
	path, code := c.path(s, "sm_90"), []byte("machine code")
	if err := c.write(path, code); err != nil {
		t.Fatal(err)
	}
	// With the file in place no compiler is asked: "text" is no source.
	got, err := c.Compile(s, "sm_90")
	if err != nil || !bytes.Equal(got, code) {
		t.Fatalf("%q, %v", got, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if _, ok := unwrap(b); ok {
		t.Error("a damaged file was taken")
	}
	if _, ok := unwrap(b[:10]); ok {
		t.Error("a file cut short was taken")
	}
	for _, other := range []struct {
		c    Cache
		s    Source
		arch string
	}{{Cache{c.Folder, "l"}, s, "sm_90"}, {c, Source{"a.cu", "text2"}, "sm_90"}, {c, s, "sm_80"}} {
		if other.c.path(other.s, other.arch) == path {
			t.Errorf("%v has the same file", other)
		}
	}
	files, err := os.ReadDir(c.Folder)
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}
