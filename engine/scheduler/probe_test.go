package scheduler

import (
	"errors"
	"testing"
)

// A probe tells how a full engine is: it waits for no other request's slot,
// place in the queue, prompt or pages.
func TestProbeOfAFullEngine(t *testing.T) {
	for _, c := range []struct {
		name          string
		running       int
		pages, prompt int
		before        int // passes before the probe comes
	}{
		{"slots", 2, 400, 1, 5},
		{"prompts under way", 2, 400, 90, 2},
		{"retractions", 4, 105, 1, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{MaxRunning: c.running, MaxQueued: 6, ChunkSize: 4, MaxDepth: 3, ContextLength: 100, Vocab: 26}, c.pages, 1)
			var streams []*Stream
			for i := range 6 {
				streams = append(streams, w.submit(longest(uint64(i), c.prompt, 100)))
			}
			for range c.before {
				w.step()
			}
			for len(streams) < 20 { // until the queue is full
				s, err := w.s.Submit(longest(uint64(len(streams)), c.prompt, 100))
				if errors.Is(err, ErrQueueFull) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			for range 3 { // also one after the other
				r := longest(7, 1, 6)
				r.Probe = true
				probe := w.submit(r)
				passes := 0
				for ; !probe.closed; passes++ {
					w.step()
				}
				if got := read(t, probe); got.Finish != FinishLength || len(got.TokenIDs) != 5 {
					t.Fatalf("the probe ended with %+v", got)
				}
				if passes > 5+c.running {
					t.Errorf("the probe took %d passes", passes)
				}
			}
			for w.step() {
			}
			for _, s := range streams {
				if got := read(t, s); got.Finish != FinishLength {
					t.Errorf("a request ended with %+v", got)
				}
			}
			w.done()
		})
	}
}
