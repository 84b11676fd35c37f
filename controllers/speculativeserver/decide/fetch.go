package decide

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// FetchAgain is how long after its last try a download that gave up is begun
// anew, where that can heal it.
const FetchAgain = 5 * time.Minute

// Fetch is the download into a claim that the spec asks for.
type Fetch struct {
	Name    string       // of the Job
	Sources string       // hash of what the spec asks for
	Job     *FetchJob    // nil: none
	Result  *FetchResult // where the files of Sources are; nil: not there yet
}

// FetchJob is the Job as it is.
type FetchJob struct {
	Sources  string // that it downloads
	Current  bool   // it is what the spec gives now
	Deleting bool
	Complete bool
	Failed   bool
	EndedAt  time.Time
	Pod      *Pod // the newest of its pods; nil: none
}

// FetchResult is where files are in the claim.
type FetchResult struct {
	Model, Draft string // folders; empty for one that is not downloaded
	DraftError   string // why there is no draft
}

// ParseFetch reads what a fetch says when it ends well; an error says what is
// wrong with it.
func ParseFetch(message string) (*FetchResult, error) {
	var said struct {
		Model, Draft string
		Error        *failure.Termination `json:"draft_error"`
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(message)), &said); err != nil {
		return nil, fmt.Errorf("the fetch did not say where the files are: %w", err)
	}
	for _, p := range []string{said.Model, said.Draft} {
		// It becomes a path in a volume.
		if p != "" && (path.IsAbs(p) || path.Clean(p) != p || strings.HasPrefix(p, "..") || len(p) > 1024) {
			return nil, fmt.Errorf("the fetch says that files are in %.100q, which is no path in the claim", p)
		}
	}
	r := &FetchResult{Model: said.Model, Draft: said.Draft}
	if said.Error != nil {
		r.DraftError = failure.Clean(said.Error.Reason+": "+said.Error.Message, 1000)
	}
	if r.Model+r.Draft+r.DraftError == "" {
		return nil, fmt.Errorf("the fetch named no folder")
	}
	return r, nil
}

// FetchAction is what to do with the Job.
type FetchAction struct {
	Create bool
	Delete bool
	Why    string // of a deletion
}

// fetching says that pods wait for a download.
func (in *Input) fetching() bool { return in.Fetch != nil && in.Fetch.Result == nil }

// fetch says how the download is, what to do with its Job, and when to look
// again; nil when the spec asks for none.
func (in *Input) fetch() (*v1alpha1.FetchStatus, FetchAction, time.Duration) {
	f := in.Fetch
	if f == nil {
		return nil, FetchAction{}, 0
	}
	s := &v1alpha1.FetchStatus{Sources: f.Sources}
	if c := in.Server.Spec.ModelCache; c != nil && c.Template != nil && in.Claim != nil {
		s.ClaimUID = in.Claim.UID
	}
	if r := f.Result; r != nil {
		s.Phase, s.Model, s.Draft, s.DraftError = v1alpha1.PhaseReady, r.Model, r.Draft, r.DraftError
		s.Message = "The files are in the claim."
		s.CompletionTime = ptrTime(in.Now)
		if old := in.Server.Status.Fetch; old != nil && old.Sources == f.Sources && old.ClaimUID == s.ClaimUID && old.CompletionTime != nil && old.Model == r.Model && old.Draft == r.Draft {
			s.CompletionTime = old.CompletionTime
		}
	}
	if why := in.NameTaken + in.Conflict; why != "" || in.Server.DeletionTimestamp != nil {
		f.say(s, v1alpha1.PhasePending, "Nothing is downloaded now. "+why)
		return s, FetchAction{}, 0
	}
	waiting := func(message string, a FetchAction) (*v1alpha1.FetchStatus, FetchAction, time.Duration) {
		f.say(s, v1alpha1.PhasePending, message)
		return s, a, 0
	}
	switch job := f.Job; {
	case job == nil:
		return waiting("The Job "+f.Name+" is about to be made.", FetchAction{Create: true})
	case job.Deleting:
		return waiting("The Job "+f.Name+" is being deleted, and made anew.", FetchAction{})
	case job.Complete && job.Sources == f.Sources && f.Result != nil:
		return s, FetchAction{}, 0
	case job.Complete && job.Sources == f.Sources:
		return waiting("What the Job "+f.Name+" said at its end is lost: it is made anew, and downloads nothing twice.",
			FetchAction{Delete: true, Why: "what it said at its end is lost"})
	case !job.Current:
		return waiting("The Job "+f.Name+" is of another spec, and made anew.", FetchAction{Delete: true, Why: "the spec has changed"})
	case job.Failed:
		return in.failedFetch(s)
	}
	in.runningFetch(s)
	return s, FetchAction{}, 0
}

// say words the download, unless the files are there: how a Job goes that looks
// for others is told by the Job.
func (f *Fetch) say(s *v1alpha1.FetchStatus, phase v1alpha1.Phase, message string) {
	if f.Result == nil {
		s.Phase, s.Message = phase, failure.Clean(message, 1500)
	}
}

// failedFetch is a Job that has given up: it is made anew where that can help.
func (in *Input) failedFetch(s *v1alpha1.FetchStatus) (*v1alpha1.FetchStatus, FetchAction, time.Duration) {
	f, job := in.Fetch, in.Fetch.Job
	v := &failure.Verdict{Reason: v1alpha1.ReasonFetchFailed, Message: "the Job " + f.Name + " has failed; kubectl describe job has the reason"}
	if job.Pod != nil {
		if judged := failure.Of(job.Pod.Pod, ""); judged != nil && judged.Ended {
			v = judged
		}
	}
	if f.Result == nil {
		s.Reason = v.Reason
	}
	if v.Terminal {
		f.say(s, v1alpha1.PhaseFailed, fmt.Sprintf("%s: %s. Not tried again until the spec changes or the Job %s is deleted.", v.Reason, strings.TrimRight(v.Message, "."), f.Name))
		return s, FetchAction{}, 0
	}
	at := job.EndedAt.Add(FetchAgain)
	f.say(s, v1alpha1.PhaseCrashed, fmt.Sprintf("%s: %s. It goes on at %s.", v.Reason, strings.TrimRight(v.Message, "."), clock(at)))
	if wait := at.Sub(in.Now); wait > 0 {
		return s, FetchAction{}, wait
	}
	return s, FetchAction{Delete: true, Why: "it is tried again"}, 0
}

// runningFetch is a Job that waits, runs or is about to start its next try.
func (in *Input) runningFetch(s *v1alpha1.FetchStatus) {
	f, p := in.Fetch, in.Fetch.Job.Pod
	if p == nil {
		f.say(s, v1alpha1.PhasePending, "The Job "+f.Name+" is about to make its pod.")
		return
	}
	v := failure.Of(p.Pod, p.MountFailure)
	switch {
	case p.Status.Phase == corev1.PodSucceeded:
		f.say(s, v1alpha1.PhaseFetching, "The files are there.")
	case v != nil && v.Ended:
		if f.Result == nil {
			s.Reason = v.Reason
		}
		f.say(s, v1alpha1.PhaseCrashed, fmt.Sprintf("%s: %s. The Job %s tries again.", v.Reason, strings.TrimRight(v.Message, "."), f.Name))
	case v != nil:
		f.say(s, v.Phase, v.Message)
	case p.Status.Phase == corev1.PodPending && p.Spec.NodeName != "":
		f.say(s, v1alpha1.PhasePulling, fmt.Sprintf("Node %s prepares the pod of the Job %s or pulls %s.", p.Spec.NodeName, f.Name, failure.Image(p.Pod)))
	case p.Status.Phase == corev1.PodPending:
		f.say(s, v1alpha1.PhasePending, "The pod of the Job "+f.Name+" waits for the scheduler.")
	case p.Engine == nil || p.Engine.Progress == nil || p.Engine.Progress.nothingToFetch():
		f.say(s, v1alpha1.PhaseFetching, "The download begins.")
	case f.Result == nil:
		pr := p.Engine.Progress
		percent, rate := int32(math.Max(0, math.Min(finite(pr.Percent), 100))), int64(finite(pr.BytesPerSecond))
		s.Percent, s.BytesPerSecond = &percent, &rate
		f.say(s, v1alpha1.PhaseFetching, fmt.Sprintf("Fetching %d %%%s", percent, pace(pr)))
	}
}

// sourceReasons are what a model's source has to do with.
var sourceReasons = []string{v1alpha1.ReasonUnauthorized, v1alpha1.ReasonModelNotFound, v1alpha1.ReasonNoSpace, v1alpha1.ReasonFetchFailed}

// faultReason is the Degraded condition's reason of the fault: where a model's
// source is the trouble, which trouble it is.
func (o *overview) faultReason() string {
	f := o.fault.row.LastFailure
	if (o.reason == v1alpha1.ReasonFailed || o.reason == v1alpha1.ReasonCrashed) && f != nil && slices.Contains(sourceReasons, f.Reason) {
		return f.Reason
	}
	return o.reason
}

// awaited makes rows of pods that wait for the download tell of it.
func (m *member) awaited(s *v1alpha1.FetchStatus) {
	m.row.Phase, m.row.Percent, m.row.Message = s.Phase, s.Percent, s.Message
}

// fetchEvents are the transitions of a download.
func fetchEvents(last, next *v1alpha1.FetchStatus) []Event {
	if next == nil || last != nil && last.Sources == next.Sources && last.Phase == next.Phase && last.Reason == next.Reason {
		return nil
	}
	switch {
	case next.Phase == v1alpha1.PhaseReady:
		return []Event{{Type: corev1.EventTypeNormal, Reason: "Fetched", Message: "The model's files are in the claim: " + strings.TrimSpace(next.Model+" "+next.Draft) + "."}}
	case next.Reason != "":
		return []Event{{Type: corev1.EventTypeWarning, Reason: next.Reason, Message: next.Message}}
	case next.Phase == v1alpha1.PhasePending:
		return nil
	}
	return []Event{{Type: eventType(next.Phase), Reason: string(next.Phase), Message: next.Message}}
}
