package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/sampling"
)

// letters decodes token i as the i-th letter.
type letters struct{}

func (letters) Push(text []byte, id int32) []byte { return append(text, byte('a'+id%26)) }
func (letters) Flush(text []byte) []byte          { return text }

// world is a scheduler with a model that continues each text by a rule of its
// position, and a drafter that is right about it with some luck. Both keep in
// their caches what the text was up to each position, and each row checks all
// that it would attend to.
type world struct {
	t             *testing.T
	s             *Scheduler
	pool          *kvcache.Pool
	rng           *rand.Rand
	luck          float64 // chance that a draft token is the target's
	idle          float64 // chance that the drafter is not called after a pass
	over          int     // requests given up, as Plan reports them
	rows          int     // computed by the target
	moves         int     // entries of trees that were moved
	target, draft []uint64
}

func newWorld(t *testing.T, cfg Config, pages, pageSize int) *world {
	cfg.Now = time.Now
	if cfg.MaxDraft == 0 {
		cfg.MaxDraft = cfg.MaxDepth // chains
	}
	if cfg.MaxQueued == 0 {
		cfg.MaxQueued = 1000
	}
	w := &world{
		t: t, pool: kvcache.NewPool(pages, pageSize), rng: rand.New(rand.NewPCG(1, 2)), luck: 0.6,
		target: make([]uint64, pages*pageSize), draft: make([]uint64, pages*pageSize),
	}
	w.s = New(cfg, w.pool)
	return w
}

// next is the target's token at a position of a text.
func next(s *Sequence, position int) int32 {
	return int32((int(s.Sampling.Seed)*7 + position*position*3 + position) % 26)
}

// Sample implements Sampler.
func (w *world) Sample(s *Sequence, i int) (int32, error) {
	if s.Sampling.Seed == 666 {
		return 0, sampling.ErrNotFinite
	}
	return next(s, len(s.Tokens)), nil
}

// texts[i] stands for the tokens up to i.
func texts(tokens ...int32) []uint64 {
	sums := make([]uint64, len(tokens))
	sum := uint64(1)
	for i, id := range tokens {
		sum = (sum ^ uint64(id+1)) * 0x100000001b3
		sums[i] = sum
	}
	return sums
}

func (w *world) slot(table []int32, position int) int32 {
	size := w.pool.PageSize()
	return table[position/size]*int32(size) + int32(position%size)
}

// compute is the target's pass.
func (w *world) compute(b *Batch) {
	w.t.Helper()
	cfg := w.s.cfg
	if b.Rows.Len() > cfg.MaxRows() || len(b.Want) > cfg.MaxLogits() || len(b.Sequences) > cfg.Slots() {
		w.t.Fatalf("a pass of %d rows, %d wanted, %d sequences", b.Rows.Len(), len(b.Want), len(b.Sequences))
	}
	w.rows += b.Rows.Len()
	slots := map[int32]bool{}
	for i, slot := range b.Rows.Slots {
		if slots[slot] {
			w.t.Fatalf("two rows write slot %d", slot)
		}
		slots[slot] = true
		p, position := int(b.Rows.Positions[i]), int(b.Rows.Positions[i])
		if b.Rows.Trees() && b.Rows.Masks[i] != 0 {
			mask, base := b.Rows.Masks[i], int(b.Rows.Bases[i])
			p, position = base+bits.Len64(mask)-1, base+bits.OnesCount64(mask)-1
		}
		if slot != w.slot(b.Rows.Tables[b.Rows.Seqs[i]], p) || position != int(b.Rows.Positions[i]) {
			w.t.Fatalf("row %d of position %d writes slot %d", i, b.Rows.Positions[i], slot)
		}
	}
	for _, s := range b.Sequences {
		all := texts(slices.Concat(s.Tokens, s.Draft)...)
		end := s.Computed + s.Count
		if s.Logit >= 0 && len(s.Parents) > 0 {
			w.computeTree(b, s)
		} else if s.Logit >= 0 {
			end += len(s.Draft)
		}
		for p := s.Computed; p < end; p++ {
			if b.Rows.Tokens[s.Row+p-s.Computed] != slices.Concat(s.Tokens, s.Draft)[p] {
				w.t.Fatalf("the row of position %d has another token", p)
			}
			w.target[w.slot(s.Table, p)] = all[p]
		}
	}
	for _, s := range b.Sequences {
		all := texts(s.Tokens...)
		for p := range s.Computed + s.Count {
			if w.target[w.slot(s.Table, p)] != all[p] {
				w.t.Fatalf("position %d of a text has another text's entry", p)
			}
		}
	}
}

// propose is the drafter's part for a sequence: true entries for the rows of
// the pass, then a proposal whose entries are not to be relied on.
func (w *world) propose(s *Sequence, from int) {
	w.t.Helper()
	all := texts(s.Tokens...)
	start, first := s.DraftStart, s.DraftEnd
	if first < from && w.rng.IntN(2) == 0 { // what plain decoding left out is lost
		start, first = from, from
	}
	for p := first; p < s.Computed; p++ {
		w.draft[w.slot(s.Table, p)] = all[p+1]
	}
	s.SetDrafted(start, s.Computed)
	for p := s.DraftStart; p < s.DraftEnd; p++ {
		if w.draft[w.slot(s.Table, p)] != all[p+1] {
			w.t.Fatalf("position %d of [%d, %d) has another text's draft entry", p, s.DraftStart, s.DraftEnd)
		}
	}
	if s.Logit < 0 || s.Finished() {
		return
	}
	s.Asked = min(w.s.cfg.MaxDepth, s.Room())
	if w.s.cfg.TreeRoom > 0 {
		w.proposeTree(s)
		return
	}
	for i := range s.Asked {
		id := next(s, len(s.Tokens)+i)
		if w.rng.Float64() > w.luck {
			id = (id + 1) % 26
		}
		s.Draft = append(s.Draft, id)
		w.draft[w.slot(s.Table, s.Computed+i)] = 0
	}
}

// step plans a pass, checks it, and settles it; false when there was none.
func (w *world) step() bool {
	w.t.Helper()
	b := w.s.Plan(func(*Sequence) { w.over++ })
	w.check()
	if b == nil {
		return false
	}
	w.compute(b)
	drafts := w.s.cfg.MaxDepth > 0 && w.rng.Float64() >= w.idle
	for _, s := range b.Sequences {
		from := s.Computed
		if s.Logit < 0 {
			s.Advance()
		} else if _, err := s.Verify(w); err != nil {
			s.Fail(err)
		} else {
			w.move(s)
		}
		s.Emit()
		if !s.Finished() && s.Computed >= len(s.Tokens) {
			w.t.Fatalf("computed %d of %d tokens", s.Computed, len(s.Tokens))
		}
		if drafts && (!s.Finished() || s.Finish() != "" && s.Undrafted(from)) {
			w.propose(s, from)
		}
	}
	w.s.Reap()
	w.check()
	return true
}

func (w *world) check() {
	w.t.Helper()
	if err := w.s.Check(); err != nil {
		w.t.Fatal(err)
	}
}

// done checks that nothing is left.
func (w *world) done() {
	w.t.Helper()
	w.check()
	if w.pool.Used() != 0 || !w.s.Idle() {
		w.t.Fatalf("%d pages held, idle %v", w.pool.Used(), w.s.Idle())
	}
}

func (w *world) submit(r *Request) *Stream {
	w.t.Helper()
	if r.Sampling.TopP == 0 {
		r.Sampling.TopP = 1
	}
	stream, err := w.s.Submit(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return stream
}

// read is everything that a finished stream says, as one event.
func read(t *testing.T, s *Stream) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all Event
	for all.Finish == "" && all.Err == nil {
		ev, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("the stream does not end: %v", err)
		}
		all.TokenIDs = append(all.TokenIDs, ev.TokenIDs...)
		all.Text += ev.Text
		all.Finish, all.Err, all.Usage = ev.Finish, ev.Err, ev.Usage
	}
	return all
}

func decoder([]int32) Decoder { return letters{} }

// expected is the text of a request by the rule alone.
func expected(r *Request, limit int) (ids []int32, text string, why FinishReason) {
	s := &Sequence{Request: r}
	for p := len(r.PromptIDs); ; p++ {
		id := next(s, p)
		ids = append(ids, id)
		early := len(ids) < r.MinTokens
		if !early && slices.Contains(r.StopIDs, id) {
			return ids, text, FinishStop
		}
		text += string(letters{}.Push(nil, id))
		if !early {
			cut := -1
			for _, stop := range r.Stop {
				// Only a stop string that ends with this token is new.
				if i := strings.Index(text, stop); i >= 0 && i+len(stop) > max(0, r.MinTokens-1) && (cut < 0 || i < cut) {
					cut = i
				}
			}
			if cut >= 0 {
				return ids, text[:cut], FinishStop
			}
		}
		if len(ids) >= r.MaxTokens || p+1 >= limit {
			return ids, text, FinishLength
		}
	}
}

// arrivalSeeds is how many schedules TestRandomArrivals tries: 150, and with
// OUTRIDER_TEST_SEEDS 15 times that.
func arrivalSeeds(t *testing.T) uint64 {
	s := os.Getenv("OUTRIDER_TEST_SEEDS")
	if s == "" {
		return 150
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return 15 * n
}

// Whatever arrives, is given up or fails, in pools of any size, with shared
// beginnings and drafts of any quality: every request ends with the text that
// the rule gives, nobody sees another text's entries, and no page is lost.
func TestRandomArrivals(t *testing.T) {
	retractions, cached, moves := 0, 0, 0
	for seed := range arrivalSeeds(t) {
		rng := rand.New(rand.NewPCG(seed, 9))
		cfg := Config{MaxRunning: 1 + rng.IntN(8), ChunkSize: 1 + rng.IntN(20), MaxDepth: rng.IntN(5), ContextLength: 120, Vocab: 26, Decoder: decoder, DraftWindow: rng.IntN(30)}
		if cfg.MaxDepth > 0 && seed%2 == 0 {
			cfg.MaxDraft, cfg.TreeRoom = 1+rng.IntN(12), 12+rng.IntN(10)
		}
		pageSize := 1 + rng.IntN(9)
		one := (cfg.ContextLength + pageSize - 1) / pageSize
		w := newWorld(t, cfg, one+rng.IntN(one), pageSize)
		w.rng = rng
		if rng.IntN(3) == 0 {
			w.idle = 0.3
		}
		type open struct {
			r         *Request
			s         *Stream
			cancelled bool
		}
		var all []*open
		for range 300 {
			if rng.IntN(3) == 0 && len(all) < 60 {
				r := randomRequest(rng)
				if len(all) > 0 && rng.IntN(3) == 0 { // goes on from another text
					before := all[rng.IntN(len(all))].r
					ids, _, _ := expected(before, cfg.ContextLength)
					r.PromptIDs = slices.Concat(before.PromptIDs, ids[:rng.IntN(len(ids)+1)], r.PromptIDs[:1])
					r.PromptIDs = r.PromptIDs[:min(len(r.PromptIDs), cfg.ContextLength-r.MaxTokens)]
				}
				if rng.IntN(8) == 0 { // the engine's own
					r.Probe, r.PromptIDs, r.MaxTokens = true, r.PromptIDs[:1], min(r.MaxTokens, 6)
				}
				all = append(all, &open{r: r, s: w.submit(r)})
			}
			if rng.IntN(10) == 0 && len(all) > 0 {
				o := all[rng.IntN(len(all))]
				o.cancelled = true
				o.s.Close()
			}
			w.s.Speculates(rng.IntN(4) > 0)
			w.step()
		}
		for i := 0; w.step(); i++ {
			if i > 100000 {
				t.Fatalf("seed %d: no end", seed)
			}
		}
		for i, o := range all {
			got := read(t, o.s)
			checkAnswer(t, fmt.Sprintf("seed %d, request %d", seed, i), o.r, got, o.cancelled, cfg.ContextLength)
			cached += got.Usage.CachedTokens
		}
		w.done()
		retractions += w.s.Retractions()
		moves += w.moves
	}
	if arrivalSeeds(t) >= 150 && (retractions < 100 || cached < 1000 || moves < 1000) {
		t.Errorf("only %d retractions, %d cached tokens and %d moved entries: the test does not test them", retractions, cached, moves)
	}
}

func randomRequest(rng *rand.Rand) *Request {
	r := &Request{PromptIDs: make([]int32, 1+rng.IntN(25)), MaxTokens: 1 + rng.IntN(90), Logprobs: NoLogprobs,
		Sampling: sampling.Params{TopP: 1, Seed: rng.Uint64() % 500}}
	for i := range r.PromptIDs {
		r.PromptIDs[i] = int32(i % 7)
		if rng.IntN(12) == 0 {
			r.PromptIDs[i] = rng.Int32N(26)
		}
	}
	if rng.IntN(3) == 0 {
		r.StopIDs = []int32{rng.Int32N(26)}
	}
	if rng.IntN(20) == 0 {
		r.Sampling.Seed = 666 // the model computes no numbers for it
	}
	return r
}

// checkAnswer compares an answer with the rule's.
func checkAnswer(t *testing.T, name string, r *Request, got Event, cancelled bool, limit int) {
	t.Helper()
	ids, text, why := expected(r, limit)
	switch {
	case r.Sampling.Seed == 666:
		if !errors.Is(got.Err, sampling.ErrNotFinite) && got.Finish != FinishAbort {
			t.Errorf("%s: %+v; want the model's error", name, got)
		}
	case got.Finish == FinishAbort:
		if !cancelled || !slices.Equal(got.TokenIDs, ids[:len(got.TokenIDs)]) {
			t.Errorf("%s: aborted with %v", name, got.TokenIDs)
		}
	case !slices.Equal(got.TokenIDs, ids) || got.Text != text || got.Finish != why || got.Usage.CompletionTokens != len(ids):
		t.Errorf("%s: %q %s, want %q %s", name, got.Text, got.Finish, text, why)
	}
	if u := got.Usage; u.Accepted > u.Drafted || u.Accepted < 0 || u.Accepted >= max(1, u.CompletionTokens) ||
		u.CachedTokens < 0 || u.CachedTokens >= u.PromptTokens {
		t.Errorf("%s: usage %+v", name, u)
	}
}

// A stop may fall on any token of an accepted run: text, ids and usage end there.
func TestStopAtEveryOffset(t *testing.T) {
	base := &Request{PromptIDs: []int32{1, 2}, MaxTokens: 24, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1, Seed: 5}}
	_, whole, _ := expected(base, 100)
	for at := range len(whole) - 3 {
		for length := 1; length <= 3; length++ {
			for depth := range 5 {
				for _, limit := range []int{24, at + length} { // also when the length limit falls on the same token
					r := *base
					r.Stop = []string{"#", whole[at : at+length]}
					r.MaxTokens = limit
					w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 8, MaxDepth: depth, ContextLength: 100, Vocab: 26, Decoder: decoder}, 20, 5)
					w.luck = 1
					stream := w.submit(&r)
					for w.step() {
					}
					got := read(t, stream)
					ids, text, why := expected(&r, 100)
					if got.Text != text || !slices.Equal(got.TokenIDs, ids) || got.Finish != why || why != FinishStop || got.Usage.CompletionTokens != len(ids) {
						t.Fatalf("stop %q, depth %d: %q %v %s %+v; want %q", r.Stop[1], depth, got.Text, got.TokenIDs, got.Finish, got.Usage, text)
					}
				}
			}
		}
	}
}

func TestEOSAndMinTokens(t *testing.T) {
	r := &Request{PromptIDs: []int32{1}, MaxTokens: 20, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1, Seed: 3}}
	ids, _, _ := expected(r, 100)
	run := func(change func(*Request)) Event {
		q := *r
		change(&q)
		w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 8, MaxDepth: 3, ContextLength: 100, Vocab: 26, EOS: []int32{ids[4]}, Decoder: decoder}, 30, 4)
		stream := w.submit(&q)
		for w.step() {
		}
		return read(t, stream)
	}
	first := slices.Index(ids, ids[4]) + 1
	if got := run(func(*Request) {}); got.Finish != FinishStop || len(got.TokenIDs) != first || len(got.Text) != first-1 {
		t.Errorf("EOS: %q, %v, %s; want %d tokens and a letter less", got.Text, got.TokenIDs, got.Finish, first)
	}
	if got := run(func(q *Request) { q.IgnoreEOS = true }); got.Finish != FinishLength || len(got.TokenIDs) != 20 {
		t.Errorf("EOS ignored: %d tokens, %s", len(got.TokenIDs), got.Finish)
	}
	// The rule of this test's model draws EOS all the same, so only the count is held back.
	if got := run(func(q *Request) { q.MinTokens = first + 1 }); len(got.TokenIDs) <= first {
		t.Errorf("min_tokens %d: ended after %d", first+1, len(got.TokenIDs))
	}
	for ignored, want := range map[bool][]int32{false: {7, 9}, true: {7}} { // then EOS is an ordinary token
		w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 8, ContextLength: 100, Vocab: 26, EOS: []int32{9}}, 30, 4)
		w.submit(&Request{PromptIDs: []int32{1}, MaxTokens: 9, MinTokens: 2, StopIDs: []int32{7}, IgnoreEOS: ignored, Logprobs: NoLogprobs})
		w.step()
		s := w.s.running[0]
		if !slices.Equal(s.Text().Banned, want) {
			t.Errorf("EOS ignored: %v: before min_tokens %v are banned, want %v", ignored, s.Text().Banned, want)
		}
		if w.step(); s.Text().Banned != nil {
			t.Errorf("%v are banned after min_tokens", s.Text().Banned)
		}
	}
}

func TestStopStringIsHeldBackAcrossTokens(t *testing.T) {
	x := text{decoder: letters{}}
	x.stop([]string{"cde", "bz"})
	var out []string
	for _, id := range []int32{0, 1, 2, 3, 0, 1, 2, 3, 4} { // abcdabcde
		s, stopped := x.push(nil, id, false)
		out = append(out, string(s))
		if stopped != (len(out) == 9) {
			t.Fatalf("token %d: stopped is %v", len(out), stopped)
		}
	}
	if got := strings.Join(out, "|"); got != "a||b||cda||b||" {
		t.Errorf("given out %q", got)
	}
}

func TestSubmitRefuses(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 1, MaxQueued: 2, ChunkSize: 8, ContextLength: 20, Vocab: 26}, 20, 4)
	for _, c := range []struct {
		name, param, says string
		change            func(*Request)
	}{
		{"no prompt", "prompt", "at least one token", func(r *Request) { r.PromptIDs = nil }},
		{"long prompt", "prompt", "20 tokens, but this model's context length is 20", func(r *Request) { r.PromptIDs = make([]int32, 20) }},
		{"together", "max_tokens", "together 21, but this model's context length is 20: ask for at most 19", func(r *Request) { r.MaxTokens = 20 }},
		{"overflow", "max_tokens", "ask for at most 19", func(r *Request) { r.MaxTokens = 1<<63 - 1 }},
		{"max_tokens", "max_tokens", "allowed is 1 or more", func(r *Request) { r.MaxTokens = 0 }},
		{"min_tokens", "min_tokens", "min_tokens is 9", func(r *Request) { r.MinTokens = 9 }},
		{"unknown token", "prompt", "token 0 of the prompt is 26", func(r *Request) { r.PromptIDs = []int32{26} }},
		{"negative token", "prompt", "is -1", func(r *Request) { r.PromptIDs = []int32{-1} }},
		{"temperature", "temperature", "temperature is 3", func(r *Request) { r.Sampling.Temperature = 3 }},
		{"stop", "stop", "is empty", func(r *Request) { r.Stop = []string{"x", ""} }},
		{"logprobs", "logprobs", "allowed is 0 to 20", func(r *Request) { r.Logprobs = 21 }},
	} {
		r := &Request{PromptIDs: []int32{1}, MaxTokens: 5, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1}}
		c.change(r)
		_, err := w.s.Submit(r)
		var invalid *InvalidRequestError
		if !errors.As(err, &invalid) || invalid.Param != c.param || !strings.Contains(invalid.Message, c.says) {
			t.Errorf("%s: %v; want %s: %s", c.name, err, c.param, c.says)
		}
	}
	good := func() *Request {
		return &Request{PromptIDs: []int32{1}, MaxTokens: 5, Logprobs: NoLogprobs, Sampling: sampling.Params{TopP: 1}}
	}
	w.submit(good())
	w.submit(good())
	if _, err := w.s.Submit(good()); !errors.Is(err, ErrQueueFull) {
		t.Errorf("a full queue answers %v", err)
	}
	w.s.Drain()
	if _, err := w.s.Submit(good()); !errors.Is(err, ErrDraining) {
		t.Errorf("draining answers %v", err)
	}
	for w.step() {
	}
	fault := fmt.Errorf("rank 1 is gone")
	w.s.Fail(fault)
	if _, err := w.s.Submit(good()); !errors.Is(err, fault) {
		t.Errorf("after a fault it answers %v", err)
	}
}

// A request that was given up is gone within two steps, whether it waits or runs.
func TestCancelFreesWithinTwoSteps(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 4, ContextLength: 64, Vocab: 26}, 16, 4)
	r := &Request{PromptIDs: make([]int32, 30), MaxTokens: 30, Logprobs: NoLogprobs}
	running, waiting := w.submit(r), w.submit(r)
	w.step()
	running.Close()
	waiting.Close()
	w.step()
	if w.over != 2 {
		t.Errorf("%d given up", w.over)
	}
	w.done()
	for _, s := range []*Stream{running, waiting} {
		if got := read(t, s); got.Finish != FinishAbort {
			t.Errorf("ended with %q", got.Finish)
		}
	}
}

// A fault ends every request, also those that wait.
func TestFailEndsEveryRequest(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 1, ChunkSize: 4, ContextLength: 64, Vocab: 26}, 16, 4)
	var streams []*Stream
	for range 3 {
		streams = append(streams, w.submit(&Request{PromptIDs: make([]int32, 9), MaxTokens: 30, Logprobs: NoLogprobs}))
	}
	w.step()
	fault := errors.New("device lost")
	w.s.Fail(fault)
	for i, s := range streams {
		if got := read(t, s); !errors.Is(got.Err, fault) {
			t.Errorf("request %d ended with %+v", i, got)
		}
	}
	w.done()
}
