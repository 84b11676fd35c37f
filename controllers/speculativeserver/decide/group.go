package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// Start is a pod of a group that may be scheduled now.
type Start struct {
	Pod   *corev1.Pod
	Avoid []string // nodes that it should not run on if there are others
}

// workersOf lists the nodes of a replica but its first, which lead is the pod of,
// each with its pod, when there is one, and its row of the last status.
func (in *Input) workersOf(ordinal int32, lead *Pod, old map[string]v1alpha1.PodStatus) []member {
	var ms []member
	for node := int32(1); node < in.Nodes; node++ {
		m := member{ordinal: ordinal, node: node, grouped: true, lead: lead}
		name := fmt.Sprintf("%s-%d", in.podName(ordinal), node)
		row := old[name]
		row.DeepCopyInto(&m.row)
		m.row.Name = name
		for i := range in.Workers {
			if w := &in.Workers[i]; w.Ordinal == ordinal && w.Node == node && w.Name == name {
				m.pod = &w.Pod
			}
		}
		ms = append(ms, m)
	}
	return ms
}

// gates are the scheduling gates of a pod: whether it has the operator's, and the
// first of others.
func gates(p *corev1.Pod) (own bool, other string) {
	for _, g := range p.Spec.SchedulingGates {
		switch {
		case g.Name == v1alpha1.StartGate:
			own = true
		case other == "":
			other = g.Name
		}
	}
	return own, other
}

// carryOn takes from the last status what a pod of a group waits for while no
// engine runs in it. Its controller makes the pods again at once, and behind the
// gate they have not started.
func (m *member) carryOn(before v1alpha1.PodStatus) {
	if m.pod != nil {
		m.held, _ = gates(m.pod.Pod)
	}
	if m.idle() {
		m.row.NextStartTime = before.NextStartTime
	}
	// The pod that ended is replaced by itself; one that never started is not.
	f := before.LastFailure
	m.again = m.failed && f != nil && before.UID != "" && before.UID != f.PodUID && (m.pod == nil || string(m.pod.UID) != before.UID)
}

// idle says that no engine runs in the pod, or that it is being deleted.
func (m *member) idle() bool { return m.pod == nil || m.held || m.pod.DeletionTimestamp != nil }

// recordGroup notes a failure in the row of a pod of a LeaderWorkerSet, once for
// each pod. Its controller makes the whole group again at once, or when the
// operator has deleted it; when it may start, and whether, is decided of the group.
func (m *member) recordGroup(in Input, v *failure.Verdict) {
	row, uid := &m.row, string(m.pod.UID)
	revision := m.pod.Labels[v1alpha1.LabelRevision]
	last := row.LastFailure
	first := last == nil || last.PodUID != uid
	if first {
		row.Restarts++
		if m.servedLong(v.Time) || last == nil || last.Revision != revision {
			row.FailuresInRow = 0
		}
		row.FailuresInRow++
	}
	if row.FailingSince == nil {
		row.FailingSince = ptrTime(v.Time)
	}
	row.LastFailure = &v1alpha1.PodFailure{
		Time: metav1.NewTime(v.Time), PodUID: uid, Revision: revision, Node: m.pod.Spec.NodeName,
		ExitCode: v.ExitCode, Rank: v.Rank, Reason: v.Reason, Message: v.Message,
	}
	m.ended, m.doomed = true, !v.Ended
	m.badDraft = isDraft(v)
	// A pod that goes is judged once: after a change of the spec it only lingers.
	m.spent = revision == in.Revision && (first || m.pod.DeletionTimestamp == nil) &&
		(!m.badDraft || !servesWithoutDraft(in.Server)) &&
		(v.Terminal || failure.Exhausted(v, row.FailuresInRow, crashBudget(in.Server)))
	row.NextStartTime = ptrTime(v.Time.Add(failure.Backoff(row.FailuresInRow)))
	phase := v1alpha1.PhaseCrashed
	if m.doomed {
		phase = v1alpha1.PhaseStalled
	}
	m.set(phase, "%s Its group starts again as a whole.", m.lastWords())
}

// lastWords is the last failure of a pod of a group as a sentence.
func (m *member) lastWords() string {
	f := m.row.LastFailure
	message := strings.TrimRight(f.Message, ".")
	if f.Rank != nil {
		message = fmt.Sprintf("rank %d: %s", *f.Rank, message)
	}
	return fmt.Sprintf("%s, %s: %s.", ended(f), times(m.row.FailuresInRow), message)
}

// group are the pods of a replica of several nodes, the first of them first.
func (m *member) group() []*member {
	all := []*member{m}
	for k := range m.workers {
		all = append(all, &m.workers[k])
	}
	return all
}

// root is the pod of a group whose end was the reason of another's: of one that
// ended since it lost the others, the one that says more.
func (m *member) root() *member {
	lost := func(p *member) bool { return p.row.LastFailure.Reason == "CollectiveFailed" }
	if m.row.Phase != v1alpha1.PhaseCrashed && m.row.Phase != v1alpha1.PhaseFailed || m.row.LastFailure == nil || !lost(m) {
		return m
	}
	for _, p := range m.group() {
		if p.row.Phase == m.row.Phase && p.row.LastFailure != nil && !lost(p) {
			return p
		}
	}
	return m
}

// groups chooses the pods that may start: those of each group whose tries are not
// over and whose back-off has ended. It words the rows of the others. A group that
// the operator found dead is deleted, once that is in the status. wait is when to
// look again; 0: no need.
func (d *Decision) groups(in Input, members []member) (wait time.Duration) {
	if in.Server.DeletionTimestamp != nil {
		return 0
	}
	wakeIn := func(w time.Duration) {
		if wait == 0 || w < wait {
			wait = w
		}
	}
	for i := range members {
		m := &members[i]
		if p := m.found(); p != nil && p.recorded(in) {
			d.Delete = append(d.Delete, Deletion{Pod: m.pod.Pod, Group: true, Reason: "Restarting", Message: fmt.Sprintf("%s of its group: %s", p.row.Name, p.row.LastFailure.Reason)})
		} else if p != nil {
			wakeIn(time.Second)
		}
		spent := m.over(&in)
		next := m.nextStart()
		switch {
		case len(spent) > 0:
			m.dead = true
			m.giveUp(spent, crashBudget(in.Server))
		case in.Now.Before(next):
			m.backOff(next)
			wakeIn(next.Sub(in.Now))
		default:
			d.Start = append(d.Start, m.starts()...)
		}
	}
	return wait
}

// found is a pod of a group that the operator found dead while its engine runs;
// nil: there is none, or the group goes already.
func (m *member) found() *member {
	if m.pod == nil || m.pod.DeletionTimestamp != nil {
		return nil
	}
	for _, p := range m.group() {
		if p.doomed {
			return p
		}
	}
	return nil
}

// over lists the pods of a group whose end was the last that it may have: now, or
// before, with no change of the spec since and without having been started again.
// What is of an older spec is not tried again either: the rollout replaces it. A
// pod that is deleted by hand is one more try for its group.
func (m *member) over(in *Input) []*member {
	var spent []*member
	again := false
	for _, p := range m.group() {
		f := p.row.LastFailure
		stays := p.failed && f != nil && (p.idle() || string(p.pod.UID) == f.PodUID)
		if stays && f.Revision == in.Revision {
			stays = in.Server.Status.ObservedGeneration == in.Server.Generation
		} else if stays {
			stays = p.held && p.stale && p.pod.Labels[v1alpha1.LabelRevision] == f.Revision
		}
		if p.spent || stays {
			spent = append(spent, p)
		}
		again = again || p.again
	}
	if again && !slices.ContainsFunc(spent, func(p *member) bool { return p.spent }) {
		return nil
	}
	return spent
}

// nextStart is when the longest back-off of a group's pods ends; zero: none waits.
// What failed in another revision is no reason to wait.
func (m *member) nextStart() time.Time {
	var next time.Time
	for _, p := range m.group() {
		at, f := p.row.NextStartTime, p.row.LastFailure
		if at == nil {
			continue
		}
		if f == nil || p.pod != nil && p.pod.Labels[v1alpha1.LabelRevision] != f.Revision {
			p.row.NextStartTime = nil
			continue
		}
		if at.After(next) {
			next = at.Time
		}
	}
	return next
}

// starts lists the pods of a group whose gate is to go. One that has ended, or is
// being deleted, is about to be made again with all of its group.
func (m *member) starts() []Start {
	var list []Start
	for _, p := range m.group() {
		switch {
		case p.ended, p.pod != nil && p.pod.DeletionTimestamp != nil, p == m && p.pod == nil:
			return nil
		case p.held:
			list = append(list, Start{Pod: p.pod.Pod, Avoid: p.avoid()})
		}
		p.row.NextStartTime = nil
	}
	return list
}

// backOff words the rows of a group that starts at a time to come.
func (m *member) backOff(next time.Time) {
	for _, p := range m.group() {
		switch {
		case p.row.NextStartTime != nil:
			p.row.NextStartTime = ptrTime(next)
			phase := v1alpha1.PhaseCrashed
			if p.doomed {
				phase = v1alpha1.PhaseStalled
			}
			p.set(phase, "%s Its group starts again as a whole at %s.", p.lastWords(), clock(next))
		case p.pod == nil || p.held:
			p.set(v1alpha1.PhasePending, "Its group starts again as a whole at %s.", clock(next))
		}
	}
}

// giveUp words the rows of a group that is not started again.
func (m *member) giveUp(spent []*member, budget int32) {
	for _, p := range m.group() {
		p.row.NextStartTime = nil
		switch {
		case slices.Contains(spent, p):
			why := ""
			if budget > 0 && p.row.FailuresInRow >= budget {
				why = "That is the budget of spec.health.crashBudget. "
			}
			p.set(v1alpha1.PhaseFailed, "%s %sIts group is not started again until the spec changes or this pod is deleted, which is one more try.", p.lastWords(), why)
		case p.pod == nil || p.held:
			p.set(v1alpha1.PhasePending, "Not started: %s of its group is Failed.", spent[0].row.Name)
		}
	}
}

// Rolling is how a LeaderWorkerSet's controller may replace groups.
type Rolling struct {
	Missing int32 // of those asked for, at once
	Surge   int32 // more than asked for
}

// rolling is what the spec asks for, but that rollouts must be able to end. That
// controller replaces groups from the last to the first, and none that serves while
// as many as may be are missing: a Failed one of the old spec would keep the rollout
// from the groups after it for ever, and itself from being mended. So the new spec
// is first served by groups more than asked for, on the devices that the Failed ones
// do not use. They go as soon as they are not needed. For a single group it makes
// none more, and would wait for ever if none may be missing.
func (in *Input) rolling(members []member, desired int32) Rolling {
	c := config(in.Server, desired)
	r := Rolling{c.MaxUnavailable, c.MaxSurge}
	behind := false // a group that serves, or will, is still to be replaced, or on its way
	failed := int32(0)
	for n := desired - 1; n >= 0; n-- {
		switch m := &members[n]; {
		case m.dead && m.stale && behind:
			failed++
		case !m.dead && (m.stale || m.row.Phase != v1alpha1.PhaseReady):
			behind = true
		}
	}
	if failed > 0 || desired == 1 {
		r.Missing = max(r.Missing, 1)
	}
	if failed > 0 {
		r.Surge = max(r.Surge, failed+1-r.Missing)
	}
	return r
}
