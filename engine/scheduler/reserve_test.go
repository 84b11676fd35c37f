package scheduler

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/kvcache"
)

// allocated is the memory that f asks for, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// memory is what q keeps for its text.
func memory(q *Sequence) int {
	return 4*(cap(q.Tokens)+cap(q.Table)) + int(unsafe.Sizeof(kvcache.Key(0)))*cap(q.keys)
}

// A request that waits has no memory for an answer, however long that may become,
// and none of its own for its prompt's tokens.
func TestQueueKeepsPromptsOnly(t *testing.T) {
	const requests, context = 1000, 128 << 10
	for _, pageSize := range []int{1, 16} {
		w := newWorld(t, Config{MaxRunning: 1, MaxQueued: requests, ChunkSize: 4, ContextLength: context, Vocab: 26}, context/pageSize, pageSize)
		for _, prompt := range []int{1, 3000} {
			shared := longest(1, prompt, context)
			most := uint64(4<<10 + 8*prompt/pageSize) // the keys of its pages, and what a request always has
			if got := allocated(func() {
				for i := range requests / 2 {
					r := *shared
					r.Sampling.Seed = uint64(i)
					w.submit(&r)
				}
			}); got > requests/2*most {
				t.Errorf("page size %d: a waiting request of %d tokens asks for %d bytes, want %d at most", pageSize, prompt, got/(requests/2), most)
			}
		}
	}
}

// A running request has memory for what it generated and as much again, whatever
// its limit, and asks for it seldom. Retracted, it keeps it.
func TestMemoryGrowsWithTheText(t *testing.T) {
	const context = 40_000
	for _, c := range []struct {
		name                         string
		running, pages, page, prompt int
		trees, retracts              bool
	}{
		{name: "alone", running: 1, pages: context, page: 1, prompt: 1},
		{name: "a long prompt", running: 1, pages: 2500, page: 16, prompt: 20_000},
		{name: "trees", running: 2, pages: 6000, page: 16, prompt: 100, trees: true},
		{name: "few pages", running: 2, pages: 2500, page: 16, prompt: 100, retracts: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{MaxRunning: c.running, ChunkSize: 512, MaxDepth: 3, ContextLength: context, Vocab: 26}
			if c.trees {
				cfg.MaxDraft, cfg.TreeRoom = 8, 12
			}
			w := newWorld(t, cfg, c.pages, c.page)
			for i := range c.running {
				w.submit(longest(uint64(i), c.prompt, context))
			}
			grown, before, text := map[*Sequence]int{}, map[*Sequence]int{}, map[*Sequence]int{}
			for w.plainStep() {
				for _, q := range append(w.s.running, w.s.waiting...) {
					if n := cap(q.Tokens); n < min(q.room, q.limit)+1 && len(q.Table) > 0 {
						t.Fatalf("memory for %d tokens, with pages for %d", n, q.room)
					}
					text[q] = max(text[q], q.room, len(q.Tokens)) // so far
					most := text[q] + 1 + max(minReserve, text[q]+1-c.prompt)
					if n := cap(q.Tokens); n > most || n > q.limit+1 {
						t.Fatalf("memory for %d tokens, of a text that had pages for %d: want %d at most, of %d", n, text[q], most, q.limit)
					}
					if n := memory(q); n != before[q] {
						before[q] = n
						grown[q]++
					}
				}
			}
			w.done()
			if (w.s.Retractions() > 0) != c.retracts {
				t.Errorf("%d retractions", w.s.Retractions())
			}
			for q, n := range grown {
				if n > 8 { // 1,024 · 2⁷ tokens are more than the context
					t.Errorf("memory was asked for %d times by a text of %d tokens", n, len(q.Tokens))
				}
			}
			if len(grown) != c.running {
				t.Errorf("%d requests were seen", len(grown))
			}
		})
	}
}

// plainStep is step without looking at all entries, whose time is quadratic.
func (w *world) plainStep() bool {
	b := w.s.Plan(nil)
	if b == nil {
		return false
	}
	for _, s := range b.Sequences {
		if s.Logit < 0 {
			s.Advance()
		} else if _, err := s.Verify(w); err != nil {
			w.t.Fatal(err)
		}
		s.Emit()
		if s.Logit < 0 || s.Finished() {
			continue
		}
		if s.Asked = min(w.s.cfg.MaxDepth, s.Room()); w.s.cfg.TreeRoom > 0 {
			w.proposeTree(s)
		} else {
			for i := range s.Asked {
				s.Draft = append(s.Draft, next(s, len(s.Tokens)+i))
			}
		}
		s.SetDrafted(0, s.Computed)
	}
	w.s.Reap()
	return true
}
