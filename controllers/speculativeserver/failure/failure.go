// Package failure classifies what keeps a pod from serving. It is pure: the
// evidence is what the cluster and the engine say of the pod, and the verdict is
// that of the first of the ordered Policies that applies.
package failure

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Evidence is what is known about a pod.
type Evidence struct {
	Pod          *corev1.Pod
	MountFailure string // the kubelet's last complaint about a volume; empty when there is none

	end  *corev1.ContainerStateTerminated // of the engine; nil: none has ended
	told *Termination                     // the engine's own account; nil: it left none
	text string                           // the end of its log, when it left none
}

// Verdict is what is wrong and what follows from it.
type Verdict struct {
	Policy  string         // that judged
	Phase   v1alpha1.Phase // of the pod
	Reason  string
	Message string // one line: what is wrong, and what to do where a person must

	// Of an engine that has ended.
	Ended    bool
	Time     time.Time
	ExitCode *int32 // nil: no process ran
	Rank     *int32 // that failed, where the engine said so
	Terminal bool   // a new start would end the same way
	Outside  bool   // not the engine's or the spec's doing: no number of them is final
	BadNode  bool   // the node's devices are suspect
}

// Termination is the engine's own account of its end.
type Termination struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Rank    int    `json:"rank"`
}

var reasonPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,63}$`)

// ParseTermination reads a termination message: one JSON line
// {"reason": ..., "message": ..., "rank": n}, perhaps after log lines. Of
// anything else, ok is false.
func ParseTermination(s string) (t Termination, ok bool) {
	s = strings.TrimSpace(s)
	s = s[strings.LastIndexByte(s, '\n')+1:]
	if err := json.Unmarshal([]byte(s), &t); err != nil || !reasonPattern.MatchString(t.Reason) {
		return Termination{}, false
	}
	t.Message = Clean(t.Message, endLimit)
	return t, true
}

// Clean makes text from elsewhere fit for a status: one line, valid UTF-8, at
// most limit bytes; the end is kept, where logs say what went wrong.
func Clean(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == ' ' }), " ")
	if len(s) <= limit {
		return s
	}
	i := len(s) - limit + len("…")
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return "…" + s[i:]
}

// endLimit is how many bytes the message of an end has at most: the API server takes
// 1024 characters of PodFailure.message, and refuses the whole status for more.
const endLimit = 1000

// Of judges a pod; nil when nothing is wrong with it.
func Of(p *corev1.Pod, mountFailure string) *Verdict {
	e := &Evidence{Pod: p, MountFailure: mountFailure}
	e.read()
	for _, policy := range Policies {
		v := policy.Judge(e)
		if v == nil {
			continue
		}
		v.Policy = policy.Name
		v.Message = Clean(v.Message, 1500)
		if e.ended() {
			e.complete(v)
			v.Message = Clean(withFields(v.Message), endLimit)
		}
		return v
	}
	return nil
}

// OfGroup judges a pod of a LeaderWorkerSet, whose container is started again in
// place: one that has ended, or has ended before, is the end of its group. What
// ends because the pod is being deleted is not.
//
// A container beside the engine that ends is the end of the group, too: LeaderWorkerSet makes
// the group again when any container has restarted. Where both have ended, the engine's end is told.
func OfGroup(p *corev1.Pod, mountFailure string) *Verdict {
	statuses := p.Status.ContainerStatuses
	if c := engineStatus(p); c != nil {
		statuses = append([]corev1.ContainerStatus{*c}, statuses...)
	}
	for _, c := range statuses {
		end := c.LastTerminationState.Terminated
		if end == nil && p.DeletionTimestamp == nil {
			end = c.State.Terminated
		}
		if end == nil {
			continue
		}
		over := p.DeepCopy()
		c.State = corev1.ContainerState{Terminated: end}
		over.Status.Phase, over.Status.ContainerStatuses = corev1.PodFailed, []corev1.ContainerStatus{c}
		return Of(over, "")
	}
	if p.DeletionTimestamp != nil {
		return nil
	}
	return Of(p, mountFailure)
}

// OfEngine judges a pod whose engine has ended for good, and whose node has not said that
// the pod is over: it says so only once it has cleaned up after all its containers, and
// never while one that somebody added goes on. nil is of any other pod.
func OfEngine(p *corev1.Pod) *Verdict {
	if p.DeletionTimestamp != nil || p.Spec.RestartPolicy != corev1.RestartPolicyNever || p.Status.Phase != corev1.PodRunning || len(p.Spec.Containers) == 0 {
		return nil
	}
	name := p.Spec.Containers[0].Name
	if slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == v1alpha1.EngineContainer }) || engineStatus(p) != nil {
		name = v1alpha1.EngineContainer
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == name && c.State.Terminated != nil {
			over := p.DeepCopy()
			over.Status.Phase, over.Status.ContainerStatuses = corev1.PodFailed, []corev1.ContainerStatus{c}
			return Of(over, "")
		}
	}
	return nil
}

// engineStatus is what the node says of the engine; nil: it says nothing of a container of
// that name. The place tells nothing: what injects containers may put its own first.
func engineStatus(p *corev1.Pod) *corev1.ContainerStatus {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Name == v1alpha1.EngineContainer {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// read takes apart how the engine ended.
func (e *Evidence) read() {
	if c := engineStatus(e.Pod); c != nil {
		e.end = c.State.Terminated
	} else {
		for i := range e.Pod.Status.ContainerStatuses {
			if t := e.Pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
				e.end = t
			}
		}
	}
	if e.end == nil {
		return
	}
	if t, ok := ParseTermination(e.end.Message); ok {
		e.told = &t
		return
	}
	e.text = Clean(e.end.Message, 500)
}

// ended says that the pod is over.
func (e *Evidence) ended() bool {
	return e.Pod.Status.Phase == corev1.PodFailed || e.Pod.Status.Phase == corev1.PodSucceeded
}

// complete fills in what every end has: when, with which code, on which rank.
func (e *Evidence) complete(v *Verdict) {
	v.Ended = true
	v.Phase = v1alpha1.PhaseCrashed
	if v.Terminal {
		v.Phase = v1alpha1.PhaseFailed
	}
	if e.end != nil {
		v.ExitCode = &e.end.ExitCode
		v.Time = e.end.FinishedAt.Time
	}
	if v.Time.IsZero() {
		v.Time = e.Pod.CreationTimestamp.Time
		for _, c := range e.Pod.Status.Conditions {
			if c.LastTransitionTime.After(v.Time) {
				v.Time = c.LastTransitionTime.Time
			}
		}
	}
	if e.told != nil && e.told.Rank > 0 && e.told.Rank < 1<<16 && v.Reason == e.told.Reason {
		rank := int32(e.told.Rank)
		v.Rank = &rank
	}
}
