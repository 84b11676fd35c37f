//go:build cuda && linux

package engine

import (
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// roundingGap is the difference of two logits of gocode-7m that rounding
// activations to bfloat16 may turn round.
const roundingGap = 0.02

// goldenCases are the golden prompts with what follows them. Of a short run they are
// the first five, cut to 16 tokens: what comes after the cut is not compared.
func goldenCases() []golden.Case {
	all := slices.Clone(golden.Cases())
	if !testing.Short() {
		return all
	}
	const prompts, tokens = 5, 16
	all = all[:min(prompts, len(all))]
	for i := range all {
		all[i].Output = all[i].Output[:min(tokens, len(all[i].Output))]
		n := 1 // the first token is the prompt's
		for k, c := range all[i].Cycles {
			if n += c.Accepted + 1; n >= len(all[i].Output) {
				all[i].Cycles = all[i].Cycles[:k+1]
				break
			}
		}
	}
	return all
}

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
		tokens          int // of the KV pool; 0: enough for all
		async           bool
	}{
		{"eagle3", AlgorithmEagle3, 1, AllReduceAuto, 0, false}, {"none", AlgorithmNone, 1, AllReduceAuto, 0, false},
		{"none, async", AlgorithmNone, 1, AllReduceAuto, 0, true},
		{"eagle3, short of memory", AlgorithmEagle3, 1, AllReduceAuto, 512, false},
		{"eagle3, tp=2", AlgorithmEagle3, 2, AllReduceAuto, 0, false}, {"none, tp=2", AlgorithmNone, 2, AllReduceAuto, 0, false},
		{"eagle3, tp=2, NCCL", AlgorithmEagle3, 2, AllReduceNCCL, 0, false}, {"eagle3, tp=2, host", AlgorithmEagle3, 2, AllReduceHost, 0, false},
		{"eagle3, tp=4", AlgorithmEagle3, 4, AllReduceAuto, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n, err := cuda.Count(); err != nil || n < c.ranks {
				t.Skipf("NOT RUN: it wants %d GPUs, and there are %d", c.ranks, n)
			}
			if c.tokens > 0 && testing.Short() {
				t.Skip("NOT RUN: what a short run generates does not fill the pool")
			}
			cfg := Config{Device: DeviceCUDA, Algorithm: c.algorithm, MaxTotalTokens: 1 << 15, TPSize: c.ranks, AllReduce: c.sums, AsyncScheduling: c.async}
			if c.tokens > 0 { // requests are retracted, and go on where they were
				cfg.MaxTotalTokens, cfg.ContextLength = c.tokens, c.tokens
			}
			e := start(t, cfg)
			var mu sync.Mutex
			same, tokens, all := 0, 0, goldenCases()
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
			if c.algorithm == AlgorithmEagle3 && c.tokens == 0 && verifies*10 > cycles*12 {
				t.Errorf("%d verifies, the reference has %d cycles", verifies, cycles)
			}
			if n := testutil.ToFloat64(e.metrics.Retractions); (n > 0) != (c.tokens > 0) {
				t.Errorf("%v requests were retracted", n)
			}
			eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
		})
	}
}
