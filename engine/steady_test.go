package engine

import (
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// A step of requests that go on allocates nothing, whatever drafts.
func TestSteadyStepAllocatesNothing(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	for name, c := range map[string]Config{
		"plain":       {Algorithm: AlgorithmNone},
		"head":        {Algorithm: AlgorithmEagle3, DraftModel: m.head},
		"auto":        {Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: speculation.ModeAuto},
		"trees":       {Algorithm: AlgorithmEagle3, DraftModel: m.head, TopK: 4, NumDraftTokens: 12},
		"draft model": {Algorithm: AlgorithmDraft, DraftModel: m.small},
		"n-grams":     {Algorithm: AlgorithmNGram},
	} {
		t.Run(name, func(t *testing.T) {
			c.Model, c.MaxRunningRequests, c.TPSize = m.target, 4, 2
			e := newEngine(t, c)
			if err := e.load(t.Context(), func() {}); err != nil {
				t.Fatal(err)
			}
			defer e.ranks.Close()
			for i := range 4 {
				if _, err := e.scheduler.Submit(&scheduler.Request{PromptIDs: []int32{3, 4, 5, int32(6 + i)}, MaxTokens: 240, IgnoreEOS: true,
					Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1, Temperature: float64(i % 2), Seed: uint64(i)}}); err != nil {
					t.Fatal(err)
				}
			}
			step := func() {
				if worked, err := e.step(); err != nil || !worked {
					t.Fatalf("%v, %v", worked, err)
				}
			}
			for range 12 {
				step()
			}
			if c.Mode == speculation.ModeAuto { // what either arm needs is there before it takes its choice
				for _, mode := range []speculation.Mode{speculation.ModeFixed, speculation.ModeOff, speculation.ModeFixed, speculation.ModeAuto} {
					if err := e.SetSpeculation(mode, 0, 3); err != nil {
						t.Fatal(err)
					}
					steps := 4
					if mode == speculation.ModeOff {
						steps = speculation.KeptWindow + 4 // the most that the head has to catch up with
					}
					for range steps {
						step()
					}
				}
			}
			if n := testing.AllocsPerRun(20, step); n != 0 {
				t.Errorf("%v allocations for each step, want 0", n)
			}
		})
	}
}
