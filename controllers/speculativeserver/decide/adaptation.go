package decide

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/adapt"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// FreshFor is how old an engine's metrics may be to count.
const FreshFor = 30 * time.Second

// Bounds are what the engines of a server are held to, in the words of their
// admin port.
type Bounds struct {
	Mode     string // auto, fixed or off
	Min, Max int
}

// Agrees says that an engine which answers this is held to the bounds.
func (b Bounds) Agrees(mode string, least, most int) bool {
	return mode == b.Mode && (b.Mode == "off" || most == b.Max) && (b.Mode != "auto" || least == b.Min)
}

// adaptation is what the engines are to be held to, and how it shows in the
// status; nil leaves them be.
type adaptation struct {
	bounds Bounds
	mode   v1alpha1.AdaptationMode
	state  adapt.State // of mode Auto
	wait   time.Duration
}

func steps(s *v1alpha1.SpeculativeServer) int {
	if n := s.Spec.Speculation.NumSteps; n != nil {
		return int(*n)
	}
	return 3
}

// adapted works out the bounds. An engine that the spec says nothing about is
// left as it starts, unless it has been held to something before.
func adapted(in Input, members []member) *adaptation {
	sp, last := in.Server.Spec.Speculation, in.Server.Status.Speculation
	if sp.Algorithm == v1alpha1.AlgorithmNone || in.draftFailed() {
		return nil
	}
	spec := v1alpha1.AdaptationSpec{}
	switch {
	case sp.Adaptation != nil:
		spec = *sp.Adaptation
	case last == nil || last.Mode == "":
		return nil
	}
	n := steps(in.Server)
	switch spec.Mode {
	case v1alpha1.AdaptationFixed:
		return &adaptation{bounds: Bounds{Mode: "fixed", Max: n}, mode: v1alpha1.AdaptationFixed}
	case v1alpha1.AdaptationOff:
		return &adaptation{bounds: Bounds{Mode: "off", Max: n}, mode: v1alpha1.AdaptationOff}
	}
	return automatic(in, members, spec, n)
}

func automatic(in Input, members []member, spec v1alpha1.AdaptationSpec, n int) *adaptation {
	l := adapt.Limits{Max: n, Latency: spec.Objective == "Latency"}
	if spec.MaxSteps != nil {
		l.Max = min(n, int(*spec.MaxSteps))
	}
	if spec.MinSteps != nil {
		l.Min = min(l.Max, int(*spec.MinSteps))
	}
	if ms := spec.MaxInterTokenMilliseconds; ms != nil {
		l.BetweenToks = time.Duration(*ms) * time.Millisecond
	}
	var s adapt.State
	if last := in.Server.Status.Speculation; last != nil && last.Mode == v1alpha1.AdaptationAuto && last.MaxSteps != nil {
		s = adapt.State{Max: int(*last.MaxSteps), Reason: last.Reason, Detail: last.Detail}
		if last.Since != nil {
			s.Since = last.Since.Time
		}
	}
	next, wait := adapt.Next(l, s, measured(in, members), in.Now.Truncate(time.Second))
	return &adaptation{bounds: Bounds{Mode: "auto", Min: l.Min, Max: next.Max}, mode: v1alpha1.AdaptationAuto, state: next, wait: wait}
}

// measured sums up what the ready pods measure.
func measured(in Input, members []member) adapt.Load {
	var l adapt.Load
	var accept, gain, between mean
	for i := range members {
		m := &members[i]
		if m.row.Phase != v1alpha1.PhaseReady {
			continue
		}
		l.Ready++
		if m.pod.Engine == nil || m.pod.Engine.Metrics == nil || in.Now.Sub(m.pod.Engine.Metrics.Time) > FreshFor {
			continue
		}
		x := m.pod.Engine.Metrics
		l.Measured++
		l.Running += finite(x.Running)
		l.Waiting += finite(x.Waiting)
		l.KVUsage = max(l.KVUsage, finite(x.KVUsage))
		l.Depth = max(l.Depth, finite(x.Depth))
		if finite(x.Running) == 0 {
			continue // what an idle engine last measured says nothing of now
		}
		accept.add(x.AcceptLength)
		gain.add(x.Gain)
		between.add(x.InterTokenSeconds)
	}
	l.AcceptLength, l.Gain, l.BetweenToks = accept.value(), gain.value(), between.value()
	return l
}

// mean is the mean of the figures that there are.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(x float64) {
	if x = finite(x); x > 0 {
		m.sum += x
		m.n++
	}
}

func (m *mean) value() float64 {
	if m.n == 0 {
		return 0
	}
	return m.sum / float64(m.n)
}

// show puts the bounds into the status.
func (a *adaptation) show(s *v1alpha1.SpeculationStatus, members []member) {
	s.Mode = a.mode
	most := int32(a.bounds.Max)
	if a.mode == v1alpha1.AdaptationOff {
		most = 0
	}
	s.MaxSteps = &most
	if a.mode == v1alpha1.AdaptationAuto {
		least := int32(a.bounds.Min)
		s.MinSteps = &least
		s.Reason, s.Detail = a.state.Reason, failure.Clean(a.state.Detail, 250)
		if !a.state.Since.IsZero() {
			t := metav1.NewTime(a.state.Since)
			s.Since = &t
		}
	}
	ready, confirmed := 0, 0
	for i := range members {
		m := &members[i]
		if m.row.Phase != v1alpha1.PhaseReady {
			continue
		}
		ready++
		if e := m.pod.Engine; e != nil && e.Bounds != nil && a.bounds.Agrees(e.Bounds.Mode, e.Bounds.Min, e.Bounds.Max) {
			confirmed++
		}
	}
	s.Confirmed = fmt.Sprintf("%d/%d", confirmed, ready)
}

// draftFailed says that the pods are made without their draft.
func (in *Input) draftFailed() bool {
	f := in.Server.Status.DraftFailure
	return f != nil && f.Revision == in.DraftRevision
}

// draftFailure is what the status has to say of a draft that failed: what it said
// before of the same draft, or what a pod has just failed with.
func draftFailure(in Input, members []member) *v1alpha1.DraftFailure {
	if in.draftFailed() {
		return in.Server.Status.DraftFailure.DeepCopy()
	}
	if !servesWithoutDraft(in.Server) {
		return nil
	}
	if f := in.Fetch; f != nil && f.Result != nil && f.Result.DraftError != "" {
		return &v1alpha1.DraftFailure{Revision: in.DraftRevision, Time: *ptrTime(in.Now), Message: f.Result.DraftError}
	}
	for i := range members {
		m := &members[i]
		if m.badDraft && m.row.LastFailure != nil && m.row.LastFailure.Revision == in.DraftRevision {
			return &v1alpha1.DraftFailure{Revision: in.DraftRevision, Time: m.row.LastFailure.Time,
				Message: failure.Clean(m.row.LastFailure.Reason+": "+m.row.LastFailure.Message, 1000)}
		}
	}
	return nil
}

func servesWithoutDraft(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.Speculation.OnDraftFailure != "Fail" && s.Spec.Speculation.Algorithm != v1alpha1.AlgorithmNone
}

// isDraft says that a failure is the draft's and not the model's.
func isDraft(v *failure.Verdict) bool {
	return v.Reason == "DraftMismatch" || v.Terminal && strings.HasPrefix(v.Message, "/models/draft")
}
