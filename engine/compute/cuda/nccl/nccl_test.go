package nccl

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
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

// An algorithm that does not gather is for sums alone, from the version on that
// can tell the two apart.
func TestAlgorithmsThatDoNotGather(t *testing.T) {
	for _, c := range []struct {
		algo    string
		version int
		want    string
	}{
		{"", 22809, ""},
		{"Ring", 22809, "Ring"},
		{"ring,tree", 22809, "ring,tree"},
		{"Tree", 22809, "Ring;allreduce:Tree"},
		{"NVLS,NVLSTree", 23203, "Ring;allreduce:NVLS,NVLSTree"},
		{"Tree", 22304, "Tree"},
		{"^Ring", 22809, "^Ring"},
		{"ring;allreduce:tree", 22809, "ring;allreduce:tree"},
	} {
		t.Setenv("NCCL_ALGO", c.algo)
		t.Setenv("NCCL_GRAPH_MIXING_SUPPORT", "")
		if err := prepare(c.version); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("NCCL_ALGO"); got != c.want {
			t.Errorf("NCCL_ALGO=%s with version %d becomes %q, want %q", c.algo, c.version, got, c.want)
		}
		if got := os.Getenv("NCCL_GRAPH_MIXING_SUPPORT"); got != "0" {
			t.Errorf("NCCL_GRAPH_MIXING_SUPPORT is %q", got)
		}
	}
	t.Setenv("NCCL_GRAPH_MIXING_SUPPORT", "1")
	if err := prepare(22809); err != nil || os.Getenv("NCCL_GRAPH_MIXING_SUPPORT") != "1" {
		t.Errorf("what is given is changed to %q, %v", os.Getenv("NCCL_GRAPH_MIXING_SUPPORT"), err)
	}
}
