//go:build cuda && linux

package engine

import (
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// What requests take of a device's memory is in use when the engine is ready, also for
// those whose tokens the device draws with all that a request may ask for: the KV cache
// has grown into the rest. (A GPU's driver has memory of its own that it may take later.)
func TestRequestsTakeNoMemory(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	free := func() int64 {
		n, _, err := cuda.Memory(0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const running, length = 2, 96 // all numbers of decodes are recorded at the start
	e := start(t, Config{Device: DeviceCUDA, Model: "model/testdata/fixtures/llama", Algorithm: AlgorithmNone, MaxRunningRequests: running, ContextLength: length, MaxTotalTokens: 1 << 15})
	before := free()
	var bias []sampling.Bias
	for id := range int32(e.Info().VocabSize) {
		bias = append(bias, sampling.Bias{ID: id, Value: float64(id%7) / 10})
	}
	var wg sync.WaitGroup
	for i := range running + 2 {
		wg.Go(func() {
			prompt := make([]int32, 20+10*i) // prompts are not recorded
			for k := range prompt {
				prompt[k] = int32(3 + (7*i+5*k)%300)
			}
			got := complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: 24, IgnoreEOS: true, Logprobs: 20,
				Sampling: sampling.Params{Temperature: 1, TopP: 0.9, Repetition: 1.2, Presence: 0.5, Bias: bias, Seed: uint64(i)}})
			if got.Finish != scheduler.FinishLength {
				t.Errorf("request %d ended with %q, %v", i, got.Finish, got.Err)
			}
		})
	}
	wg.Wait()
	if after := free(); after != before {
		t.Errorf("the requests took %d bytes of the device's memory", before-after)
	}
}
