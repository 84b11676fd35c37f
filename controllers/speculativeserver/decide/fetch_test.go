package decide

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// fetchPod is the newest pod of a download.
func fetchPod(changes ...func(*Pod)) *Pod {
	p := newPod(0, changes...)
	p.Name = "s-fetch-x"
	return &p
}

func job(pod *Pod, changes ...func(*FetchJob)) *FetchJob {
	j := &FetchJob{Sources: "want", Current: true, Pod: pod}
	for _, c := range changes {
		c(j)
	}
	return j
}

func gaveUp(at time.Time) func(*FetchJob) {
	return func(j *FetchJob) { j.Failed, j.EndedAt = true, at }
}

// TestFetch has every state of a download: what the status says of it, and what
// is done with the Job and with pods.
func TestFetch(t *testing.T) {
	told := func(reason string) func(*Pod) {
		return exited(t0, 10, "Error", `{"reason":"`+reason+`","message":"org/x: the source says no","rank":0}`)
	}
	there := &FetchResult{Model: "hf/x/1"}
	stuck := []v1alpha1.Phase{v1alpha1.PhaseFailed, v1alpha1.PhaseWaitingForCapacity, v1alpha1.PhaseImageUnavailable}
	for _, tt := range []struct {
		name     string
		job      *FetchJob
		result   *FetchResult
		phase    v1alpha1.Phase // of the server
		message  string         // part of it
		degraded string         // reason
		action   string
		create   int // pods
	}{
		{"no Job", nil, nil, v1alpha1.PhasePending, "about to be made", "AsExpected", "create", 0},
		{"no pod yet", job(nil), nil, v1alpha1.PhasePending, "about to make its pod", "AsExpected", "", 0},
		{"not scheduled", job(fetchPod(pendingPod("", "", ""))), nil, v1alpha1.PhasePending, "waits for the scheduler", "AsExpected", "", 0},
		{"no room", job(fetchPod(pendingPod("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, t0, "0/1 nodes"))), nil,
			v1alpha1.PhaseWaitingForCapacity, "0/1 nodes", "Unschedulable", "", 0},
		{"pulling", job(fetchPod(pendingPod("node1", "", ""))), nil, v1alpha1.PhasePulling, "img:1", "AsExpected", "", 0},
		{"no image", job(fetchPod(pendingPod("node1", "ErrImagePull", "denied"))), nil, v1alpha1.PhaseImageUnavailable, "imagePullSecrets", "ImageUnavailable", "", 0},
		{"begins", job(fetchPod()), nil, v1alpha1.PhaseFetching, "The download begins.", "AsExpected", "", 0},
		{"lists", job(fetchPod(loads(Progress{Phase: "fetch"}))), nil, v1alpha1.PhaseFetching, "The download begins.", "AsExpected", "", 0},
		{"moves", job(fetchPod(loads(Progress{Phase: "fetch", Percent: 43.7, BytesDone: 437e8, BytesTotal: 1000e8, BytesPerSecond: 1.2e8}))), nil,
			v1alpha1.PhaseFetching, "Fetching 43 %, 120 MB/s, about 8 min left", "AsExpected", "", 0},
		{"unauthorised, once", job(fetchPod(told("Unauthorized"))), nil, v1alpha1.PhaseCrashed, "The Job s-fetch tries again.", "Unauthorized", "", 0},
		{"unauthorised, for good", job(fetchPod(told("Unauthorized")), gaveUp(t0)), nil, v1alpha1.PhaseFailed, "until the spec changes or the Job s-fetch is deleted", "Unauthorized", "", 0},
		{"not there", job(fetchPod(told("ModelNotFound")), gaveUp(t0)), nil, v1alpha1.PhaseFailed, "the source says no", "ModelNotFound", "", 0},
		{"no space", job(fetchPod(told("NoSpace")), gaveUp(t0)), nil, v1alpha1.PhaseCrashed, "It goes on at 12:05:00Z", "NoSpace", "", 0},
		{"no space, later", job(fetchPod(told("NoSpace")), gaveUp(t0.Add(-FetchAgain))), nil, v1alpha1.PhaseCrashed, "NoSpace", "NoSpace", "delete", 0},
		{"looked for anew, and gave up", job(fetchPod(told("NoSpace")), gaveUp(t0)), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "", 2},
		{"looked for anew, and gave up long ago", job(fetchPod(told("NoSpace")), gaveUp(t0.Add(-FetchAgain))), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "delete", 2},
		{"there, beside the Job of another spec", job(nil, func(j *FetchJob) { j.Current, j.Sources, j.Complete = false, "old", true }), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "delete", 2},
		{"looked for anew, and moves", job(fetchPod(loads(Progress{Phase: "fetch", Percent: 3, BytesTotal: 9}))), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "", 2},
		{"over, and its Job does not know", job(fetchPod(exited(t0, 0, "Completed", "{}"))), nil, v1alpha1.PhaseFetching, "The files are there.", "AsExpected", "", 0},
		{"gave up, its last pod runs", job(fetchPod(), gaveUp(t0)), nil, v1alpha1.PhaseCrashed, "kubectl describe job", "FetchFailed", "", 0},
		{"gave up, its last pod waits", job(fetchPod(pendingPod("node1", "ErrImagePull", "denied")), gaveUp(t0)), nil, v1alpha1.PhaseCrashed, "kubectl describe job", "FetchFailed", "", 0},
		{"has not answered", job(fetchPod(says(Engine{SilentSince: t0}))), nil, v1alpha1.PhaseFetching, "The download begins.", "AsExpected", "", 0},
		{"not reached", job(fetchPod(told("FetchFailed"))), nil, v1alpha1.PhaseCrashed, "FetchFailed", "FetchFailed", "", 0},
		{"failed without a pod", job(nil, gaveUp(t0)), nil, v1alpha1.PhaseCrashed, "kubectl describe job", "FetchFailed", "", 0},
		{"wrong flag", job(fetchPod(exited(t0, 2, "Error", `{"reason":"InvalidConfig","message":"--model is wrong"}`)), gaveUp(t0)), nil,
			v1alpha1.PhaseFailed, "--model (spec.model.source) is wrong", "FetchFailed", "", 0},
		{"whole", job(nil, func(j *FetchJob) { j.Complete = true }), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "", 2},
		{"whole, and the Job is gone", nil, there, v1alpha1.PhasePending, "about to be made", "AsExpected", "create", 2},
		{"whole, and looked for anew in vain", job(fetchPod(told("FetchFailed"))), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "", 2},
		{"what it said is lost", job(nil, func(j *FetchJob) { j.Complete = true }), nil, v1alpha1.PhasePending, "is lost", "AsExpected", "delete", 0},
		{"of another spec", job(fetchPod(), func(j *FetchJob) { j.Current, j.Sources = false, "old" }), nil, v1alpha1.PhasePending, "another spec", "AsExpected", "delete", 0},
		{"of another spec, complete", job(nil, func(j *FetchJob) { j.Current, j.Sources, j.Complete = false, "old", true }), nil, v1alpha1.PhasePending, "another spec", "AsExpected", "delete", 0},
		{"of another image, complete", job(nil, func(j *FetchJob) { j.Current, j.Complete = false, true }), there, v1alpha1.PhasePending, "about to be made", "AsExpected", "", 2},
		{"being deleted", job(nil, func(j *FetchJob) { j.Deleting = true }), nil, v1alpha1.PhasePending, "being deleted", "AsExpected", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(newServer(2))
			in.Fetch = &Fetch{Name: "s-fetch", Sources: "want", Job: tt.job, Result: tt.result}
			d := Decide(in)
			action := map[FetchAction]string{{}: "", {Create: true}: "create"}[FetchAction{Create: d.Fetch.Create}]
			if d.Fetch.Delete {
				action = "delete"
			}
			if d.Status.Phase != tt.phase || !strings.Contains(d.Status.Message, tt.message) || action != tt.action || len(d.Create) != tt.create {
				t.Errorf("%s %q, Job %q, %d pods: want %s %q, %q, %d", d.Status.Phase, d.Status.Message, action, len(d.Create), tt.phase, tt.message, tt.action, tt.create)
			}
			if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason != tt.degraded {
				t.Errorf("degraded: %s, want %s: %s", c.Reason, tt.degraded, c.Message)
			}
			if (d.Status.Fetch.Model != "") != (tt.result != nil) {
				t.Errorf("%+v", d.Status.Fetch)
			}
			if f := d.Status.Fetch; tt.result != nil && (f.Phase != v1alpha1.PhaseReady || f.Reason != "" || f.Percent != nil) {
				t.Errorf("the files are there, and the status has %+v", f)
			}
			if at := tt.name == "no space"; at && d.Requeue != FetchAgain {
				t.Errorf("looks again after %s, want %s", d.Requeue, FetchAgain)
			}
			if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionProgressing); (c.Reason == v1alpha1.ReasonBlocked) != slices.Contains(stuck, tt.phase) || tt.phase == v1alpha1.PhaseFailed && !strings.HasPrefix(c.Message, "The model's files are not there: ") {
				t.Errorf("Progressing: %s, %s", c.Reason, c.Message)
			}
		})
	}
}

// TestFetchKeepsPods: while another model is downloaded, pods of the last one
// serve on; a smaller number of them does not wait.
func TestFetchKeepsPods(t *testing.T) {
	in := input(newServer(1), newPod(0, ready, stale), newPod(1, ready, stale))
	in.Fetch = &Fetch{Name: "s-fetch", Sources: "want", Job: job(fetchPod(loads(Progress{Phase: "fetch", Percent: 5, BytesPerSecond: 1e6})))}
	d := Decide(in)
	if len(d.Create) != 0 || len(d.Delete) != 1 || d.Delete[0].Pod.Name != "s-1" {
		t.Errorf("created %v, deleted %v: want only s-1 to go", d.Create, d.Delete)
	}
	if f := d.Status.Fetch; f.Percent == nil || *f.Percent != 5 || f.BytesPerSecond == nil || *f.BytesPerSecond != 1e6 {
		t.Errorf("%+v", d.Status.Fetch)
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionProgressing); c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "Fetching 5 %") {
		t.Errorf("%+v", c)
	}
	in.Fetch.Result = &FetchResult{Model: "hf/x/1"}
	in.Server.Spec.Replicas = ptr(int32(2))
	if d = Decide(in); len(d.Delete) != 1 || d.Delete[0].Pod.Name == "" {
		t.Errorf("the files are there, and %d pods are replaced: want 1 at a time", len(d.Delete))
	}
}

// TestFetchEvents: a download is told as it begins, fails and ends, not with each
// percent; its figures alone are a soft change.
func TestFetchEvents(t *testing.T) {
	in := input(newServer(1))
	step := func(j *FetchJob, r *FetchResult) (Decision, Change) {
		in.Fetch = &Fetch{Name: "s-fetch", Sources: "want", Job: j, Result: r}
		d := Decide(in)
		change := Compare(&in.Server.Status, &d.Status)
		in.Server.Status = d.Status
		return d, change
	}
	at := func(percent float64) *FetchJob {
		return job(fetchPod(loads(Progress{Phase: "fetch", Percent: percent, BytesPerSecond: 1e6 * percent})))
	}
	if d, _ := step(at(1), nil); len(d.Events) != 1 || d.Events[0].Reason != "Fetching" {
		t.Errorf("begin: %+v", d.Events)
	}
	if d, change := step(at(2), nil); len(d.Events) != 0 || change != Soft {
		t.Errorf("a percent: %+v, change %d", d.Events, change)
	}
	if d, _ := step(job(nil, func(j *FetchJob) { j.Complete = true }), &FetchResult{Model: "hf/x/1"}); len(d.Events) == 0 || d.Events[0].Reason != "Fetched" {
		t.Errorf("end: %+v", d.Events)
	}
	done := in.Server.Status.Fetch.CompletionTime
	in.Now = in.Now.Add(time.Hour)
	if d, change := step(job(nil, func(j *FetchJob) { j.Complete = true }), &FetchResult{Model: "hf/x/1"}); len(d.Events) != 0 || change == Hard || !d.Status.Fetch.CompletionTime.Equal(done) {
		t.Errorf("at rest: %+v, change %d", d.Events, change)
	}
}

// TestFetchWithoutDraft: a draft that its source does not have is a draft that
// failed.
func TestFetchWithoutDraft(t *testing.T) {
	in := input(newServer(1))
	in.DraftRevision = "with"
	in.Fetch = &Fetch{Name: "s-fetch", Sources: "want", Job: job(nil, func(j *FetchJob) { j.Complete = true }),
		Result: &FetchResult{Model: "hf/x/1", DraftError: "ModelNotFound: org/head is not there"}}
	d := Decide(in)
	if f := d.Status.DraftFailure; f == nil || f.Revision != "with" || !strings.Contains(f.Message, "org/head") {
		t.Errorf("%+v", f)
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionSpeculationActive); c.Reason != v1alpha1.ReasonDraftFailed {
		t.Errorf("%+v", c)
	}
}

// TestFetchDone: what the status says of files that are there, and that the time
// of their download stays as long as they are the same.
func TestFetchDone(t *testing.T) {
	before := metav1.NewTime(t0.Add(-time.Hour))
	for _, tt := range []struct {
		name   string
		change func(s *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus)
		same   bool
	}{
		{"the same", func(*v1alpha1.SpeculativeServer, *v1alpha1.FetchStatus) {}, true},
		{"other sources", func(_ *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus) { last.Sources = "old" }, false},
		{"another claim", func(_ *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus) { last.ClaimUID = "old" }, false},
		{"another folder", func(_ *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus) { last.Model = "old" }, false},
		{"another draft", func(_ *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus) { last.Draft = "old" }, false},
		{"no time", func(_ *v1alpha1.SpeculativeServer, last *v1alpha1.FetchStatus) { last.CompletionTime = nil }, false},
		{"none before", func(s *v1alpha1.SpeculativeServer, _ *v1alpha1.FetchStatus) { s.Status.Fetch = nil }, false},
	} {
		in := input(newServer(1))
		in.Server.Spec.ModelCache = &v1alpha1.ModelCacheSpec{Template: &v1alpha1.CacheTemplate{}}
		in.Claim = &v1alpha1.CacheClaimStatus{UID: "claim"}
		last := &v1alpha1.FetchStatus{Sources: "want", ClaimUID: "claim", Model: "m", Draft: "d", CompletionTime: &before}
		in.Server.Status.Fetch = last
		tt.change(in.Server, last)
		in.Fetch = &Fetch{Name: "s-fetch", Sources: "want", Job: job(nil, func(j *FetchJob) { j.Complete = true }), Result: &FetchResult{Model: "m", Draft: "d"}}
		f := Decide(in).Status.Fetch
		if f.Phase != v1alpha1.PhaseReady || f.Message != "The files are in the claim." || f.ClaimUID != "claim" || f.CompletionTime == nil || f.CompletionTime.Equal(&before) != tt.same {
			t.Errorf("%s: %+v", tt.name, f)
		}
	}
	// Only a claim that the template has made has a UID that matters.
	for name, in := range map[string]Input{"no template": {Claim: &v1alpha1.CacheClaimStatus{UID: "claim"}}, "no claim": {}} {
		in.Server, in.Now, in.Fetch = newServer(1), t0, &Fetch{Name: "s-fetch", Sources: "want"}
		in.Server.Spec.ModelCache = &v1alpha1.ModelCacheSpec{ClaimName: "shared"}
		if name == "no claim" {
			in.Server.Spec.ModelCache = &v1alpha1.ModelCacheSpec{Template: &v1alpha1.CacheTemplate{}}
		}
		if f := Decide(in).Status.Fetch; f.ClaimUID != "" {
			t.Errorf("%s: %+v", name, f)
		}
		in.Server.Spec.ModelCache = nil
		if f := Decide(in).Status.Fetch; f.ClaimUID != "" {
			t.Errorf("no cache: %+v", f)
		}
	}
}

// TestFetchWaits: while no object may be made, or the server goes, nothing is done
// with the Job, and the status says why.
func TestFetchWaits(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"A name is taken.":   func(in *Input) { in.NameTaken = "A name is taken." },
		"A claim conflicts.": func(in *Input) { in.Conflict = "A claim conflicts." },
		"":                   func(in *Input) { in.Server.DeletionTimestamp = ptrTime(t0) },
	} {
		in := input(newServer(1))
		in.Fetch = &Fetch{Name: "s-fetch", Sources: "want"}
		change(&in)
		d := Decide(in)
		if d.Fetch != (FetchAction{}) || d.Status.Fetch.Phase != v1alpha1.PhasePending || strings.TrimSpace(d.Status.Fetch.Message) != strings.TrimSpace("Nothing is downloaded now. "+name) {
			t.Errorf("%q: %+v, %+v", name, d.Fetch, d.Status.Fetch)
		}
	}
}

// TestFetchTold: which changes of a download are events.
func TestFetchTold(t *testing.T) {
	st := func(sources string, phase v1alpha1.Phase, reason string) *v1alpha1.FetchStatus {
		return &v1alpha1.FetchStatus{Sources: sources, Phase: phase, Reason: reason, Message: "x", Model: "m"}
	}
	for _, tt := range []struct {
		name       string
		last, next *v1alpha1.FetchStatus
		want       string // type and reason; "": no event
	}{
		{"none", nil, nil, ""},
		{"waits", nil, st("a", v1alpha1.PhasePending, ""), ""},
		{"pulls", nil, st("a", v1alpha1.PhasePulling, ""), "Normal Pulling"},
		{"no image", st("a", v1alpha1.PhasePulling, ""), st("a", v1alpha1.PhaseImageUnavailable, ""), "Warning ImageUnavailable"},
		{"fails", st("a", v1alpha1.PhaseFetching, ""), st("a", v1alpha1.PhaseCrashed, "NoSpace"), "Warning NoSpace"},
		{"fails likewise", st("a", v1alpha1.PhaseCrashed, "NoSpace"), st("a", v1alpha1.PhaseCrashed, "NoSpace"), ""},
		{"fails otherwise", st("a", v1alpha1.PhaseCrashed, "NoSpace"), st("a", v1alpha1.PhaseCrashed, "FetchFailed"), "Warning FetchFailed"},
		{"other sources fail likewise", st("a", v1alpha1.PhaseCrashed, "NoSpace"), st("b", v1alpha1.PhaseCrashed, "NoSpace"), "Warning NoSpace"},
		{"there", st("a", v1alpha1.PhaseFetching, ""), st("a", v1alpha1.PhaseReady, ""), "Normal Fetched"},
		{"others there", st("a", v1alpha1.PhaseReady, ""), st("b", v1alpha1.PhaseReady, ""), "Normal Fetched"},
	} {
		got := ""
		for _, e := range fetchEvents(tt.last, tt.next) {
			got += e.Type + " " + e.Reason
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestParseFetch(t *testing.T) {
	for _, tt := range []struct {
		said string
		want string // the model's folder; "" is an error
	}{
		{`{"model":"hf/org--x/0123","draft":""}` + "\n", "hf/org--x/0123"},
		{`{"model":"hf/a","draft":"","draft_error":{"reason":"ModelNotFound","message":"no"}}`, "hf/a"},
		{`{"model":"","draft":""}`, ""}, {``, ""}, {`level=info msg=x`, ""},
		{`{"model":"../../etc","draft":""}`, ""}, {`{"model":"/etc","draft":""}`, ""}, {`{"model":"a/../b"}`, ""},
		{`{"model":"a","draft":1}`, ""}, {strings.Repeat("a", 1024), ""}, {`{"model":"` + strings.Repeat("a", 1024) + `"}`, strings.Repeat("a", 1024)},
		{`{"model":"a","draft":".."}`, ""}, {`{"model":"` + strings.Repeat("a", 1025) + `"}`, ""},
	} {
		r, err := ParseFetch(tt.said)
		if (err == nil) != (tt.want != "") || err == nil && r.Model != tt.want {
			t.Errorf("%q: %+v, %v", tt.said, r, err)
		}
		if strings.Contains(tt.said, "draft_error") && r.DraftError != "ModelNotFound: no" {
			t.Errorf("%q: why there is no draft: %q", tt.said, r.DraftError)
		}
	}
}

// TestSourceReasons: what a model's source has to do with a pod's end is the
// reason of Degraded, and the message says what to do.
func TestSourceReasons(t *testing.T) {
	for _, reason := range []string{"Unauthorized", "ModelNotFound", "NoSpace", "FetchFailed"} {
		d := Decide(input(newServer(1), newPod(0, exited(t0, 10, "Error", `{"reason":"`+reason+`","message":"org/x: set a token"}`))))
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded)
		if c.Reason != reason || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "set a token") {
			t.Errorf("%s: %+v", reason, c)
		}
	}
	// What came before is not why the pod cannot go on now.
	s := newServer(1)
	s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-0", LastFailure: &v1alpha1.PodFailure{PodUID: "gone", Revision: "new", Reason: "FetchFailed"}}}
	d := Decide(input(s, newPod(0, pendingPod("node1", "ErrImagePull", "denied"))))
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason != v1alpha1.ReasonImageUnavailable {
		t.Errorf("image: %+v", c)
	}
	d = Decide(input(newServer(1), newPod(0, exited(t0, 11, "Error", `{"reason":"WeightsMismatch","message":"no"}`))))
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason != v1alpha1.ReasonFailed {
		t.Errorf("weights: %+v", c)
	}
}
