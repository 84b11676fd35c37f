package engine

import (
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// A plain step of four requests, and the part of it that an engine without a
// draft does not do: keeping features, choosing, and taking note of the time.
func BenchmarkPlainStep(b *testing.B) {
	e := newEngine(b, Config{Model: "builtin:gocode-7m", MaxRunningRequests: 4, Mode: speculation.ModeOff})
	if err := e.load(b.Context(), func() {}); err != nil {
		b.Fatal(err)
	}
	defer e.ranks.Close()
	step := func() {
		if len(e.scheduler.Running()) == 0 {
			for range 4 {
				if _, err := e.scheduler.Submit(&scheduler.Request{PromptIDs: []int32{3, 4, 5, 6}, MaxTokens: 250, IgnoreEOS: true,
					Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		if _, err := e.step(); err != nil {
			b.Fatal(err)
		}
	}
	for range 20 {
		step()
	}
	b.Run("step", func(b *testing.B) {
		for range b.N {
			step()
		}
	})
	for len(e.drafts) < 4 { // as in the middle of a text
		step()
	}
	b.Run("more", func(b *testing.B) {
		for range b.N {
			start := time.Now()
			at := load(e.scheduler.Running())
			if err := e.draft(); err != nil {
				b.Fatal(err)
			}
			e.lapDraft(start)
			e.observe(e.batch, at, start)
		}
	})
}
