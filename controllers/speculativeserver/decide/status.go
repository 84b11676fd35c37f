package decide

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/rollout"
)

// telling ranks the phases of pods by how much they say about a server of which
// no pod is ready: faults first, then the pod that is farthest on its way.
var telling = []v1alpha1.Phase{
	v1alpha1.PhaseFailed, v1alpha1.PhaseCrashed, v1alpha1.PhaseVolumeUnavailable, v1alpha1.PhaseImageUnavailable,
	v1alpha1.PhaseContainerRefused, v1alpha1.PhaseNodeLost, v1alpha1.PhaseStalled, v1alpha1.PhaseUnverified,
	v1alpha1.PhaseReady, v1alpha1.PhaseVerifying, v1alpha1.PhaseWarmingUp, v1alpha1.PhaseLoading, v1alpha1.PhaseFetching,
	v1alpha1.PhaseStarting,
	v1alpha1.PhasePulling, v1alpha1.PhaseWaitingForCapacity, v1alpha1.PhasePending, v1alpha1.PhaseTerminating,
}

// faults are the phases that no spec asks for, with the reason of the Degraded
// condition, the worst first.
var faults = []fault{
	{v1alpha1.PhaseFailed, v1alpha1.ReasonFailed},
	{v1alpha1.PhaseCrashed, v1alpha1.ReasonCrashed},
	{v1alpha1.PhaseVolumeUnavailable, v1alpha1.ReasonVolumeUnavailable},
	{v1alpha1.PhaseImageUnavailable, v1alpha1.ReasonImageUnavailable},
	{v1alpha1.PhaseContainerRefused, v1alpha1.ReasonContainerRefused},
	{v1alpha1.PhaseNodeLost, v1alpha1.ReasonNodeLost},
	{v1alpha1.PhaseStalled, v1alpha1.ReasonStalled},
	{v1alpha1.PhaseUnverified, v1alpha1.ReasonVerificationFailed},
	{v1alpha1.PhaseWaitingForCapacity, v1alpha1.ReasonUnschedulable},
}

type fault struct {
	phase  v1alpha1.Phase
	reason string
}

// faultCrashed is the place of the crash among the faults.
const faultCrashed = 1

// overview is what the status of a server is worded from.
type overview struct {
	in      Input
	members []member
	desired int32
	plan    rollout.Plan

	existing int32 // pods that exist, terminating ones included
	serving  int32 // ready pods
	ready    int32 // the same, no more than are asked for
	whole    bool  // every ordinal asked for is ready
	updated  int32
	extra    int32 // pods beyond the ordinals asked for
	stale    int32
	fault    *member // worst pod of those asked for; nil: none
	reason   string  // its reason
	main     *member // the pod that says most; nil: no pod is asked for
}

func look(in Input, members []member, desired int32, plan rollout.Plan) *overview {
	o := &overview{in: in, members: members, desired: desired, plan: plan, whole: true}
	worst, best := len(faults), len(telling)
	for i := range members {
		m := &members[i]
		if m.pod != nil {
			o.existing++
			if m.stale {
				o.stale++
			} else {
				o.updated++
			}
		}
		if m.row.Phase == v1alpha1.PhaseReady {
			o.serving++
		}
		if m.ordinal >= desired {
			o.extra++
			if o.fault == nil && !m.stale && m.row.Phase != v1alpha1.PhaseWaitingForCapacity {
				o.blame(m, len(faults)) // a rollout's first pod that fails is a fault; room for more than asked for is not
			}
			continue
		}
		if m.row.Phase != v1alpha1.PhaseReady {
			o.whole = false
		}
		worst = o.blame(m, worst)
		if m.row.FailingSince != nil && worst > faultCrashed {
			// Until it serves again, a pod that is being started after a crash is still a fault.
			worst, o.fault, o.reason = faultCrashed, m, v1alpha1.ReasonCrashed
		}
		if k := slices.Index(telling, m.row.Phase); k < best {
			best, o.main = k, m
		}
		for k := range m.workers { // a replica is as well as its nodes
			w := &m.workers[k]
			worst = o.blame(w, worst)
			if w.row.FailingSince != nil && worst > faultCrashed {
				worst, o.fault, o.reason = faultCrashed, w, v1alpha1.ReasonCrashed
			}
			o.whole = o.whole && w.row.Phase == v1alpha1.PhaseReady
			if k := slices.Index(telling, w.row.Phase); w.row.Phase != v1alpha1.PhaseReady && k < best {
				best, o.main = k, w
			}
		}
	}
	o.ready = min(o.serving, desired)
	if o.fault != nil {
		o.fault = o.fault.root()
	}
	if o.main != nil {
		o.main = o.main.root()
	}
	return o
}

// blame makes a pod the fault that the status shows if its own is worse than
// the worst so far, and returns the worse of them.
func (o *overview) blame(m *member, worst int) int {
	for k := range worst {
		if faults[k].phase == m.row.Phase {
			o.fault, o.reason = m, faults[k].reason
			return k
		}
	}
	return worst
}

// summarise makes the whole status. Only the times of the conditions, restarts,
// failures and figures within their rounding come from the last one.
func summarise(in Input, members []member, desired int32, plan rollout.Plan, a *adaptation) v1alpha1.SpeculativeServerStatus {
	o := look(in, members, desired, plan)
	phase, message := o.phase()
	s := v1alpha1.SpeculativeServerStatus{
		Conditions:         slices.Clone(in.Server.Status.Conditions),
		ObservedGeneration: in.Server.Generation,
		Phase:              phase,
		Message:            failure.Clean(message, 2000),
		Ready:              fmt.Sprintf("%d/%d", o.ready, desired),
		Replicas:           &o.existing,
		ReadyReplicas:      &o.serving,
		UpdatedReplicas:    &o.updated,
		Selector:           in.Selector,
		Revision:           in.Revision,
		Model:              in.Model,
		Device:             deviceOf(members),
		Speculation:        speculation(in, members),
		DraftFailure:       draftFailure(in, members),
		Fetch:              in.download,
		ModelCache:         in.Claim,
	}
	if a != nil {
		if s.Speculation == nil {
			s.Speculation = &v1alpha1.SpeculationStatus{}
		}
		a.show(s.Speculation, members)
	}
	for i := range members {
		s.Pods = append(s.Pods, members[i].row)
		for k := range members[i].workers {
			s.Pods = append(s.Pods, members[i].workers[k].row)
		}
	}
	o.conditions(&s)
	return s
}

// trouble words what is wrong with a pod: its state, and while that is only the
// way back, what it comes back from.
func (m *member) trouble() string {
	if f := m.row.LastFailure; f != nil && m.row.FailingSince != nil && eventType(m.row.Phase) == corev1.EventTypeNormal {
		return fmt.Sprintf("%s. It ended before with %s, %s: %s", strings.TrimSuffix(m.row.Message, "."), ended(f), times(m.row.FailuresInRow), f.Message)
	}
	return m.row.Message
}

// phase is the phase and the message of the server as a whole.
func (o *overview) phase() (v1alpha1.Phase, string) {
	name := o.in.Server.Name
	switch {
	case o.in.Server.DeletionTimestamp != nil:
		return v1alpha1.PhaseTerminating, "Being deleted; its pods stop."
	case o.desired == 0 && o.existing == 0:
		return v1alpha1.PhaseStopped, "Scaled to zero; set spec.replicas to serve."
	case o.desired == 0:
		return v1alpha1.PhaseTerminating, "Scaling to zero; the pods stop."
	case o.ready > 0 && o.blocked() != "":
		return v1alpha1.PhaseDegraded, fmt.Sprintf("%d of %d replicas serve. %s", o.ready, o.desired, o.blocked())
	case o.whole && o.stale == 0:
		message := fmt.Sprintf("Serving %s at %s://%s.%s.svc:%d/v1.", o.in.Model, o.in.scheme(), name, o.in.Server.Namespace, o.in.Port)
		if f := draftFailure(o.in, o.members); f != nil {
			message += " Nothing is drafted: " + f.Message
		}
		if m := o.unused(); m != nil {
			message += " GPUs are not used: " + m.cpuInstead()
		}
		return v1alpha1.PhaseReady, message
	case o.ready > 0 && o.fault != nil:
		return v1alpha1.PhaseDegraded, fmt.Sprintf("%d of %d replicas serve. %s: %s", o.ready, o.desired, o.fault.row.Name, o.fault.row.Message)
	case o.ready > 0 && !o.whole:
		m := o.behind()
		return v1alpha1.PhaseUpdating, fmt.Sprintf("%d of %d replicas serve. %s: %s", o.ready, o.desired, m.row.Name, m.row.Message)
	case o.ready > 0:
		return v1alpha1.PhaseUpdating, fmt.Sprintf("All replicas serve; %d of %d are still to be replaced after a change of the spec.", min(o.stale, o.desired), o.desired)
	case o.blocked() != "" && o.existing == 0:
		return v1alpha1.PhasePending, o.blocked()
	case o.desired == 1:
		return o.main.row.Phase, o.main.row.Message
	}
	return o.main.row.Phase, o.main.row.Name + ": " + o.main.row.Message
}

// blocked is why what the spec asks for cannot be made, one sentence for each
// cause; "" when it can.
func (o *overview) blocked() string {
	var why []string
	for _, w := range []string{o.in.NameTaken, o.in.NoGroups, o.in.Conflict, o.in.Refused} {
		if w != "" {
			why = append(why, w)
		}
	}
	return strings.Join(why, " ")
}

// behind is the pod that the others wait for: the one farthest on its way of
// those that are not ready.
func (o *overview) behind() *member {
	best, found := len(telling), o.main
	for i := range o.members {
		m := &o.members[i]
		if m.ordinal >= o.desired || m.row.Phase == v1alpha1.PhaseReady {
			continue
		}
		if k := slices.Index(telling, m.row.Phase); k < best {
			best, found = k, m
		}
	}
	return found
}

// conditions sets the five conditions, each with the generation it is for.
func (o *overview) conditions(s *v1alpha1.SpeculativeServerStatus) {
	set := func(t string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: t, Status: status, Reason: reason, Message: message,
			ObservedGeneration: o.in.Server.Generation,
			LastTransitionTime: metav1.NewTime(o.in.Now),
		})
	}
	o.available(set)
	o.progressing(set, s)
	o.degraded(set)
	o.modelLoaded(set)
	o.speculating(set, s)
}

type setter func(t string, status metav1.ConditionStatus, reason, message string)

func (o *overview) available(set setter) {
	switch {
	case o.ready > 0:
		set(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing, fmt.Sprintf("%d of %d replicas are verified and serve.", o.ready, o.desired))
	case o.desired == 0:
		set(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonScaledToZero, "spec.replicas is 0.")
	default:
		set(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNotReady, "No replica serves; status.message says why.")
	}
}

func (o *overview) progressing(set setter, s *v1alpha1.SpeculativeServerStatus) {
	say := func(status metav1.ConditionStatus, reason, message string) {
		set(v1alpha1.ConditionProgressing, status, reason, message)
	}
	switch {
	case o.blocked() != "":
		say(metav1.ConditionFalse, v1alpha1.ReasonBlocked, o.blocked())
	case o.whole && o.stale == 0 && o.extra == 0:
		say(metav1.ConditionFalse, v1alpha1.ReasonComplete, "Every replica asked for is ready and up to date.")
	case o.in.fetching() && o.in.download.Phase == v1alpha1.PhaseFailed:
		say(metav1.ConditionFalse, v1alpha1.ReasonBlocked, "The model's files are not there: "+o.in.download.Message)
	case o.in.fetching() && o.existing > 0:
		say(metav1.ConditionTrue, v1alpha1.ReasonRollingOut, "The model's files come first, the pods stay until then: "+o.in.download.Message)
	case o.fault != nil && o.fault.grouped && o.reason == v1alpha1.ReasonCrashed:
		say(metav1.ConditionTrue, v1alpha1.ReasonRetrying, o.fault.row.Name+" is started again with its group.")
	case o.fault != nil && (o.reason == v1alpha1.ReasonCrashed || o.fault.row.NextStartTime != nil):
		say(metav1.ConditionTrue, v1alpha1.ReasonRetrying, o.fault.row.Name+" is started again after its back-off.")
	case o.fault != nil:
		say(metav1.ConditionFalse, v1alpha1.ReasonBlocked, o.fault.row.Name+" cannot go on: "+o.fault.row.Message)
	case o.plan.Halted != "":
		say(metav1.ConditionFalse, v1alpha1.ReasonBlocked, fmt.Sprintf("%d pods of another revision are to be replaced: %s.", o.stale, o.plan.Halted))
	case len(o.plan.Await) > 0:
		say(metav1.ConditionTrue, v1alpha1.ReasonRollingOut, fmt.Sprintf("%d pods of another revision are to be replaced, the next one when it is idle.", o.stale))
	case o.stale > 0:
		say(metav1.ConditionTrue, v1alpha1.ReasonRollingOut, fmt.Sprintf("%d pods of another revision are to be replaced.", o.stale))
	case o.extra > 0 || o.ready > 0:
		say(metav1.ConditionTrue, v1alpha1.ReasonScaling, fmt.Sprintf("%d pods exist, %d are asked for.", o.existing, o.desired))
	default:
		say(metav1.ConditionTrue, v1alpha1.ReasonStarting, "The first replica is on its way; status.message says how far.")
	}
}

func (o *overview) degraded(set setter) {
	say := func(status metav1.ConditionStatus, reason, message string) {
		set(v1alpha1.ConditionDegraded, status, reason, message)
	}
	switch {
	case o.in.NameTaken != "":
		say(metav1.ConditionTrue, v1alpha1.ReasonNameTaken, o.in.NameTaken)
	case o.in.NoGroups != "":
		say(metav1.ConditionTrue, v1alpha1.ReasonNoLeaderWorkerSet, o.in.NoGroups)
	case o.in.Conflict != "":
		say(metav1.ConditionTrue, v1alpha1.ReasonVolumeConflict, o.in.Conflict)
	case o.in.Refused != "":
		say(metav1.ConditionTrue, v1alpha1.ReasonPodRefused, o.in.Refused)
	case o.in.fetching() && o.in.download.Reason != "":
		reason := v1alpha1.ReasonFetchFailed
		if slices.Contains(sourceReasons, o.in.download.Reason) {
			reason = o.in.download.Reason
		}
		say(metav1.ConditionTrue, reason, o.in.download.Message)
	case o.fault != nil:
		say(metav1.ConditionTrue, o.faultReason(), o.fault.row.Name+": "+o.fault.trouble())
	case o.unused() != nil:
		say(metav1.ConditionTrue, v1alpha1.ReasonGPUUnused, o.unused().cpuInstead())
	default:
		say(metav1.ConditionFalse, v1alpha1.ReasonAsExpected, "No fault is seen.")
	}
}

func (o *overview) modelLoaded(set setter) {
	say := func(status metav1.ConditionStatus, reason, message string) {
		set(v1alpha1.ConditionModelLoaded, status, reason, message)
	}
	var loading, failed, crashed *member
	for i := range o.members {
		m := &o.members[i]
		if m.stale {
			continue
		}
		switch m.row.Phase {
		case v1alpha1.PhaseReady, v1alpha1.PhaseVerifying, v1alpha1.PhaseWarmingUp, v1alpha1.PhaseUnverified:
			say(metav1.ConditionTrue, v1alpha1.ReasonLoaded, m.row.Name+" holds the whole model.")
			return
		case v1alpha1.PhaseFetching, v1alpha1.PhaseLoading:
			loading = m
		case v1alpha1.PhaseFailed, v1alpha1.PhaseVolumeUnavailable:
			failed = m
		case v1alpha1.PhaseCrashed:
			crashed = m
		}
	}
	switch {
	case o.desired == 0:
		say(metav1.ConditionFalse, v1alpha1.ReasonScaledToZero, "spec.replicas is 0.")
	case loading != nil:
		say(metav1.ConditionFalse, v1alpha1.ReasonLoading, loading.row.Name+" loads it.")
	case failed != nil:
		say(metav1.ConditionFalse, v1alpha1.ReasonLoadFailed, failed.row.Name+": "+failed.row.Message)
	case crashed != nil:
		say(metav1.ConditionFalse, v1alpha1.ReasonNotStarted, crashed.row.Name+" has ended and loads again when it is started again.")
	default:
		say(metav1.ConditionFalse, v1alpha1.ReasonNotStarted, "No pod of the current revision has begun to load.")
	}
}

func (o *overview) speculating(set setter, s *v1alpha1.SpeculativeServerStatus) {
	say := func(status metav1.ConditionStatus, reason, message string) {
		set(v1alpha1.ConditionSpeculationActive, status, reason, message)
	}
	switch {
	case o.in.Server.Spec.Speculation.Algorithm == v1alpha1.AlgorithmNone:
		say(metav1.ConditionFalse, v1alpha1.ReasonDisabled, "spec.speculation.algorithm is None"+without(idle(&o.in.Server.Spec.Speculation)))
	case s.DraftFailure != nil:
		say(metav1.ConditionFalse, v1alpha1.ReasonDraftFailed, "The pods serve without the draft until the spec changes: "+s.DraftFailure.Message)
	case o.ready == 0:
		say(metav1.ConditionFalse, v1alpha1.ReasonNotServing, "No replica is ready.")
	case s.Speculation == nil || s.Speculation.NumSteps == nil:
		say(metav1.ConditionUnknown, v1alpha1.ReasonNoMetrics, "No replica's metrics could be read so far.")
	case *s.Speculation.NumSteps > 0:
		say(metav1.ConditionTrue, v1alpha1.ReasonDrafting, "Replicas draft; status.speculation has the figures.")
	case s.Speculation.Mode == v1alpha1.AdaptationOff:
		say(metav1.ConditionFalse, v1alpha1.ReasonOff, "spec.speculation.adaptation.mode is Off.")
	case s.Speculation.MaxSteps != nil && *s.Speculation.MaxSteps == 0:
		say(metav1.ConditionFalse, v1alpha1.ReasonOff, fmt.Sprintf("The load leaves no room for drafts: %s, %s.", s.Speculation.Reason, s.Speculation.Detail))
	default:
		say(metav1.ConditionFalse, v1alpha1.ReasonOff, "The engines decode plainly for now.")
	}
}

// Defaults of the API server, which cannot be told from what somebody wrote.
const (
	defaultNumSteps = 3
	defaultTopK     = 1
)

// idle are the fields that say something about drafts, of a spec that has none.
func idle(sp *v1alpha1.SpeculationSpec) []string {
	var names []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"draft", sp.Draft != nil},
		{"numSteps", sp.NumSteps != nil && *sp.NumSteps != defaultNumSteps},
		{"topK", sp.TopK != nil && *sp.TopK != defaultTopK},
		{"numDraftTokens", sp.NumDraftTokens != nil},
		{"nGram", sp.NGram != nil},
		{"adaptation", sp.Adaptation != nil},
		{"onDraftFailure", sp.OnDraftFailure != ""},
	} {
		if f.set {
			names = append(names, f.name)
		}
	}
	return names
}

// without says that fields have no effect.
func without(names []string) string {
	switch len(names) {
	case 0:
		return "."
	case 1:
		return ": " + names[0] + " has no effect."
	}
	last := len(names) - 1
	return ": " + strings.Join(names[:last], ", ") + " and " + names[last] + " have no effect."
}
