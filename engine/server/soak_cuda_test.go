//go:build soak && cuda && linux

package server

import (
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
)

// deviceFree is the free memory of the engine's GPU, as the driver tells it
// (cuMemGetInfo), in bytes; 0 on the CPU.
func deviceFree(t *testing.T, in *instance) int64 {
	t.Helper()
	if !strings.HasPrefix(in.Info().Device, "cuda") {
		return 0
	}
	free, _, err := cuda.Memory(0)
	if err != nil {
		t.Fatal(err)
	}
	return free
}
