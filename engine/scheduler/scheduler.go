// Package scheduler decides, step by step, which rows of which requests the
// next forward pass computes, and turns the pass's tokens into each request's
// events.
package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/kvcache"
)

// Config is what the scheduler keeps to.
type Config struct {
	MaxRunning    int // requests computed at once, beside which there is room for a probe
	MaxQueued     int // requests that wait; more are refused
	ChunkSize     int // prompt rows in a pass
	MaxDepth      int // draft tokens of a sequence after each other
	MaxDraft      int // draft tokens of a sequence in a pass: MaxDepth, or the nodes of a tree
	TreeRoom      int // positions after a text that its trees use, be it at its limit; 0 for chains
	ContextLength int // tokens of a prompt and its answer
	Vocab         int
	EOS           []int32
	Decoder       func(shown []int32) Decoder // makes one for each request, of its Shown; nil without a tokenizer
	Released      func(*Sequence)             // hears that a sequence ended or was retracted; may be nil

	// Redrafts tells that the drafter computes what its cache lacks of shared
	// pages, so that its entries have no gaps.
	Redrafts bool

	// DraftWindow is the number of tokens at a prompt's end whose draft entries
	// are worth computing anew where shared pages lack them; see Speculates. 0:
	// the drafter makes do without, or Redrafts.
	DraftWindow int

	Now func() time.Time
}

// Slots is the number of sequences that run at once at most: a probe gets one of
// its own, since it must tell how a full engine is too.
func (c Config) Slots() int { return c.MaxRunning + 1 }

// MaxRows is the number of rows of the largest pass: each running sequence
// decodes with a full draft, and there is a whole chunk of prompt beside.
func (c Config) MaxRows() int { return c.ChunkSize + c.MaxLogits() }

// MaxLogits is the largest number of rows of a pass whose logits are wanted.
func (c Config) MaxLogits() int { return c.Slots() * (1 + c.MaxDraft) }

// Batch is one pass: the rows, the rows whose logits are wanted, and the
// sequences they belong to.
type Batch struct {
	Rows      compute.Rows
	Want      []int32
	Sequences []*Sequence
	Decodes   int // sequences past their prompt
	Prompts   int // rows of all others
}

func (b *Batch) reset() {
	b.Rows.Reset()
	b.Want, b.Sequences, b.Decodes, b.Prompts = b.Want[:0], b.Sequences[:0], 0, 0
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
	open     map[*Stream]struct{} // requests that have not ended
	failed   error                // the engine ended
	wake     chan struct{}        // capacity 1: there is something new
	givenUp  atomic.Bool          // a request was cancelled since the last Plan

	waiting     []*Sequence // probes and retracted ones first, then in order of arrival
	running     []*Sequence // in order of admission
	batches     [2]Batch    // turn is that of the pass in progress
	turn        int
	headroom    float64 // see plan.go
	retractions int
	retracted   bool // by the pass being planned
	speculates  bool // see Speculates
}

// New makes a scheduler over a pool that holds at least one longest request.
func New(cfg Config, pool *kvcache.Pool) *Scheduler {
	return &Scheduler{cfg: cfg, pool: pool, wake: make(chan struct{}, 1), headroom: minHeadroom}
}

// Slots is Config.Slots.
func (s *Scheduler) Slots() int { return s.cfg.Slots() }

// Speculates tells the scheduler whether the requests that it admits from now on
// will have drafts: then what the cache has of a text is used only as far as
// the draft's entries of the last DraftWindow tokens are there, or computed with
// the rest of the prompt. For the step loop.
func (s *Scheduler) Speculates(on bool) { s.speculates = on }

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
		Request: r, Arrived: s.cfg.Now(), Logit: -1, eos: s.cfg.EOS, pageSize: s.pool.PageSize(),
		limit: min(len(r.PromptIDs)+r.MaxTokens, s.cfg.ContextLength),
	}
	q.Tokens = slices.Clip(r.PromptIDs) // until it is admitted: see reserve
	q.keys = s.pool.Keys(make([]kvcache.Key, 0, len(q.Tokens)/s.pool.PageSize()), q.Tokens)
	if r.MinTokens > 0 {
		q.banned = append(q.banned, r.StopIDs...)
		if !r.IgnoreEOS {
			q.banned = append(q.banned, s.cfg.EOS...)
		}
	}
	q.form.begin(r, s.cfg.EOS)
	q.text.stop(r.Stop)
	if s.cfg.Decoder != nil {
		q.text.decoder = s.cfg.Decoder(r.Shown)
	}
	q.usage.PromptTokens = len(r.PromptIDs)
	q.Stream = NewStream(func() {
		q.cancelled.Store(true)
		s.givenUp.Store(true)
		s.signal()
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failed != nil:
		return nil, s.failed
	case s.draining:
		return nil, ErrDraining
	case s.queued >= s.cfg.MaxQueued && !r.Probe:
		return nil, ErrQueueFull
	}
	if s.open == nil {
		s.open = map[*Stream]struct{}{}
	}
	s.open[q.Stream] = struct{}{}
	q.Stream.ended = func() {
		s.mu.Lock()
		delete(s.open, q.Stream)
		s.mu.Unlock()
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
	case r.Grammar != nil && r.IgnoreEOS:
		return invalid("ignore_eos", "ignore_eos is true, but the text has a form that says where it ends: leave one of them out")
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

// dropCancelled ends what was given up. All of a long queue may have been at
// once, so it goes through it once.
func (s *Scheduler) dropCancelled(dropped func(*Sequence)) {
	all := len(s.waiting)
	s.waiting = slices.DeleteFunc(s.waiting, func(q *Sequence) bool {
		if !q.cancelled.Load() {
			return false
		}
		q.finish(FinishAbort)
		q.Emit()
		dropped(q)
		return true
	})
	s.mu.Lock()
	s.queued -= all - len(s.waiting)
	s.mu.Unlock()
	for _, q := range s.running {
		if q.cancelled.Load() && !q.finished {
			q.finish(FinishAbort)
			q.Emit()
			dropped(q)
		}
	}
	s.Reap()
}

// Reap makes what the last pass computed known to the prefix cache, and takes
// finished sequences out: their pages stay cached until others need them.
func (s *Scheduler) Reap() {
	kept := s.running[:0]
	for _, q := range s.running {
		failed := q.finished && q.why == ""
		if !failed {
			s.store(q)
			if !q.finished {
				kept = append(kept, q)
				continue
			}
		} else {
			s.pool.Forget(q.Table) // whatever failed may be in them
		}
		s.release(q)
	}
	clear(s.running[len(kept):])
	s.running = kept
}

// store puts the pages of q that are complete into the prefix tree.
func (s *Scheduler) store(q *Sequence) {
	size := s.pool.PageSize()
	for ; (q.marked+1)*size <= q.DraftEnd; q.marked++ {
		s.pool.SetDrafted(q.Table[q.marked])
	}
	if (q.stored+1)*size > q.Computed || q.Probe {
		return
	}
	q.keys = s.pool.Keys(q.keys, q.Tokens)
	for ; (q.stored+1)*size <= q.Computed; q.stored++ {
		drafted := q.DraftStart < (q.stored+1)*size && q.DraftEnd > q.stored*size
		s.pool.Store(q.Table, q.stored, q.keys[q.stored], q.Tokens, drafted)
	}
}

// release gives a sequence's pages back.
func (s *Scheduler) release(q *Sequence) {
	s.pool.Release(q.Table)
	q.Table = q.Table[:0]
	if s.cfg.Released != nil {
		s.cfg.Released(q)
	}
	q.DraftState = nil
}

// Retractions is how often a running request was put back in the queue. For
// the step loop.
func (s *Scheduler) Retractions() int { return s.retractions }

// Check reports books that do not add up: pages held by no running request, or
// shared against the rules. For the step loop, between two passes.
func (s *Scheduler) Check() error {
	tables := make([][]int32, len(s.running))
	for i, q := range s.running {
		tables[i] = q.Table
	}
	for _, q := range s.waiting {
		if len(q.Table) > 0 {
			return fmt.Errorf("scheduler: request %q waits but holds %d pages", q.ID, len(q.Table))
		}
	}
	return s.pool.Check(tables...)
}

// Abandon tells every reader of err and refuses new requests with it, while
// the step loop is stuck or still runs: it touches nothing that belongs to it.
func (s *Scheduler) Abandon(err error) {
	s.mu.Lock()
	s.failed = err
	streams := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, stream := range streams {
		stream.publish(&Event{Err: err}, nil)
	}
}

// Fail ends every request with err and refuses new ones with it, when the step
// loop has ended.
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
