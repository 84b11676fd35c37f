package engine

import (
	"context"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// lap notes a phase of the step loop that began at start, and returns the time
// now.
func (e *Engine) lap(phase telemetry.PhaseName, start time.Time) time.Time {
	now := time.Now()
	e.note(phase, now, now.Sub(start))
	e.tracer.Event(0, phase.String(), start, now, 0)
	return now
}

// note is a phase that ended at a time, in metrics and profile.
func (e *Engine) note(phase telemetry.PhaseName, end time.Time, took time.Duration) {
	e.metrics.Phase(phase).Observe(took.Seconds())
	e.phases.Observe(phase, end, took)
}

// lapDraft notes the drafter's work since start: bringing its cache up to the
// text, and the drafting. Plain decoding only keeps features, which is little
// and no phase of its own.
func (e *Engine) lapDraft(start time.Time) {
	now := time.Now()
	if e.extended > 0 {
		e.note(telemetry.PhaseExtend, now, e.extended)
	}
	e.note(telemetry.PhaseDraft, now, max(0, now.Sub(start)-e.extended))
	e.tracer.Event(0, "drafter", start, now, 0)
	e.extended = 0
}

// timed hears of each pass and collective of each rank.
func (e *Engine) timed(rank int, name string, start, end time.Time, rows int) {
	if rank == 0 && (name == model.PassExtend || name == model.PassCatchUp) { // on the step loop's goroutine
		e.extended += end.Sub(start)
	}
	e.tracer.Event(rank, name, start, end, rows)
}

// exchanged is the time that rank 0 spent in collectives so far.
func (e *Engine) exchanged() time.Duration {
	_, d := e.ranks.Spent(0)
	return d
}

// Trace records what the ranks do for d, or until ctx is done. The errors are
// scheduler.ErrNotReady while the model loads, and telemetry.ErrTracing.
func (e *Engine) Trace(ctx context.Context, d time.Duration) (*telemetry.Trace, error) {
	if !e.loaded() {
		return nil, scheduler.ErrNotReady
	}
	return e.tracer.Capture(ctx, d)
}

// Profile says where the time goes and what the choice of the depth rests on.
func (e *Engine) Profile() telemetry.Profile {
	p := telemetry.Profile{Phases: e.phases.Report(), Ranks: []telemetry.RankReport{}, Speculation: e.Speculation()}
	if !e.loaded() {
		return p
	}
	for i := range e.ranks.Size() {
		passes, collectives := e.ranks.Spent(i)
		busy, idle := e.ranks.Clock(i)
		p.Ranks = append(p.Ranks, telemetry.RankReport{Rank: e.ranks.First() + i, Passes: passes.Seconds(), Collective: collectives.Seconds(),
			Busy: busy.Seconds(), Idle: idle.Seconds()})
	}
	d := &e.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.chooser != nil {
		d.chooser.Report(&p)
		p.Depths = slices.Clone(d.times)
	}
	return p
}

// loaded tells whether the ranks are there.
func (e *Engine) loaded() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ranks != nil
}
