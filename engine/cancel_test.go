package engine

import (
	"sync/atomic"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// A request that is given up has no slot and no pages after two steps, also where the
// next pass is queued already; the others go on.
func TestGivenUpWithinTwoSteps(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	for name, c := range map[string]Config{
		"plain":        {Algorithm: AlgorithmNone},
		"queued ahead": {Algorithm: AlgorithmNone, AsyncScheduling: true},
		"head":         {Algorithm: AlgorithmEagle3, DraftModel: m.head},
		"trees":        {Algorithm: AlgorithmDraft, DraftModel: m.small, TopK: 3, NumDraftTokens: 8},
	} {
		t.Run(name, func(t *testing.T) {
			c.Model, c.MaxRunningRequests, c.PageSize = m.target, 4, 1
			e := newEngine(t, c)
			taken := &atomic.Int64{}
			e.wrap = func(d compute.Device) compute.Device {
				if !c.AsyncScheduling {
					return d
				}
				drawer := newDrawer(d)
				drawer.taken = taken
				return drawer
			}
			if err := e.load(t.Context(), func() {}); err != nil {
				t.Fatal(err)
			}
			defer e.ranks.Close()
			var streams []*scheduler.Stream
			for i := range 4 {
				s, err := e.scheduler.Submit(&scheduler.Request{PromptIDs: []int32{3, 4, int32(5 + i)}, MaxTokens: 200, IgnoreEOS: true,
					Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}})
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			step := func() {
				if _, err := e.step(); err != nil {
					t.Fatal(err)
				}
				if err := e.scheduler.Check(); err != nil {
					t.Fatal(err)
				}
			}
			for range 6 {
				step()
			}
			for left := 3; left >= 0; left-- {
				held := e.pool.Used()
				streams[left].Close()
				step()
				step()
				if n := len(e.scheduler.Running()); n != left || e.pool.Used() >= held {
					t.Errorf("two steps after a request was given up %d run, with %d pages, which were %d: want %d", n, e.pool.Used(), held, left)
				}
				if ev := drain(t, streams[left]); ev.Finish != scheduler.FinishAbort {
					t.Errorf("it ended with %q, %v", ev.Finish, ev.Err)
				}
			}
			if e.pool.Used() != 0 {
				t.Errorf("%d pages are held by nobody", e.pool.Used())
			}
			if c.AsyncScheduling && taken.Load() == 0 {
				t.Error("no pass was queued before its tokens were known")
			}
		})
	}
}
