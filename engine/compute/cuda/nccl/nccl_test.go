package nccl

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute/cuda/internal/dl"
)

// library skips a test where there is no NCCL. It needs no GPU.
func library(t *testing.T) {
	t.Helper()
	err := Open()
	var missing *dl.MissingError
	if errors.As(err, &missing) {
		if text := err.Error(); !strings.Contains(text, "libnccl.so.2") || !strings.Contains(text, "install NCCL 2.18 or newer") || strings.Contains(text, "\n") {
			t.Errorf("%q does not say what to install", text)
		}
		t.Skipf("NOT RUN: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestVersion(t *testing.T) {
	library(t)
	v, err := Version()
	if err != nil || !regexp.MustCompile(`^2\.\d+\.\d+$`).MatchString(v) {
		t.Errorf("%q, %v", v, err)
	}
	if got := text(22705); got != "2.27.5" {
		t.Errorf("22705 is %s", got)
	}
}

// A group of a GPU that is not there is an error in words.
func TestInitAllOfNoGPU(t *testing.T) {
	library(t)
	_, err := InitAll([]int{4096})
	var call *Error
	if !errors.As(err, &call) || call.Call != "ncclCommInitAll" || call.Text == "" || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// What Go sets in the environment is what C libraries find there: the settings
// of NCCL go that way.
func TestEnvironmentReachesC(t *testing.T) {
	lib, err := dl.Open("the C library", "libc.so.6")
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	var getenv uintptr
	if err := lib.Symbols(map[string]*uintptr{"getenv": &getenv}); err != nil {
		t.Fatal(err)
	}
	const name = "NCCL_OUTRIDER_TEST"
	for _, value := range []string{"Ring", "Tree"} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
		c := dl.CString(name)
		if got := dl.GoString(dl.Pointer(getenv, uintptr(unsafe.Pointer(&c[0])))); got != value {
			t.Errorf("C finds %q, want %q", got, value)
		}
	}
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}
