package engine

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/tick"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// loop computes step after step until ctx is cancelled or a rank fails. A panic
// is a fault of the engine: the process must end with a reason, not with Go's
// own exit code, which is that of wrong flags.
func (e *Engine) loop(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			os.Stderr.Write(debug.Stack())
			err = fault.Errorf(fault.Internal, "the step loop failed: %v", p)
		}
	}()
	for ctx.Err() == nil {
		e.beat.Store(tick.Of(time.Now())) // before busy: the time of being idle is no stall
		e.busy.Store(true)
		worked, err := e.step()
		e.beat.Store(tick.Of(time.Now()))
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
		if err := e.checkIdle(); err != nil {
			return err
		}
		select {
		case <-e.scheduler.Wake():
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// checkIdle reports pages that are lost or held by nobody's request, if asked to.
func (e *Engine) checkIdle() error {
	if !e.cfg.CheckInvariants {
		return nil
	}
	if err := e.scheduler.Check(); err != nil {
		return fault.Errorf(fault.Internal, "the KV cache's books do not add up: report this as a bug: %w", err)
	}
	return nil
}

// step is schedule, run, settle: one target pass, its tokens, and the drafts
// for the next. It tells whether there was anything to compute.
func (e *Engine) step() (bool, error) {
	begin := time.Now()
	start := begin
	b := e.takeAhead()
	queued := b != nil
	if !queued {
		e.scheduler.Speculates(e.speculates())
		b = e.scheduler.Plan(e.stats.dropped)
	}
	e.batch = b
	if b == nil {
		return false, nil
	}
	start = e.lap(telemetry.PhaseSchedule, start)
	exchanged := e.exchanged()
	verifies := verifies(b)
	e.hang()
	if err := e.breakStep(b); err != nil {
		return true, err
	}
	if err := e.forward(b, queued); err != nil {
		return true, err
	}
	start = e.lap(passPhase(b, verifies), start)
	if e.proves(b) {
		e.proof.Store(tick.Of(start)) // before its readers hear of it
	}
	at := load(e.scheduler.Running())
	e.settle(start)
	if len(e.moveTo) > 0 {
		if err := e.ranks.Move(e.moveTo, e.moveFrom); err != nil {
			return true, err
		}
	}
	start = e.lap(telemetry.PhaseSample, start)
	if e.drafter != nil {
		if err := e.draft(); err != nil {
			return true, err
		}
		e.lapDraft(start)
		e.observe(b, at, begin)
	}
	if d := e.exchanged() - exchanged; d > 0 {
		e.note(telemetry.PhaseExchange, time.Now(), d)
	}
	e.scheduler.Reap()
	e.stats.stepped(e.scheduler, e.pool)
	e.report.pass(b)
	e.reportLoad()
	return true, nil
}

// forward computes a pass, or waits for it if it is queued already.
func (e *Engine) forward(b *scheduler.Batch, queued bool) error {
	if queued {
		if err := e.ranks.Resume(&b.Rows, e.overlapping()); err != nil {
			return err
		}
	} else {
		e.keep(b, 0)
		if err := e.ranks.ForwardWith(&b.Rows, b.Want, e.overlapping()); err != nil {
			return err
		}
	}
	return e.ahead.err
}

// verifies tells whether a pass has drafts in it.
func verifies(b *scheduler.Batch) bool {
	for _, s := range b.Sequences {
		if s.Logit >= 0 && len(s.Draft) > 0 {
			return true
		}
	}
	return false
}

// proves tells whether a pass shows what a probe would: a request of a client
// that verifies a draft, or decodes where there need not be one.
func (e *Engine) proves(b *scheduler.Batch) bool {
	for _, s := range b.Sequences {
		if !s.Probe && s.Logit >= 0 && (len(s.Draft) > 0 || !e.certain() && s.Generated() > 0) {
			return true
		}
	}
	return false
}

// certain tells whether each request gets drafts while speculation is on.
func (e *Engine) certain() bool { return e.algorithm != nil && e.algorithm.certain }

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
// the drafter needs of the sequences that go on, or whose last page lacks only
// the draft's entries.
func (e *Engine) settle(now time.Time) {
	e.drafts, e.drafted, e.accepted, e.emitted = e.drafts[:0], e.drafted[:0], 0, 0
	e.moveTo, e.moveFrom = e.moveTo[:0], e.moveFrom[:0]
	for _, s := range e.batch.Sequences {
		if s.Finished() || e.hold(s) { // given up meanwhile, or not to be told yet
			continue
		}
		from, before, usage := s.Computed, s.Generated(), s.Usage()
		if s.Logit < 0 {
			s.Advance()
		} else if accepted, err := s.Verify(e); err != nil {
			s.Fail(err)
		} else {
			e.moveTo, e.moveFrom = s.Moves(e.moveTo, e.moveFrom)
			e.verified(s, s.Usage().Drafted-usage.Drafted, accepted)
		}
		e.emitted += s.Generated() - before
		e.stats.emitted(s, s.Generated()-before, now)
		s.Emit()
		if s.Finished() && !s.Probe {
			e.account(s)
		}
		if e.drafter != nil && (!s.Finished() || e.learns != nil || e.completesPage(s, from)) {
			e.follow(s, from)
		}
	}
}

// completesPage tells whether a finished sequence leaves a page in the prefix
// cache that lacks only the draft's entries of the pass's rows, from from on.
func (e *Engine) completesPage(s *scheduler.Sequence, from int) bool {
	return e.depth.next > 0 && s.Finish() != "" && s.Undrafted(from)
}

// verified takes note of a draft and of how much of it became text. What the
// depth is worth includes the drafts that came out shorter, or not at all.
func (e *Engine) verified(s *scheduler.Sequence, drafted, accepted int) {
	asked := s.Asked
	if s.Asked = 0; asked == 0 || s.Probe {
		return
	}
	e.accepted += accepted
	e.depth.mu.Lock()
	if e.depth.teaches(e.cfg.LearnInAuto) {
		e.depth.chooser.Verified(asked, accepted)
	}
	e.depth.mu.Unlock()
	if drafted > 0 {
		e.stats.verified(drafted, accepted)
	}
}

// follow notes what the drafter needs of a sequence whose rows of the pass began
// at position from.
func (e *Engine) follow(s *scheduler.Sequence, from int) {
	state, ok := s.DraftState.(*speculation.State)
	if !ok {
		state = &speculation.State{Start: s.DraftStart, Next: s.DraftEnd} // of shared pages
		s.DraftState = state
	}
	d := speculation.Sequence{Tokens: s.Tokens, Table: s.Table, Row: s.Row, From: from, Count: s.Computed - from,
		Draft: s.Draft[:0], Parents: s.Parents[:0], State: state}
	if s.Logit >= 0 {
		d.Nodes = s.Path
	}
	if e.learns != nil {
		d.Key = s.Sampling.Hash()
		e.learns.Learn(&d)
		if s.Finished() && !e.completesPage(s, from) {
			return
		}
	}
	e.drafts = append(e.drafts, d)
	e.drafted = append(e.drafted, s)
}

// keep has a pass put aside what a drafter that is off may need of it later. Its
// rows begin so many positions after what is computed.
func (e *Engine) keep(b *scheduler.Batch, after int) {
	if e.keeper == nil || e.depth.next > 0 {
		return
	}
	for _, s := range b.Sequences {
		state, ok := s.DraftState.(*speculation.State)
		if !ok || len(s.Draft) > 0 {
			continue // it is new, or drafts
		}
		kept := &b.Rows.Kept
		for len(*kept) < b.Rows.Len() {
			*kept = append(*kept, -1)
		}
		e.keeper.Keep(state, s.Computed+after, s.Count, (*kept)[s.Row:s.Row+s.Count])
	}
}

// draft chooses the depth and has the drafter propose for the sequences that go
// on. A probe drafts at full depth also where the others decode plainly, since
// it is there to try the head.
func (e *Engine) draft() error {
	if e.depth.chosen {
		e.depth.chosen = false
	} else {
		e.depth.caughtUp = false
		if len(e.drafts) > 0 {
			e.choose()
		}
	}
	if len(e.drafts) == 0 {
		return nil
	}
	depth, probes := e.depth.next, 0
	for i, s := range e.drafted {
		d := &e.drafts[i]
		if s.Finished() {
			continue
		}
		d.Room = s.Spare()
		if s.Logit >= 0 {
			d.Depth = min(depth, s.Room())
		}
		if s.Probe && depth == 0 {
			d.Depth = min(e.cfg.NumSteps, s.Room())
			// Probes to the front: the drafter takes them apart from the rest.
			e.drafts[i], e.drafts[probes] = e.drafts[probes], e.drafts[i]
			e.drafted[i], e.drafted[probes] = e.drafted[probes], e.drafted[i]
			probes++
		}
	}
	for i, s := range e.drafted {
		s.Asked = e.drafts[i].Depth
	}
	if probes > 0 {
		if err := e.drafter.Draft(e.drafts[:probes], false); err != nil {
			return err
		}
	}
	if rest := e.drafts[probes:]; len(rest) > 0 {
		if err := e.drafter.Draft(rest, depth == 0); err != nil {
			return err
		}
	}
	for i, s := range e.drafted {
		d := &e.drafts[i]
		s.SetDraft(d.Draft, d.Parents)
		s.SetDrafted(d.State.Start, d.State.Next)
	}
	return nil
}

// Sample implements scheduler.Sampler: the token after wanted row i of s, keyed
// by the seed and the position that it gets.
func (e *Engine) Sample(s *scheduler.Sequence, i int) (int32, error) {
	if id, ok := e.drawn(s, i); ok {
		return id, nil
	}
	text := s.Text()
	if err := s.Form(&text); err != nil {
		return 0, err
	}
	if s.Sampling.Greedy() && s.Logprobs == scheduler.NoLogprobs && text.Free() {
		if id, ok := e.ranks.Best(s.Logit + i); ok {
			return id, nil // the device found it: its logits need not be read
		}
	}
	logits := e.ranks.Logits(s.Logit + i)
	id, err := e.sampler.Sample(logits, &s.Sampling, len(s.Tokens), text)
	if err == nil && s.Logprobs != scheduler.NoLogprobs {
		logprob, top := sampling.Logprob(logits, id, s.Logprobs)
		s.AddLogprob(id, logprob, top)
	}
	return id, err
}
