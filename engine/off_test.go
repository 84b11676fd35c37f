package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// A plain step of four requests, and the part of it that an engine without a
// draft does not do: keeping features, choosing, and taking note of the time.
func BenchmarkPlainStep(b *testing.B) {
	e := loaded(b, Config{Model: "builtin:gocode-7m", MaxRunningRequests: 4, Mode: speculation.ModeOff})
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

// BenchmarkOffArm compares the time of a plain step of an engine whose draft is
// off with one without a draft, and of two of these with each other: the engines
// take turns step by step, so that a machine that is slow for a while is so for
// all of them. Where an engine's memory lies makes a difference too: -count gives
// new ones.
func BenchmarkOffArm(b *testing.B) {
	for _, streams := range []int{1, 8, 32} {
		for _, ranks := range []int{1, 2} {
			b.Run(fmt.Sprintf("streams=%d/ranks=%d", streams, ranks), func(b *testing.B) {
				c := Config{Model: "builtin:gocode-7m", MaxRunningRequests: streams, Mode: speculation.ModeOff, TPSize: ranks}
				without := c
				without.Algorithm = AlgorithmNone
				var steps [3]func() time.Duration
				for _, i := range rand.Perm(len(steps)) { // what is made first lies elsewhere
					steps[i] = plainSteps(b, []Config{c, without, without}[i], streams)
				}
				var took [3][]time.Duration
				for round := 0; b.Loop(); round++ {
					for i := range steps {
						k := (i + round) % len(steps)
						took[k] = append(took[k], steps[k]())
					}
				}
				median := func(k int) float64 {
					slices.Sort(took[k])
					return took[k][len(took[k])/2].Seconds()
				}
				b.ReportMetric(median(0)/median(1), "off/without")
				b.ReportMetric(median(2)/median(1), "without/without")
				b.ReportMetric(1e6*median(1), "µs/step")
			})
		}
	}
}

// plainSteps is an engine's next step of as many requests as streams, which all
// decode, and the time that it takes.
func plainSteps(b *testing.B, c Config, streams int) func() time.Duration {
	e := loaded(b, c)
	step := func() {
		if worked, err := e.step(); err != nil || !worked {
			b.Fatal(worked, err)
		}
	}
	const answer = 200
	left := 0
	return func() time.Duration {
		for ; left == 0; left = answer - 10 {
			for len(e.scheduler.Running()) > 0 {
				step()
			}
			for i := range streams {
				if _, err := e.scheduler.Submit(&scheduler.Request{PromptIDs: []int32{3, 4, 5, int32(6 + i)}, MaxTokens: answer, IgnoreEOS: true,
					Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}}); err != nil {
					b.Fatal(err)
				}
			}
			for range 5 {
				step()
			}
		}
		left--
		start := time.Now()
		step()
		return time.Since(start)
	}
}
