package decide

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestWorth: what drafting is worth, over the ready pods that know.
func TestWorth(t *testing.T) {
	x := func(gain, verify float64) func(*Pod) {
		return says(Engine{Metrics: &Metrics{Depth: 1, Gain: gain, VerifySeconds: verify}})
	}
	last := &v1alpha1.SpeculationStatus{Gain: "1.20", VerifyMilliseconds: "10.0"}
	for _, tt := range []struct {
		name string
		last *v1alpha1.SpeculationStatus
		pods []Pod
		want string // gain, milliseconds
	}{
		{"not known", nil, []Pod{newPod(0, ready, x(0, 0))}, " "},
		{"one", nil, []Pod{newPod(0, ready, x(1.234, 0.01234))}, "1.23 12.3"},
		{"two", nil, []Pod{newPod(0, ready, x(1, 0.01)), newPod(1, ready, x(2, 0.03))}, "1.50 20.0"},
		{"one that does not know", nil, []Pod{newPod(0, ready, x(1.5, 0.02)), newPod(1, ready, x(0, 0))}, "1.50 20.0"},
		{"not known any more", last, []Pod{newPod(0, ready, x(0, 0))}, "1.20 10.0"},
		{"noise", last, []Pod{newPod(0, ready, x(1.24, 0.0105))}, "1.20 10.0"},
		{"more than noise", last, []Pod{newPod(0, ready, x(1.27, 0.0106))}, "1.27 10.6"},
	} {
		s := newServer(2)
		s.Status.Speculation = tt.last
		f := Decide(input(s, tt.pods...)).Status.Speculation
		if got := f.Gain + " " + f.VerifyMilliseconds; got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	for x, want := range map[float64]float64{0: 0, 1: 1, -1: 0, 1e12: 1e12, 2e12: 0, math.Inf(1): 0, math.Inf(-1): 0} {
		if got := finite(x); got != want {
			t.Errorf("finite(%g) is %g", x, got)
		}
	}
	if got := finite(math.NaN()); got != 0 {
		t.Errorf("finite(NaN) is %g", got)
	}
}

// TestSpeculating: why nothing is drafted, of a server whose engines could.
func TestSpeculating(t *testing.T) {
	for _, tt := range []struct {
		name    string
		depth   float64
		change  func(*v1alpha1.SpeculativeServer)
		status  metav1.ConditionStatus
		message string // part of it
	}{
		{"drafts", 2, func(*v1alpha1.SpeculativeServer) {}, metav1.ConditionTrue, "Replicas draft"},
		{"off for now", 0, func(*v1alpha1.SpeculativeServer) {}, metav1.ConditionFalse, "decode plainly for now"},
		{"off by the spec", 0, func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Speculation.Adaptation = &v1alpha1.AdaptationSpec{Mode: v1alpha1.AdaptationOff}
		}, metav1.ConditionFalse, "spec.speculation.adaptation.mode is Off."},
		{"off by the load", 0, func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Speculation.Adaptation = &v1alpha1.AdaptationSpec{}
			s.Status.Speculation = &v1alpha1.SpeculationStatus{Mode: v1alpha1.AdaptationAuto, MaxSteps: ptr(int32(0)), Reason: "RequestsQueue", Detail: "9 requests wait", Since: ptrTime(t0)}
		}, metav1.ConditionFalse, "The load leaves no room for drafts: RequestsQueue, 9 requests wait."},
		{"off for now, under a bound", 0, func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Speculation.Adaptation = &v1alpha1.AdaptationSpec{}
			s.Status.Speculation = &v1alpha1.SpeculationStatus{Mode: v1alpha1.AdaptationAuto, MaxSteps: ptr(int32(1)), Reason: "RequestsQueue", Since: ptrTime(t0)}
		}, metav1.ConditionFalse, "decode plainly for now"},
	} {
		s := newServer(1)
		tt.change(s)
		d := Decide(input(s, newPod(0, ready, says(Engine{Metrics: &Metrics{Depth: tt.depth, Running: 1, Waiting: 9, Time: t0}}))))
		if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionSpeculationActive); c.Status != tt.status || !strings.Contains(c.Message, tt.message) {
			t.Errorf("%s: %s, %s: %q, want %q", tt.name, c.Status, c.Reason, c.Message, tt.message)
		}
	}
}

// TestProgressing: what goes on, and what it waits for, in words.
func TestProgressing(t *testing.T) {
	crash := exited(t0, 13, "Error", "")
	hung := loads(Progress{Phase: "load", LastAdvance: t0.Add(-DefaultLoadBudget)})
	busy := says(Engine{Metrics: &Metrics{Running: 3}})
	idle := func(in *Input) { in.Server.Spec.Rollout = &v1alpha1.RolloutSpec{WaitForIdleSeconds: ptr(int32(60))} }
	for _, tt := range []struct {
		name    string
		change  func(*Input)
		pods    []Pod
		reason  string
		message string
	}{
		{"refused", func(in *Input) { in.Refused = "A quota is spent." }, nil, v1alpha1.ReasonBlocked, "A quota is spent."},
		{"refused, and one serves", func(in *Input) { in.Refused = "A quota is spent." }, []Pod{newPod(0, ready)}, v1alpha1.ReasonBlocked, "A quota is spent."},
		{"crashed", nil, []Pod{newPod(0, crash)}, v1alpha1.ReasonRetrying, "s-0 is started again after its back-off."},
		{"hung", nil, []Pod{newPod(0, hung)}, v1alpha1.ReasonRetrying, "s-0 is started again after its back-off."},
		{"its group crashed", func(in *Input) { in.Nodes = 2 }, []Pod{newNode(0, 0, restarted(13, ""))}, v1alpha1.ReasonRetrying, "s-nodes-0 is started again with its group."},
		{"its group has no room", func(in *Input) { in.Nodes = 2 }, []Pod{newNode(0, 0, pendingPod("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, t0, "no node"))}, v1alpha1.ReasonBlocked, "s-nodes-0 cannot go on: Waiting for capacity: no node"},
		{"an old pod is busy", idle, []Pod{newPod(0, ready, stale, busy)}, v1alpha1.ReasonRollingOut, "1 pods of another revision are to be replaced, the next one when it is idle."},
		{"an old pod goes", nil, []Pod{newPod(0, ready, stale, busy)}, v1alpha1.ReasonRollingOut, "1 pods of another revision are to be replaced."},
		{"a download, and an old pod", func(in *Input) { in.Fetch = &Fetch{Name: "s-fetch"} }, []Pod{newPod(0, ready, stale)}, v1alpha1.ReasonRollingOut, "The model's files come first, the pods stay until then: The Job s-fetch is about to be made."},
		{"a download, and no pod", func(in *Input) { in.Fetch = &Fetch{Name: "s-fetch"} }, nil, v1alpha1.ReasonStarting, "The first replica is on its way; status.message says how far."},
	} {
		in := input(newServer(1), tt.pods...)
		if tt.change != nil {
			tt.change(&in)
		}
		if c := meta.FindStatusCondition(Decide(in).Status.Conditions, v1alpha1.ConditionProgressing); c == nil || c.Reason != tt.reason || c.Message != tt.message {
			t.Errorf("%s: %+v; want %s: %s", tt.name, c, tt.reason, tt.message)
		}
	}
}

// TestWorstFault: a pod that lies there crashed tells more than one that is on its
// way back.
func TestWorstFault(t *testing.T) {
	s := newServer(2)
	s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-1", FailingSince: ptrTime(t0), FailuresInRow: 1, LastFailure: &v1alpha1.PodFailure{PodUID: "gone", Revision: "new", Reason: "Error"}}}
	d := Decide(input(s, newPod(0, exited(t0, 13, "Error", "")), newPod(1)))
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded); !strings.HasPrefix(c.Message, "s-0: DeviceFault") {
		t.Errorf("%+v", c)
	}
}

// TestCounts: the numbers of pods in the status.
func TestCounts(t *testing.T) {
	st := Decide(input(newServer(3), newPod(0, ready), newPod(1, ready, stale), newPod(2, stale, terminatingUntil(t0)), newPod(3, ready))).Status
	if got := fmt.Sprintf("%d %d %d %s", *st.Replicas, *st.ReadyReplicas, *st.UpdatedReplicas, st.Ready); got != "4 3 2 3/3" {
		t.Errorf("pods, ready, updated: %s", got)
	}
}

// TestAddress: clients are told the scheme that the server speaks.
func TestAddress(t *testing.T) {
	for want, security := range map[string]*v1alpha1.SecuritySpec{
		"http://s.ns.svc:8000/v1": nil, "http://s.ns.svc:8000/v1.": {}, "https://s.ns.svc:8000/v1": {TLSSecretName: "cert"},
	} {
		s := newServer(1)
		s.Spec.Security = security
		if st := Decide(input(s, newPod(0, ready))).Status; !strings.Contains(st.Message, " "+want) {
			t.Errorf("%s, want %s", st.Message, want)
		}
	}
}

// TestFailingRevisionStops: a pod of the new spec that has failed keeps the old
// ones that serve, however many may be missing.
func TestFailingRevisionStops(t *testing.T) {
	s := newServer(3)
	s.Spec.Rollout = &v1alpha1.RolloutSpec{MaxUnavailable: ptr(int32(3))}
	failed := exited(t0, 11, "Error", `{"reason":"WeightsMismatch","message":"x"}`)
	if d := Decide(input(s, newPod(0, failed), newPod(1, ready, stale), newPod(2, ready, stale))); len(d.Delete) > 0 {
		t.Errorf("deletes %v", d.Delete)
	}
}

// TestForced: a pod is forced only if its node can still be asked to stop it: with
// no grace period left it waits for someone's finalizer.
func TestForced(t *testing.T) {
	for _, tt := range []struct {
		grace *int64
		ago   time.Duration
		want  bool
	}{{nil, ForceAfter, true}, {ptr(int64(38)), ForceAfter, true}, {ptr(int64(38)), ForceAfter - time.Second, false}, {ptr(int64(0)), ForceAfter, false}} {
		p := newPod(0, terminatingUntil(t0.Add(-tt.ago)))
		p.DeletionGracePeriodSeconds = tt.grace
		d := Decide(input(newServer(1), p))
		if got := len(d.Delete) == 1 && d.Delete[0].Force; got != tt.want {
			t.Errorf("grace %v, %s after it: %+v", tt.grace, tt.ago, d.Delete)
		}
	}
}

// TestRecordedIsThePods: a crash is recorded when the row of its own pod has it.
func TestRecordedIsThePods(t *testing.T) {
	for name, row := range map[string]v1alpha1.PodStatus{
		"":              {Name: "s-0", LastFailure: &v1alpha1.PodFailure{PodUID: "uid-0", Revision: "new"}},
		"another row":   {Name: "s-1", LastFailure: &v1alpha1.PodFailure{PodUID: "uid-0", Revision: "new"}},
		"another pod":   {Name: "s-0", LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new"}},
		"no end so far": {Name: "s-0"},
	} {
		s := newServer(1)
		s.Status.Pods = []v1alpha1.PodStatus{row}
		if d := Decide(input(s, newPod(0, exited(t0.Add(-time.Hour), 1, "Error", "")))); (len(d.Delete) == 1) != (name == "") {
			t.Errorf("%q: deletes %v", name, d.Delete)
		}
	}
}

// TestRolloutConfig: what may be missing where the spec does not say.
func TestRolloutConfig(t *testing.T) {
	n := func(v int32) *int32 { return &v }
	for _, tt := range []struct {
		spec *v1alpha1.RolloutSpec
		want string // missing, surge
	}{
		{nil, "1 0"}, {&v1alpha1.RolloutSpec{}, "1 0"}, {&v1alpha1.RolloutSpec{MaxSurge: n(0)}, "1 0"}, {&v1alpha1.RolloutSpec{MaxSurge: n(1)}, "0 1"},
		{&v1alpha1.RolloutSpec{MaxSurge: n(2), MaxUnavailable: n(1)}, "1 2"}, {&v1alpha1.RolloutSpec{MaxUnavailable: n(3)}, "3 0"},
	} {
		s := newServer(4)
		s.Spec.Rollout = tt.spec
		if c := config(s, 4); fmt.Sprint(c.MaxUnavailable, c.MaxSurge) != tt.want || c.Desired != 4 {
			t.Errorf("%+v: %+v, want %s", tt.spec, c, tt.want)
		}
	}
}

// TestPassingPods: a status with other pods, or with one that has ended meanwhile,
// is not one more step of the same start.
func TestPassingPods(t *testing.T) {
	load := func() *v1alpha1.SpeculativeServerStatus {
		st := Decide(input(newServer(2), newPod(0), newPod(1))).Status
		return &st
	}
	if !Passing(load(), load()) {
		t.Fatal("two loads are not passed")
	}
	for name, change := range map[string]func(*v1alpha1.SpeculativeServerStatus){
		"fewer pods": func(s *v1alpha1.SpeculativeServerStatus) { s.Pods = s.Pods[:1] },
		"other pods": func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[1].Name = "s-2" },
		"a restart":  func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[1].Restarts++ },
	} {
		next := load()
		change(next)
		if Passing(load(), next) {
			t.Errorf("%s: passed", name)
		}
	}
	if got := eventType(v1alpha1.PhaseDegraded); got != corev1.EventTypeWarning {
		t.Errorf("an event of Degraded is %s", got)
	}
}
