package decide

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// groupPlay goes through what the operator sees of a server of two nodes.
type groupPlay struct {
	*testing.T
	server *v1alpha1.SpeculativeServer
	now    time.Time
	rev    string
}

func playGroups(t *testing.T, replicas int32, budget *int32) *groupPlay {
	s := newServer(replicas)
	s.Spec.Health = &v1alpha1.HealthSpec{CrashBudget: budget}
	s.Spec.Speculation.OnDraftFailure = "Fail"
	return &groupPlay{T: t, server: s, now: t0, rev: "new"}
}

// sees decides once, and keeps the status as written.
func (p *groupPlay) sees(leaders []Pod, workers ...Worker) Decision {
	p.Helper()
	in := input(p.server, leaders...)
	in.Nodes, in.Workers, in.Now, in.Revision = 2, workers, p.now, p.rev
	d := Decide(in)
	if again := Decide(in); Compare(&d.Status, &again.Status) != Same {
		p.Fatalf("the same decision twice differs: %+v, %+v", d.Status.Pods, again.Status.Pods)
	}
	p.server.Status = d.Status
	return d
}

// has checks how many pods start, and the phase of the row of a pod.
func (p *groupPlay) has(d Decision, starts int, pod string, phase v1alpha1.Phase, says string) {
	p.Helper()
	if len(d.Start) != starts {
		p.Errorf("%d pods start, want %d", len(d.Start), starts)
	}
	for _, row := range d.Status.Pods {
		if row.Name == pod && (row.Phase != phase || !strings.Contains(row.Message, says)) {
			p.Errorf("%s is %s, %q; want %s, %q", pod, row.Phase, row.Message, phase, says)
		}
	}
}

// gated is a pod behind the operator's gate.
func gated(p *Pod) {
	pendingPod("", "", "")(p)
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
}

// as gives a pod another UID.
func as(u string, p Pod) Pod {
	p.UID = types.UID(u)
	return p
}

// other is the second node of the first group, with another UID.
func other(u string, changes ...func(*Pod)) Worker {
	return Worker{Pod: as(u, newNode(0, 1, changes...)), Node: 1}
}

// TestGroupBudget: which ends of a group are its last, whichever pod has them.
func TestGroupBudget(t *testing.T) {
	for _, c := range []struct {
		name   string
		budget *int32
		row    int32 // failures in a row so far
		end    func(*Pod)
		change func(*groupPlay)
		final  bool
	}{
		{"below", nil, DefaultCrashBudget - 2, restarted(1, "boom"), nil, false},
		{"spent", nil, DefaultCrashBudget - 1, restarted(1, "boom"), nil, true},
		{"spent, by a pod that goes already", nil, DefaultCrashBudget - 1, func(p *Pod) { restarted(1, "boom")(p); terminatingUntil(t0)(p) }, nil, true},
		{"own budget", ptr(int32(2)), 1, restarted(14, ""), nil, true},
		{"no end", ptr(int32(0)), 999, restarted(1, "boom"), nil, false},
		{"from outside", ptr(int32(2)), 50, restarted(10, `{"reason":"FetchFailed","message":"connection reset"}`), nil, false},
		{"a new start would end the same way", nil, 0, restarted(2, `{"reason":"InvalidConfig","message":"--page-size"}`), nil, true},
		{"a new start would end the same way, without a budget", ptr(int32(0)), 3, restarted(2, `{"reason":"InvalidConfig","message":"--page-size"}`), nil, true},
		{"of another spec", ptr(int32(2)), 50, restarted(1, "boom"), func(p *groupPlay) { p.rev = "newer" }, false},
		{"the draft, without which it can serve", nil, 0, restarted(11, `{"reason":"DraftMismatch","message":"vocabulary"}`), func(p *groupPlay) { p.server.Spec.Speculation.OnDraftFailure = "" }, false},
		{"the draft, without which it must not", nil, 0, restarted(11, `{"reason":"DraftMismatch","message":"vocabulary"}`), nil, true},
	} {
		for _, node := range []int{0, 1} {
			t.Run(c.name, func(t *testing.T) {
				p := playGroups(t, 1, c.budget)
				name := []string{"s-nodes-0", "s-nodes-0-1"}[node]
				p.server.Status.Pods = []v1alpha1.PodStatus{{Name: name, Restarts: c.row, FailuresInRow: c.row,
					LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new", Reason: "Error"}}}
				if c.change != nil {
					c.change(p)
				}
				pods := [][]func(*Pod){{loads(Progress{Phase: "load", LastAdvance: t0})}, {healthy}}
				pods[node] = append(pods[node], c.end)
				see := func() Decision {
					return p.sees([]Pod{newNode(0, 0, pods[0]...)}, worker(0, 1, pods[1]...))
				}
				want := v1alpha1.PhaseCrashed
				if c.final {
					want = v1alpha1.PhaseFailed
				}
				d := see()
				p.has(d, 0, name, want, "")
				for _, row := range d.Status.Pods {
					if row.Name != name && row.Phase == v1alpha1.PhasePending {
						t.Errorf("%s runs, and is said to be Pending: %s", row.Name, row.Message)
					}
					budget := c.row+1 >= crashBudget(p.server) && crashBudget(p.server) > 0
					if row.Phase == v1alpha1.PhaseFailed && strings.Contains(row.Message, "budget of spec.health.crashBudget") != budget {
						t.Errorf("its failure number %d, of %d that it may have: %s", row.FailuresInRow, crashBudget(p.server), row.Message)
					}
				}
				d = see()
				p.has(d, 0, name, want, "")
				if (d.Status.Phase == v1alpha1.PhaseFailed) != c.final {
					t.Errorf("then %s: %s", d.Status.Phase, d.Status.Message)
				}
				p.now = t0.Add(time.Hour)
				starts := 2
				if c.final {
					starts = 0
				}
				if d := p.sees([]Pod{as("x", newNode(0, 0, gated))}, other("y", gated)); len(d.Start) != starts {
					t.Errorf("an hour later %d pods start, want %d", len(d.Start), starts)
				}
			})
		}
	}
}

// TestGroupStaysFailed: what is Failed is not started, whichever pods are made,
// until the spec changes or its pod is deleted.
func TestGroupStaysFailed(t *testing.T) {
	p := playGroups(t, 1, ptr(int32(2)))
	crash := restarted(1, "boom")
	p.has(p.sees([]Pod{as("a", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseCrashed, "once: ")
	p.has(p.sees([]Pod{as("b", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "2 times in a row: ")
	p.now = t0.Add(24 * time.Hour)
	d := p.sees(nil)
	p.has(d, 0, "s-nodes-0", v1alpha1.PhaseFailed, "budget of spec.health.crashBudget")
	p.has(d, 0, "s-nodes-0-1", v1alpha1.PhasePending, "s-nodes-0 of its group is Failed")
	again := as("c", newNode(0, 0, gated))
	for range 2 {
		d = p.sees([]Pod{again}, other("c1", gated))
		p.has(d, 0, "s-nodes-0", v1alpha1.PhaseFailed, "is not started again until the spec changes or this pod is deleted")
		p.has(d, 0, "s-nodes-0-1", v1alpha1.PhasePending, "s-nodes-0 of its group is Failed")
	}
	if len(d.Events) > 0 || d.Requeue != 0 || d.Status.Phase != v1alpha1.PhaseFailed {
		t.Errorf("%s, events %v, requeue %s", d.Status.Phase, d.Events, d.Requeue)
	}
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == v1alpha1.ConditionProgressing && c.Reason != v1alpha1.ReasonBlocked,
			c.Type == v1alpha1.ConditionDegraded && c.Reason != v1alpha1.ReasonFailed:
			t.Errorf("%+v", c)
		}
	}

	p.server.Generation++ // one more try
	p.has(p.sees([]Pod{again}, other("c1", gated)), 2, "s-nodes-0", v1alpha1.PhasePending, "about to start")
	p.has(p.sees([]Pod{as("c", newNode(0, 0))}, other("c1", gated)), 1, "s-nodes-0", v1alpha1.PhaseStarting, "")
	p.has(p.sees([]Pod{as("c", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "3 times in a row")
	p.has(p.sees([]Pod{as("d", newNode(0, 0, gated))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "")

	p.has(p.sees(nil), 0, "s-nodes-0", v1alpha1.PhasePending, "") // deleted by hand: one more
	p.has(p.sees([]Pod{as("e", newNode(0, 0, gated))}), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("e", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "4 times in a row")
	p.has(p.sees([]Pod{as("f", newNode(0, 0, gated))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "")
	p.has(p.sees([]Pod{as("g", newNode(0, 0, gated))}), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("g", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "5 times in a row")
	p.has(p.sees([]Pod{as("h", newNode(0, 0))}), 0, "s-nodes-0", v1alpha1.PhaseStarting, "") // its gate was taken by hand
	p.has(p.sees([]Pod{as("h", newNode(0, 0, crash))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "6 times in a row")

	p.rev = "newer" // other pods, of the operator's own accord: those from before wait for the rollout
	newer := func(p *Pod) { p.Labels[v1alpha1.LabelRevision] = "newer" }
	p.has(p.sees([]Pod{as("i", newNode(0, 0, gated))}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "")
	p.has(p.sees([]Pod{as("j", newNode(0, 0, newer, gated))}), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("j", newNode(0, 0, newer, crash))}), 0, "s-nodes-0", v1alpha1.PhaseCrashed, "once: ")
}

// TestGroupBackOff: the pods of a group start together when the longest back-off
// is over, and the rows say when.
func TestGroupBackOff(t *testing.T) {
	p := playGroups(t, 1, nil)
	p.server.Status.Pods = []v1alpha1.PodStatus{{Name: "s-nodes-0-1", Restarts: 3, FailuresInRow: 3,
		LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new", Reason: "Error"}}}
	device := restarted(13, `{"reason":"DeviceFault","message":"XID 79","rank":1}`)
	d := p.sees([]Pod{newNode(0, 0, restarted(14, ""))}, other("a", device))
	p.has(d, 0, "s-nodes-0-1", v1alpha1.PhaseCrashed, "rank 1: XID 79. Its group starts again as a whole at 12:00:40Z.")
	if d.Requeue != 40*time.Second {
		t.Errorf("looks again after %s", d.Requeue)
	}
	p.now = t0.Add(30 * time.Second)
	for _, leader := range [][]Pod{nil, {as("b", newNode(0, 0, gated))}} {
		d = p.sees(leader, other("b1", gated))
		p.has(d, 0, "s-nodes-0", v1alpha1.PhaseCrashed, "CollectiveFailed (exit code 14), once: ")
		p.has(d, 0, "s-nodes-0-1", v1alpha1.PhaseCrashed, "at 12:00:40Z.")
		if row := d.Status.Pods[0]; row.NextStartTime == nil || !row.NextStartTime.Time.Equal(t0.Add(40*time.Second)) {
			t.Errorf("the first starts with the second, at 12:00:40, and its row has %v", row.NextStartTime)
		}
		if d.Requeue != 10*time.Second || len(d.Events) > 0 {
			t.Errorf("looks again after %s, events %v", d.Requeue, d.Events)
		}
	}
	p.now = t0.Add(40 * time.Second)
	d = p.sees([]Pod{as("b", newNode(0, 0, gated))}, other("b1", gated))
	p.has(d, 2, "s-nodes-0-1", v1alpha1.PhasePending, "about to start")
	if len(d.Start[0].Avoid) != 0 || len(d.Start[1].Avoid) != 1 || d.Start[1].Avoid[0] != "node1" {
		t.Errorf("the starts avoid %v and %v, want node1 for the second, whose device failed", d.Start[0].Avoid, d.Start[1].Avoid)
	}
	for _, row := range d.Status.Pods {
		if row.NextStartTime != nil {
			t.Errorf("%s starts, and its next start is %s", row.Name, row.NextStartTime)
		}
	}

	// The first of another spec, and one whose pods are being deleted.
	p.sees([]Pod{as("b", newNode(0, 0, restarted(1, "boom")))}, other("b1"))
	d = p.sees([]Pod{as("c", newNode(0, 0, gated, func(p *Pod) { p.Labels[v1alpha1.LabelRevision] = "newer" }))})
	p.has(d, 1, "s-nodes-0", v1alpha1.PhasePending, "")
	going := []func(*Pod){gated, terminatingUntil(p.now.Add(time.Minute))}
	p.has(p.sees([]Pod{as("d", newNode(0, 0, gated))}, other("d1", going...)), 0, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("d", newNode(0, 0, going...))}, other("d1", gated)), 0, "s-nodes-0", v1alpha1.PhaseTerminating, "")
	p.has(p.sees(nil, other("d1", gated)), 0, "s-nodes-0", v1alpha1.PhasePending, "")
	p.server.DeletionTimestamp = ptr(metav1.NewTime(p.now))
	p.has(p.sees([]Pod{as("e", newNode(0, 0, gated))}), 0, "s-nodes-0", v1alpha1.PhasePending, "")
}

// TestGroupGateOfOthers: a gate that is not the operator's is named, and left.
func TestGroupGateOfOthers(t *testing.T) {
	p := playGroups(t, 1, nil)
	queue := func(p *Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "queue.test/admission"})
	}
	blocked := func(p *Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates"})
	}
	p.has(p.sees([]Pod{newNode(0, 0, gated, queue, blocked)}), 1, "s-nodes-0", v1alpha1.PhasePending, "Held by the scheduling gate queue.test/admission")
	p.has(p.sees([]Pod{newNode(0, 0, pendingPod("", "", ""), queue, blocked)}), 0, "s-nodes-0", v1alpha1.PhasePending, "Held by the scheduling gate queue.test/admission")
}

// TestGroupHung: a load that hangs, or a model that does not answer for long, ends
// its group, when that is in the status, and counts like a crash; a node that waits
// for another does not.
func TestGroupHung(t *testing.T) {
	for _, c := range []struct {
		name   string
		leader func(*Pod)
		worker func(*Pod)
		row    int // of the pod that is at fault; −1: none
		reason string
	}{
		{"the leader's load", loads(Progress{Phase: "load", LastAdvance: t0.Add(-DefaultLoadBudget)}), loads(Progress{Phase: "collective", LastAdvance: t0}), 0, "LoadStalled"},
		{"the other's load", loads(Progress{Phase: "collective", LastAdvance: t0}), loads(Progress{Phase: "load", LastAdvance: t0.Add(-DefaultLoadBudget)}), 1, "LoadStalled"},
		{"waiting for the other", loads(Progress{Phase: "join", LastAdvance: t0.Add(-time.Hour)}), gated, -1, ""},
		{"no answer", func(p *Pod) {
			healthy(p)
			with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0.Add(-UnverifiedRestart), "")(p)
			says(Engine{Progress: &Progress{Phase: "serving"}, Probe: &Probe{Time: t0, Failures: 9, Message: "timeout"}})(p)
		}, computes, 0, "VerificationFailed"},
		{"no answer of one that has none to give", ready, func(p *Pod) {
			with(corev1.ContainersReady, corev1.ConditionTrue, t0.Add(-UnverifiedRestart), "")(p)
			says(Engine{Progress: &Progress{Phase: "serving"}, Probe: &Probe{Time: t0, Failures: 9, Message: "it does not lead"}})(p)
		}, -1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := playGroups(t, 1, nil)
			see := func() Decision { return p.sees([]Pod{newNode(0, 0, c.leader)}, other("b", c.worker)) }
			if d := see(); len(d.Delete) > 0 || c.row >= 0 && d.Requeue != time.Second {
				t.Errorf("deletes %v before it is in the status, requeue %s", d.Delete, d.Requeue)
			}
			d := see()
			if c.row < 0 {
				if len(d.Delete) > 0 {
					t.Errorf("deletes %v", d.Delete)
				}
				return
			}
			row := d.Status.Pods[c.row]
			p.now = t0.Add(time.Hour) // its back-off is over, and its pods have not been deleted so far
			if late := see().Status.Pods[c.row]; late.Phase != v1alpha1.PhaseStalled {
				t.Errorf("later it is %s: %s", late.Phase, late.Message)
			}
			p.now = t0
			if len(d.Delete) != 1 || !d.Delete[0].Group || d.Delete[0].Pod.Name != "s-nodes-0" || row.Phase != v1alpha1.PhaseStalled || row.LastFailure.Reason != c.reason || row.NextStartTime == nil {
				t.Errorf("deletes %+v; row %+v, %+v", d.Delete, row, row.LastFailure)
			}
			gone := terminatingUntil(t0.Add(time.Minute))
			if d := p.sees([]Pod{newNode(0, 0, c.leader, gone)}, other("b", c.worker, gone)); len(d.Delete) > 0 || d.Status.Pods[c.row].FailuresInRow != 1 {
				t.Errorf("deletes %v again, row %+v", d.Delete, d.Status.Pods[c.row])
			}
			d = p.sees([]Pod{as("c", newNode(0, 0, gated))}, other("d", gated))
			p.has(d, 0, row.Name, v1alpha1.PhaseCrashed, c.reason+", once: ")
		})
	}
}

// TestGroupRow: ten minutes in which the group serves end the row of each of its
// pods, of which only the first has the gate.
func TestGroupRow(t *testing.T) {
	p := playGroups(t, 1, nil)
	row := func(d Decision) int32 { return d.Status.Pods[1].FailuresInRow }
	crash := restarted(1, "boom")
	lead := newNode(0, 0, verifiedAt(t0.Add(-time.Minute)))
	for n, u := range []string{"a", "b"} {
		if got := row(p.sees([]Pod{lead}, other(u, crash))); got != int32(n+1) {
			t.Errorf("%d failures in a row, want %d", got, n+1)
		}
	}
	d := p.sees([]Pod{lead}, other("c", computes))
	if row(d) != 2 || d.Requeue != 9*time.Minute {
		t.Errorf("after a minute: %d in a row, requeue %s", row(d), d.Requeue)
	}
	p.now = t0.Add(9 * time.Minute)
	if d := p.sees([]Pod{lead}, other("c", computes)); row(d) != 0 {
		t.Errorf("after ten minutes: %d in a row", row(d))
	}
	// An operator that was not there to see the ten minutes counts likewise.
	p.server.Status.Pods[1].FailuresInRow = 5
	late := newNode(0, 0, verifiedAt(t0.Add(-time.Hour)))
	if got := row(p.sees([]Pod{late}, other("d", crash))); got != 1 {
		t.Errorf("after an hour: %d in a row", got)
	}
}

// TestGroupWaits: groups wait each for itself, for the longest back-off of its pods,
// and the operator looks again when the first may start.
func TestGroupWaits(t *testing.T) {
	p := playGroups(t, 2, nil)
	p.server.Status.Pods = []v1alpha1.PodStatus{{Name: "s-nodes-0", Restarts: 3, FailuresInRow: 3,
		LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new", Reason: "Error"}}}
	crash := restarted(1, "boom")
	d := p.sees([]Pod{newNode(0, 0, crash), newNode(1, 0, crash)}, worker(0, 1, crash), worker(1, 1, gated))
	p.has(d, 0, "s-nodes-0", v1alpha1.PhaseCrashed, "as a whole at 12:00:40Z.")
	p.has(d, 0, "s-nodes-0-1", v1alpha1.PhaseCrashed, "as a whole at 12:00:40Z.")
	p.has(d, 0, "s-nodes-1", v1alpha1.PhaseCrashed, "as a whole at 12:00:05Z.")
	p.has(d, 0, "s-nodes-1-1", v1alpha1.PhasePending, "Its group starts again as a whole at 12:00:05Z.")
	if d.Requeue != 5*time.Second {
		t.Errorf("looks again after %s", d.Requeue)
	}
	d = p.sees([]Pod{newNode(0, 0, crash), newNode(1, 0, crash)})
	p.has(d, 0, "s-nodes-1-1", v1alpha1.PhasePending, "Its group starts again as a whole at 12:00:05Z.")
}

// TestGroupOfAnotherSpec: pods of the spec that is asked for now start, whatever was
// before; those of the one that failed do not.
func TestGroupOfAnotherSpec(t *testing.T) {
	of := func(revision string) func(*Pod) {
		return func(p *Pod) { p.Labels[v1alpha1.LabelRevision] = revision }
	}
	for _, tt := range []struct {
		name   string
		budget int32
		pods   []Pod
		starts int
		phase  v1alpha1.Phase
	}{
		{"the new one", 1, []Pod{as("b", newNode(0, 0, gated, of("newer")))}, 1, v1alpha1.PhasePending},
		{"the one that failed", 1, []Pod{as("b", newNode(0, 0, gated))}, 0, v1alpha1.PhaseFailed},
		{"one in between", 1, []Pod{as("b", newNode(0, 0, gated, of("between")))}, 1, v1alpha1.PhasePending},
		{"no pod yet", 1, nil, 0, v1alpha1.PhasePending},
		{"the new one, while the old one would wait", 9, []Pod{as("b", newNode(0, 0, gated, of("newer")))}, 1, v1alpha1.PhasePending},
		{"the old one, which waits", 9, []Pod{as("b", newNode(0, 0, gated))}, 0, v1alpha1.PhaseCrashed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := playGroups(t, 1, &tt.budget)
			p.sees([]Pod{as("a", newNode(0, 0, restarted(1, "boom")))})
			p.rev, p.now = "newer", t0.Add(time.Second)
			p.has(p.sees(tt.pods), tt.starts, "s-nodes-0", tt.phase, "")
		})
	}
}

// TestGroupLingers: a pod whose end was the last that it may have is judged once:
// after a change of the spec that leaves its template it only has to go.
func TestGroupLingers(t *testing.T) {
	p := playGroups(t, 1, ptr(int32(1)))
	goes := newNode(0, 0, restarted(1, "boom"), terminatingUntil(t0.Add(time.Minute)))
	p.has(p.sees([]Pod{goes}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "")
	p.server.Generation++
	p.now = t0.Add(time.Hour)
	p.has(p.sees([]Pod{goes}), 0, "s-nodes-0", v1alpha1.PhaseCrashed, "Its group starts again as a whole.")
}

// TestRolling: how many groups may be missing, and how many there may be more, while
// some of the old spec have Failed.
func TestRolling(t *testing.T) {
	group := func(marks string) member {
		m := member{stale: strings.Contains(marks, "stale"), dead: strings.Contains(marks, "dead")}
		if strings.Contains(marks, "ready") {
			m.row.Phase = v1alpha1.PhaseReady
		}
		return m
	}
	none := &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(1))}
	for _, tt := range []struct {
		name    string
		rollout *v1alpha1.RolloutSpec
		groups  []string
		want    Rolling
	}{
		{"all well", nil, []string{"ready", "ready"}, Rolling{1, 0}},
		{"all well, none may be missing", none, []string{"ready", "ready"}, Rolling{0, 1}},
		{"a single group, none may be missing", none, []string{"ready"}, Rolling{1, 1}},
		{"all are to be replaced", nil, []string{"ready stale", "ready stale"}, Rolling{1, 0}},
		{"a Failed one, and one after it that serves", nil, []string{"dead stale", "ready stale"}, Rolling{1, 1}},
		{"a Failed one, and one after it on its way", nil, []string{"dead stale", ""}, Rolling{1, 1}},
		{"a Failed one, and one after it that is up to date", nil, []string{"dead stale", "ready"}, Rolling{1, 0}},
		{"a Failed one of the new spec", nil, []string{"dead", "ready stale"}, Rolling{1, 0}},
		{"a Failed one after those that serve", nil, []string{"ready stale", "dead stale"}, Rolling{1, 0}},
		{"two Failed ones", nil, []string{"dead stale", "dead stale", "ready stale"}, Rolling{1, 2}},
		{"a Failed one between", nil, []string{"ready stale", "dead stale", "ready stale"}, Rolling{1, 1}},
		{"a Failed one, none may be missing", none, []string{"dead stale", "ready stale"}, Rolling{1, 1}},
		{"a Failed one, more may be missing", &v1alpha1.RolloutSpec{MaxUnavailable: ptr(int32(2))}, []string{"dead stale", "ready stale", "ready stale"}, Rolling{2, 0}},
		{"a Failed one, a larger surge", &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(3))}, []string{"dead stale", "ready stale"}, Rolling{1, 3}},
	} {
		in := input(newServer(int32(len(tt.groups))))
		in.Server.Spec.Rollout = tt.rollout
		var members []member
		for _, g := range tt.groups {
			members = append(members, group(g))
		}
		if got := in.rolling(members, int32(len(members))); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
