package engine

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// depthControl decides how deep the next drafts are, within bounds that may
// change at any time.
type depthControl struct {
	mu      sync.Mutex
	chooser chooser // nil before the profile of the start
	bounds  speculation.Bounds
	current telemetry.Speculation // what Speculation answers

	// Of the step loop.
	warned   bool // that the draft does not help
	verified int  // depth of the drafts that the pass under way verifies
	next     int  // depth of the drafts made in this step
	chosen   bool // next is chosen already for the drafts after the pass in progress
	caughtUp bool // the head caught up in this step: its time says nothing of the depth

	times []telemetry.DepthTime // by depth
}

// chooser is what the engine has of a speculation.Chooser.
type chooser interface {
	Choose(l speculation.Load, b speculation.Bounds) int
	Depth() (depth int, reason string)
	Gain(l speculation.Load) float64
	Counts() (switches, probes int)
	Helps() bool
	Tokens() []float64
	Observe(l speculation.Load, depth int, seconds float64, accepted int)
	Mixed(l speculation.Load, depth int, seconds float64, accepted, rows int)
	CaughtUp(l speculation.Load, seconds float64)
	Verified(drafted, accepted int)
	Report(p *telemetry.Profile)
}

// Speculation says how the engine speculates now, and why.
func (e *Engine) Speculation() telemetry.Speculation {
	d := &e.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

// SetSpeculation changes mode and bounds from the next cycle on. The errors are
// scheduler.ErrNotReady while the model loads, and *scheduler.InvalidRequestError.
func (e *Engine) SetSpeculation(mode speculation.Mode, least, most int) error {
	e.mu.Lock()
	steps, speculates, loaded := e.info.NumSteps, e.drafter != nil, e.scheduler != nil
	e.mu.Unlock()
	switch {
	case !loaded:
		return scheduler.ErrNotReady
	case !speculates && mode != speculation.ModeOff:
		return &scheduler.InvalidRequestError{Param: "mode", Message: fmt.Sprintf("mode is %.60q, but this server has no drafter: allowed is %q", mode, speculation.ModeOff)}
	case mode != speculation.ModeAuto && mode != speculation.ModeFixed && mode != speculation.ModeOff:
		return &scheduler.InvalidRequestError{Param: "mode", Message: fmt.Sprintf("mode is %.60q: allowed are %q, %q and %q", mode, speculation.ModeAuto, speculation.ModeFixed, speculation.ModeOff)}
	case most < 0 || most > steps:
		return &scheduler.InvalidRequestError{Param: "max_steps", Message: fmt.Sprintf("max_steps is %d: allowed is 0 to %d, the server's --speculative-num-steps", most, steps)}
	case least < 0 || least > most:
		return &scheduler.InvalidRequestError{Param: "min_steps", Message: fmt.Sprintf("min_steps is %d: allowed is 0 to max_steps, which is %d", least, most)}
	}
	d := &e.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bounds = speculation.Bounds{Mode: mode, Min: least, Max: most}
	d.current.Mode, d.current.MinSteps, d.current.MaxSteps = string(mode), least, most
	return nil
}

// choose sets the depth of this step's drafts.
func (e *Engine) choose() {
	d := &e.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	before, at := d.next, load(e.scheduler.Running())
	d.next = d.chooser.Choose(at, d.bounds)
	if gain := d.chooser.Gain(at); at.Batch > 0 && gain != d.current.Gain { // of plain decoding it is 1 always
		d.current.Gain = gain
		e.metrics.SpecGain(gain)
	}
	d.current.Switches, d.current.Probes = d.chooser.Counts()
	e.judge()
	d.caughtUp = before == 0 && d.next > 0
	_, d.current.Reason = d.chooser.Depth()
	if d.next != before {
		d.current.NumSteps = d.next
		d.current.Since = time.Now().UTC()
		e.stats.depth(d.next)
	}
}

// speculates tells whether a request that begins now will have drafts, as far as
// that is known.
func (e *Engine) speculates() bool {
	if e.drafter == nil {
		return false
	}
	d := &e.depth
	d.mu.Lock()
	defer d.mu.Unlock()
	switch b := d.bounds; {
	case b.Mode == speculation.ModeOff || b.Max == 0:
		return false
	case b.Mode == speculation.ModeFixed || b.Min > 0:
		return true
	}
	return d.next > 0
}

// judge reports a draft that is hardly ever right: once in the log.
func (e *Engine) judge() {
	d := &e.depth
	if helps := d.chooser.Helps(); helps == d.current.Useless {
		d.current.Useless = !helps
		e.metrics.SpecHelps(helps)
		if !helps && !d.warned {
			d.warned = true
			e.log.Warn("the draft does not help: hardly any of its tokens is accepted. In mode auto it is left out and tried again rarely; is it the one that was trained for this model?",
				"draft", e.info.DraftModel, "mode", d.bounds.Mode, "accept_length", round2(slices.Max(d.chooser.Tokens())))
		}
	}
}

// load is what the clients' running sequences put on a cycle: the engine's own probes
// come and go beside them.
func load(running []*scheduler.Sequence) speculation.Load {
	var l speculation.Load
	for _, s := range running {
		if !s.Finished() && !s.Probe {
			l.Batch++
			l.Context += len(s.Tokens)
		}
	}
	return l
}

// observe takes in a step that began at start: a cycle of one depth and of
// decodes of clients alone says what that depth costs, and where there are few of
// these, one with some rows of prompts does. A probe may draft where the
// others do not, and is no text of anybody's.
func (e *Engine) observe(b *scheduler.Batch, l speculation.Load, start time.Time) {
	d := &e.depth
	took := time.Since(start).Seconds()
	clients := !slices.ContainsFunc(b.Sequences, func(s *scheduler.Sequence) bool { return s.Probe })
	decodes := clients && b.Decodes == len(b.Sequences)
	d.mu.Lock()
	switch at := &d.times[d.next]; {
	case !decodes:
		at.Mixed.Add(took, e.emitted)
	case d.verified != d.next:
		at.Moving.Add(took, e.emitted)
	case d.current.Reason == speculation.ReasonProbe:
		at.Probe.Add(took, e.emitted)
	default:
		at.Steady.Add(took, e.emitted)
	}
	switch {
	case !clients || b.Decodes == 0 || !d.teaches(e.cfg.LearnInAuto):
	case d.caughtUp && decodes:
		d.chooser.CaughtUp(l, took)
	case d.caughtUp || d.verified != d.next:
	case decodes:
		d.chooser.Observe(l, d.next, took, e.accepted)
	default:
		l.Batch = b.Decodes
		d.chooser.Mixed(l, d.next, took, e.accepted, b.Prompts)
	}
	d.mu.Unlock()
	d.verified = d.next
}

// teaches tells whether the choice learns from what happens now.
func (d *depthControl) teaches(inAuto bool) bool {
	return !inAuto || d.bounds.Mode == speculation.ModeAuto
}

// simulate wraps the drafter where acceptance shall be simulated.
func (e *Engine) simulate(d speculation.Drafter, vocab int) speculation.Drafter {
	if e.cfg.SimulateAccept == "" {
		return d
	}
	rates, err := speculation.ParseAcceptance(e.cfg.SimulateAccept, e.cfg.NumSteps)
	if err != nil { // New has checked it
		e.log.Error("acceptance is not simulated", "error", err)
		return d
	}
	e.log.Warn("the acceptance of drafts is simulated: figures of speculation are not real", "rates", rates)
	e.learns = speculation.NewSimulated(d, rates, vocab)
	return e.learns
}
