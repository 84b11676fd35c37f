package decide

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// gatherMembers lists the ordinals that are asked for or have a pod, in order.
// A pod whose ordinal label does not fit its name is left alone.
func gatherMembers(in Input, desired int32) []member {
	pods := map[int32]*Pod{}
	for i := range in.Pods {
		p := &in.Pods[i]
		n, err := strconv.ParseInt(p.Labels[v1alpha1.LabelOrdinal], 10, 32)
		if err == nil && n >= 0 && p.Name == in.podName(int32(n)) {
			pods[int32(n)] = p
		}
	}
	old := map[string]v1alpha1.PodStatus{}
	for _, row := range in.Server.Status.Pods {
		old[row.Name] = row
	}
	var ms []member
	add := func(n int32) {
		m := member{ordinal: n, pod: pods[n], grouped: in.Nodes > 1}
		row := old[in.podName(n)]
		row.DeepCopyInto(&m.row)
		m.row.Name = in.podName(n)
		m.workers = in.workersOf(n, m.pod, old)
		ms = append(ms, m)
		delete(pods, n)
	}
	for n := range desired {
		add(n)
	}
	var extra []int32
	for n := range pods {
		extra = append(extra, n)
	}
	sort.Slice(extra, func(i, j int) bool { return extra[i] < extra[j] })
	for _, n := range extra {
		add(n)
	}
	return ms
}

// podName is the name of the pod that serves for an ordinal.
func (in *Input) podName(ordinal int32) string {
	if in.Nodes > 1 {
		return fmt.Sprintf("%s-nodes-%d", in.Server.Name, ordinal)
	}
	return in.Server.Name + "-" + strconv.Itoa(int(ordinal))
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(p *corev1.Pod, t corev1.PodConditionType) bool {
	c := condition(p, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// classify fills in the row of the pod from what is observed now. Restarts,
// failures and the back-off are carried on from the last status.
func (m *member) classify(in Input) {
	before := m.row
	m.failed = before.Phase == v1alpha1.PhaseFailed
	m.row = v1alpha1.PodStatus{
		Name: before.Name, Restarts: before.Restarts,
		FailuresInRow: before.FailuresInRow, LastFailure: before.LastFailure, FailingSince: before.FailingSince,
		IdleWaitSince: before.IdleWaitSince,
	}
	if f := m.row.LastFailure; f != nil && f.Revision != in.Revision && (m.pod == nil || string(m.pod.UID) != f.PodUID || m.pod.DeletionTimestamp != nil) {
		m.row.FailingSince = nil // what failed is gone, and not what the spec asks for any more
	}
	if m.node > 0 {
		m.row.NodeRank = &m.node
	}
	if m.grouped {
		m.carryOn(before)
	}
	defer func() {
		if m.row.Phase == v1alpha1.PhaseReady {
			m.row.FailingSince = nil
		}
	}()
	if m.pod == nil {
		m.row.Phase, m.row.Message = v1alpha1.PhasePending, "The pod is about to be made."
		if in.NameTaken+in.NoGroups+in.Conflict+in.Refused != "" {
			m.row.Message = "Not made yet: the server's message says what is in the way."
		}
		if in.fetching() {
			m.awaited(in.download)
		}
		return
	}
	p := m.pod
	m.stale = p.Labels[v1alpha1.LabelRevision] != in.Revision
	m.row.UID, m.row.Node = string(p.UID), p.Spec.NodeName
	if e := p.Engine; e != nil && e.Probe != nil {
		t := metav1.NewTime(e.Probe.Time.Truncate(time.Second))
		m.row.LastProbeTime = &t
	} else if before.UID == m.row.UID {
		m.row.LastProbeTime = before.LastProbeTime
	}
	m.computes(in, before)
	verdict := failure.Of(p.Pod, p.MountFailure)
	if m.grouped {
		verdict = failure.OfGroup(p.Pod, p.MountFailure)
	} else if verdict == nil {
		verdict = failure.OfEngine(p.Pod)
	}
	switch {
	case m.grouped && verdict != nil && verdict.Ended:
		m.record(in, verdict)
	case p.DeletionTimestamp != nil:
		m.terminating(in.Now)
	case verdict != nil && verdict.Ended:
		m.record(in, verdict)
	case verdict != nil:
		m.set(verdict.Phase, "%s", verdict.Message)
	case p.Status.Phase == corev1.PodUnknown || p.Status.Reason == "NodeLost":
		m.set(v1alpha1.PhaseNodeLost, "Node %s does not report. If it is gone for good, kubectl delete node %s releases the pod.", p.Spec.NodeName, p.Spec.NodeName)
	case p.Status.Phase != corev1.PodRunning:
		m.pending()
	case m.condemned(in) || m.hopeless(in):
	default:
		m.running(in.Now, before)
	}
	if m.row.Phase == v1alpha1.PhaseReady && m.row.DeviceMessage != "" {
		m.set(m.row.Phase, "%s It computes on the CPU, not on its GPUs: %s", m.row.Message, m.row.DeviceMessage)
	}
}

func (m *member) set(phase v1alpha1.Phase, format string, args ...any) {
	m.row.Phase, m.row.Message = phase, failure.Clean(fmt.Sprintf(format, args...), 1500)
}

// wakeAt asks to look again at a time, which is after now.
func (m *member) wakeAt(t, now time.Time) {
	if w := t.Sub(now); w > 0 && (m.wake == 0 || w < m.wake) {
		m.wake = w
	}
}

func (m *member) terminating(now time.Time) {
	// DeletionTimestamp is when the grace period ends.
	stuck := m.pod.DeletionTimestamp.Add(StuckAfter)
	if now.Before(stuck) {
		m.wakeAt(stuck, now)
		m.set(v1alpha1.PhaseTerminating, "Stopping; its name and devices are free when it is gone.")
		return
	}
	force := m.pod.DeletionTimestamp.Add(ForceAfter)
	m.wakeAt(force, now)
	m.set(v1alpha1.PhaseTerminating, "Should have stopped by %s, and node %s does not say that it has. Removed without its word at %s.",
		clock(m.pod.DeletionTimestamp.Time), m.pod.Spec.NodeName, clock(force))
}

// pending is a pod that has no engine yet, and nothing against it.
func (m *member) pending() {
	if node := m.pod.Spec.NodeName; node != "" {
		m.set(v1alpha1.PhasePulling, "Node %s prepares the pod or pulls %s.", node, failure.Image(m.pod.Pod))
		return
	}
	switch own, other := gates(m.pod.Pod); {
	case other != "":
		m.set(v1alpha1.PhasePending, "Held by the scheduling gate %s, which is not the operator's.", other)
	case own:
		m.set(v1alpha1.PhasePending, "Its group is about to start.")
	default:
		m.set(v1alpha1.PhasePending, "Waiting for the scheduler.")
	}
}

// running tells apart what a running engine does.
func (m *member) running(now time.Time, before v1alpha1.PodStatus) {
	p, e := m.pod, m.pod.Engine
	verified := isTrue(p.Pod, v1alpha1.ModelVerified)
	if since, ok := m.servesSince(); ok {
		if stable := since.Add(failure.StableAfter); now.Before(stable) {
			if m.row.FailuresInRow > 0 {
				m.wakeAt(stable, now)
			}
		} else {
			m.row.FailuresInRow = 0
		}
	}
	if e != nil && !e.SilentSince.IsZero() {
		limit := e.SilentSince.Add(SilentAfter)
		if !now.Before(limit) && (e.Progress != nil || verified) {
			if isTrue(p.Pod, corev1.PodReady) {
				m.set(v1alpha1.PhaseStalled, "The operator has not reached the engine since %s, though its node's probes pass and it stays in service: %s", clock(e.SilentSince), e.SilentError)
				return
			}
			m.set(v1alpha1.PhaseStalled, "The engine has not answered since %s: %s", clock(e.SilentSince), e.SilentError)
			return
		}
		m.wakeAt(limit, now)
	}
	switch {
	case m.node > 0 && isTrue(p.Pod, corev1.PodReady):
		m.set(v1alpha1.PhaseReady, "Computes its ranks.")
	case verified && e != nil && e.Probe != nil && e.Probe.Failures >= UnverifiedAfter && e.SilentSince.IsZero():
		m.set(v1alpha1.PhaseUnverified, "Out of service, the model does not answer: %s", e.Probe.Message)
	case verified && isTrue(p.Pod, corev1.PodReady):
		m.set(v1alpha1.PhaseReady, "Serving.")
	case isTrue(p.Pod, corev1.ContainersReady) && m.node == 0:
		m.verifying(verified)
	case e == nil && before.UID == m.row.UID && runningPhase(before.Phase):
		// Not asked yet by this operator process: what the last one saw still holds until then.
		m.row.Phase, m.row.Message, m.row.Percent = before.Phase, before.Message, before.Percent
	case e == nil || e.Progress == nil:
		m.starting(now, e)
	default:
		m.progress(now, e.Progress)
	}
}

// starting is a pod whose container runs, and whose engine has said nothing yet: an
// image may hold another program, or a policy keep the operator out.
func (m *member) starting(now time.Time, e *Engine) {
	m.set(v1alpha1.PhaseStarting, "The engine starts.")
	if e == nil || e.SilentSince.IsZero() {
		return
	}
	if limit := e.SilentSince.Add(SilentAfter); now.Before(limit) {
		m.wakeAt(limit, now)
		return
	}
	m.set(v1alpha1.PhaseStarting, "The engine starts; its admin port has not answered the operator since %s: %s", clock(e.SilentSince), e.SilentError)
}

func runningPhase(p v1alpha1.Phase) bool {
	switch p {
	case v1alpha1.PhaseStarting, v1alpha1.PhaseFetching, v1alpha1.PhaseLoading, v1alpha1.PhaseWarmingUp, v1alpha1.PhaseStalled:
		return true
	}
	return false
}

// verifying is a pod that the engine calls ready, and that is not ready yet.
func (m *member) verifying(verified bool) {
	e := m.pod.Engine
	gate := condition(m.pod.Pod, v1alpha1.ModelVerified)
	switch {
	case verified || e != nil && e.Probe != nil && e.Probe.Failures == 0:
		m.set(v1alpha1.PhaseVerifying, "The model has answered; the kubelet is about to call the pod ready.")
	case gate != nil && e != nil && e.Probe != nil:
		m.set(v1alpha1.PhaseUnverified, "Out of service, the model does not answer: %s", e.Probe.Message)
	case gate != nil:
		m.set(v1alpha1.PhaseUnverified, "Out of service, the model did not answer: %s", gate.Message)
	case e != nil && e.Probe != nil:
		m.set(v1alpha1.PhaseVerifying, "The model does not answer yet: %s", e.Probe.Message)
	default:
		m.set(v1alpha1.PhaseVerifying, "Making the model answer.")
	}
}

// progress words the engine's own account of its start.
func (m *member) progress(now time.Time, pr *Progress) {
	percent := int32(0)
	if pr.Percent > 0 { // false for NaN
		percent = int32(math.Min(pr.Percent, 100))
	}
	part := "shard"
	if pr.Phase == "fetch" {
		part = "file"
	}
	parts := ""
	if pr.ShardsTotal > 0 {
		parts = fmt.Sprintf(", %s %d of %d", part, min(pr.ShardsDone+1, pr.ShardsTotal), pr.ShardsTotal)
	}
	behind := ""
	if r := pr.Behind; r != nil {
		behind = fmt.Sprintf(", rank %d is behind at %.0f %%", r.Rank, finite(r.Percent))
	}
	switch pr.Phase {
	case "fetch":
		if pr.nothingToFetch() {
			m.set(v1alpha1.PhaseStarting, "The engine looks for the model's files.")
		} else {
			m.row.Percent = &percent
			m.set(v1alpha1.PhaseFetching, "Fetching %d %%%s%s", percent, parts, pace(pr))
		}
	case "join":
		m.set(v1alpha1.PhaseStarting, "Waits for the other nodes of its replica.")
	case "load":
		m.row.Percent = &percent
		m.set(v1alpha1.PhaseLoading, "Loading %d %%%s%s%s", percent, parts, pace(pr), behind)
	case "collective", "kernels", "capture", "warmup":
		m.set(v1alpha1.PhaseWarmingUp, "Warming up: %s", map[string]string{
			"collective": "joining the ranks", "kernels": "building kernels",
			"capture": "capturing graphs", "warmup": "running the first batches"}[pr.Phase])
	case "serving":
		m.set(v1alpha1.PhaseVerifying, "The engine serves; waiting for its readiness probe.")
		return
	case "draining":
		m.set(v1alpha1.PhaseTerminating, "Draining: running requests end, new ones are refused.")
		return
	default:
		m.set(v1alpha1.PhaseStarting, "The engine starts.")
	}
	if pr.LastAdvance.IsZero() {
		return
	}
	if limit := pr.LastAdvance.Add(NoProgressAfter); now.Before(limit) {
		m.wakeAt(limit, now)
	} else {
		m.set(v1alpha1.PhaseStalled, "%s: no progress since %s.", strings.TrimSuffix(m.row.Message, "."), clock(pr.LastAdvance))
	}
}

// gate is the readiness gate that the pod should have, when it differs from the
// one that it has. It is lost when the model does not answer although the engine
// does, or when the engine answers neither the operator nor its node. An engine
// that only the operator does not reach keeps it: a fault of the operator's own
// network must not take every server out of service.
func (m *member) gate() (Gate, bool) {
	p := m.pod
	if p == nil || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || p.Engine == nil {
		return Gate{}, false
	}
	e, has := p.Engine, condition(p.Pod, v1alpha1.ModelVerified)
	verified := has != nil && has.Status == corev1.ConditionTrue
	healthy, silent := isTrue(p.Pod, corev1.ContainersReady), !e.SilentSince.IsZero()
	switch {
	case verified && silent && !healthy:
		return Gate{Pod: p.Pod, Reason: "Silent", Message: failure.Clean("The engine answers neither the operator nor its node: "+e.SilentError, 500)}, true
	case silent || e.Probe == nil:
	case !verified && e.Probe.Failures == 0 && healthy:
		return Gate{Pod: p.Pod, Verified: true, Reason: "Generated", Message: "The model generated tokens through draft and verification."}, true
	case verified && e.Probe.Failures >= UnverifiedAfter:
		return Gate{Pod: p.Pod, Reason: "ProbeFailed", Message: failure.Clean(e.Probe.Message, 500)}, true
	}
	return Gate{}, false
}
