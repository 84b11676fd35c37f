// Package rollout plans which pods of a server to make and to delete. It is
// pure: the same pods at the same time give the same plan.
//
// A pod's name is its ordinal's, so a new pod is made only when the old one is
// gone: a pod that terminates still holds its devices, and counts. Beyond the
// replicas asked for there are at most MaxSurge pods, on the ordinals that
// follow, and only while pods of another revision are being replaced.
package rollout

import (
	"fmt"
	"slices"
	"time"
)

// Config is what the spec asks for.
type Config struct {
	Desired        int32
	MaxUnavailable int32
	MaxSurge       int32
	WaitForIdle    time.Duration // how long to wait for a moment without requests
}

// Pod is one ordinal as it is.
type Pod struct {
	Ordinal     int32
	Exists      bool
	Terminating bool
	Overdue     bool // terminates for so long that it is to be forced
	Stale       bool // of another revision
	Ready       bool
	Faulty      bool // crashed, failed, or kept from starting by a fault
	NoRoom      bool // waits for capacity

	Requests  int       // running and waiting; below 0: not known
	IdleSince time.Time // since when the plan waits for it to be idle; zero: it does not

	RestartAt time.Time // of a crashed pod, when its back-off ends; zero: no restart
	Recorded  bool      // its crash is in the written status: one that is not would not be counted
}

// Plan is what to do now.
type Plan struct {
	Create []int32
	Delete []Deletion
	Await  []int32       // ordinals whose replacement waits for them to be idle
	Wake   time.Duration // look again after this long; 0: no need
	Halted string        // why a rollout does not go on; "": it does, or there is none
}

// Deletion is a pod to delete and why.
type Deletion struct {
	Ordinal int32
	Force   bool // at once, without its node's word
	Reason  string
	Message string
}

// planner holds what the steps of a plan share.
type planner struct {
	Plan
	c    Config
	pods []Pod
	now  time.Time

	total     int32 // pods that exist, terminating ones included
	available int32 // ready, and not about to go
	stale     int32 // still there
	starved   bool  // an ordinal asked for waits for capacity
	whole     bool  // every ordinal asked for is ready and up to date
}

// Next plans. pods has every ordinal that is asked for or has a pod, once.
func Next(c Config, pods []Pod, now time.Time) Plan {
	p := &planner{c: c, pods: slices.Clone(pods), now: now}
	slices.SortFunc(p.pods, func(a, b Pod) int { return int(a.Ordinal - b.Ordinal) })
	p.count()
	p.extras()
	p.outdated()
	p.restarts()
	p.replace()
	p.create()
	return p.Plan
}

func (p *planner) count() {
	p.whole = true
	for i := range p.pods {
		q := &p.pods[i]
		if q.Exists {
			p.total++
			if q.Ready && !q.Terminating {
				p.available++
			}
			if q.Stale {
				p.stale++
			}
		}
		p.starved = p.starved || q.Ordinal < p.c.Desired && q.live() && q.NoRoom
		if q.Ordinal < p.c.Desired && (!q.Exists || q.Terminating || q.Stale || !q.Ready) {
			p.whole = false
		}
		if q.Overdue {
			p.Delete = append(p.Delete, Deletion{Ordinal: q.Ordinal, Force: true, Reason: "Forced",
				Message: "it should have stopped long ago, and its node does not say that it has; what it held there may not be free"})
		}
	}
}

// remove deletes a pod; whether it counted as available is settled here.
func (p *planner) remove(q *Pod, reason, format string, args ...any) {
	if q.Ready {
		p.available--
	}
	q.Terminating = true
	p.Delete = append(p.Delete, Deletion{Ordinal: q.Ordinal, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// live are the pods that exist and stay so far.
func (q *Pod) live() bool { return q.Exists && !q.Terminating }

// extras removes the pods beyond those asked for, but for the surge of a rollout
// that still needs it.
func (p *planner) extras() {
	surging := p.c.MaxSurge > 0 && !p.whole
	for i := range p.pods {
		q := &p.pods[i]
		if q.Ordinal < p.c.Desired || !q.live() {
			continue
		}
		spare := !q.Ready || p.available > p.c.Desired-p.c.MaxUnavailable
		switch {
		case surging && p.stale == 0 && p.starved && spare:
			p.starved = false // one set of devices at a time
			p.remove(q, "RolloutEnded", "a replica that is asked for needs its room")
		case !surging && p.c.MaxSurge > 0 && p.c.Desired > 0:
			p.remove(q, "RolloutEnded", "%d replicas are asked for, and all are up to date", p.c.Desired)
		case !surging || q.Ordinal >= p.c.Desired+p.c.MaxSurge:
			p.remove(q, "ScaledDown", "%d replicas are asked for", p.c.Desired)
		}
	}
}

// outdated removes the pods of another revision that are not ready: they serve
// no one.
func (p *planner) outdated() {
	for i := range p.pods {
		if q := &p.pods[i]; q.live() && q.Stale && !q.Ready {
			p.remove(q, "Outdated", "made from another spec, and not ready")
		}
	}
}

// restarts removes the crashed pods whose back-off has ended.
func (p *planner) restarts() {
	for i := range p.pods {
		q := &p.pods[i]
		if !q.live() || q.RestartAt.IsZero() {
			continue
		}
		switch wait := q.RestartAt.Sub(p.now); {
		case wait > 0:
			p.wake(wait)
		case q.Recorded:
			p.remove(q, "Restarting", "its back-off has ended")
		default:
			p.wake(time.Second)
		}
	}
}

func (p *planner) wake(d time.Duration) {
	if p.Wake == 0 || d < p.Wake {
		p.Wake = d
	}
}

// replace removes ready pods of another revision, as many as may be missing,
// those without requests first.
func (p *planner) replace() {
	var old []*Pod
	for i := range p.pods {
		q := &p.pods[i]
		switch {
		case q.live() && q.Stale:
			old = append(old, q)
		case q.live() && q.Faulty && p.Halted == "":
			p.Halted = fmt.Sprintf("pod %d of the current spec has a fault", q.Ordinal)
		}
	}
	if len(old) == 0 {
		p.Halted = ""
		return
	}
	if p.Halted != "" {
		return // a revision that fails goes no further than its first pods
	}
	room := p.available - (p.c.Desired - p.c.MaxUnavailable)
	if room <= 0 {
		p.explain()
		return
	}
	slices.SortStableFunc(old, func(a, b *Pod) int { return max(a.Requests, -1) - max(b.Requests, -1) })
	for _, q := range old {
		switch {
		case room == 0:
			return
		case p.mayGo(q):
			p.remove(q, "Outdated", "made from another spec")
			room--
		default:
			p.Await = append(p.Await, q.Ordinal)
		}
	}
}

// mayGo says whether a ready pod is idle, or has been waited for long enough.
// One whose requests are not known is not idle.
func (p *planner) mayGo(q *Pod) bool {
	if q.Requests == 0 {
		return true
	}
	since := q.IdleSince
	if since.IsZero() {
		since = p.now
	}
	left := since.Add(p.c.WaitForIdle).Sub(p.now)
	if left > 0 {
		p.wake(left)
	}
	return left <= 0
}

// explain says what a rollout without room waits for, where that will not come
// by itself.
func (p *planner) explain() {
	for i := range p.pods {
		q := &p.pods[i]
		if q.live() && !q.Stale && q.NoRoom && q.Ordinal >= p.c.Desired && p.c.MaxUnavailable == 0 {
			p.Halted = fmt.Sprintf("pod %d is to be made before an old one goes, and there is no room for it: set spec.rollout.maxUnavailable to 1, or add capacity", q.Ordinal)
			return
		}
	}
}

// create makes the pods that are missing, and the surge of a rollout, as far as
// the number of pods allows.
func (p *planner) create() {
	most := p.c.Desired + p.c.MaxSurge
	replaced := int32(0) // pods that will be replaced, and the surge pods there are for them
	surge := int32(0)
	has := map[int32]bool{}
	for i := range p.pods {
		q := &p.pods[i]
		has[q.Ordinal] = q.Exists
		switch {
		case q.Ordinal < p.c.Desired && q.live() && q.Stale:
			replaced++
		case q.Ordinal >= p.c.Desired && q.Exists:
			surge++
		}
	}
	for n := range p.c.Desired {
		if !has[n] && p.total < most {
			p.total++
			p.Create = append(p.Create, n)
		}
	}
	if p.Halted != "" {
		return
	}
	for n := p.c.Desired; n < most && surge < min(replaced, p.c.MaxSurge); n++ {
		if !has[n] {
			surge++
			p.Create = append(p.Create, n)
		}
	}
}
