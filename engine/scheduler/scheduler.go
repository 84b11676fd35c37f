// Package scheduler decides, step by step, which rows of which requests the
// next forward pass computes, and turns the pass's tokens into each request's
// events.
package scheduler

import (
	"fmt"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/kvcache"
)

// Config is what the scheduler keeps to.
type Config struct {
	MaxRunning    int // requests computed at once
	MaxQueued     int // requests that wait; more are refused
	ChunkSize     int // prompt rows in a pass
	MaxDepth      int // draft tokens of a sequence in a pass
	ContextLength int // tokens of a prompt and its answer
	Vocab         int
	EOS           []int32
	Decoder       func() Decoder  // makes one for each request; nil without a tokenizer
	Released      func(*Sequence) // hears that a sequence's pages were given back; may be nil
	Now           func() time.Time
}

// MaxRows is the number of rows of the largest pass: each running request
// decodes with a full draft, and there is a whole chunk of prompt beside.
func (c Config) MaxRows() int { return c.ChunkSize + c.MaxLogits() }

// MaxLogits is the largest number of rows of a pass whose logits are wanted.
func (c Config) MaxLogits() int { return c.MaxRunning * (1 + c.MaxDepth) }

// Batch is one pass: the rows, the rows whose logits are wanted, and the
// sequences they belong to.
type Batch struct {
	Rows      compute.Rows
	Want      []int32
	Sequences []*Sequence
	Decodes   int // sequences past their prompt
}

// Scheduler keeps the requests: those that wait, first come first served, and
// those that run. Submit may be called from anywhere; the rest belongs to the
// step loop.
type Scheduler struct {
	cfg  Config
	pool *kvcache.Pool

	mu       sync.Mutex
	inbox    []*Sequence // submitted, not yet seen by the step loop
	queued   int         // in inbox and waiting together
	draining bool
	failed   error         // the engine ended
	wake     chan struct{} // capacity 1: there is something new

	waiting []*Sequence
	running []*Sequence // in order of admission
	batch   Batch
}

// New makes a scheduler over a pool that holds at least one longest request.
func New(cfg Config, pool *kvcache.Pool) *Scheduler {
	return &Scheduler{cfg: cfg, pool: pool, wake: make(chan struct{}, 1)}
}

// Wake is signalled when a request arrives or is given up.
func (s *Scheduler) Wake() <-chan struct{} { return s.wake }

func (s *Scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Submit queues a request. The errors are ErrDraining, ErrQueueFull and
// *InvalidRequestError, or the fault that ended the engine.
func (s *Scheduler) Submit(r *Request) (*Stream, error) {
	if err := s.check(r); err != nil {
		return nil, err
	}
	q := &Sequence{
		Request: r, Arrived: s.cfg.Now(), Logit: -1, eos: s.cfg.EOS,
		limit: min(len(r.PromptIDs)+r.MaxTokens, s.cfg.ContextLength),
	}
	q.Tokens = make([]int32, len(r.PromptIDs), q.limit+1)
	copy(q.Tokens, r.PromptIDs)
	if r.MinTokens > 0 {
		q.banned = append(append(q.banned, r.StopIDs...), s.cfg.EOS...)
	}
	q.text.stops = r.Stop
	if s.cfg.Decoder != nil {
		q.text.decoder = s.cfg.Decoder()
	}
	q.usage.PromptTokens = len(r.PromptIDs)
	q.Stream = NewStream(func() {
		q.cancelled.Store(true)
		s.signal()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, s.failed
	case s.draining:
		return nil, ErrDraining
	case s.queued >= s.cfg.MaxQueued:
		return nil, ErrQueueFull
	}
	s.inbox = append(s.inbox, q)
	s.queued++
	s.signal()
	return q.Stream, nil
}

// check reports what no state of the engine could serve.
func (s *Scheduler) check(r *Request) error {
	invalid := func(param, format string, args ...any) error {
		return &InvalidRequestError{Param: param, Message: fmt.Sprintf(format, args...)}
	}
	n, most := len(r.PromptIDs), s.cfg.ContextLength
	switch {
	case n == 0:
		return invalid("prompt", "the prompt is empty: give at least one token")
	case n >= most:
		return invalid("prompt", "the prompt has %d tokens, but this model's context length is %d: shorten the prompt", n, most)
	case r.MaxTokens < 1:
		return invalid("max_tokens", "max_tokens is %d: allowed is 1 or more", r.MaxTokens)
	case r.MaxTokens > most-n:
		return invalid("max_tokens", "the prompt has %d tokens and max_tokens is %d, together %d, but this model's context length is %d: ask for at most %d",
			n, r.MaxTokens, n+r.MaxTokens, most, most-n)
	case r.MinTokens < 0 || r.MinTokens > r.MaxTokens:
		return invalid("min_tokens", "min_tokens is %d: allowed is 0 to max_tokens, which is %d", r.MinTokens, r.MaxTokens)
	case r.Logprobs < NoLogprobs || r.Logprobs > MaxLogprobs:
		return invalid("logprobs", "logprobs is %d: allowed is 0 to %d", r.Logprobs, MaxLogprobs)
	}
	for i, id := range r.PromptIDs {
		if id < 0 || int(id) >= s.cfg.Vocab {
			return invalid("prompt", "token %d of the prompt is %d: this model's tokens are 0 to %d", i, id, s.cfg.Vocab-1)
		}
	}
	for i, stop := range r.Stop {
		if stop == "" {
			return invalid("stop", "stop string %d is empty: leave it out", i)
		}
	}
	if err := r.Sampling.Validate(); err != nil {
		return &InvalidRequestError{Param: "temperature", Message: err.Error()}
	}
	return nil
}

// Drain refuses new requests from now on.
func (s *Scheduler) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	s.signal()
}

// Pending is the number of requests that wait, not yet running.
func (s *Scheduler) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued
}

// Idle tells whether nothing waits and nothing runs. For the step loop.
func (s *Scheduler) Idle() bool { return s.Pending() == 0 && len(s.running) == 0 }

// Running are the admitted sequences. For the step loop.
func (s *Scheduler) Running() []*Sequence { return s.running }

// Plan drops what was given up, admits what there is room for, and makes the
// next pass; nil when there is nothing to compute. dropped hears of each
// request that was given up.
func (s *Scheduler) Plan(dropped func(*Sequence)) *Batch {
	s.mu.Lock()
	s.waiting = append(s.waiting, s.inbox...)
	s.inbox = s.inbox[:0]
	s.mu.Unlock()
	s.dropCancelled(dropped)
	s.admit()

	b := &s.batch
	b.Rows.Reset()
	b.Want, b.Sequences, b.Decodes = b.Want[:0], b.Sequences[:0], 0
	// Decodes first: their readers wait for the next token.
	for _, q := range s.running {
		if len(q.Tokens)-q.Computed == 1 {
			s.schedule(b, q, 1)
			b.Decodes++
		}
	}
	budget := s.cfg.ChunkSize
	for _, q := range s.running {
		if left := len(q.Tokens) - q.Computed; left > 1 && budget > 0 {
			n := min(left, budget)
			budget -= n
			s.schedule(b, q, n)
		}
	}
	if len(b.Sequences) == 0 {
		return nil
	}
	return b
}

// schedule adds the next n rows of q, and those of its draft if the text's last
// token is among them.
func (s *Scheduler) schedule(b *Batch, q *Sequence, n int) {
	size := s.pool.PageSize()
	q.Row, q.Count, q.Logit = b.Rows.Len(), n, -1
	seq := b.Rows.AddSequence(q.Table, 0)
	for p := q.Computed; p < q.Computed+n; p++ {
		b.Rows.Add(seq, q.Tokens[p], int32(p), size)
	}
	b.Sequences = append(b.Sequences, q)
	if q.Computed+n < len(q.Tokens) {
		return
	}
	q.Logit = len(b.Want)
	b.Want = append(b.Want, int32(b.Rows.Len()-1))
	for i, id := range q.Draft {
		b.Rows.Add(seq, id, int32(len(q.Tokens)+i), size)
		b.Want = append(b.Want, int32(b.Rows.Len()-1))
	}
}

// admit moves waiting requests to running while there is a slot and there are
// pages for the longest that the first of them can become. Nobody overtakes.
func (s *Scheduler) admit() {
	for len(s.waiting) > 0 && len(s.running) < s.cfg.MaxRunning {
		q := s.waiting[0]
		table, ok := s.pool.Alloc(q.Table, s.pool.PagesFor(q.limit))
		if !ok {
			return
		}
		q.Table, q.Admitted = table, s.cfg.Now()
		s.unqueue(0)
		s.running = append(s.running, q)
	}
}

// unqueue takes entry i out of waiting.
func (s *Scheduler) unqueue(i int) {
	s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
	s.mu.Lock()
	s.queued--
	s.mu.Unlock()
}

func (s *Scheduler) dropCancelled(dropped func(*Sequence)) {
	for i := 0; i < len(s.waiting); {
		q := s.waiting[i]
		if !q.cancelled.Load() {
			i++
			continue
		}
		q.finish(FinishAbort)
		q.Emit()
		s.unqueue(i)
		dropped(q)
	}
	for _, q := range s.running {
		if q.cancelled.Load() && !q.finished {
			q.finish(FinishAbort)
			q.Emit()
			dropped(q)
		}
	}
	s.Reap()
}

// release gives a sequence's pages back.
func (s *Scheduler) release(q *Sequence) {
	s.pool.Release(q.Table)
	q.Table = nil
	if s.cfg.Released != nil {
		s.cfg.Released(q)
	}
}

// Reap takes finished sequences out and gives their pages back.
func (s *Scheduler) Reap() {
	kept := s.running[:0]
	for _, q := range s.running {
		if q.finished {
			s.release(q)
			continue
		}
		kept = append(kept, q)
	}
	clear(s.running[len(kept):])
	s.running = kept
}

// Fail ends every request with err and refuses new ones with it.
func (s *Scheduler) Fail(err error) {
	s.mu.Lock()
	s.failed = err
	all := append(append([]*Sequence{}, s.inbox...), s.waiting...)
	s.inbox, s.waiting, s.queued = nil, nil, 0
	s.mu.Unlock()
	all = append(all, s.running...)
	for _, q := range all {
		if !q.finished {
			q.Fail(err)
			q.Emit()
		}
	}
	s.Reap()
}
