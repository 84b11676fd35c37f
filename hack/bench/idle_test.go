//go:build cuda && linux

package main

import (
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// The device's time between passes is a share of the time, for both arms and all loads,
// over the emulation of CUDA, whose figures say nothing else.
func TestIdle(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	*streams, *contexts, *accepts, *answer, *rounds, *duration = "1,2", "8", "real", 6, 2, 300*time.Millisecond
	var r results
	r.idleArms(engine.Config{Model: "../../engine/model/testdata/fixtures/llama", Device: engine.DeviceCUDA, Algorithm: engine.AlgorithmNGram, TPSize: 1, NumSteps: *steps, Mode: speculation.ModeAuto})
	if len(r.Idle) != 4 {
		t.Fatalf("%d figures: want two arms with one and with two streams", len(r.Idle))
	}
	for _, i := range r.Idle {
		if !(i.Idle.Median >= 0 && i.Idle.Median < 1) || !(i.Pass > 0) || i.Idle.N < 1 {
			t.Errorf("%+v", i)
		}
	}
}
