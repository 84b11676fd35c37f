package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// A text that is being decoded has a row in each pass while prompts are computed,
// which fill what is left of the chunk.
func TestPromptsHoldNoDecodeUp(t *testing.T) {
	const chunk, context = 16, 400
	w := newWorld(t, Config{MaxRunning: 4, ChunkSize: chunk, MaxDepth: 2, ContextLength: context, Vocab: 26, Decoder: decoder}, 2000, 4)
	var streams []*Stream
	var requests []*Request
	ask := func(prompt int) {
		requests = append(requests, longest(uint64(len(requests)), prompt, context))
		streams = append(streams, w.submit(requests[len(requests)-1]))
	}
	ask(3)
	ask(5)
	for range 4 {
		w.step()
	}
	ask(300)
	ask(203)
	for left := 300 + 203; left > 0; {
		decoding := slices.Clone(w.s.running[:2])
		before := []int{decoding[0].Generated(), decoding[1].Generated()}
		rows := w.rows
		w.step()
		for i, q := range decoding {
			rows++
			if n := q.Generated() - before[i]; n == 0 {
				t.Fatalf("with %d tokens of prompts to come a pass settled nothing of text %d", left, i)
			}
		}
		if n := w.rows - rows; n < min(chunk, left) || n > chunk+4*2+1 { // drafts, and a prompt that is done
			t.Fatalf("with %d tokens of prompts to come a pass had %d rows beside the two decodes", left, n)
		}
		left -= chunk
	}
	for w.step() {
	}
	for i, s := range streams {
		checkAnswer(t, fmt.Sprintf("request %d", i), requests[i], read(t, s), false, context)
	}
	w.done()
}

// Short prompts are computed together, as many as the chunk has rows for.
func TestShortPromptsShareAPass(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 8, ChunkSize: 20, ContextLength: 50, Vocab: 26}, 200, 4)
	for i := range 8 {
		w.submit(longest(uint64(i), 5, 50))
	}
	for pass, want := range []int{4, 8} {
		w.step()
		begun := 0
		for _, q := range w.s.running {
			if q.Generated() > 0 {
				begun++
			}
		}
		if begun != want {
			t.Errorf("after pass %d %d requests have a token, want %d", pass, begun, want)
		}
	}
}

// What was submitted before draining began is served, seen by the step loop or not.
func TestDrainServesWhatWaits(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 16, ContextLength: 30, Vocab: 26, Decoder: decoder}, 30, 1)
	var streams []*Stream
	for i := range 6 {
		if i == 3 {
			w.step()
		}
		streams = append(streams, w.submit(longest(uint64(i), 4, 30)))
	}
	w.s.Drain()
	for w.step() {
	}
	for i, s := range streams {
		checkAnswer(t, fmt.Sprintf("request %d", i), longest(uint64(i), 4, 30), read(t, s), false, 30)
	}
	w.done()
}

// A request that was retracted goes on before any other begins, be there room for
// one whose prompt is cached, and none yet for its own text.
func TestRetractedGoesOnFirst(t *testing.T) {
	const context = 100
	w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 64, ContextLength: context, Vocab: 26, Decoder: decoder}, 34, 4)
	var streams []*Stream
	requests := []*Request{longest(1, 60, context), longest(2, 5, context)}
	for range 6 {
		requests = append(requests, longest(1, 60, context))
	}
	for _, r := range requests {
		streams = append(streams, w.submit(r))
	}
	for w.s.Retractions() == 0 {
		w.step()
	}
	waited := 0
	for ; !slices.ContainsFunc(w.s.running, func(q *Sequence) bool { return q.Request == requests[1] }); waited++ {
		if slices.ContainsFunc(w.s.running, func(q *Sequence) bool { return q.Request != requests[0] }) {
			t.Fatal("a request that came later runs while the second one is retracted")
		}
		w.step()
	}
	if waited < 3 {
		t.Errorf("a retracted request waited for %d passes: the test does not test it", waited)
	}
	for w.step() {
	}
	for i, s := range streams {
		checkAnswer(t, fmt.Sprintf("request %d", i), requests[i], read(t, s), false, context)
	}
	w.done()
}

// A request's time is told in three parts: until it was admitted, from then to its
// first token, and from there to its last.
func TestUsageTellsTheTime(t *testing.T) {
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	q := &Sequence{Request: &Request{PromptIDs: []int32{1}}, Stream: NewStream(func() {}), Tokens: []int32{1, 2, 3}, limit: 3,
		Arrived: at(0), Admitted: at(1), FirstToken: at(3), LastToken: at(7)}
	q.finish(FinishLength)
	q.Emit()
	got := read(t, q.Stream).Usage
	if got.Queue != time.Second || got.Prefill != 2*time.Second || got.Decode != 4*time.Second {
		t.Errorf("%+v: want 1 s, 2 s and 4 s", got)
	}
}
