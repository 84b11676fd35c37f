package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// TestCrashLoop follows one ordinal through crashes: counted once each, the
// back-off doubles, a stable run or another revision resets it.
func TestCrashLoop(t *testing.T) {
	s := newServer(1)
	crash := func(uid string, at time.Time, changes ...func(*Pod)) v1alpha1.PodStatus {
		t.Helper()
		p := newPod(0, exited(at, 1, "Error", "boom"))
		for _, c := range changes {
			c(&p)
		}
		p.UID = types.UID(uid)
		in := input(s, p)
		in.Now = at
		first := Decide(in)
		s.Status = first.Status
		again := Decide(in)
		if got := Compare(&first.Status, &again.Status); got != Same {
			t.Fatalf("the same crash seen twice changes the status (%d): %+v", got, again.Status.Pods)
		}
		return again.Status.Pods[0]
	}
	check := func(row v1alpha1.PodStatus, restarts, inRow int32, next time.Time) {
		t.Helper()
		if row.Restarts != restarts || row.FailuresInRow != inRow || !row.NextStartTime.Time.Equal(next) {
			t.Errorf("restarts %d, in a row %d, next %v; want %d, %d, %v", row.Restarts, row.FailuresInRow, row.NextStartTime, restarts, inRow, next)
		}
	}
	check(crash("a", t0), 1, 1, t0.Add(5*time.Second))
	b := crash("b", t0.Add(time.Minute))
	check(b, 2, 2, t0.Add(time.Minute+10*time.Second))
	if !b.FailingSince.Time.Equal(t0) {
		t.Errorf("it has not served since %s, and is said to fail since %s", t0, b.FailingSince)
	}
	check(crash("c", t0.Add(2*time.Minute), verifiedAt(t0.Add(time.Minute))), 3, 3, t0.Add(2*time.Minute+20*time.Second))
	check(crash("d", t0.Add(20*time.Minute), verifiedAt(t0.Add(10*time.Minute))), 4, 1, t0.Add(20*time.Minute+5*time.Second))
	check(crash("e", t0.Add(31*time.Minute)), 5, 2, t0.Add(31*time.Minute+10*time.Second))
	check(crash("f", t0.Add(32*time.Minute), stale), 6, 1, t0.Add(32*time.Minute+5*time.Second))
}

// TestStableRunClearsBackoff: ten minutes of serving end a row of failures.
func TestStableRunClearsBackoff(t *testing.T) {
	s := newServer(1)
	s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-0", Restarts: 4, FailuresInRow: 3}}
	d := Decide(input(s, newPod(0, verifiedAt(t0.Add(-failure.StableAfter+time.Second)))))
	if d.Status.Pods[0].FailuresInRow != 3 || d.Requeue != time.Second {
		t.Errorf("before ten minutes: %+v, requeue %s", d.Status.Pods[0], d.Requeue)
	}
	d = Decide(input(s, newPod(0, verifiedAt(t0.Add(-failure.StableAfter)))))
	if row := d.Status.Pods[0]; row.FailuresInRow != 0 || row.Restarts != 4 {
		t.Errorf("after ten minutes: %+v", row)
	}
}

// TestCrashBudget: the last crash of the budget ends the tries and keeps the pod;
// ends from outside do not.
func TestCrashBudget(t *testing.T) {
	for _, tt := range []struct {
		name   string
		budget *int32
		row    int32 // failures in a row so far
		end    func(*Pod)
		final  bool
	}{
		{"below", nil, DefaultCrashBudget - 2, exited(t0, 1, "Error", "boom"), false},
		{"spent", nil, DefaultCrashBudget - 1, exited(t0, 1, "Error", "boom"), true},
		{"one more try", nil, DefaultCrashBudget, exited(t0, 1, "Error", "boom"), true},
		{"own budget", ptr(int32(2)), 1, exited(t0, 12, "Error", ""), true},
		{"no end", ptr(int32(0)), 999, exited(t0, 1, "Error", "boom"), false},
		{"from outside", ptr(int32(2)), 50, exited(t0, 10, "Error", `{"reason":"FetchFailed","message":"connection reset"}`), false},
		{"evicted", ptr(int32(2)), 50, func(p *Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(1)
			s.Spec.Health = &v1alpha1.HealthSpec{CrashBudget: tt.budget}
			s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-0", Restarts: tt.row, FailuresInRow: tt.row,
				LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new", Reason: "Error"}}}
			in := input(s, newPod(0, tt.end))
			d := Decide(in)
			row := d.Status.Pods[0]
			if got := row.Phase == v1alpha1.PhaseFailed; got != tt.final || got == (row.NextStartTime != nil) {
				t.Errorf("%s, next start %v: %s", row.Phase, row.NextStartTime, row.Message)
			}
			s.Status = d.Status
			in.Now = t0.Add(24 * time.Hour)
			if deleted := len(Decide(in).Delete) > 0; deleted == tt.final {
				t.Errorf("deleted %v a day later", deleted)
			}
		})
	}
}

// TestHungLoad: a load that stands still for its budget is a failure of the
// operator's own finding: counted once, restarted after the back-off, also by an
// operator that has forgotten what it saw, and forgiven when the pod gets ready.
func TestHungLoad(t *testing.T) {
	s := newServer(1)
	s.Spec.Rollout = &v1alpha1.RolloutSpec{LoadBudgetSeconds: ptr(int32(90))}
	hung := loads(Progress{Phase: "load", Percent: 43, LastAdvance: t0})
	see := func(at time.Duration, changes ...func(*Pod)) Decision {
		in := input(s, newPod(0, changes...))
		in.Now = t0.Add(at)
		d := Decide(in)
		s.Status = d.Status
		return d
	}
	if d := see(89*time.Second, hung); d.Status.Pods[0].Phase != v1alpha1.PhaseStalled || d.Status.Pods[0].Restarts != 0 || d.Requeue != time.Second {
		t.Fatalf("before: %+v, requeue %s", d.Status.Pods[0], d.Requeue)
	}
	d := see(90*time.Second, hung)
	row := d.Status.Pods[0]
	if row.Restarts != 1 || row.LastFailure.Reason != reasonLoadStalled || row.NextStartTime == nil || row.Phase != v1alpha1.PhaseStalled ||
		!strings.Contains(row.Message, `no progress in phase "load" at 43 % for 1m30s`) {
		t.Fatalf("after: %+v", row)
	}
	for name, changes := range map[string][]func(*Pod){
		"still hung": {hung}, "operator restarted": nil,
		"moves again, too late": {loads(Progress{Phase: "load", Percent: 44, LastAdvance: t0.Add(92 * time.Second)})},
	} {
		if again := see(93*time.Second, changes...).Status.Pods[0]; again.Restarts != 1 || again.Message != row.Message {
			t.Errorf("%s: %+v", name, again)
		}
	}
	if d := see(95*time.Second, hung); len(d.Delete) != 1 || d.Delete[0].Reason != "Restarting" {
		t.Errorf("after the back-off: %+v", d.Delete)
	}
	if d := see(95*time.Second, ready); len(d.Delete) != 0 || d.Status.Phase != v1alpha1.PhaseReady {
		t.Errorf("ready after all: %s, %+v", d.Status.Phase, d.Delete)
	}
}

// TestLoadThatMoves: no load is too long as long as bytes come.
func TestLoadThatMoves(t *testing.T) {
	s := newServer(1)
	for hour := range 48 {
		now := t0.Add(time.Duration(hour) * time.Hour)
		in := input(s, newPod(0, loads(Progress{Phase: "fetch", Percent: float64(hour), LastAdvance: now.Add(-DefaultLoadBudget + time.Second)})))
		in.Now = now
		d := Decide(in)
		if s.Status = d.Status; d.Status.Pods[0].Restarts != 0 {
			t.Fatalf("after %d hours: %+v", hour, d.Status.Pods[0])
		}
	}
}

// TestUnverifiedForLong: an engine that answers everything but its model's
// tokens is restarted in the end; one that the operator cannot reach is not.
func TestUnverifiedForLong(t *testing.T) {
	lost := func(since time.Duration) func(*Pod) {
		return func(p *Pod) {
			healthy(p)
			with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0.Add(-since), "no token")(p)
		}
	}
	readyFor := func(since time.Duration) func(*Pod) {
		return with(corev1.ContainersReady, corev1.ConditionTrue, t0.Add(-since), "")
	}
	engine := func(silent bool, failures int) func(*Pod) {
		e := Engine{Progress: &Progress{Phase: "serving"}, Probe: &Probe{Time: t0, Failures: failures, Message: "no token"}}
		if silent {
			e.SilentSince, e.SilentError = t0.Add(-time.Hour), "connection refused"
		}
		return says(e)
	}
	for _, tt := range []struct {
		name     string
		pod      Pod
		restarts int32
	}{
		{"not yet", newPod(0, lost(UnverifiedRestart-time.Second), engine(false, 9)), 0},
		{"long", newPod(0, lost(UnverifiedRestart), engine(false, UnverifiedAfter)), 1},
		{"long, and failed once", newPod(0, lost(UnverifiedRestart), engine(false, UnverifiedAfter-1)), 0},
		{"long, and not probed by this process", newPod(0, lost(UnverifiedRestart), says(Engine{Progress: &Progress{Phase: "serving"}})), 0},
		{"verified long ago", newPod(0, verifiedAt(t0.Add(-24*time.Hour)), engine(false, 9)), 0},
		{"out of reach", newPod(0, lost(UnverifiedRestart), engine(true, 9)), 0},
		{"passes again", newPod(0, lost(UnverifiedRestart), engine(false, 0)), 0},
		{"never verified, not yet", newPod(0, readyFor(UnverifiedRestart-time.Second), engine(false, 900)), 0},
		{"never verified", newPod(0, readyFor(UnverifiedRestart), engine(false, 900)), 1},
		{"never verified, not ready", newPod(0, with(corev1.ContainersReady, corev1.ConditionFalse, t0.Add(-time.Hour), ""), engine(false, 900)), 0},
		{"never verified, just made", newPod(0, engine(false, 900)), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Decide(input(newServer(1), tt.pod))
			if row := d.Status.Pods[0]; strings.Contains(tt.name, "not yet") && (d.Requeue != time.Second || row.Phase == v1alpha1.PhaseStalled) {
				t.Errorf("%s, and looks again after %s, which is not when it will be too long", row.Phase, d.Requeue)
			}
			row := d.Status.Pods[0]
			if row.Restarts != tt.restarts || tt.restarts > 0 && (row.LastFailure.Reason != reasonVerificationFailed || row.NextStartTime == nil) {
				t.Errorf("%+v", row)
			}
		})
	}
}

// TestDegradedUntilServing: a server that has lost a pod is degraded until that
// pod serves again, not only while the dead pod lies there.
func TestDegradedUntilServing(t *testing.T) {
	s := newServer(1)
	uid := func(u string) func(*Pod) { return func(p *Pod) { p.UID = types.UID(u) } }
	for i, step := range []struct {
		pods []Pod
		want string
	}{
		{[]Pod{newPod(0, ready)}, "False AsExpected"},
		{[]Pod{newPod(0, exited(t0, 137, "Error", ""))}, "True Crashed"},
		{[]Pod{newPod(0, exited(t0, 137, "Error", ""), terminatingUntil(t0.Add(time.Minute)))}, "True Crashed"},
		{nil, "True Crashed"},
		{[]Pod{newPod(0, uid("b"), pendingPod("", "", ""))}, "True Crashed"},
		{[]Pod{newPod(0, uid("b"), loads(Progress{Phase: "load", Percent: 1, LastAdvance: t0}))}, "True Crashed"},
		{[]Pod{newPod(0, uid("b"), ready)}, "False AsExpected"},
		{[]Pod{newPod(0, uid("b"), terminatingUntil(t0.Add(time.Minute)))}, "False AsExpected"}, // deleted by someone
	} {
		s.Status = Decide(input(s, step.pods...)).Status
		for _, c := range s.Status.Conditions {
			if got := fmt.Sprintf("%s %s", c.Status, c.Reason); c.Type == v1alpha1.ConditionDegraded && got != step.want {
				t.Errorf("step %d: %s, want %s (%s)", i, got, step.want, c.Message)
			}
		}
	}
	// A new spec is not to blame for what the last one did.
	s.Status.Pods[0].FailingSince = ptr(metav1.NewTime(t0))
	s.Status.Pods[0].LastFailure = &v1alpha1.PodFailure{PodUID: "a", Revision: "old", Reason: "Error"}
	if row := Decide(input(s)).Status.Pods[0]; row.FailingSince != nil {
		t.Errorf("%+v", row)
	}
}

// TestAvoidsBadNode: after a device fault the next pod prefers other nodes.
func TestAvoidsBadNode(t *testing.T) {
	for reason, want := range map[string]string{"DeviceFault": "[node1]", "DeviceMissing": "[node1]", "CollectiveFailed": "[]"} {
		s := newServer(1)
		s.Status = Decide(input(s, newPod(0, exited(t0, 13, "Error", `{"reason":"`+reason+`","message":"XID 79","rank":2}`)))).Status
		if f := s.Status.Pods[0].LastFailure; f.Node != "node1" || f.Rank == nil || *f.Rank != 2 {
			t.Fatalf("%+v", f)
		}
		if got := fmt.Sprint(Decide(input(s)).Create[0].Avoid); got != want {
			t.Errorf("%s: avoids %s, want %s", reason, got, want)
		}
	}
}

func TestPace(t *testing.T) {
	for _, tt := range []struct {
		rate        float64
		done, total int64
		want        string
	}{
		{0, 0, 100, ""},
		{0.5, 0, 100, ""},
		{1e9, 0, 0, ", 1.0 GB/s"},
		{1.234e9, 0, 2e9, ", 1.2 GB/s"},
		{1.234e8, 0, 1e10, ", 120 MB/s, about 80 s left"},
		{12.34e6, 1e9, 1e10, ", 12 MB/s, about 12 min left"},
		{12.34e6, 0, 1e12, ", 12 MB/s, about 22.5 h left"},
		{999.6e6, 5, 5, ", 1.0 GB/s"},
		{10, 0, 1 << 60, ", 10 B/s"},
	} {
		if got := pace(&Progress{BytesPerSecond: tt.rate, BytesDone: tt.done, BytesTotal: tt.total}); got != tt.want {
			t.Errorf("%g B/s, %d of %d: %q, want %q", tt.rate, tt.done, tt.total, got, tt.want)
		}
	}
}

// TestTrouble: while a pod is on its way back, it is said from what, in sentences.
func TestTrouble(t *testing.T) {
	code, since := int32(10), metav1.NewTime(t0)
	failed := v1alpha1.PodStatus{FailingSince: &since, FailuresInRow: 3, LastFailure: &v1alpha1.PodFailure{Reason: "FetchFailed", ExitCode: &code, Message: "connection refused"}}
	for _, tt := range []struct {
		phase         v1alpha1.Phase
		message, want string
	}{
		{v1alpha1.PhaseFetching, "Fetching 4 %", "Fetching 4 %. It ended before with FetchFailed (exit code 10), 3 times in a row: connection refused"},
		{v1alpha1.PhaseStarting, "The engine starts.", "The engine starts. It ended before with FetchFailed (exit code 10), 3 times in a row: connection refused"},
		{v1alpha1.PhaseCrashed, "FetchFailed (exit code 10): connection refused.", "FetchFailed (exit code 10): connection refused."},
		{v1alpha1.PhaseReady, "Serving.", "Serving."},
		{v1alpha1.PhasePulling, "x", "x"},
	} {
		m := member{row: failed}
		switch tt.phase {
		case v1alpha1.PhaseReady: // it is over
			m.row.FailingSince = nil
		case v1alpha1.PhasePulling: // and here it has never been
			m.row.LastFailure = nil
		}
		m.row.Phase, m.row.Message = tt.phase, tt.message
		if got := m.trouble(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.phase, got, tt.want)
		}
	}
}
