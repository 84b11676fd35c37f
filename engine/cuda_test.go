//go:build cuda && linux

package engine

import (
	"slices"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// roundingGap is the difference of two logits of gocode-7m that rounding
// activations to bfloat16 may turn round.
const roundingGap = 0.02

// The golden prompts on the GPU, all at once, with and without speculation: the
// reference's text, but for where rounding decides (its logits are of float32),
// and then a text of which speculation changes nothing but by rounding either.
func TestGoldenTextOnGPU(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	for _, c := range []struct {
		name, algorithm string
		ranks           int
		sums            string
	}{
		{"eagle3", AlgorithmEagle3, 1, AllReduceAuto}, {"none", AlgorithmNone, 1, AllReduceAuto},
		{"eagle3, tp=2", AlgorithmEagle3, 2, AllReduceAuto}, {"none, tp=2", AlgorithmNone, 2, AllReduceAuto},
		{"eagle3, tp=2, NCCL", AlgorithmEagle3, 2, AllReduceNCCL}, {"eagle3, tp=2, host", AlgorithmEagle3, 2, AllReduceHost},
		{"eagle3, tp=4", AlgorithmEagle3, 4, AllReduceAuto},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n, err := cuda.Count(); err != nil || n < c.ranks {
				t.Skipf("NOT RUN: it wants %d GPUs, and there are %d", c.ranks, n)
			}
			e := start(t, Config{Device: DeviceCUDA, Algorithm: c.algorithm, MaxTotalTokens: 1 << 15, TPSize: c.ranks, AllReduce: c.sums})
			var mu sync.Mutex
			same, tokens, all := 0, 0, golden.Cases()
			verifies, cycles := 0, 0
			var wg sync.WaitGroup
			for _, g := range all {
				wg.Go(func() {
					got := complete(t, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: len(g.Output), Logprobs: scheduler.NoLogprobs})
					if got.Finish != scheduler.FinishLength {
						t.Errorf("%q ended with %q, %v", g.Text, got.Finish, got.Err)
					}
					mu.Lock()
					defer mu.Unlock()
					verifies, cycles = verifies+got.Usage.Verifies, cycles+len(g.Cycles)
					for i, id := range got.TokenIDs {
						if id != g.Output[i] {
							break
						}
						same++
					}
					tokens += len(g.Output)
					switch {
					case slices.Equal(got.TokenIDs, g.Output):
					case g.Gap > roundingGap:
						t.Errorf("%q goes another way, and its least gap is %.3g", g.Text, g.Gap)
					default:
						t.Logf("%q goes another way; its least gap is %.2g", g.Text, g.Gap)
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d tokens before the first difference; %d verifies, the reference has %d cycles", same, tokens, verifies, cycles)
			if c.algorithm == AlgorithmEagle3 && verifies*10 > cycles*12 {
				t.Errorf("%d verifies, the reference has %d cycles", verifies, cycles)
			}
			eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
		})
	}
}
