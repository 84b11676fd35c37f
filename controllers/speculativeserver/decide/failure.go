package decide

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Exit codes of the engine, and reasons of its termination message, that a new
// start would not heal.
const (
	exitConfig  = 2
	exitSource  = 10
	exitWeights = 11

	reasonInvalidConfig = "InvalidConfig"
	reasonModelNotFound = "ModelNotFound"
	reasonUnauthorized  = "Unauthorized"
)

// Failure is how an engine ended.
type Failure struct {
	Time     time.Time
	ExitCode *int32 // nil: no process ran
	Reason   string
	Message  string
	Terminal bool // a new start of the same pod would end the same way
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
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	if err := json.Unmarshal([]byte(s), &t); err != nil || !reasonPattern.MatchString(t.Reason) {
		return Termination{}, false
	}
	t.Message = clean(t.Message, 1000)
	return t, true
}

// clean makes text from elsewhere fit for a status: one line, valid UTF-8, at
// most limit bytes; the end is kept, where logs say what went wrong.
func clean(s string, limit int) string {
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

// FailureOf says how the engine of a pod ended; nil while it has not.
func FailureOf(p *corev1.Pod) *Failure {
	if p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
		return nil
	}
	var end *corev1.ContainerStateTerminated
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil {
			end = t
		}
	}
	if p.Status.Reason != "" && (end == nil || end.ExitCode != 0) || end == nil {
		return podFailure(p, end)
	}
	f := &Failure{Time: end.FinishedAt.Time, ExitCode: &end.ExitCode}
	if f.Time.IsZero() {
		f.Time = p.CreationTimestamp.Time
	}
	t, told := ParseTermination(end.Message)
	if told {
		f.Reason, f.Message = t.Reason, t.Message
		if t.Rank > 0 {
			f.Message = fmt.Sprintf("rank %d: %s", t.Rank, f.Message)
		}
	} else {
		f.Message = clean(end.Message, 500)
	}
	f.judge(end, told)
	return f
}

// podFailure is a pod that was ended as a whole (evicted, refused by its node,
// its node shut down).
func podFailure(p *corev1.Pod, end *corev1.ContainerStateTerminated) *Failure {
	f := &Failure{Time: p.CreationTimestamp.Time, Reason: p.Status.Reason, Message: clean(p.Status.Message, 500)}
	for _, c := range p.Status.Conditions {
		if c.LastTransitionTime.After(f.Time) {
			f.Time = c.LastTransitionTime.Time
		}
	}
	if end != nil {
		f.ExitCode = &end.ExitCode
		if !end.FinishedAt.IsZero() {
			f.Time = end.FinishedAt.Time
		}
	}
	if !reasonPattern.MatchString(f.Reason) {
		f.Reason = "Error"
	}
	if f.Message == "" {
		f.Message = "the node ended the pod and left no message; kubectl describe pod has the events"
	}
	return f
}

// judge fills in what the engine did not tell, and whether a new start can help.
func (f *Failure) judge(end *corev1.ContainerStateTerminated, told bool) {
	code := end.ExitCode
	explain := func(reason, message string) {
		if told {
			return
		}
		f.Reason = reason
		if f.Message == "" {
			f.Message = message
		}
	}
	switch {
	case end.Reason == "OOMKilled":
		told, f.Message = false, "" // whatever was said before is not why it ended
		explain("OutOfMemory", "the kernel ended the engine at its memory limit: raise spec.resources.limits.memory or lower spec.model.maxContextLength")
	case code == exitConfig:
		// A Go program that panics exits with 2 as well, with a trace; that is a crash like others.
		if !told && (strings.Contains(f.Message, "goroutine ") || f.Message == "") {
			explain("Error", "the engine panicked")
			return
		}
		explain(reasonInvalidConfig, "")
		f.Terminal = f.Reason == reasonInvalidConfig
	case code == exitSource:
		explain("FetchFailed", "the model could not be fetched")
		f.Terminal = f.Reason == reasonModelNotFound || f.Reason == reasonUnauthorized
	case code == exitWeights:
		explain("WeightsMismatch", "the model's files do not fit together")
		f.Terminal = true
	case code == 0:
		explain("Stopped", "the engine was told to stop, by a failed liveness probe or from outside; kubectl describe pod has the events")
	case !told && (code == 137 || code == 143):
		f.Message = "" // the log does not know either
		explain("Killed", fmt.Sprintf("signal %d ended the engine: it was killed from outside, or by the kubelet after a failed liveness probe", code-128))
	default:
		explain("Error", "the engine left no message; kubectl logs has its last lines")
	}
}

// Backoff is the wait after the n-th crash in a row, from 1.
func Backoff(n int32) time.Duration {
	d := BackoffFirst
	for ; n > 1 && d < BackoffMax; n-- {
		d *= 2
	}
	return min(d, BackoffMax)
}

// record notes a failure in the pod's row, once for each pod.
func (m *member) record(f *Failure) {
	row, uid := &m.row, string(m.pod.UID)
	revision := m.pod.Labels[v1alpha1.LabelRevision]
	if last := row.LastFailure; last == nil || last.PodUID != uid {
		row.Restarts++
		stable := false
		if c := condition(m.pod.Pod, v1alpha1.ModelVerified); c != nil && c.Status == corev1.ConditionTrue {
			stable = f.Time.Sub(c.LastTransitionTime.Time) >= StableAfter
		}
		if stable || last == nil || last.Revision != revision {
			row.FailuresInRow = 0
		}
		row.FailuresInRow++
	}
	row.LastFailure = &v1alpha1.PodFailure{
		Time: metav1.NewTime(f.Time), PodUID: uid, Revision: revision,
		ExitCode: f.ExitCode, Reason: f.Reason, Message: f.Message,
	}
	row.NextStartTime = nil
	if f.Terminal {
		row.Phase = v1alpha1.PhaseFailed
		row.Message = fmt.Sprintf("%s: %s. Not started again until the spec changes or the pod is deleted.", f.ended(), strings.TrimRight(f.Message, "."))
		return
	}
	next := metav1.NewTime(f.Time.Add(Backoff(row.FailuresInRow)).Truncate(time.Second))
	row.NextStartTime = &next
	row.Phase = v1alpha1.PhaseCrashed
	row.Message = fmt.Sprintf("%s, %s: %s. Next start at %s.", f.ended(), times(row.FailuresInRow),
		strings.TrimRight(f.Message, "."), next.UTC().Format("15:04:05Z"))
}

func (f *Failure) ended() string {
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
