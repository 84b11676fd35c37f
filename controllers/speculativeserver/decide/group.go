package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

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

// recordGroup notes a failure in the row of a pod of a LeaderWorkerSet, once for
// each pod. Its controller makes the whole group again at once, so all that can
// be decided is whether it may.
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
	m.badDraft = isDraft(v)
	// A pod that goes is judged once: after a change of the spec it only lingers.
	m.spent = revision == in.Revision && (first || m.pod.DeletionTimestamp == nil) &&
		(!m.badDraft || !servesWithoutDraft(in.Server)) &&
		(v.Terminal || failure.Exhausted(v, row.FailuresInRow, crashBudget(in.Server)))
	m.set(v1alpha1.PhaseCrashed, "%s Its group starts again as a whole.", m.lastWords())
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

// groups says how many groups the LeaderWorkerSet is to have: those asked for,
// but the last ones whose tries are over, since only the last can be left out. It
// words the rows of all whose tries are over. While pods of another revision are
// there none is left out: the rollout would go on to the next. wait is when to
// look again, since a group goes only after its failure is in the written status;
// 0: no need. The members asked for come first, in order.
func (in *Input) groups(members []member, desired int32) (groups int32, wait time.Duration) {
	last := !slices.ContainsFunc(members, func(m member) bool {
		return m.stale || slices.ContainsFunc(m.workers, func(w member) bool { return w.stale })
	})
	groups = desired
	for n := desired - 1; n >= 0; n-- {
		m := &members[n]
		spent := m.over(in)
		switch {
		case len(spent) == 0:
			last = false
		case !last:
			for _, p := range spent {
				p.goesOn()
			}
		default:
			m.giveUp(spent, crashBudget(in.Server))
			written := slices.ContainsFunc(spent, func(p *member) bool { return p.failed })
			if written && groups == n+1 {
				groups = n
			} else {
				wait = time.Second
			}
		}
	}
	return groups, wait
}

// over lists the pods of a group whose end was the last that it may have: now, or
// before, with no change of the spec since and without having served again.
func (m *member) over(in *Input) []*member {
	var spent []*member
	judge := func(p *member) {
		f := p.row.LastFailure
		stays := p.failed && f != nil && f.Revision == in.Revision && in.Server.Status.ObservedGeneration == in.Server.Generation
		if since, ok := m.servesSince(); stays && ok && m.row.Phase == v1alpha1.PhaseReady && since.After(f.Time.Time) {
			stays = false
		}
		if p.spent || stays {
			spent = append(spent, p)
		}
	}
	judge(m)
	for k := range m.workers {
		judge(&m.workers[k])
	}
	return spent
}

// giveUp words the rows of a group that is not made again.
func (m *member) giveUp(spent []*member, budget int32) {
	for _, p := range spent {
		why := ""
		if budget > 0 && p.row.FailuresInRow >= budget {
			why = "That is the budget of spec.health.crashBudget. "
		}
		p.row.Percent = nil
		p.set(v1alpha1.PhaseFailed, "%s %sIts group is not made again until the spec changes.", p.lastWords(), why)
	}
	rest := func(p *member) {
		if p.pod == nil && p.row.Phase != v1alpha1.PhaseFailed {
			p.set(v1alpha1.PhasePending, "Not made: %s of its group is Failed.", spent[0].row.Name)
		}
	}
	rest(m)
	for k := range m.workers {
		rest(&m.workers[k])
	}
}

// goesOn words the row of a pod whose group is made again although its tries are
// over.
func (m *member) goesOn() {
	if m.row.Phase == v1alpha1.PhaseCrashed {
		m.set(v1alpha1.PhaseCrashed, "%s Its tries are over, and its group starts again all the same: groups of another spec or of a higher number are there, which would go with it.", m.lastWords())
	}
}
