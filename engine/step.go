package engine

import (
	"context"
	"time"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// loop computes step after step until ctx is cancelled or a rank fails.
func (e *Engine) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		e.busy.Store(true)
		worked, err := e.step()
		e.beat.Store(time.Now().UnixNano())
		if err != nil {
			return err
		}
		if worked {
			continue
		}
		e.busy.Store(false)
		e.stats.stepped(e.scheduler, e.pool)
		if e.draining.Load() && e.scheduler.Idle() {
			e.idleOnce.Do(func() { close(e.idle) })
		}
		select {
		case <-e.scheduler.Wake():
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// step is schedule, run, settle: one target pass, its tokens, and the drafts
// for the next. It tells whether there was anything to compute.
func (e *Engine) step() (bool, error) {
	start := time.Now()
	b := e.scheduler.Plan(e.stats.dropped)
	e.batch = b
	if b == nil {
		return false, nil
	}
	start = e.stats.lap(telemetry.PhaseSchedule, start)
	verifies := len(b.Want) > len(b.Sequences)
	if err := e.ranks.Forward(&b.Rows, b.Want); err != nil {
		return true, err
	}
	start = e.stats.lap(passPhase(b, verifies), start)
	e.settle(start)
	start = e.stats.lap(telemetry.PhaseSample, start)
	if e.drafter != nil {
		if err := e.draft(); err != nil {
			return true, err
		}
		e.stats.lap(telemetry.PhaseDraft, start)
	}
	if verifies || e.drafter == nil && b.Decodes > 0 {
		e.proof.Store(time.Now().UnixNano())
	}
	e.scheduler.Reap()
	e.stats.stepped(e.scheduler, e.pool)
	return true, nil
}

// passPhase names what a pass spent its time on.
func passPhase(b *scheduler.Batch, verifies bool) telemetry.PhaseName {
	switch {
	case verifies:
		return telemetry.PhaseVerify
	case b.Decodes > 0:
		return telemetry.PhaseDecode
	}
	return telemetry.PhasePrefill
}

// settle draws the pass's tokens, hands them to their readers, and notes what
// the drafter needs of the sequences that go on.
func (e *Engine) settle(now time.Time) {
	e.drafts, e.drafted = e.drafts[:0], e.drafted[:0]
	for _, s := range e.batch.Sequences {
		if s.Finished() { // given up meanwhile
			continue
		}
		from, before, usage := s.Computed, s.Generated(), s.Usage()
		if s.Logit < 0 {
			s.Advance()
		} else if accepted, err := s.Verify(e); err != nil {
			s.Fail(err)
		} else {
			e.stats.verified(s, s.Usage().Drafted-usage.Drafted, accepted)
		}
		e.stats.emitted(s, s.Generated()-before, now)
		s.Emit()
		if s.Finished() || e.drafter == nil {
			continue
		}
		d := speculation.Sequence{Tokens: s.Tokens, Table: s.Table, Row: s.Row, From: from, Count: s.Computed - from, Draft: s.Draft[:0]}
		if s.Logit >= 0 {
			d.Depth = min(e.cfg.NumSteps, s.Room())
		}
		e.drafts = append(e.drafts, d)
		e.drafted = append(e.drafted, s)
	}
}

// draft has the drafter propose for the sequences that go on.
func (e *Engine) draft() error {
	if len(e.drafts) == 0 {
		return nil
	}
	if err := e.drafter.Draft(e.drafts); err != nil {
		return err
	}
	for i, s := range e.drafted {
		s.Draft = e.drafts[i].Draft
	}
	return nil
}

// Sample implements scheduler.Sampler: the token after wanted row i of s, keyed
// by the seed and the position that it gets.
func (e *Engine) Sample(s *scheduler.Sequence, i int) (int32, error) {
	logits := e.ranks.Logits(s.Logit + i)
	id, err := e.sampler.Sample(logits, &s.Sampling, len(s.Tokens), s.Text())
	if err == nil && s.Logprobs != scheduler.NoLogprobs {
		logprob, top := sampling.Logprob(logits, id, s.Logprobs)
		s.AddLogprob(id, logprob, top)
	}
	return id, err
}
