// Package adapt bounds how deep a server's engines may draft, from what all its
// pods measure. It is pure: the state goes in and comes out.
//
// Each engine chooses its depth within the bounds by its own measured costs, many
// times a second. The bounds are what an engine alone cannot see or must not
// decide: that requests queue on the whole server, that the cache is nearly full,
// that drafting does not pay over minutes, or that tokens come later than the
// spec allows.
package adapt

import (
	"fmt"
	"math"
	"time"
)

// Waits between changes, so that a change's effect is seen before the next.
const (
	CoolDown = 20 * time.Second // before the bound goes down again
	CoolUp   = 60 * time.Second // before it goes up
	Retry    = 10 * time.Minute // before drafting that did not pay is tried again
)

// Thresholds; each rule enters at the first and leaves at the second.
const (
	kvEnter, kvLeave           = 0.95, 0.85 // share of the cache in use
	queueEnter, queueLeave     = 0.5, 0.05  // waiting requests for each running one
	latencyEnter, latencyLeave = 1.0, 0.8   // of the time that the spec allows between tokens
	gainEnter                  = 0.97       // tokens a second over those of plain decoding
	goodGain                   = 1.1        // the same, with which drafting goes on under load
	acceptEnter                = 1.05       // tokens a verification; 1 is a draft that never helps
)

// Limits are what the spec asks for.
type Limits struct {
	Min, Max    int           // steps
	Latency     bool          // the objective is latency: a queue does not end drafting
	BetweenToks time.Duration // most mean time between tokens; 0: no bound
}

// Load is what the ready pods measure.
type Load struct {
	Ready    int // pods
	Measured int // of these with fresh metrics

	Running, Waiting float64 // requests, summed
	KVUsage          float64 // the most of any pod
	Depth            float64 // the most of any pod
	AcceptLength     float64 // mean of the pods that draft; 0: none does
	Gain             float64 // mean of the pods that know; 0: none does
	BetweenToks      float64 // mean seconds between tokens; 0: not known
}

// State is what is in force.
type State struct {
	Max    int // steps that the engines may draft at most
	Reason string
	Detail string    // the figures that decided
	Since  time.Time // when Max last changed; zero: never
}

// The reasons of a bound.
const (
	ReasonUnrestricted = "Unrestricted"  // as deep as the spec allows
	ReasonRecovering   = "Recovering"    // on the way back to it
	ReasonKVCache      = "KVCacheFull"   // pages run out: no room for drafts
	ReasonNoHelp       = "DraftUnused"   // hardly a draft token is accepted
	ReasonNoGain       = "DraftTooSlow"  // plain decoding would be faster
	ReasonLatency      = "LatencyBound"  // tokens come later than the spec allows
	ReasonQueue        = "RequestsQueue" // the server is saturated
	ReasonFrozen       = "NoMetrics"     // too few pods measure: the bound stays
)

// rule is a ground for drafting less.
type rule struct {
	reason string
	floor  bool // at once down to the least, and not step by step
	wait   time.Duration
	holds  func(l Limits, at Load, inForce bool) (bool, string)
}

var rules = []rule{
	{ReasonKVCache, true, CoolUp, func(_ Limits, at Load, inForce bool) (bool, string) {
		return at.KVUsage >= pick(inForce, kvLeave, kvEnter), fmt.Sprintf("%.0f %% of the KV cache are in use", 100*at.KVUsage)
	}},
	{ReasonNoHelp, true, Retry, func(_ Limits, at Load, _ bool) (bool, string) {
		return at.Depth > 0 && at.AcceptLength > 0 && at.AcceptLength < acceptEnter, fmt.Sprintf("a verification yields %.2f tokens", at.AcceptLength)
	}},
	{ReasonNoGain, false, Retry, func(_ Limits, at Load, _ bool) (bool, string) {
		return at.Depth > 0 && at.Gain > 0 && at.Gain < gainEnter, fmt.Sprintf("drafting gives %.2f times the tokens of plain decoding", at.Gain)
	}},
	{ReasonLatency, false, CoolUp, func(l Limits, at Load, inForce bool) (bool, string) {
		share := at.BetweenToks / l.BetweenToks.Seconds()
		// Drafts that pay bring tokens sooner on average, so late tokens are no ground against them.
		return l.BetweenToks > 0 && at.Gain < goodGain && share >= pick(inForce, latencyLeave, latencyEnter),
			fmt.Sprintf("%.0f ms between tokens, %d are allowed", 1000*at.BetweenToks, l.BetweenToks.Milliseconds())
	}},
	{ReasonQueue, false, CoolUp, func(l Limits, at Load, inForce bool) (bool, string) {
		// Drafts that pay also while requests queue shorten the queue.
		return !l.Latency && at.Gain < goodGain && at.Waiting >= 1 && at.Waiting/math.Max(at.Running, 1) >= pick(inForce, queueLeave, queueEnter),
			fmt.Sprintf("%.0f requests wait and %.0f run", at.Waiting, at.Running)
	}},
}

func pick(inForce bool, leave, enter float64) float64 {
	if inForce {
		return leave
	}
	return enter
}

// Next is the bound that should be in force, and when to look again; 0 is when
// something changes.
func Next(l Limits, s State, at Load, now time.Time) (State, time.Duration) {
	l.Max = max(l.Max, 0)
	l.Min = min(max(l.Min, 0), l.Max)
	if s.Since.IsZero() && s.Reason == "" {
		return State{Max: l.Max, Reason: ReasonUnrestricted, Since: now}, 0
	}
	if s.Max > l.Max || s.Max < l.Min { // the spec has changed
		s.Max, s.Since = min(max(s.Max, l.Min), l.Max), now
	}
	if s.Reason == ReasonUnrestricted && s.Max < l.Max { // it allows more now
		return State{Max: l.Max, Reason: ReasonUnrestricted, Since: now}, 0
	}
	if at.Measured == 0 || 2*at.Measured < at.Ready {
		if s.Max < l.Max {
			s.Detail = fmt.Sprintf("frozen: %d of %d replicas measure", at.Measured, at.Ready)
		}
		return s, 0
	}
	for _, r := range rules {
		if holds, detail := r.holds(l, at, s.Reason == r.reason); holds {
			return lower(l, s, r, detail, now)
		}
	}
	return raise(l, s, now)
}

// lower goes down, no faster than the effect of the last step shows.
func lower(l Limits, s State, r rule, detail string, now time.Time) (State, time.Duration) {
	if s.Max <= l.Min {
		if s.Reason != r.reason && s.Reason != ReasonNoHelp && s.Reason != ReasonNoGain {
			s.Reason, s.Detail = r.reason, detail
		}
		return s, 0
	}
	if wait := s.Since.Add(CoolDown).Sub(now); wait > 0 && !r.floor {
		return s, wait
	}
	next := s.Max - 1
	if r.floor {
		next = l.Min
	}
	return State{Max: next, Reason: r.reason, Detail: detail, Since: now}, 0
}

// raise goes up by a step when the reason that is in force has been gone for
// long enough.
func raise(l Limits, s State, now time.Time) (State, time.Duration) {
	if s.Max >= l.Max {
		if s.Reason != ReasonUnrestricted {
			s.Reason, s.Detail = ReasonUnrestricted, ""
		}
		return s, 0
	}
	wait := CoolUp
	for _, r := range rules {
		if r.reason == s.Reason {
			wait = r.wait
		}
	}
	if left := s.Since.Add(wait).Sub(now); left > 0 {
		return s, left
	}
	next := State{Max: s.Max + 1, Reason: ReasonRecovering, Since: now}
	if next.Max >= l.Max {
		next.Reason = ReasonUnrestricted
	}
	return next, 0
}
