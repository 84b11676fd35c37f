package scheduler

import (
	"math/bits"
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/kvcache"
)

// How pages are shared out. A running request gets pages as it grows. When
// there are none left, not even cached ones, the request that was admitted last
// is retracted: it gives its pages up, waits at the head of the queue, and later
// goes on where it was, since its text's randomness is keyed by position. The
// oldest is never retracted and a pool holds at least one longest request, so
// there is always progress. How many tokens ahead a request needs room for at
// its admission is the headroom: little, until retractions show that it was too
// little.
const (
	minHeadroom   = 16    // tokens
	headroomDecay = 0.998 // a pass: half in about 350
	// A waiting request that finds more of its prompt in the cache goes before
	// those that came earlier, while it is among the first lookahead, until one
	// of these was overtaken maxOvertaken times.
	lookahead    = 32
	maxOvertaken = 16

	minReserve = 1024 // tokens; see reserve
)

// Plan drops what was given up, admits what there is room for, and makes the
// next pass; nil when there is nothing to compute. dropped hears of each
// request that was given up.
func (s *Scheduler) Plan(dropped func(*Sequence)) *Batch {
	givenUp := s.givenUp.Swap(false) // before receive: what was given up until now is among what it takes in
	s.receive()
	if givenUp {
		s.dropCancelled(dropped)
	}

	s.retracted = false
	s.headroom = max(minHeadroom, s.headroom*headroomDecay)
	budget := s.shareOut(s.cfg.ChunkSize)
	for _, q := range s.running {
		s.makeRoom(q)
	}
	if !s.retracted {
		s.admit(budget)
	}
	return s.fill()
}

// receive takes in what was submitted. A probe goes before everything else, and
// nothing overtakes it.
func (s *Scheduler) receive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.inbox {
		if !q.Probe {
			s.waiting = append(s.waiting, q)
			continue
		}
		q.overtaken = maxOvertaken
		s.waiting = slices.Insert(s.waiting, 0, q)
	}
	clear(s.inbox)
	s.inbox = s.inbox[:0]
}

// shareOut decides how many rows each running request computes, and sees to
// their pages, the oldest first. The answer is what is left of the budget of
// prompt rows.
func (s *Scheduler) shareOut(budget int) int {
	for i := 0; i < len(s.running); i++ { // running shrinks at its end
		q := s.running[i]
		left := len(q.Tokens) - q.Computed
		if left == 1 {
			q.Count = s.cover(q, 1)
			continue
		}
		q.Count = s.cover(q, min(left, budget))
		budget -= q.Count
	}
	return budget
}

// cover gets pages for the next n rows of q. Where there are too few, those of
// the requests admitted after it are taken; the answer is for how many rows
// there are pages.
func (s *Scheduler) cover(q *Sequence, n int) int {
	for !s.grow(q, q.Computed+n) {
		last := len(s.running) - 1
		if s.running[last] == q {
			s.grow(q, q.room+s.pool.Available()*q.pageSize)
			return min(n, q.room-q.Computed)
		}
		s.retract(last)
	}
	return n
}

// grow gets pages so that q's table covers n positions.
func (s *Scheduler) grow(q *Sequence, n int) bool {
	if n <= q.room {
		return true
	}
	s.reserve(q, s.pool.PagesFor(n)*q.pageSize)
	table, ok := s.pool.Alloc(q.Table, s.pool.PagesFor(n)-len(q.Table))
	q.Table, q.room = table, len(table)*q.pageSize
	return ok
}

// reserve has q keep its text, as far as positions go and a token more, without
// asking for memory at each token. What it asks for grows with what was generated,
// whatever the request's limit: a text of n tokens makes it ask log2 n times.
func (s *Scheduler) reserve(q *Sequence, positions int) {
	n := min(positions, q.limit) + 1
	if n <= cap(q.Tokens) {
		return
	}
	n = min(n+max(minReserve, n-len(q.PromptIDs)), q.limit+1)
	q.Tokens = append(make([]int32, 0, n), q.Tokens...)
	q.keys = append(make([]kvcache.Key, 0, s.pool.PagesFor(n)), q.keys...)
	q.Table = append(make([]int32, 0, s.pool.PagesFor(n+s.cfg.TreeRoom)), q.Table...)
}

// makeRoom gets pages for the draft that comes after this pass, if there are.
func (s *Scheduler) makeRoom(q *Sequence) {
	if s.cfg.MaxDepth == 0 || q.Count == 0 || q.Computed+q.Count < len(q.Tokens) {
		return
	}
	after := len(q.Tokens) + min(len(q.Draft), s.cfg.MaxDepth) + 1 // tokens, if all that can be is accepted
	if s.cfg.TreeRoom > 0 && s.grow(q, min(q.limit, after)+s.cfg.TreeRoom) {
		return
	}
	s.grow(q, min(q.limit, after+s.cfg.MaxDepth))
}

// retract puts running request i, the last, at the head of the queue, after the
// probes that wait.
func (s *Scheduler) retract(i int) {
	q := s.running[i]
	s.running[i] = nil
	s.running = s.running[:i]
	s.release(q)
	q.Draft, q.Parents, q.Asked = q.Draft[:0], q.Parents[:0], 0
	q.Computed, q.Count, q.room, q.stored, q.marked, q.DraftStart, q.DraftEnd = 0, 0, 0, 0, 0, 0, 0
	q.overtaken = maxOvertaken
	q.keys = s.pool.Keys(q.keys, q.Tokens)
	at := 0
	for !q.Probe && at < len(s.waiting) && s.waiting[at].Probe {
		at++
	}
	s.waiting = slices.Insert(s.waiting, at, q)
	s.mu.Lock()
	s.queued++
	s.mu.Unlock()
	s.retractions++
	if !s.retracted {
		s.headroom = min(2*s.headroom, float64(s.cfg.ContextLength))
	}
	s.retracted = true
}

// admits tells whether there are a slot and rows in this pass for the next waiting
// request. For a probe there is always a row, that of a decode in its own slot.
func (s *Scheduler) admits(budget int) bool {
	if len(s.waiting) == 0 {
		return false
	}
	if s.waiting[0].Probe {
		return len(s.running) < s.cfg.Slots()
	}
	return len(s.running) < s.cfg.MaxRunning && budget > 0
}

// admit moves waiting requests to running while there are slots, rows in this
// pass and pages for them.
func (s *Scheduler) admit(budget int) {
	if !s.admits(budget) {
		return
	}
	promised := 0
	for _, q := range s.running {
		promised += s.promise(q)
	}
	for s.admits(budget) {
		i := s.choose()
		if !s.fits(s.waiting[i], promised) {
			if i == 0 || !s.fits(s.waiting[0], promised) {
				return
			}
			i = 0
		}
		q := s.waiting[i]
		for _, earlier := range s.waiting[:i] {
			earlier.overtaken++
		}
		s.unqueue(i)
		s.begin(q)
		s.running = append(s.running, q)
		q.Count = s.cover(q, min(len(q.Tokens)-q.Computed, max(budget, 1)))
		budget -= q.Count
		s.makeRoom(q)
		promised += s.promise(q)
	}
}

// choose is the waiting request to admit next: of the first that finds most of
// its text in the cache, unless it would overtake one that has waited enough.
func (s *Scheduler) choose() int {
	best, most := 0, -1
	for i, q := range s.waiting[:min(len(s.waiting), lookahead)] {
		if found, _ := s.pool.Match(q.keys); found > most {
			best, most = i, found
		}
		if q.overtaken >= maxOvertaken {
			break
		}
	}
	return best
}

// promise is the number of pages that a running request still needs for its
// text so far and its headroom.
func (s *Scheduler) promise(q *Sequence) int {
	return max(0, s.ahead(q)-len(q.Table))
}

func (s *Scheduler) ahead(q *Sequence) int {
	return s.pool.PagesFor(min(q.limit, len(q.Tokens)+int(s.headroom)))
}

// fits tells whether there are pages for q beside those promised to others; to
// a probe, which is short, they are no concern. A request alone always fits.
func (s *Scheduler) fits(q *Sequence, promised int) bool {
	_, held := s.pool.Match(q.keys)
	if q.Probe {
		promised = 0
	}
	return len(s.running) == 0 || s.ahead(q)-held+promised <= s.pool.Available()
}

// begin has q start with what the cache has of its text.
func (s *Scheduler) begin(q *Sequence) {
	s.reserve(q, len(q.Tokens))
	q.Table = s.pool.Acquire(q.Table, q.keys, q.Tokens)
	s.shorten(q)
	q.stored, q.marked = len(q.Table), len(q.Table)
	q.room = len(q.Table) * q.pageSize
	q.Computed, q.DraftEnd = q.room, q.room
	for j, page := range q.Table {
		if s.pool.Drafted(page) {
			continue
		}
		if s.cfg.Redrafts { // from here on
			q.DraftEnd, q.marked = j*q.pageSize, j
			break
		}
		q.DraftStart = (j + 1) * q.pageSize
	}
	if q.Admitted.IsZero() {
		q.Admitted = s.cfg.Now()
		if !q.Again { // as for its prompt tokens
			q.usage.CachedTokens = q.Computed
		}
	}
}

// shorten gives pages at the end of q's table back if one of them lacks draft
// entries within the last DraftWindow tokens: computed again, they have them and
// take their places in the prefix cache. Pages that others hold stay, since they
// could not be replaced and what follows would not be cached.
func (s *Scheduler) shorten(q *Sequence) {
	if !s.speculates || s.cfg.DraftWindow == 0 {
		return
	}
	keep := max(0, len(q.Tokens)-s.cfg.DraftWindow) / q.pageSize
	for keep < len(q.Table) && s.pool.Shared(q.Table[keep]) {
		keep++
	}
	for j := keep; j < len(q.Table); j++ {
		if !s.pool.Drafted(q.Table[j]) {
			s.pool.Release(q.Table[keep:])
			q.Table = q.Table[:keep]
			return
		}
	}
}

// unqueue takes entry i out of waiting.
func (s *Scheduler) unqueue(i int) {
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.mu.Lock()
	s.queued--
	s.mu.Unlock()
}

// fill makes the pass of the rows that were shared out: decodes first, then
// prompts.
func (s *Scheduler) fill() *Batch {
	b := &s.batches[s.turn]
	b.reset()
	for _, q := range s.running {
		if q.Count > 0 && len(q.Tokens)-q.Computed == 1 {
			before := b.Rows.Len()
			s.schedule(b, q)
			if q.Generated() > 0 {
				b.Decodes++
			} else {
				b.Prompts += b.Rows.Len() - before
			}
		}
	}
	decodes := b.Rows.Len()
	for _, q := range s.running {
		if q.Count > 0 && len(q.Tokens)-q.Computed > 1 {
			s.schedule(b, q)
		}
	}
	b.Prompts += b.Rows.Len() - decodes
	if len(b.Sequences) == 0 {
		return nil
	}
	return b
}

// schedule adds the next rows of q, and those of its draft if the text's last
// token is among them.
func (s *Scheduler) schedule(b *Batch, q *Sequence) {
	q.Row, q.Logit = b.Rows.Len(), -1
	seq := b.Rows.AddSequence(q.Table, 0)
	end := q.Computed + q.Count
	for p := q.Computed; p < end; p++ {
		b.Rows.Add(seq, q.Tokens[p], int32(p), q.pageSize)
	}
	b.Sequences = append(b.Sequences, q)
	if end < len(q.Tokens) {
		return
	}
	q.Logit = len(b.Want)
	b.Want = append(b.Want, int32(b.Rows.Len()-1))
	var masks [compute.MaxNodes]uint64
	for i, id := range q.Draft {
		if len(q.Parents) == 0 {
			b.Rows.Add(seq, id, int32(len(q.Tokens)+i), q.pageSize)
		} else {
			masks[i] = 1 << i
			if parent := q.Parents[i]; parent >= 0 {
				masks[i] |= masks[parent]
			}
			b.Rows.AddNode(seq, id, int32(len(q.Tokens)), i, bits.OnesCount64(masks[i])-1, masks[i], q.pageSize)
		}
		b.Want = append(b.Want, int32(b.Rows.Len()-1))
	}
}
