package scheduler

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/sampling"
)

// longest is a request that fills the context.
func longest(seed uint64, prompt, context int) *Request {
	ids := make([]int32, prompt)
	for i := range ids {
		ids[i] = int32((int(seed)*5 + i) % 26)
	}
	return &Request{PromptIDs: ids, MaxTokens: context - prompt, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1, Seed: seed}}
}

// A pool of 1.1 × one request serves four of them at once, each complete; the
// oldest is never retracted, and little is computed twice.
func TestPoolOfLittleMoreThanOneServesFour(t *testing.T) {
	const context = 200
	for _, pageSize := range []int{1, 4, 16} {
		for depth := range 4 {
			t.Run(fmt.Sprintf("page size %d, depth %d", pageSize, depth), func(t *testing.T) {
				w := newWorld(t, Config{MaxRunning: 4, ChunkSize: 16, MaxDepth: depth, ContextLength: context, Vocab: 26, Decoder: decoder}, context*11/10/pageSize+1, pageSize)
				var requests []*Request
				var streams []*Stream
				for i := range 4 {
					requests = append(requests, longest(uint64(i), 20, context))
					streams = append(streams, w.submit(requests[i]))
				}
				most := 0
				var oldest *Sequence
				for w.step() {
					most = max(most, len(w.s.running))
					if oldest != nil && !oldest.Finished() && w.s.running[0] != oldest {
						t.Fatal("the oldest running request was retracted")
					}
					if oldest = nil; len(w.s.running) > 0 {
						oldest = w.s.running[0]
					}
				}
				for i, s := range streams {
					checkAnswer(t, fmt.Sprintf("request %d", i), requests[i], read(t, s), false, context)
				}
				w.done()
				if most < 3 || w.s.Retractions() == 0 {
					t.Errorf("at most %d ran at once, with %d retractions", most, w.s.Retractions())
				}
				if w.rows > 2*4*context+w.s.Retractions()*context || w.s.Retractions() > 40 {
					t.Errorf("%d rows computed for %d tokens, with %d retractions", w.rows, 4*context, w.s.Retractions())
				}
			})
		}
	}
}

// A retracted request that is given up is gone at the next step.
func TestCancelRetracted(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 3, ChunkSize: 16, MaxDepth: 2, ContextLength: 100, Vocab: 26}, 28, 4)
	var streams []*Stream
	for i := range 3 {
		streams = append(streams, w.submit(longest(uint64(i), 10, 100)))
	}
	for w.s.Retractions() == 0 {
		if !w.step() {
			t.Fatal("nobody was retracted")
		}
	}
	pending := w.s.Pending()
	streams[2].Close()
	w.step()
	if w.over != 1 || w.s.Pending() >= pending {
		t.Errorf("%d given up, %d pending", w.over, w.s.Pending())
	}
	if got := read(t, streams[2]); got.Finish != FinishAbort || len(got.TokenIDs) == 0 {
		t.Errorf("ended with %q after %d tokens; want an abort after some", got.Finish, len(got.TokenIDs))
	}
	streams[0].Close()
	streams[1].Close()
	w.step()
	w.done()
}

// Draining lets retracted requests end too.
func TestDrainWithRetractions(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 3, ChunkSize: 16, ContextLength: 100, Vocab: 26, Decoder: decoder}, 28, 4)
	var streams []*Stream
	for i := range 3 {
		streams = append(streams, w.submit(longest(uint64(i), 10, 100)))
	}
	for w.s.Retractions() == 0 {
		w.step()
	}
	w.s.Drain()
	for !w.s.Idle() {
		if !w.step() {
			t.Fatal("there are requests, but no pass for them")
		}
	}
	for i, s := range streams {
		checkAnswer(t, fmt.Sprintf("request %d", i), longest(uint64(i), 10, 100), read(t, s), false, 100)
	}
	w.step()
	w.done()
}

// The second of two equal prompts finds the first's pages, all but the page of
// its last token; a text that goes on from an answer finds the answer's too.
func TestCachedTokens(t *testing.T) {
	for _, c := range []struct{ pageSize, same, next int }{{1, 19, 29}, {4, 16, 28}, {16, 16, 16}, {32, 0, 0}} {
		for depth := range 4 {
			w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 7, MaxDepth: depth, ContextLength: 100, Vocab: 26, Decoder: decoder}, 100, c.pageSize)
			ask := func(r *Request) Event {
				s := w.submit(r)
				for w.step() {
				}
				w.done()
				got := read(t, s)
				checkAnswer(t, "request", r, got, false, 100)
				return got
			}
			r := longest(3, 20, 30)
			first := ask(r)
			second := ask(r)
			r = &Request{PromptIDs: slices.Concat(r.PromptIDs, second.TokenIDs, []int32{1}), MaxTokens: 3, Logprobs: NoLogprobs}
			third := ask(r)
			if a, b, d := first.Usage.CachedTokens, second.Usage.CachedTokens, third.Usage.CachedTokens; a != 0 || b != c.same || d != c.next {
				t.Errorf("page size %d, depth %d: %d, %d and %d tokens found, want 0, %d and %d", c.pageSize, depth, a, b, d, c.same, c.next)
			}
		}
	}
}

// Of pages that lack draft entries so many are computed again that a request
// has its window of them, and only once; those that others hold are taken.
func TestHitsAreShortened(t *testing.T) {
	for _, c := range []struct {
		name          string
		window, more  int  // tokens after the shared 40
		drafts, plain bool // while the first request ran; now
		held          int  // tokens that another request holds
		first, second int  // cached tokens
	}{
		{name: "a window of 8", window: 8, more: 1, first: 32, second: 40},
		{name: "page by page", window: 10, more: 1, first: 28, second: 40},
		{name: "all", window: 100, more: 1, first: 0, second: 40},
		{name: "no window", more: 1, first: 40, second: 40},
		{name: "new tokens are enough", window: 8, more: 9, first: 40, second: 48},
		{name: "new tokens are a part", window: 16, more: 9, first: 32, second: 48},
		{name: "nothing is missing", window: 8, more: 1, drafts: true, first: 40, second: 40},
		{name: "plain decoding", window: 8, more: 1, plain: true, first: 40, second: 40},
		{name: "some are held", window: 16, more: 1, held: 36, first: 36, second: 40},
		{name: "all are held", window: 16, more: 1, held: 40, first: 40, second: 40},
	} {
		w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 64, MaxDepth: 3, ContextLength: 100, Vocab: 26, Decoder: decoder, DraftWindow: c.window}, 100, 4)
		text := longest(3, 60, 61).PromptIDs
		ask := func(ids []int32) int {
			r := &Request{PromptIDs: ids, MaxTokens: 1, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1}}
			s := w.submit(r)
			for !closed(s) && w.step() {
			}
			got := read(t, s)
			checkAnswer(t, c.name, r, got, false, 100)
			return got.Usage.CachedTokens
		}
		w.idle = 1
		if c.drafts {
			w.idle = 0
		}
		ask(text[:41])
		var holder *Stream
		if c.held > 0 {
			holder = w.submit(&Request{PromptIDs: text[:c.held+1], MaxTokens: 50, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1}})
			w.step()
		}
		w.s.Speculates(!c.plain)
		if w.idle = 0; c.plain {
			w.idle = 1
		}
		if first, second := ask(text[:40+c.more]), ask(text[:40+c.more]); first != c.first || second != c.second {
			t.Errorf("%s: %d tokens are found and then %d, want %d and %d", c.name, first, second, c.first, c.second)
		}
		if holder != nil {
			holder.Close()
			w.step()
		}
		w.done()
		if want := (40 + c.more - 1) / 4; c.held == 0 && w.pool.Cached() != want {
			t.Errorf("%s: %d pages are cached, want %d", c.name, w.pool.Cached(), want)
		}
	}
}

// A burst of requests with one prompt computes it once.
func TestBurstComputesItsPromptOnce(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 16, ChunkSize: 32, ContextLength: 120, Vocab: 26, Decoder: decoder}, 400, 4)
	for range 16 {
		w.submit(longest(1, 100, 102))
	}
	for w.step() {
	}
	if w.rows > 100+16*(4+2) {
		t.Errorf("%d rows for 16 times the same 100 tokens", w.rows)
	}
}

// Requests whose prompts are cached go first, but nobody waits for ever: not
// one with another prompt in an endless flood of them.
func TestFloodOvertakesAtMostSoOften(t *testing.T) {
	cfg := Config{MaxRunning: 1, ChunkSize: 64, ContextLength: 60, Vocab: 26}
	w := newWorld(t, cfg, 60, 4)
	w.submit(longest(1, 40, 41))
	for w.step() {
	}
	flood := []*Stream{w.submit(longest(1, 40, 41)), w.submit(longest(1, 40, 41))}
	odd := w.submit(longest(2, 40, 41))
	flood = append(flood, w.submit(longest(1, 40, 41)))
	overtaken := 0
	for w.step() {
		for len(flood) < 100 && w.s.Pending() < 20 {
			flood = append(flood, w.submit(longest(1, 40, 41)))
		}
		if odd != nil && closed(odd) {
			break
		}
		overtaken++
	}
	if !closed(odd) || overtaken <= 2 || overtaken > maxOvertaken+2 {
		t.Errorf("the odd one waited for %d others (ended: %v), want a few, at most %d", overtaken, closed(odd), maxOvertaken+2)
	}
	// Without anything cached it is first come first served.
	w = newWorld(t, cfg, 60, 4)
	var streams []*Stream
	for i := range 10 {
		streams = append(streams, w.submit(longest(uint64(i), 40, 41)))
	}
	for i := range streams {
		w.step()
		if !closed(streams[i]) || i+1 < len(streams) && closed(streams[i+1]) {
			t.Fatalf("request %d is not the %d-th to end", i, i)
		}
	}
}

func closed(s *Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Where there are no pages for a draft there is a shorter one or none, rather
// than a retraction.
func TestDraftsGiveWay(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 16, MaxDepth: 4, ContextLength: 20, Vocab: 26, Decoder: decoder}, 40, 1)
	r := longest(1, 10, 20)
	a, b := w.submit(r), w.submit(longest(2, 10, 20))
	for w.step() {
		for _, q := range w.s.running {
			if len(q.Draft) > 0 && len(q.Tokens)+len(q.Draft) > q.room || len(q.Tokens)+len(q.Draft) >= q.limit {
				t.Fatalf("a draft of %d after %d tokens, with room for %d and a limit of %d", len(q.Draft), len(q.Tokens), q.room, q.limit)
			}
		}
	}
	checkAnswer(t, "a", r, read(t, a), false, 20)
	read(t, b)
	q := &Sequence{Request: &Request{}, Tokens: make([]int32, 10), limit: 20, room: 12}
	for _, c := range []struct{ room, want int }{{0, 0}, {10, 0}, {12, 2}, {19, 9}, {40, 9}} {
		if q.room = c.room; q.Room() != c.want {
			t.Errorf("pages for %d positions: room for a draft of %d, want %d", c.room, q.Room(), c.want)
		}
	}
}

// A text that failed leaves nothing for others to find.
func TestFailedTextIsNotCached(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 16, ContextLength: 60, Vocab: 26}, 60, 4)
	r := longest(666, 40, 50)
	s := w.submit(r)
	for w.step() {
	}
	if got := read(t, s); got.Err == nil {
		t.Fatalf("ended with %+v, want an error", got)
	}
	w.done()
	if w.pool.Free() != w.pool.Total() {
		t.Errorf("%d pages are cached", w.pool.Cached())
	}
}

// The engine's own probes leave the cache as it is.
func TestProbesAreNotCached(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 16, MaxDepth: 3, ContextLength: 60, Vocab: 26}, 60, 1)
	r := longest(1, 1, 6)
	r.Probe = true
	w.submit(r)
	for w.step() {
	}
	w.done()
	if w.pool.Cached() != 0 {
		t.Errorf("%d pages are cached", w.pool.Cached())
	}
}

// Pages are marked as drafted when all their positions have draft entries that
// the head may look at.
func TestSetDrafted(t *testing.T) {
	for _, c := range []struct {
		ranges [][2]int // one after the other
		want   string   // by page of 4
	}{
		{[][2]int{{0, 5}, {0, 8}, {0, 9}}, "yynn"},
		{[][2]int{{0, 5}, {7, 12}}, "ynyn"},
		{[][2]int{{7, 12}}, "nnyn"},
		{[][2]int{{0, 0}, {8, 16}}, "nnyy"},
		{[][2]int{{0, 3}}, "nnnn"},
	} {
		pool := kvcache.NewPool(4, 4)
		s := New(Config{ContextLength: 16}, pool)
		q := &Sequence{Request: &Request{Probe: true}, pageSize: 4}
		q.Table, _ = pool.Alloc(nil, 4)
		for _, r := range c.ranges {
			q.SetDrafted(r[0], r[1])
			s.store(q)
		}
		got := ""
		for _, page := range q.Table {
			if pool.Drafted(page) {
				got += "y"
			} else {
				got += "n"
			}
		}
		if got != c.want {
			t.Errorf("%v: %s, want %s", c.ranges, got, c.want)
		}
	}
}

// The steady decode step allocates nothing.
func TestNoAllocation(t *testing.T) {
	for _, pageSize := range []int{1, 16} {
		w := newWorld(t, Config{MaxRunning: 8, ChunkSize: 32, MaxDepth: 3, ContextLength: 3000, Vocab: 26, EOS: []int32{25}}, 8*3000/pageSize, pageSize)
		for i := range 8 {
			r := longest(uint64(i), 20, 3000)
			r.IgnoreEOS = true
			w.submit(r)
		}
		step := func() {
			b := w.s.Plan(nil)
			for _, s := range b.Sequences {
				if s.Logit < 0 {
					s.Advance()
				} else if _, err := s.Verify(w); err != nil {
					t.Fatal(err)
				}
				s.Emit()
				for i := range min(3, s.Room()) {
					s.Draft = append(s.Draft, next(s, len(s.Tokens)+i))
				}
				s.SetDrafted(0, s.Computed)
			}
			w.s.Reap()
		}
		for range 300 { // the prompts, and the streams' buffers: nobody reads them
			step()
		}
		if n := testing.AllocsPerRun(200, step); n != 0 {
			t.Errorf("page size %d: %v allocations in a step", pageSize, n)
		}
	}
}

// Reading takes a copy: what comes later does not change it.
func TestEventsAreTheReadersOwn(t *testing.T) {
	s := NewStream(func() {})
	s.publish(&Event{TokenIDs: []int32{1, 2}, Logprobs: []TokenLogprob{{ID: 1}, {ID: 2}}}, []byte("ab"))
	first, _ := s.Next(t.Context())
	s.publish(&Event{TokenIDs: []int32{3}, Logprobs: []TokenLogprob{{ID: 3}}}, []byte("c"))
	s.publish(&Event{TokenIDs: []int32{4}, Finish: FinishStop}, []byte("d"))
	second, _ := s.Next(t.Context())
	if !slices.Equal(first.TokenIDs, []int32{1, 2}) || first.Text != "ab" || first.Logprobs[0].ID != 1 || first.Finish != "" {
		t.Errorf("first %+v", first)
	}
	if !slices.Equal(second.TokenIDs, []int32{3, 4}) || second.Text != "cd" || len(second.Logprobs) != 1 || second.Finish != FinishStop {
		t.Errorf("second %+v", second)
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, waiting := range []int{0, 500} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			w := newWorld(nil, Config{MaxRunning: 32, ChunkSize: 256, MaxDepth: 3, ContextLength: 4096, Vocab: 26}, 33*4096/16, 16)
			for i := range 32 + waiting {
				if _, err := w.s.Submit(longest(uint64(i), 500, 4096)); err != nil {
					b.Fatal(err)
				}
			}
			for range 100 {
				for _, s := range w.s.Plan(nil).Sequences {
					if s.Logit < 0 {
						s.Advance()
					} else if _, err := s.Verify(w); err != nil {
						b.Fatal(err)
					}
				}
				w.s.Reap()
			}
			for b.Loop() {
				w.s.Plan(nil)
				w.s.Reap()
			}
		})
	}
}

// Retractions have requests be admitted with more room ahead, so that a queue of
// long answers does not go on being admitted and retracted.
func TestRetractionsTeachHeadroom(t *testing.T) {
	const context = 200
	w := newWorld(t, Config{MaxRunning: 8, ChunkSize: 16, ContextLength: context, Vocab: 26, Decoder: decoder}, 5*context/2, 1)
	var streams []*Stream
	var requests []*Request
	for i := range 32 {
		requests = append(requests, longest(uint64(i), 20, context))
		streams = append(streams, w.submit(requests[i]))
	}
	for w.step() {
	}
	for i, s := range streams {
		checkAnswer(t, fmt.Sprintf("request %d", i), requests[i], read(t, s), false, context)
	}
	w.done()
	if n := w.s.Retractions(); n == 0 || n > 16 { // with the least headroom throughout there are 38
		t.Errorf("%d retractions of 32 requests, with %d rows computed", n, w.rows)
	}
}
