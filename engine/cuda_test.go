//go:build cuda && linux

package engine

import (
	"slices"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// The golden prompts on the GPU, all at once, with and without speculation: the
// reference's text, but for where rounding decides (its logits are of float32),
// and then a text of which speculation changes nothing but by rounding either.
func TestGoldenTextOnGPU(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	for _, algorithm := range []string{AlgorithmEagle3, AlgorithmNone} {
		t.Run(algorithm, func(t *testing.T) {
			e := start(t, Config{Device: DeviceCUDA, Algorithm: algorithm, MaxTotalTokens: 1 << 15})
			var mu sync.Mutex
			same, tokens, all := 0, 0, golden(t)
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
					if !slices.Equal(got.TokenIDs, g.Output) {
						t.Logf("%q goes another way", g.Text)
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d tokens before the first difference; %d verifies, the reference has %d cycles", same, tokens, verifies, cycles)
			if same*10 < tokens*8 {
				t.Errorf("%d of %d tokens are the reference's before the first difference: at least 80 %% must be", same, tokens)
			}
			if algorithm == AlgorithmEagle3 && verifies*10 > cycles*12 {
				t.Errorf("%d verifies, the reference has %d cycles", verifies, cycles)
			}
			eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
		})
	}
}
