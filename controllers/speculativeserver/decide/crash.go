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

// Reasons of failures that the operator finds itself, in pods that still run.
const (
	reasonLoadStalled        = "LoadStalled"
	reasonVerificationFailed = v1alpha1.ReasonVerificationFailed
)

// DefaultCrashBudget is how many crashes in a row end the tries, where the spec
// does not say.
const DefaultCrashBudget = 10

func crashBudget(s *v1alpha1.SpeculativeServer) int32 {
	if h := s.Spec.Health; h != nil && h.CrashBudget != nil {
		return *h.CrashBudget
	}
	return DefaultCrashBudget
}

// record notes a failure in the pod's row, once for each pod, and says what
// follows from it.
func (m *member) record(in Input, v *failure.Verdict) {
	if m.grouped {
		m.recordGroup(in, v)
		return
	}
	row, uid := &m.row, string(m.pod.UID)
	revision := m.pod.Labels[v1alpha1.LabelRevision]
	if last := row.LastFailure; last == nil || last.PodUID != uid {
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
	m.judge(in, v)
}

// servesSince is when the operator verified the replica of a pod; ok is false
// while it is not verified. Of several nodes the first has the gate.
func (m *member) servesSince() (since time.Time, ok bool) {
	p := m.pod
	if m.node > 0 {
		p = m.lead
	}
	if p == nil || !isTrue(p.Pod, v1alpha1.ModelVerified) {
		return time.Time{}, false
	}
	return condition(p.Pod, v1alpha1.ModelVerified).LastTransitionTime.Time, true
}

// servedLong says that a failure at a time is the first of a row, whatever was
// before.
func (m *member) servedLong(at time.Time) bool {
	since, ok := m.servesSince()
	return ok && at.Sub(since) >= failure.StableAfter
}

// judge words a recorded failure, and whether and when the engine starts again.
func (m *member) judge(in Input, v *failure.Verdict) {
	row := &m.row
	message := strings.TrimRight(v.Message, ".")
	if v.Rank != nil {
		message = fmt.Sprintf("rank %d: %s", *v.Rank, message)
	}
	if m.badDraft = isDraft(v); m.badDraft && servesWithoutDraft(in.Server) {
		m.set(v1alpha1.PhaseCrashed, "%s: %s. Started again without the draft, as spec.speculation.onDraftFailure has it.", ended(row.LastFailure), message)
		return
	}
	if v.Terminal {
		m.set(v1alpha1.PhaseFailed, "%s: %s. Not started again until the spec changes or the pod is deleted.", ended(row.LastFailure), message)
		return
	}
	if failure.Exhausted(v, row.FailuresInRow, crashBudget(in.Server)) {
		m.set(v1alpha1.PhaseFailed, "%s, %s: %s. That is the budget of spec.health.crashBudget: not started again until the spec changes or the pod is deleted, which is one more try.",
			ended(row.LastFailure), times(row.FailuresInRow), message)
		return
	}
	next := metav1.NewTime(v.Time.Add(failure.Backoff(row.FailuresInRow)).Truncate(time.Second))
	row.NextStartTime = &next
	phase := v1alpha1.PhaseCrashed
	if !v.Ended {
		phase = v1alpha1.PhaseStalled
	}
	m.set(phase, "%s, %s: %s. Next start at %s.", ended(row.LastFailure), times(row.FailuresInRow), message, clock(next.Time))
}

// condemned says that this pod, which still runs, was found dead before: it
// stays so, however the operator's own memory was lost, unless it is well again.
func (m *member) condemned(in Input) bool {
	last := m.row.LastFailure
	if last == nil || last.PodUID != string(m.pod.UID) || isTrue(m.pod.Pod, corev1.PodReady) {
		return false
	}
	v := &failure.Verdict{Time: last.Time.Time, Reason: last.Reason, Message: last.Message, Rank: last.Rank}
	if m.grouped {
		m.recordGroup(in, v)
	} else {
		m.judge(in, v)
	}
	return true
}

// hopeless finds a running pod that will not come to serve by itself: a load
// that has outlived its budget, or a model that has long ceased to answer while
// its engine does.
func (m *member) hopeless(in Input) bool {
	e := m.pod.Engine
	if e == nil || e.Progress == nil || !e.SilentSince.IsZero() {
		return false
	}
	if e.Progress.Phase == "join" {
		return false // it waits for other nodes, which may wait for room, and ends by itself
	}
	if deadline, ok := loadDeadline(e.Progress, loadBudget(in.Server)); ok {
		if in.Now.Before(deadline) {
			m.wakeAt(deadline, in.Now)
			return false
		}
		m.record(in, &failure.Verdict{Time: deadline, Reason: reasonLoadStalled,
			Message: fmt.Sprintf("no progress in phase %q at %.0f %% for %s, which is the budget of spec.rollout.loadBudgetSeconds",
				failure.Clean(e.Progress.Phase, 40), finite(e.Progress.Percent), loadBudget(in.Server))})
		return true
	}
	since, ok := m.unansweredSince()
	if !ok || e.Probe == nil || e.Probe.Failures < UnverifiedAfter {
		return false
	}
	deadline := since.Add(UnverifiedRestart)
	if in.Now.Before(deadline) {
		m.wakeAt(deadline, in.Now)
		return false
	}
	m.record(in, &failure.Verdict{Time: deadline, Reason: reasonVerificationFailed,
		Message: fmt.Sprintf("the engine answers, and its model has not for %s: %s", UnverifiedRestart, failure.Clean(e.Probe.Message, 300))})
	return true
}

// unansweredSince is since when the model should answer and is not known to: when
// the pod lost its gate, or when its engine said that it is ready, of a pod that has
// not had the gate; ok is false of a verified pod, and of one that is not so far, or
// has no gate since another node of its replica serves.
func (m *member) unansweredSince() (since time.Time, ok bool) {
	if m.node > 0 {
		return time.Time{}, false
	}
	if gate := condition(m.pod.Pod, v1alpha1.ModelVerified); gate != nil {
		return gate.LastTransitionTime.Time, gate.Status == corev1.ConditionFalse
	}
	if c := condition(m.pod.Pod, corev1.ContainersReady); c != nil {
		return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
	}
	return time.Time{}, false
}

// avoid is the nodes on which a pod's next engine should not run if there are
// others: where a device of its last one failed.
func (m *member) avoid() []string {
	if f := m.row.LastFailure; f != nil && f.Node != "" && slices.Contains([]string{"DeviceFault", "DeviceMissing"}, f.Reason) {
		return []string{f.Node}
	}
	return nil
}

func ended(f *v1alpha1.PodFailure) string {
	if f.ExitCode == nil {
		return f.Reason
	}
	return fmt.Sprintf("%s (exit code %d)", f.Reason, *f.ExitCode)
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", n)
}

func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly + "Z") }

func ptrTime(t time.Time) *metav1.Time {
	mt := metav1.NewTime(t.Truncate(time.Second))
	return &mt
}
