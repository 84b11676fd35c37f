//go:build cuda && linux

package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// The sources of kernels that are compiled and the passes that are recorded show one
// by one, up to all of them.
func TestStartProgressOnGPU(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	forgetKernels(t, "measure.cu", "sampling.cu")
	for _, name := range []string{"eagle3", "none"} {
		t.Run(name, func(t *testing.T) {
			c := progressOf[name]
			c.Device, c.MaxTotalTokens = DeviceCUDA, 1<<13
			e := newEngine(t, c)
			percents := map[telemetry.Phase]map[float64]bool{telemetry.PhaseKernels: {}, telemetry.PhaseCapture: {}}
			kernelsDone := map[int]bool{}
			for _, s := range loadAndWatch(t, e) {
				kernelsDone[s.KernelsDone] = true
				if of := percents[s.Phase]; of != nil {
					of[s.Percent] = true
				}
			}
			if s := e.Progress(); s.KernelsTotal != len(kernels.Sources()) || s.CapturesTotal < 2 {
				t.Errorf("of %d sources and %d captures; want %d, and 2 or more", s.KernelsTotal, s.CapturesTotal, len(kernels.Sources()))
			}
			if len(percents[telemetry.PhaseCapture]) < 2 || len(kernelsDone) < 2 {
				t.Errorf("seen were %v sources and %v", kernelsDone, percents)
			}
		})
	}
}

// forgetKernels has the test compile these sources anew, and find the others where
// they are.
func forgetKernels(t *testing.T, names ...string) {
	t.Helper()
	from := kernels.DefaultFolder()
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", base)
	to := kernels.DefaultFolder()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		for _, name := range names {
			if err == nil && strings.HasPrefix(filepath.Base(path), name) {
				return os.Remove(path)
			}
		}
		return nil // there may be none
	})
	if err != nil {
		t.Fatal(err)
	}
}
