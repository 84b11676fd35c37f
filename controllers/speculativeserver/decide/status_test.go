package decide

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func figures(depth, accept, rate float64) func(*Pod) {
	return says(Engine{Metrics: &Metrics{Depth: depth, AcceptLength: accept, TokensPerSecond: rate}})
}

// TestConditions has the five conditions, in the order Available, Progressing,
// Degraded, ModelLoaded, SpeculationActive, of each situation.
func TestConditions(t *testing.T) {
	crashed := exited(t0, 13, "Error", "")
	failed := exited(t0, 11, "Error", `{"reason":"WeightsMismatch","message":"x"}`)
	waits := func(p *Pod) {
		pendingPod("", "", "")(p)
		with(corev1.PodScheduled, corev1.ConditionFalse, t0, "no node")(p)
	}
	load := loads(Progress{Phase: "load", Percent: 5, LastAdvance: t0})
	off := func(s *v1alpha1.SpeculativeServer) { s.Spec.Speculation.Algorithm = v1alpha1.AlgorithmNone }
	for _, tt := range []struct {
		name     string
		replicas int32
		change   func(*v1alpha1.SpeculativeServer)
		pods     []Pod
		phase    v1alpha1.Phase
		ready    string
		want     string
	}{
		{"nothing yet", 1, nil, nil, v1alpha1.PhasePending, "0/1", "F NotReady, T Starting, F AsExpected, F NotStarted, F NotServing"},
		{"loading", 1, nil, []Pod{newPod(0, load)}, v1alpha1.PhaseLoading, "0/1", "F NotReady, T Starting, F AsExpected, F Loading, F NotServing"},
		{"verifying", 1, nil, []Pod{newPod(0, healthy)}, v1alpha1.PhaseVerifying, "0/1", "F NotReady, T Starting, F AsExpected, T Loaded, F NotServing"},
		{"ready, not scraped", 1, nil, []Pod{newPod(0, ready)}, v1alpha1.PhaseReady, "1/1", "T Serving, F Complete, F AsExpected, T Loaded, U NoMetrics"},
		{"ready, drafting", 1, nil, []Pod{newPod(0, ready, figures(3, 3.2, 50))}, v1alpha1.PhaseReady, "1/1", "T Serving, F Complete, F AsExpected, T Loaded, T Drafting"},
		{"ready, off for now", 1, nil, []Pod{newPod(0, ready, figures(0, 0, 50))}, v1alpha1.PhaseReady, "1/1", "T Serving, F Complete, F AsExpected, T Loaded, F Off"},
		{"ready, none asked for", 1, off, []Pod{newPod(0, ready, figures(0, 0, 50))}, v1alpha1.PhaseReady, "1/1", "T Serving, F Complete, F AsExpected, T Loaded, F Disabled"},
		{"one of two", 2, nil, []Pod{newPod(0, ready), newPod(1, load)}, v1alpha1.PhaseUpdating, "1/2", "T Serving, T Scaling, F AsExpected, T Loaded, U NoMetrics"},
		{"one of two crashed", 2, nil, []Pod{newPod(0, ready), newPod(1, crashed)}, v1alpha1.PhaseDegraded, "1/2", "T Serving, T Retrying, T Crashed, T Loaded, U NoMetrics"},
		{"crashed", 1, nil, []Pod{newPod(0, crashed)}, v1alpha1.PhaseCrashed, "0/1", "F NotReady, T Retrying, T Crashed, F NotStarted, F NotServing"},
		{"failed", 1, nil, []Pod{newPod(0, failed)}, v1alpha1.PhaseFailed, "0/1", "F NotReady, F Blocked, T Failed, F LoadFailed, F NotServing"},
		{"no capacity", 1, nil, []Pod{newPod(0, waits)}, v1alpha1.PhaseWaitingForCapacity, "0/1", "F NotReady, F Blocked, T Unschedulable, F NotStarted, F NotServing"},
		{"no capacity for the second", 2, nil, []Pod{newPod(0, ready), newPod(1, waits)}, v1alpha1.PhaseDegraded, "1/2", "T Serving, F Blocked, T Unschedulable, T Loaded, U NoMetrics"},
		{"loading beside a wait", 2, nil, []Pod{newPod(0, waits), newPod(1, load)}, v1alpha1.PhaseLoading, "0/2", "F NotReady, F Blocked, T Unschedulable, F Loading, F NotServing"},
		{"rolling out", 1, nil, []Pod{newPod(0, stale, ready)}, v1alpha1.PhaseUpdating, "1/1", "T Serving, T RollingOut, F AsExpected, F NotStarted, U NoMetrics"},
		{"scaling down", 1, nil, []Pod{newPod(0, ready), newPod(1, ready)}, v1alpha1.PhaseReady, "1/1", "T Serving, T Scaling, F AsExpected, T Loaded, U NoMetrics"},
		{"stopped", 0, nil, nil, v1alpha1.PhaseStopped, "0/0", "F ScaledToZero, F Complete, F AsExpected, F ScaledToZero, F NotServing"},
		{"stopping", 0, nil, []Pod{newPod(0, ready)}, v1alpha1.PhaseTerminating, "0/0", "F ScaledToZero, T Scaling, F AsExpected, T Loaded, F NotServing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(tt.replicas)
			if tt.change != nil {
				tt.change(s)
			}
			st := Decide(input(s, tt.pods...)).Status
			var got []string
			for _, c := range st.Conditions {
				got = append(got, fmt.Sprintf("%.1s %s", c.Status, c.Reason))
				if c.ObservedGeneration != s.Generation {
					t.Errorf("%s has generation %d, not %d", c.Type, c.ObservedGeneration, s.Generation)
				}
				if c.Message == "" {
					t.Errorf("%s has no message", c.Type)
				}
			}
			if st.Phase != tt.phase || st.Ready != tt.ready || strings.Join(got, ", ") != tt.want {
				t.Errorf("%s %s: %s\nwant %s %s: %s", st.Phase, st.Ready, strings.Join(got, ", "), tt.phase, tt.ready, tt.want)
			}
		})
	}
}

// TestFieldsWithoutEffect: plain decoding names the fields of drafts that are set and do nothing: each that there is.
func TestFieldsWithoutEffect(t *testing.T) {
	ptr := func(n int32) *int32 { return &n }
	said := func(sp v1alpha1.SpeculationSpec) string {
		sp.Algorithm = v1alpha1.AlgorithmNone
		s := newServer(1)
		s.Spec.Speculation = sp
		return meta.FindStatusCondition(Decide(input(s, newPod(0, ready))).Status.Conditions, v1alpha1.ConditionSpeculationActive).Message
	}
	for want, sp := range map[string]v1alpha1.SpeculationSpec{
		"spec.speculation.algorithm is None.":                                                   {NumSteps: ptr(3), TopK: ptr(1)}, // the defaults
		"spec.speculation.algorithm is None: adaptation has no effect.":                         {Adaptation: &v1alpha1.AdaptationSpec{}},
		"spec.speculation.algorithm is None: numSteps, topK and adaptation have no effect.":     {NumSteps: ptr(5), TopK: ptr(4), Adaptation: &v1alpha1.AdaptationSpec{}},
		"spec.speculation.algorithm is None: numDraftTokens and onDraftFailure have no effect.": {NumDraftTokens: ptr(8), OnDraftFailure: "Fail"},
	} {
		if got := said(sp); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	fields := reflect.TypeFor[v1alpha1.SpeculationSpec]()
	for i := range fields.NumField() {
		f := fields.Field(i)
		if f.Name == "Algorithm" {
			continue
		}
		var sp v1alpha1.SpeculationSpec
		v := reflect.ValueOf(&sp).Elem().Field(i)
		switch {
		case v.Kind() == reflect.String:
			v.SetString("Serve")
		case v.Type().Elem().Kind() == reflect.Int32:
			v.Set(reflect.ValueOf(ptr(7)))
		default:
			v.Set(reflect.New(v.Type().Elem()))
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if got := said(sp); !strings.HasSuffix(got, " None: "+name+" has no effect.") {
			t.Errorf("with %s set: %q", name, got)
		}
	}
}

// TestModelNotStarted: a pod that has ended is not said to have never begun.
func TestModelNotStarted(t *testing.T) {
	crashed := exited(t0, 12, "Error", `{"reason":"OutOfMemory","message":"x"}`)
	for _, tt := range []struct {
		name string
		pods []Pod
		want string
	}{
		{"no pod", nil, "No pod of the current revision has begun to load."},
		{"crashed", []Pod{newPod(0, crashed)}, "s-0 has ended and loads again when it is started again."},
		{"crashed, of another spec", []Pod{newPod(0, stale, crashed)}, "No pod of the current revision has begun to load."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, c := range Decide(input(newServer(1), tt.pods...)).Status.Conditions {
				if c.Type == v1alpha1.ConditionModelLoaded && (c.Reason != v1alpha1.ReasonNotStarted || c.Message != tt.want) {
					t.Errorf("%s: %s\nwant %s: %s", c.Reason, c.Message, v1alpha1.ReasonNotStarted, tt.want)
				}
			}
		})
	}
}

// TestConditionTimes: a condition's time is when its status changed, not when it
// was last computed.
func TestConditionTimes(t *testing.T) {
	s := newServer(1)
	in := input(s, newPod(0, ready))
	s.Status = Decide(in).Status
	in.Now = t0.Add(time.Hour)
	s.Generation++
	st := Decide(in).Status
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAvailable)
	if !c.LastTransitionTime.Time.Equal(t0) || c.ObservedGeneration != s.Generation {
		t.Errorf("%+v", c)
	}
	s.Status = st
	in.Pods = []Pod{newPod(0)}
	if c := meta.FindStatusCondition(Decide(in).Status.Conditions, v1alpha1.ConditionAvailable); !c.LastTransitionTime.Time.Equal(in.Now) {
		t.Errorf("%+v", c)
	}
}

func TestFigures(t *testing.T) {
	last := func(accept, rate string) *v1alpha1.SpeculationStatus {
		return &v1alpha1.SpeculationStatus{NumSteps: ptr(int32(3)), AcceptLength: accept, TokensPerSecond: rate}
	}
	for _, tt := range []struct {
		name string
		last *v1alpha1.SpeculationStatus
		pods []Pod
		want string // depth, accept length, tokens a second; "-": no figures
	}{
		{"no pod", nil, nil, "-"},
		{"not scraped", nil, []Pod{newPod(0, ready)}, "-"},
		{"not scraped by this process", last("3.10", "50"), []Pod{newPod(0, ready)}, "3 3.10 50"},
		{"not ready any more", last("3.10", "50"), []Pod{newPod(0)}, "-"},
		{"first figures", nil, []Pod{newPod(0, ready, figures(3, 3.3149, 118.4))}, "3 3.31 118"},
		{"slow", nil, []Pod{newPod(0, ready, figures(3, 1, 0.44))}, "3 1.00 0.4"},
		{"two pods", nil, []Pod{newPod(0, ready, figures(2, 2, 100)), newPod(1, ready, figures(3, 3, 20))}, "3 2.50 120"},
		{"one of two idle", nil, []Pod{newPod(0, ready, figures(3, 2, 100)), newPod(1, ready, figures(3, 0, 0))}, "3 2.00 100"},
		{"noise", last("3.10", "100"), []Pod{newPod(0, ready, figures(3, 3.2, 104))}, "3 3.10 100"},
		{"more than noise", last("3.10", "100"), []Pod{newPod(0, ready, figures(3, 3.3, 106))}, "3 3.30 106"},
		{"idle", last("3.10", "100"), []Pod{newPod(0, ready, figures(3, 0, 0))}, "3 3.10 0"},
		{"idle, never drafted", nil, []Pod{newPod(0, ready, figures(3, 0, 0))}, "3  0"},
		{"nonsense", nil, []Pod{newPod(0, ready, figures(math.NaN(), math.Inf(1), -4))}, "0  0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(2)
			s.Status.Speculation = tt.last
			got := "-"
			if f := Decide(input(s, tt.pods...)).Status.Speculation; f != nil {
				got = fmt.Sprintf("%d %s %s", *f.NumSteps, f.AcceptLength, f.TokensPerSecond)
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestCompare says which changes are written at once, at intervals, or never.
func TestCompare(t *testing.T) {
	base := func() *v1alpha1.SpeculativeServerStatus {
		s := newServer(1)
		st := Decide(input(s, newPod(0, loads(Progress{Phase: "load", Percent: 43, LastAdvance: t0})))).Status
		st.Speculation = &v1alpha1.SpeculationStatus{NumSteps: ptr(int32(3)), TokensPerSecond: "1"}
		return &st
	}
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.SpeculativeServerStatus)
		want   Change
	}{
		{"nothing", func(*v1alpha1.SpeculativeServerStatus) {}, Same},
		{"time of the last probe", func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[0].LastProbeTime = ptr(metav1.NewTime(t0)) }, Same},
		{"percent", func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[0].Percent = ptr(int32(44)) }, Soft},
		{"message", func(s *v1alpha1.SpeculativeServerStatus) { s.Message = "x" }, Soft},
		{"rate", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.TokensPerSecond = "2" }, Soft},
		{"gain", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.Gain = "1.2" }, Soft},
		{"verify", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.VerifyMilliseconds = "3" }, Soft},
		{"detail", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.Detail = "x" }, Soft},
		{"reason", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.Reason = "x" }, Hard},
		{"depth", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation.NumSteps = ptr(int32(2)) }, Hard},
		{"phase", func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[0].Phase = v1alpha1.PhaseReady }, Hard},
		{"generation", func(s *v1alpha1.SpeculativeServerStatus) { s.ObservedGeneration++ }, Hard},
		{"condition", func(s *v1alpha1.SpeculativeServerStatus) { s.Conditions[0].Status = metav1.ConditionTrue }, Hard},
		{"condition's message", func(s *v1alpha1.SpeculativeServerStatus) { s.Conditions[0].Message = "x" }, Soft},
		{"failure", func(s *v1alpha1.SpeculativeServerStatus) { s.Pods[0].Restarts++ }, Hard},
		{"figures gone", func(s *v1alpha1.SpeculativeServerStatus) { s.Speculation = nil }, Hard},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next := base()
			tt.change(next)
			if got := Compare(base(), next); got != tt.want {
				t.Errorf("change %d, want %d", got, tt.want)
			}
		})
	}
}

// TestTransitions: one event for each change of phase, a new one for each crash,
// none for percentages.
func TestTransitions(t *testing.T) {
	s := newServer(1)
	see := func(p Pod) string {
		d := Decide(input(s, p))
		s.Status = d.Status
		var got []string
		for _, e := range d.Events {
			got = append(got, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Pod))
		}
		return strings.Join(got, ", ")
	}
	load := func(percent float64) func(*Pod) {
		return loads(Progress{Phase: "load", Percent: percent, LastAdvance: t0})
	}
	uid := func(u string) func(*Pod) { return func(p *Pod) { p.UID = types.UID(u) } }
	for i, step := range []struct {
		pod  Pod
		want string
	}{
		{newPod(0, load(1)), "Normal Loading s-0"},
		{newPod(0, load(50)), ""},
		{newPod(0, load(1), uid("a")), "Normal Loading s-0"},
		{newPod(0, ready), "Normal Ready s-0, Normal Ready "},
		{newPod(0, ready), ""},
		{newPod(0, exited(t0, 13, "Error", "")), "Warning Crashed s-0"},
		{newPod(0, exited(t0, 13, "Error", "")), ""},
		{newPod(0, exited(t0, 13, "Error", ""), uid("b")), "Warning Crashed s-0"},
		{newPod(0, exited(t0, 11, "Error", `{"reason":"Unsupported"}`), uid("c")), "Warning Failed s-0, Warning Failed "},
	} {
		if got := see(step.pod); got != step.want {
			t.Errorf("step %d: events %q, want %q", i, got, step.want)
		}
	}
}

// TestRefusals: what keeps pods from being made is an event, once.
func TestRefusals(t *testing.T) {
	s := newServer(1)
	for i, step := range []struct {
		change func(*Input)
		want   string
	}{
		{func(in *Input) { in.Refused = "quota exceeded" }, "Warning PodRefused: quota exceeded"},
		{func(in *Input) { in.Refused = "quota exceeded" }, ""},
		{func(in *Input) { in.Conflict = "the claim is ReadWriteOnce" }, "Warning VolumeConflict: the claim is ReadWriteOnce"},
		{func(in *Input) { in.NameTaken = "a Service is there" }, "Warning NameTaken: a Service is there"},
		{func(in *Input) { in.NoGroups = "no such kind" }, "Warning NoLeaderWorkerSet: no such kind"},
		{func(*Input) {}, ""},
		{func(in *Input) { in.Refused = "quota exceeded" }, "Warning PodRefused: quota exceeded"},
	} {
		in := input(s)
		step.change(&in)
		d := Decide(in)
		s.Status = d.Status
		got := ""
		for _, e := range d.Events {
			got += fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message)
		}
		if got != step.want {
			t.Errorf("step %d: events %q, want %q", i, got, step.want)
		}
	}
}

// TestServingRefused: a server whose pods serve says what it cannot have besides,
// in the phase and the message too, and does not claim to be as asked for.
func TestServingRefused(t *testing.T) {
	const why = `The API server refuses Service s: metadata.annotations: Invalid value: "a b"`
	for _, tt := range []struct {
		name    string
		change  func(*Input)
		pods    []Pod
		desired int32
		phase   v1alpha1.Phase
		message string
	}{
		{"all serve", func(in *Input) { in.Refused = why }, []Pod{newPod(0, ready)}, 1, v1alpha1.PhaseDegraded, "1 of 1 replicas serve. " + why},
		{"some serve", func(in *Input) { in.Conflict = "Claim c is ReadWriteOnce." }, []Pod{newPod(0, ready)}, 2, v1alpha1.PhaseDegraded, "1 of 2 replicas serve. Claim c is ReadWriteOnce."},
		{"two causes", func(in *Input) { in.Conflict, in.Refused = "Claim c is ReadWriteOnce.", why }, []Pod{newPod(0, ready)}, 1, v1alpha1.PhaseDegraded, "1 of 1 replicas serve. Claim c is ReadWriteOnce. " + why},
		{"none made", func(in *Input) { in.Refused = why }, nil, 1, v1alpha1.PhasePending, why},
		{"nothing refused", func(*Input) {}, []Pod{newPod(0, ready)}, 1, v1alpha1.PhaseReady, "Serving"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(newServer(tt.desired), tt.pods...)
			tt.change(&in)
			if s := Decide(in).Status; s.Phase != tt.phase || !strings.HasPrefix(s.Message, tt.message) {
				t.Errorf("%s: %s\nwant %s: %s", s.Phase, s.Message, tt.phase, tt.message)
			} else if row := s.Pods[tt.desired-1]; row.UID == "" && row.Message != "Not made yet: the server's message says what is in the way." {
				t.Errorf("the row of a pod that there is not: %s", row.Message)
			}
		})
	}
}

// TestPassing: steps of a healthy start may be skipped when they are short;
// anything that someone waits for or has to act on may not.
func TestPassing(t *testing.T) {
	load := newPod(0, loads(Progress{Phase: "load", Percent: 5, LastAdvance: t0}))
	pull := newPod(0, pendingPod("node1", "ContainerCreating", ""))
	for _, tt := range []struct {
		name   string
		before []Pod
		after  []Pod
		want   bool
	}{
		{"created", nil, []Pod{pull}, true},
		{"pulled", []Pod{pull}, []Pod{load}, true},
		{"verifying", []Pod{load}, []Pod{newPod(0, healthy)}, true},
		{"ready", []Pod{newPod(0, healthy)}, []Pod{newPod(0, ready)}, false},
		{"crashed", []Pod{load}, []Pod{newPod(0, exited(t0, 1, "Error", ""))}, false},
		{"on the way after a crash", []Pod{newPod(0, exited(t0, 1, "Error", ""))}, []Pod{load}, false},
		{"no image", []Pod{pull}, []Pod{newPod(0, pendingPod("node1", "ErrImagePull", ""))}, false},
		{"not ready any more", []Pod{newPod(0, ready)}, []Pod{load}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(1)
			s.Status = Decide(input(s, tt.before...)).Status
			next := Decide(input(s, tt.after...)).Status
			if got := Passing(&s.Status, &next); got != tt.want {
				t.Errorf("from %s to %s: %v", s.Status.Phase, next.Phase, got)
			}
			next.ObservedGeneration++
			if Passing(&s.Status, &next) {
				t.Error("another generation was skipped")
			}
		})
	}
}
