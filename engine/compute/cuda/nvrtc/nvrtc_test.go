package nvrtc

import (
	"errors"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// library skips a test where there is no run-time compiler. It needs no GPU.
func library(t *testing.T) {
	t.Helper()
	err := Open()
	if errors.As(err, new(*dl.MissingError)) {
		t.Skipf("NOT RUN: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A card that the compiler does not know is told before anything is compiled, and
// else by an error with the compiler's version.
func TestUnknownArchitectures(t *testing.T) {
	library(t)
	for _, c := range []struct {
		major, minor int
		want         bool
	}{{9, 0, true}, {8, 0, true}, {1, 3, false}, {99, 0, false}} {
		if got, err := Knows(c.major, c.minor); err != nil || got != c.want {
			t.Errorf("%d.%d: %v, %v", c.major, c.minor, got, err)
		}
	}
	version, err := Version()
	if err != nil {
		t.Fatal(err)
	}
	before := Compiled()
	_, _, err = Compile("a.cu", "", "sm_990")
	var refused *ArchitectureError
	if !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), "NVRTC "+version+" makes no code for sm_990: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if Compiled() != before {
		t.Error("what was refused counts as compiled")
	}
	if _, _, err := Compile("a.cu", `extern "C" __global__ void f() {}`, "sm_90"); err != nil || Compiled() != before+1 {
		t.Errorf("%v, %d were compiled", err, Compiled()-before)
	}
}
