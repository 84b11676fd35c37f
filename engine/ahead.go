package engine

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// While plain decoding goes on as before, the device gets the next pass before
// the host knows the tokens of the one that it computes: it takes them itself.
// The host then settles one pass while the next one runs. A request that turns
// out to have ended has had a row in vain; all else waits until the passes that
// are queued are settled.

// ahead is the pass that is queued behind the one in progress.
type ahead struct {
	batch *scheduler.Batch // nil: there is none
	from  []int32          // by row: where its token comes from; see model.Ranks.Ahead
	err   error            // of the device, when it was queued
	alone int              // passes to come behind which none is queued, since a request was Held
}

// goAhead queues the next pass behind the one in progress, where that can be.
func (e *Engine) goAhead() {
	a := &e.ahead
	if a.alone > 0 {
		a.alone--
		return
	}
	if !e.staysPlain() {
		return
	}
	b := e.scheduler.Ahead()
	if b == nil {
		return
	}
	a.from = a.from[:0]
	for i, s := range b.Sequences {
		from := int32(e.drawOf(s, 0)) - 1
		if from < 0 {
			from = int32(-1 - i)
		}
		a.from = append(a.from, from)
	}
	e.keep(b, 1)
	e.draws.turn = 1 - e.draws.turn
	a.batch, a.err = b, e.ranks.Ahead(&b.Rows, b.Want, a.from, func() []compute.Draw {
		e.draws.begin(len(b.Want))
		for _, s := range b.Sequences {
			text, position := s.Foreseen()
			e.planDraw(s, 0, position, text)
		}
		return e.draws.all
	})
	e.draws.turn = 1 - e.draws.turn
}

// staysPlain tells whether there will be no drafts after the pass in progress,
// which is then decided.
func (e *Engine) staysPlain() bool {
	if e.drafter == nil {
		return true
	}
	if e.depth.next > 0 {
		return false
	}
	for _, s := range e.batch.Sequences {
		if s.DraftState == nil {
			return false // what a drafter wants of this pass is asked for after it
		}
	}
	e.choose()
	e.depth.chosen = true
	return e.depth.next == 0
}

// takeAhead is the pass that was queued, if there is one: it is in progress now.
func (e *Engine) takeAhead() *scheduler.Batch {
	b := e.ahead.batch
	if b != nil {
		e.ahead.batch = nil
		e.draws.turn = 1 - e.draws.turn
	}
	return b
}

// hold tells whether a request cannot be settled: the device could not tell its
// token, and the logits are gone since another pass is queued. Both passes leave it
// as it is; the one after them tries again.
func (e *Engine) hold(s *scheduler.Sequence) bool {
	if s.Held {
		s.Held = false
		return true
	}
	if e.ahead.batch == nil || s.Logit < 0 {
		return false
	}
	var ok bool
	if at := e.drawOf(s, 0); at > 0 {
		_, ok = e.ranks.Drawn(at - 1)
	} else {
		_, ok = e.ranks.Best(s.Logit)
	}
	if s.Held = !ok; s.Held {
		e.ahead.alone = 2 // the pass that is queued, and the one that tries again
	}
	return s.Held
}
