//go:build linux

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nvrtc"
	"github.com/outrider-dev/outrider/engine/fault"
)

// A driver serves the libraries of its own major version of CUDA and of older ones.
func TestOldDriver(t *testing.T) {
	for _, c := range []struct {
		serves, compiler, products int
		says                       string
	}{
		{13000, 13, 13, ""},
		{13010, 12, 12, ""},
		{12020, 12, 12, ""},
		{12080, 13, 12, "the NVIDIA driver serves CUDA 12.8, and NVRTC is of CUDA 13: update the driver to 580 or newer, or take libraries of CUDA 12 (CUDA=12 make images-cuda makes the image with CUDA 12)$"},
		{12080, 12, 13, "serves CUDA 12.8, and cuBLASLt is of CUDA 13: "},
		{12000, 13, 13, ", or take libraries of CUDA 12 "},
		{11040, 12, 12, "serves CUDA 11.4, and NVRTC is of CUDA 12: update the driver to 525 or newer$"},
		{11080, 13, 13, "serves CUDA 11.8, and NVRTC is of CUDA 13: update the driver to 580 or newer$"},
		{13000, 14, 14, "update the driver to one for CUDA 14 or newer, or take libraries of CUDA 13 "},
	} {
		err := tooOld(c.serves, []versioned{{"NVRTC", c.compiler}, {"cuBLASLt", c.products}})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error()+"$", c.says) { // $ is the end
			t.Errorf("%d with %d and %d: %v, want %q", c.serves, c.compiler, c.products, err, c.says)
		}
	}
}

// A GPU that is full is there: its error keeps that reason.
func TestFullIsNotMissing(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fault.Reason
		says string
	}{
		{&driver.Error{Call: "cuDevicePrimaryCtxRetain", Code: driver.OutOfMemory}, fault.OutOfMemory, "--device cpu"},
		{fmt.Errorf("GPU 0: %w", &blas.Error{Call: "cublasLtCreate", Status: 3}), fault.OutOfMemory, "cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED (3)"},
		{&blas.Error{Call: "cublasLtCreate", Status: 1}, fault.DeviceMissing, "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED (1); --device cpu does without"},
		{&driver.Error{Call: "cuInit", Code: 999}, fault.DeviceMissing, "cuInit failed with CUresult 999; --device cpu does without"},
		{fault.Errorf(fault.Unsupported, "x"), fault.Unsupported, "x"},
	} {
		err := missing(c.err)
		if fault.ReasonOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v becomes %v (%s), want %s with %q", c.err, err, fault.ReasonOf(err), c.want, c.says)
		}
	}
	if missing(nil) != nil {
		t.Error("no error became one")
	}
}

// What would help depends on what does not fit, and a fraction has its value.
func TestWhatHelpsWithoutMemory(t *testing.T) {
	const gib = 1 << 30
	const more = "give it GPUs with more memory, or a larger --tp-size"
	for _, c := range []struct {
		n                 int64
		what              string
		used, total, held int64
		grown             bool
		want              string
	}{
		{gib, "weights", gib, gib, gib, false, more + ", or a model with quantised weights"},
		{gib, "weights", 80 * gib, 80 * gib, 8 * gib, false, more + ", or a model with quantised weights, or end what else uses the GPU, which is 73728 MiB"},
		{gib, "activations", gib, gib, 0, false, more},
		{gib, "workspaces", 100 * gib, 100 * gib, 0, true, "give a --mem-fraction-static that is 0.01 smaller"},
		{gib + 1, "workspaces", 100 * gib, 100 * gib, 0, true, "give a --mem-fraction-static that is 0.02 smaller"},
	} {
		if got := lighten(c.n, c.what, c.used, c.total, c.held, c.grown); got != c.want {
			t.Errorf("%d bytes of %s: %q, want %q", c.n, c.what, got, c.want)
		}
	}
}

// device opens GPU 0, or has the test not run.
func device(t *testing.T) *Device {
	t.Helper()
	if _, err := Ready(1, false); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	d, err := New(collective.NewLocal(1, 0)[0], Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// A tensor that finds no memory says how much it wants, and what there is.
func TestWeightsWithoutMemory(t *testing.T) {
	d := device(t)
	d.alloc(1<<45, "weights")
	err := d.Err()
	if want := "is out of memory: 33554432 MiB more are needed for weights, beside the "; fault.ReasonOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), want) {
		t.Errorf("%v (%s): want %q", err, fault.ReasonOf(err), want)
	}
}

// Code that the driver refuses is told with both versions.
func TestRefusedCode(t *testing.T) {
	d := device(t)
	if code := <-d.code; code.err != nil {
		t.Fatal(code.err)
	}
	d.code <- compiledCode{images: [][]byte{[]byte("this is no machine code of any GPU")}}
	err := d.Build()
	version, verr := nvrtc.Version()
	if verr != nil {
		t.Fatal(verr)
	}
	for _, want := range []string{"the driver, which serves CUDA ", "refuses the code that NVRTC " + version + " made of " + kernels.Sources()[0].Name, "update the driver"} {
		if fault.ReasonOf(err) != fault.DeviceMissing || !strings.Contains(err.Error(), want) {
			t.Errorf("%v (%s): want %q", err, fault.ReasonOf(err), want)
		}
	}
}

// Sources that do not compile are one line; an architecture that is refused is no
// source's fault.
func TestErrorsOfSourcesAreOneLine(t *testing.T) {
	a, b := &nvrtc.CompileError{Name: "a.cu", Log: "x"}, &nvrtc.CompileError{Name: "b.cu", Log: "y"}
	refused := &nvrtc.ArchitectureError{Architecture: "sm_75", Version: "13.0", Log: "nvrtc: error: invalid value"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("x"), "x"},
		{errors.Join(a), "kernel source a.cu does not compile: x"},
		{errors.Join(a, b), "kernel source a.cu does not compile: x (and 1 more)"},
		{errors.Join(refused, refused), refused.Error()},
	} {
		if got := first(c.err); got.Error() != c.want {
			t.Errorf("%q becomes %q, want %q", c.err, got, c.want)
		}
	}
}

// A folder for kernels that keeps nothing is told.
func TestUnkeptKernels(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kept(filepath.Join(folder, "new"), []byte("code")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(folder, "new")); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := kept(filepath.Join(file, "new"), []byte("code")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a folder in a file: %v", err)
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	if err := kept("", []byte("code")); err == nil || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("without a cache folder: %v", err)
	}
}
