package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/adapt"
)

// auto is a server of adaptation mode Auto.
func auto(replicas int32, changes ...func(*v1alpha1.AdaptationSpec)) *v1alpha1.SpeculativeServer {
	s := newServer(replicas)
	a := &v1alpha1.AdaptationSpec{Mode: v1alpha1.AdaptationAuto}
	for _, c := range changes {
		c(a)
	}
	s.Spec.Speculation.Adaptation, s.Spec.Speculation.NumSteps = a, ptr(int32(4))
	return s
}

// TestBounds says what the engines are held to.
func TestBounds(t *testing.T) {
	held := func(s *v1alpha1.SpeculativeServer, mode v1alpha1.AdaptationMode) *v1alpha1.SpeculativeServer {
		s.Status.Speculation = &v1alpha1.SpeculationStatus{Mode: mode, MaxSteps: ptr(int32(2)), Reason: "RequestsQueue"}
		return s
	}
	mode := func(m v1alpha1.AdaptationMode) func(*v1alpha1.AdaptationSpec) {
		return func(a *v1alpha1.AdaptationSpec) { a.Mode = m }
	}
	none := auto(1)
	none.Spec.Speculation.Algorithm = v1alpha1.AlgorithmNone
	without := auto(1)
	without.Status.DraftFailure = &v1alpha1.DraftFailure{Revision: "drafted"}
	for _, tt := range []struct {
		name   string
		server *v1alpha1.SpeculativeServer
		want   string
	}{
		{"nothing said", newServer(1), "let be"},
		{"nothing said any more", held(newServer(1), v1alpha1.AdaptationFixed), "auto 0 3"},
		{"fixed", auto(1, mode(v1alpha1.AdaptationFixed)), "fixed 0 4"},
		{"mode left out", auto(1, mode("")), "auto 0 4"},
		{"off", auto(1, mode(v1alpha1.AdaptationOff)), "off 0 4"},
		{"auto", auto(1), "auto 0 4"},
		{"auto, narrower", auto(1, func(a *v1alpha1.AdaptationSpec) { a.MinSteps, a.MaxSteps = ptr(int32(1)), ptr(int32(3)) }), "auto 1 3"},
		{"auto, wider than there is", auto(1, func(a *v1alpha1.AdaptationSpec) { a.MaxSteps = ptr(int32(9)) }), "auto 0 4"},
		{"auto, after an operator's restart", held(auto(1), v1alpha1.AdaptationAuto), "auto 0 2"},
		{"auto, after off", held(auto(1), v1alpha1.AdaptationOff), "auto 0 4"},
		{"no draft", none, "let be"},
		{"a draft that failed", without, "let be"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(tt.server, newPod(0, ready))
			in.DraftRevision = "drafted"
			got := "let be"
			if b := Decide(in).Bounds; b != nil {
				got = fmt.Sprint(b.Mode, " ", b.Min, " ", b.Max)
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestAutoFollowsLoad goes through the status, as the operator does: a queue on
// all pods lowers the bound step by step, with an event each and the reason in the
// condition at the bottom; missing metrics freeze it; without the queue it comes
// back; what an idle or silent pod last measured does not count.
func TestAutoFollowsLoad(t *testing.T) {
	s := auto(2)
	now := t0
	pods := func(waiting, gain float64, age time.Duration) []Pod {
		m := Metrics{Depth: 2, AcceptLength: 2, Running: 10, Waiting: waiting, Gain: gain, Time: now.Add(-age)}
		e := Engine{Metrics: &m, Bounds: &Bounds{Mode: "auto", Max: 4}}
		return []Pod{newPod(0, ready, says(e)), newPod(1, ready, says(e))}
	}
	see := func(p []Pod) (string, Decision) {
		in := input(s, p...)
		in.Now = now
		d := Decide(in)
		s.Status = d.Status
		f := d.Status.Speculation
		return fmt.Sprintf("%d %s %s", *f.MaxSteps, f.Reason, f.Confirmed), d
	}
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	got, _ := see(pods(0, 1.5, 0))
	check("quiet", got, "4 Unrestricted 2/2")
	for want := 3; want >= 0; want-- {
		now = now.Add(time.Minute)
		got, d := see(pods(30, 1, 0))
		check("queue", got, fmt.Sprintf("%d RequestsQueue 0/2", want))
		if len(d.Events) == 0 || d.Events[len(d.Events)-1].Reason != "SpeculationBounds" || !strings.Contains(d.Events[len(d.Events)-1].Message, "60 requests wait and 20 run") {
			t.Errorf("events %+v", d.Events)
		}
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionSpeculationActive); c.Status != "True" {
		t.Errorf("the engines still draft: %+v", c)
	}
	now = now.Add(time.Hour)
	got, _ = see(pods(0, 1, FreshFor+time.Second))
	check("stale metrics", got, "0 RequestsQueue 0/2")
	got, _ = see(pods(0, 1, 0))
	check("the queue is gone", got, "1 Recovering 0/2")
	now = now.Add(10 * time.Second)
	if got, d := see(pods(0, 1, 0)); d.Requeue == 0 || d.Requeue > time.Minute {
		t.Errorf("%s: looks again after %s, not when the bound may go up", got, d.Requeue)
	}
	now = now.Add(time.Hour)
	idle := pods(0, 0.1, 0)
	for i := range idle {
		idle[i].Engine.Metrics.Running = 0
	}
	got, _ = see(idle)
	check("a gain of before the engines were idle", got, "2 Recovering 0/2")
	off := pods(0, 1, 0)
	for i := range off {
		off[i].Engine.Metrics.Depth = 0
	}
	s.Status.Speculation.MaxSteps, s.Status.Speculation.Reason, s.Status.Speculation.Detail = ptr(int32(0)), "RequestsQueue", "60 requests wait and 20 run"
	see(off)
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionSpeculationActive); c.Reason != v1alpha1.ReasonOff && !strings.Contains(c.Message, "Queue") {
		t.Errorf("%+v", c)
	}
}

// TestBadDraft: a draft that does not fit is left out, said so, and tried again
// with another spec; onDraftFailure: Fail has it end there.
func TestBadDraft(t *testing.T) {
	mismatch := exited(t0, 11, "Error", `{"reason":"DraftMismatch","message":"hidden_size is 64, but the target's is 128","rank":0}`)
	drafted := func(p *Pod) { p.Labels[v1alpha1.LabelRevision] = "drafted" }
	s := newServer(1)
	in := input(s, newPod(0, mismatch, drafted))
	in.Revision, in.DraftRevision = "drafted", "drafted"
	d := Decide(in)
	f := d.Status.DraftFailure
	if f == nil || f.Revision != "drafted" || !strings.Contains(f.Message, "hidden_size is 64") || d.Requeue != time.Second || len(d.Delete) != 0 {
		t.Fatalf("%+v, requeue %s, deletes %v", f, d.Requeue, d.Delete)
	}
	if row := d.Status.Pods[0]; row.Phase != v1alpha1.PhaseCrashed || !strings.Contains(row.Message, "Started again without the draft") {
		t.Errorf("%+v", row)
	}
	if e := d.Events[len(d.Events)-1]; e.Reason != v1alpha1.ReasonDraftFailed || e.Type != "Warning" {
		t.Errorf("%+v", d.Events)
	}
	s.Status = d.Status
	in.Revision = "plain"
	if d = Decide(in); len(d.Delete) != 1 || d.Status.DraftFailure == nil || len(d.Events) != 0 {
		t.Errorf("then: deletes %v, %+v, events %v", d.Delete, d.Status.DraftFailure, d.Events)
	}
	in.Pods = []Pod{newPod(0, ready, func(p *Pod) { p.UID = types.UID("b"); p.Labels[v1alpha1.LabelRevision] = "plain" })}
	d = Decide(in)
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionSpeculationActive)
	if d.Status.Phase != v1alpha1.PhaseReady || c.Reason != v1alpha1.ReasonDraftFailed || !strings.Contains(c.Message, "hidden_size") || !strings.Contains(d.Status.Message, "/v1. Nothing is drafted: DraftMismatch: hidden_size") || d.Requeue == time.Second {
		t.Errorf("serving without it: %s, %+v", d.Status.Phase, c)
	}
	s.Status = d.Status
	in.Revision, in.DraftRevision = "other", "other"
	if d = Decide(in); d.Status.DraftFailure != nil {
		t.Errorf("another spec: %+v", d.Status.DraftFailure)
	}

	s = newServer(1)
	s.Spec.Speculation.OnDraftFailure = "Fail"
	in = input(s, newPod(0, mismatch, drafted))
	in.Revision, in.DraftRevision = "drafted", "drafted"
	if d = Decide(in); d.Status.Phase != v1alpha1.PhaseFailed || d.Status.DraftFailure != nil {
		t.Errorf("Fail: %s, %+v", d.Status.Phase, d.Status.DraftFailure)
	}
	// A pod of before does not tell of the draft that the spec names now.
	in = input(newServer(1), newPod(0, mismatch, drafted))
	in.Revision, in.DraftRevision = "other", "other"
	if f := Decide(in).Status.DraftFailure; f != nil {
		t.Errorf("the draft of another spec: %+v", f)
	}
	// The model's own faults are not the draft's, nor is one that a new start may heal.
	for message, want := range map[string]bool{
		`{"reason":"FetchFailed","message":"/models/draft: connection reset"}`:  false,
		`{"reason":"ModelNotFound","message":"/models/draft: no such folder"}`:  true,
		`{"reason":"ModelNotFound","message":"/models/target: no such folder"}`: false,
	} {
		in = input(newServer(1), newPod(0, exited(t0, 10, "Error", message), drafted))
		in.Revision, in.DraftRevision = "drafted", "drafted"
		if got := Decide(in).Status.DraftFailure != nil; got != want {
			t.Errorf("%s: without the draft %v, want %v", message, got, want)
		}
	}
}

// TestMeasured: what the load of a server is, of pods in every state.
func TestMeasured(t *testing.T) {
	x := func(m Metrics) func(*Pod) {
		if m.Time.IsZero() {
			m.Time = t0
		}
		return says(Engine{Metrics: &m})
	}
	a := Metrics{Running: 3, Waiting: 5, KVUsage: 0.25, Depth: 2, AcceptLength: 3, Gain: 1.5, InterTokenSeconds: 0.02}
	b := Metrics{Running: 1, Waiting: 1, KVUsage: 0.75, Depth: 1, AcceptLength: 2, Gain: 1, InterTokenSeconds: 0.04}
	old, oldest, idle, unknown := b, b, b, Metrics{Running: 1}
	oldest.Time, old.Time, idle.Running = t0.Add(-FreshFor), t0.Add(-FreshFor-time.Second), 0
	for _, tt := range []struct {
		name string
		pods []Pod
		want adapt.Load
	}{
		{"none", nil, adapt.Load{}},
		{"one", []Pod{newPod(0, ready, x(a))}, adapt.Load{Ready: 1, Measured: 1, Running: 3, Waiting: 5, KVUsage: 0.25, Depth: 2, AcceptLength: 3, Gain: 1.5, BetweenToks: 0.02}},
		{"two", []Pod{newPod(0, ready, x(a)), newPod(1, ready, x(b))}, adapt.Load{Ready: 2, Measured: 2, Running: 4, Waiting: 6, KVUsage: 0.75, Depth: 2, AcceptLength: 2.5, Gain: 1.25, BetweenToks: 0.03}},
		{"one as old as may be", []Pod{newPod(0, ready, x(oldest))}, adapt.Load{Ready: 1, Measured: 1, Running: 1, Waiting: 1, KVUsage: 0.75, Depth: 1, AcceptLength: 2, Gain: 1, BetweenToks: 0.04}},
		{"one too old", []Pod{newPod(0, ready, x(a)), newPod(1, ready, x(old))}, adapt.Load{Ready: 2, Measured: 1, Running: 3, Waiting: 5, KVUsage: 0.25, Depth: 2, AcceptLength: 3, Gain: 1.5, BetweenToks: 0.02}},
		{"one without metrics, one not asked", []Pod{newPod(0, ready, says(Engine{})), newPod(1, ready)}, adapt.Load{Ready: 2}},
		{"one not ready", []Pod{newPod(0, ready, x(a)), newPod(1, healthy, x(b))}, adapt.Load{Ready: 1, Measured: 1, Running: 3, Waiting: 5, KVUsage: 0.25, Depth: 2, AcceptLength: 3, Gain: 1.5, BetweenToks: 0.02}},
		{"one idle", []Pod{newPod(0, ready, x(a)), newPod(1, ready, x(idle))}, adapt.Load{Ready: 2, Measured: 2, Running: 3, Waiting: 6, KVUsage: 0.75, Depth: 2, AcceptLength: 3, Gain: 1.5, BetweenToks: 0.02}},
		{"one that knows nothing yet", []Pod{newPod(0, ready, x(a)), newPod(1, ready, x(unknown))}, adapt.Load{Ready: 2, Measured: 2, Running: 4, Waiting: 5, KVUsage: 0.25, Depth: 2, AcceptLength: 3, Gain: 1.5, BetweenToks: 0.02}},
	} {
		in := input(newServer(int32(len(tt.pods))), tt.pods...)
		members := gatherMembers(in, int32(len(tt.pods)))
		for i := range members {
			members[i].classify(in)
		}
		if got := measured(in, members); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestLatencyBound: the bound of the spec on the time between tokens is held
// against what the pods measure.
func TestLatencyBound(t *testing.T) {
	for ms, want := range map[int32]string{50: "LatencyBound", 70: "Unrestricted"} {
		s := auto(1, func(a *v1alpha1.AdaptationSpec) { a.MaxInterTokenMilliseconds = &ms })
		s.Status.Speculation = &v1alpha1.SpeculationStatus{Mode: v1alpha1.AdaptationAuto, MaxSteps: ptr(int32(4)), Reason: "Unrestricted", Since: ptrTime(t0.Add(-time.Hour))}
		d := Decide(input(s, newPod(0, ready, says(Engine{Metrics: &Metrics{Running: 1, Gain: 1, InterTokenSeconds: 0.06, Time: t0}}))))
		if got := d.Status.Speculation.Reason; got != want {
			t.Errorf("60 ms between tokens, %d allowed: %s, want %s", ms, got, want)
		}
	}
}

// TestAdaptationShown: what the status says of the mode and the bounds, and of how
// many engines keep to them.
func TestAdaptationShown(t *testing.T) {
	keeps := func(mode string, least, most int) Pod {
		return newPod(0, ready, says(Engine{Metrics: &Metrics{Depth: 1}, Bounds: &Bounds{Mode: mode, Min: least, Max: most}}))
	}
	since := metav1.NewTime(t0.Add(-time.Hour))
	for _, tt := range []struct {
		mode v1alpha1.AdaptationMode
		pod  Pod
		want string // mode, least, most, reason, since, confirmed
	}{
		{v1alpha1.AdaptationAuto, keeps("auto", 1, 2), "Auto 1 2 RequestsQueue 11:00:00Z 1/1"},
		{v1alpha1.AdaptationAuto, keeps("auto", 1, 3), "Auto 1 2 RequestsQueue 11:00:00Z 0/1"},
		{v1alpha1.AdaptationAuto, keeps("fixed", 1, 2), "Auto 1 2 RequestsQueue 11:00:00Z 0/1"},
		{v1alpha1.AdaptationAuto, newPod(0, ready, says(Engine{})), "Auto 1 2 RequestsQueue 11:00:00Z 0/1"},
		{v1alpha1.AdaptationAuto, newPod(0, ready), "Auto 1 2 RequestsQueue 11:00:00Z 0/1"},
		{v1alpha1.AdaptationAuto, newPod(0, healthy, says(Engine{Bounds: &Bounds{Mode: "auto", Min: 1, Max: 2}})), "Auto 1 2 RequestsQueue 11:00:00Z 0/0"},
		{v1alpha1.AdaptationFixed, keeps("fixed", 0, 4), "Fixed - 4  - 1/1"},
		{v1alpha1.AdaptationOff, keeps("off", 0, 4), "Off - 0  - 1/1"},
	} {
		s := auto(1, func(a *v1alpha1.AdaptationSpec) { a.Mode, a.MinSteps = tt.mode, ptr(int32(1)) })
		s.Status.Speculation = &v1alpha1.SpeculationStatus{Mode: tt.mode, MaxSteps: ptr(int32(2)), Reason: "RequestsQueue", Detail: "x", Since: &since}
		if tt.mode != v1alpha1.AdaptationAuto {
			s.Spec.Speculation.Adaptation.MinSteps = nil
		}
		f := Decide(input(s, tt.pod)).Status.Speculation
		least, at := "-", "-"
		if f.MinSteps != nil {
			least = fmt.Sprint(*f.MinSteps)
		}
		if f.Since != nil {
			at = clock(f.Since.Time)
		}
		if got := fmt.Sprintf("%s %s %d %s %s %s", f.Mode, least, *f.MaxSteps, f.Reason, at, f.Confirmed); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.mode, got, tt.want)
		}
	}
}

// TestBoundsEvents: an event tells of another bound or mode, with why, and of
// nothing else.
func TestBoundsEvents(t *testing.T) {
	st := func(mode v1alpha1.AdaptationMode, most *int32, reason, detail string) *v1alpha1.SpeculationStatus {
		return &v1alpha1.SpeculationStatus{Mode: mode, MaxSteps: most, Reason: reason, Detail: detail}
	}
	two, three := ptr(int32(2)), ptr(int32(3))
	const is, off = v1alpha1.AdaptationAuto, v1alpha1.AdaptationOff
	for _, tt := range []struct {
		name       string
		last, next *v1alpha1.SpeculationStatus
		want       string // "": no event
	}{
		{"nothing", nil, nil, ""},
		{"no bound", nil, st(is, nil, "", ""), ""},
		{"the first", nil, st(is, two, "Unrestricted", ""), "Drafts of up to 2 steps, mode Auto, Unrestricted."},
		{"the first of a server that was let be", st("", nil, "", ""), st(is, two, "Unrestricted", ""), "Drafts of up to 2 steps, mode Auto, Unrestricted."},
		{"the same", st(is, two, "RequestsQueue", "x"), st(is, two, "RequestsQueue", "y"), ""},
		{"lower", st(is, three, "Unrestricted", ""), st(is, two, "RequestsQueue", "9 requests wait"), "Drafts of up to 2 steps, mode Auto, RequestsQueue: 9 requests wait."},
		{"another mode", st(is, two, "Unrestricted", ""), st(off, two, "", ""), "Drafts of up to 2 steps, mode Off."},
	} {
		got := ""
		for _, e := range bounded(tt.last, tt.next) {
			got += e.Message
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
