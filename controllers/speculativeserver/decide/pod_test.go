package decide

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestClassify tells the states of a pod apart.
func TestClassify(t *testing.T) {
	long := t0.Add(-time.Hour)
	progress := func(phase string, percent float64, done, total int64) func(*Pod) {
		return loads(Progress{Phase: phase, Percent: percent, ShardsDone: done, ShardsTotal: total, LastAdvance: t0})
	}
	mount := func(p *Pod) {
		p.MountFailure = `MountVolume.SetUp failed for volume "model" : hostPath type check failed: /nope is not a directory`
	}
	for _, tt := range []struct {
		name  string
		pod   Pod
		phase v1alpha1.Phase
		says  string // part of the message
	}{
		{"no node yet", newPod(0, pendingPod("", "", "")), v1alpha1.PhasePending, "scheduler"},
		{"no capacity", newPod(0, pendingPod("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, t0, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")),
			v1alpha1.PhaseWaitingForCapacity, "1 Insufficient nvidia.com/gpu"},
		{"pulling", newPod(0, pendingPod("node1", "ContainerCreating", "")), v1alpha1.PhasePulling, "img:1"},
		{"image missing", newPod(0, pendingPod("node1", "ImagePullBackOff", "no such image")), v1alpha1.PhaseImageUnavailable, "no such image"},
		{"image name", newPod(0, pendingPod("node1", "InvalidImageName", "bad")), v1alpha1.PhaseImageUnavailable, "InvalidImageName"},
		{"container refused", newPod(0, pendingPod("node1", "CreateContainerConfigError", "image will run as root")), v1alpha1.PhaseContainerRefused, "image will run as root"},
		{"no folder", newPod(0, pendingPod("node1", "ContainerCreating", ""), mount), v1alpha1.PhaseVolumeUnavailable, "/nope is not a directory"},
		{"folder was missing, now pulling", newPod(0, pendingPod("node1", "ContainerCreating", ""), mount, with(corev1.PodReadyToStartContainers, corev1.ConditionTrue, t0, "")),
			v1alpha1.PhasePulling, "img:1"},
		{"started, not asked", newPod(0), v1alpha1.PhaseStarting, "starts"},
		{"started, silent for a moment", newPod(0, says(Engine{SilentSince: t0, SilentError: "connection refused"})), v1alpha1.PhaseStarting, "starts"},
		{"started, and says nothing", newPod(0, says(Engine{SilentSince: t0.Add(-SilentAfter), SilentError: "connection refused"})), v1alpha1.PhaseStarting,
			"The engine starts; its admin port has not answered the operator since 11:59:40Z: connection refused"},
		{"silent for long, and verified before this process came", newPod(0, with(v1alpha1.ModelVerified, corev1.ConditionTrue, t0, ""), says(Engine{SilentSince: t0.Add(-SilentAfter), SilentError: "no route"})),
			v1alpha1.PhaseStalled, "has not answered since 11:59:40Z: no route"},
		{"loading, and when it advanced is not known", newPod(0, loads(Progress{Phase: "load", Percent: 5})), v1alpha1.PhaseLoading, "Loading 5 %"},
		{"loading, a rank behind", newPod(0, loads(Progress{Phase: "load", Percent: 40, LastAdvance: t0, Behind: &Rank{2, 10}})), v1alpha1.PhaseLoading, "Loading 40 %, rank 2 is behind at 10 %"},
		{"loading", newPod(0, progress("load", 43.9, 2, 8)), v1alpha1.PhaseLoading, "Loading 43 %, shard 3 of 8"},
		{"loading, one file", newPod(0, progress("load", 10, 0, 0)), v1alpha1.PhaseLoading, "Loading 10 %"},
		{"fetching", newPod(0, progress("fetch", 1, 0, 8)), v1alpha1.PhaseFetching, "Fetching 1 %, file 1 of 8"},
		{"has nothing to fetch", newPod(0, progress("fetch", 0, 0, 0)), v1alpha1.PhaseStarting, "looks for the model's files"},
		{"finds nothing", newPod(0, loads(Progress{Phase: "fetch", LastAdvance: t0.Add(-NoProgressAfter)})), v1alpha1.PhaseStalled, "looks for the model's files: no progress since 11:59:00Z"},
		{"percent beyond reason", newPod(0, progress("load", 1e300, 9, 8)), v1alpha1.PhaseLoading, "Loading 100 %, shard 8 of 8"},
		{"percent not a number", newPod(0, progress("load", math.NaN(), 0, 8)), v1alpha1.PhaseLoading, "Loading 0 %"},
		{"load stands still", newPod(0, loads(Progress{Phase: "load", Percent: 43, LastAdvance: t0.Add(-NoProgressAfter)})), v1alpha1.PhaseStalled, "Loading 43 %: no progress since 11:59:00Z"},
		{"warming up", newPod(0, progress("warmup", 100, 8, 8)), v1alpha1.PhaseWarmingUp, "first batches"},
		{"ranks join", newPod(0, progress("collective", 100, 8, 8)), v1alpha1.PhaseWarmingUp, "joining the ranks"},
		{"unknown phase", newPod(0, progress("dancing", 0, 0, 0)), v1alpha1.PhaseStarting, "starts"},
		{"serving, kubelet behind", newPod(0, progress("serving", 100, 8, 8)), v1alpha1.PhaseVerifying, "readiness probe"},
		{"verifying", newPod(0, healthy, progress("serving", 100, 8, 8)), v1alpha1.PhaseVerifying, "Making the model answer"},
		{"probe fails", newPod(0, healthy, says(Engine{Probe: &Probe{Failures: 1, Message: "status 503"}})), v1alpha1.PhaseVerifying, "status 503"},
		{"probes fail, and never passed", newPod(0, healthy, says(Engine{Probe: &Probe{Failures: UnverifiedAfter, Message: "status 503"}})), v1alpha1.PhaseVerifying, "does not answer yet: status 503"},
		{"gate lost, and probes fail", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, "rank 1 silent"), says(Engine{Probe: &Probe{Failures: 3, Message: "rank 2 silent"}})), v1alpha1.PhaseUnverified, "does not answer: rank 2 silent"},
		{"gate lost, not probed by this process", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, "rank 1 silent"), says(Engine{})), v1alpha1.PhaseUnverified, "did not answer: rank 1 silent"},
		{"gate lost, kubelet behind", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, "rank 1 silent"), with(corev1.PodReady, corev1.ConditionTrue, t0, "")), v1alpha1.PhaseUnverified, "rank 1 silent"},
		{"gate set, kubelet behind", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionTrue, t0, "")), v1alpha1.PhaseVerifying, "has answered"},
		{"probe passed", newPod(0, healthy, says(Engine{Probe: &Probe{}})), v1alpha1.PhaseVerifying, "has answered"},
		{"ready", newPod(0, ready), v1alpha1.PhaseReady, "Serving"},
		{"ready, one probe failed", newPod(0, ready, says(Engine{Probe: &Probe{Failures: 1, Message: "slow"}})), v1alpha1.PhaseReady, "Serving"},
		{"ready, probes failed", newPod(0, ready, says(Engine{Probe: &Probe{Failures: UnverifiedAfter, Message: "rank 1 silent"}})), v1alpha1.PhaseUnverified, "rank 1 silent"},
		{"gate lost before", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, "rank 1 silent")), v1alpha1.PhaseUnverified, "rank 1 silent"},
		{"silent too long", newPod(0, ready, says(Engine{Progress: &Progress{Phase: "serving"}, SilentSince: t0.Add(-SilentAfter), SilentError: "no answer in time"})), v1alpha1.PhaseStalled, "stays in service: no answer in time"},
		{"silent too long, to its node too", newPod(0, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, "gone"), says(Engine{Progress: &Progress{Phase: "serving"}, SilentSince: t0.Add(-SilentAfter), SilentError: "no answer in time"})),
			v1alpha1.PhaseStalled, "The engine has not answered since 11:59:40Z"},
		{"silent, and probes failed", newPod(0, ready, says(Engine{Probe: &Probe{Failures: UnverifiedAfter, Message: "no route"}, SilentSince: t0, SilentError: "no route"})), v1alpha1.PhaseReady, "Serving"},
		{"silent a moment", newPod(0, ready, says(Engine{SilentSince: t0.Add(-SilentAfter + time.Second), SilentError: "x"})), v1alpha1.PhaseReady, "Serving"},
		{"draining", newPod(0, progress("draining", 100, 8, 8)), v1alpha1.PhaseTerminating, "Draining"},
		{"terminating", newPod(0, ready, terminatingUntil(t0.Add(time.Second))), v1alpha1.PhaseTerminating, "Stopping"},
		{"stuck terminating", newPod(0, ready, terminatingUntil(t0.Add(-StuckAfter))), v1alpha1.PhaseTerminating, "Removed without its word at 12:04:30Z"},
		{"terminating after a crash", newPod(0, exited(long, 1, "Error", ""), terminatingUntil(t0.Add(time.Second))), v1alpha1.PhaseTerminating, "Stopping"},
		{"node lost", newPod(0, func(p *Pod) { p.Status.Phase = corev1.PodUnknown }), v1alpha1.PhaseNodeLost, "kubectl delete node node1"},
		{"node lost, as its controller says", newPod(0, func(p *Pod) { p.Status.Reason = "NodeLost" }), v1alpha1.PhaseNodeLost, "kubectl delete node node1"},
		{"crashed", newPod(0, exited(t0, 14, "Error", `{"reason":"CollectiveFailed","message":"all-reduce timed out","rank":3}`)), v1alpha1.PhaseCrashed,
			"CollectiveFailed (exit code 14), once: rank 3: all-reduce timed out. Next start at 12:00:05Z."},
		{"ended, and its node has not said that the pod is over", newPod(0, killed("OOMKilled"), progress("serving", 100, 8, 8)), v1alpha1.PhaseCrashed, "OutOfMemory (exit code 137), once: the kernel ended the engine at its memory limit"},
		{"ended in its load, likewise", newPod(0, killed("Error")), v1alpha1.PhaseCrashed, "Killed (exit code 137), once: "},
		{"ended, likewise, and deleted", newPod(0, killed("OOMKilled"), terminatingUntil(t0.Add(time.Second))), v1alpha1.PhaseTerminating, "Stopping"},
		{"a container beside the engine ended", newPod(0, ready, killed("Error"), func(p *Pod) {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "engine"})
			p.Status.ContainerStatuses[0].Name = "sidecar"
		}), v1alpha1.PhaseReady, "Serving"},
		{"a container put before the engine ended", newPod(0, ready, killed("Error"), proxyFirst, func(p *Pod) {
			engine := &p.Status.ContainerStatuses[1].State
			p.Status.ContainerStatuses[0].State, *engine = *engine, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		}), v1alpha1.PhaseReady, "Serving"},
		{"killed for memory beside a container put before it", newPod(0, killed("OOMKilled"), proxyFirst), v1alpha1.PhaseCrashed, "OutOfMemory (exit code 137), once: "},
		{"killed for memory before another container ended", newPod(0, killed("OOMKilled"), func(p *Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: "sidecar",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.NewTime(t0)}}})
		}), v1alpha1.PhaseCrashed, "OutOfMemory (exit code 137), once: "},
		{"failed for good", newPod(0, exited(t0, 10, "Error", `{"reason":"ModelNotFound","message":"no config.json in /models/target.","rank":0}`)), v1alpha1.PhaseFailed,
			"ModelNotFound (exit code 10): no config.json in /models/target. Not started again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			row := Decide(input(newServer(1), tt.pod)).Status.Pods[0]
			if row.Phase != tt.phase || !strings.Contains(row.Message, tt.says) {
				t.Errorf("%s, %q; want %s, with %q", row.Phase, row.Message, tt.phase, tt.says)
			}
		})
	}
}

// proxyFirst puts a container that goes on before the engine, as injectors of sidecars may.
func proxyFirst(p *Pod) {
	p.Spec.Containers = append([]corev1.Container{{Name: "proxy"}}, p.Spec.Containers...)
	p.Status.ContainerStatuses = append([]corev1.ContainerStatus{{Name: "proxy",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}, p.Status.ContainerStatuses...)
}

// killed is a pod whose engine was killed, and whose phase its node has not changed yet.
func killed(reason string) func(*Pod) {
	return func(p *Pod) {
		exited(t0, 137, reason, "")(p)
		p.Status.Phase, p.Spec.RestartPolicy, p.Status.ContainerStatuses[0].Name = corev1.PodRunning, corev1.RestartPolicyNever, "engine"
	}
}

// TestEndIsRecordedOnce: what is known before the node says that the pod is over is one
// crash with what it says then.
func TestEndIsRecordedOnce(t *testing.T) {
	s := newServer(1)
	early := newPod(0, killed("OOMKilled"))
	first := Decide(input(s, early))
	s.Status = first.Status
	late := newPod(0, killed("OOMKilled"), func(p *Pod) { p.Status.Phase = corev1.PodFailed })
	next := Decide(input(s, late))
	if got := Compare(&first.Status, &next.Status); len(first.Events) != 1 || len(next.Events) > 0 || got != Same {
		t.Errorf("events %v, then %v; change %d of %+v", first.Events, next.Events, got, next.Status.Pods)
	}
	if row := next.Status.Pods[0]; row.Restarts != 1 || row.FailuresInRow != 1 || row.LastFailure == nil || *row.LastFailure.ExitCode != 137 {
		t.Errorf("%+v", row)
	}
}

// TestRestartOfTheOperator: what the last operator process saw holds until the
// engine has been asked again, so that no status flaps.
func TestRestartOfTheOperator(t *testing.T) {
	s := newServer(1)
	s.Status = Decide(input(s, newPod(0, loads(Progress{Phase: "load", Percent: 43, ShardsTotal: 8, LastAdvance: t0})))).Status
	d := Decide(input(s, newPod(0)))
	if got := Compare(&s.Status, &d.Status); got != Same || len(d.Events) > 0 {
		t.Errorf("change %d, events %v: %+v", got, d.Events, d.Status.Pods)
	}
	if row := Decide(input(s, newPod(0, loads(Progress{Phase: "load", Percent: 50, LastAdvance: t0})))).Status.Pods[0]; row.Percent == nil || *row.Percent != 50 {
		t.Errorf("what the last process saw stays although the engine says more: %+v", row)
	}
	s.Status.Pods[0].UID = "another"
	if row := Decide(input(s, newPod(0))).Status.Pods[0]; row.Phase != v1alpha1.PhaseStarting || row.Percent != nil {
		t.Errorf("another pod's progress was taken over: %+v", row)
	}
}

func TestGates(t *testing.T) {
	passed := says(Engine{Probe: &Probe{Time: t0}})
	failed := says(Engine{Probe: &Probe{Time: t0, Failures: UnverifiedAfter, Message: "no token"}})
	silent := says(Engine{Probe: &Probe{Time: t0}, SilentSince: t0, SilentError: "no answer in time"})
	cut := says(Engine{Probe: &Probe{Time: t0, Failures: UnverifiedAfter}, SilentSince: t0, SilentError: "no answer in time"})
	verified := with(v1alpha1.ModelVerified, corev1.ConditionTrue, t0, "")
	for _, tt := range []struct {
		name string
		pod  Pod
		want string // "": none; otherwise True or False
	}{
		{"not asked", newPod(0, healthy), ""},
		{"passed", newPod(0, healthy, passed), "True"},
		{"passed, engine unready again", newPod(0, passed), ""},
		{"passed, set already", newPod(0, ready, passed), ""},
		{"failed, never set", newPod(0, healthy, failed), ""},
		{"failed once", newPod(0, ready, says(Engine{Probe: &Probe{Failures: 1}})), ""},
		{"failed", newPod(0, ready, failed), "False"},
		{"failed, lost already", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, ""), failed), ""},
		{"regained", newPod(0, healthy, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, ""), passed), "True"},
		{"silent to all", newPod(0, verified, silent), "False"},
		{"silent to all, lost already", newPod(0, with(v1alpha1.ModelVerified, corev1.ConditionFalse, t0, ""), silent), ""},
		{"silent to the operator alone", newPod(0, ready, silent), ""},
		{"silent to the operator alone, whose probes failed", newPod(0, ready, cut), ""},
		{"silent, not verified", newPod(0, healthy, silent), ""},
		{"unready, not silent", newPod(0, verified, passed), ""},
		{"terminating", newPod(0, healthy, passed, terminatingUntil(t0)), ""},
		{"ended, its conditions behind", newPod(0, healthy, passed, exited(t0, 1, "", "")), ""},
		{"ended", newPod(0, passed, exited(t0, 1, "", "")), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			for _, g := range Decide(input(newServer(1), tt.pod)).Gates {
				got += map[bool]string{true: "True", false: "False"}[g.Verified]
			}
			if got != tt.want {
				t.Errorf("gate %q, want %q", got, tt.want)
			}
		})
	}
}

// TestStrangers: a pod whose label and name disagree is not touched.
func TestStrangers(t *testing.T) {
	odd := newPod(0, ready, func(p *Pod) { p.Labels[v1alpha1.LabelOrdinal] = "7" })
	huge := newPod(1, ready, func(p *Pod) { p.Labels[v1alpha1.LabelOrdinal] = "99999999999999999999" })
	none := newPod(0, ready, func(p *Pod) { p.Labels[v1alpha1.LabelOrdinal] = "x" })
	less := newPod(0, ready, func(p *Pod) { p.Name, p.Labels[v1alpha1.LabelOrdinal] = "s--1", "-1" })
	d := Decide(input(newServer(0), odd, huge, none, less))
	if len(d.Delete)+len(d.Create) > 0 || len(d.Status.Pods) > 0 {
		t.Errorf("decided %+v", d)
	}
}

// TestRow: what a row has beside phase and message.
func TestRow(t *testing.T) {
	before := v1alpha1.PodStatus{Name: "s-0", UID: "uid-0", LastProbeTime: ptrTime(t0.Add(-time.Hour)), NextStartTime: ptrTime(t0.Add(time.Hour)), FailingSince: ptrTime(t0),
		LastFailure: &v1alpha1.PodFailure{PodUID: "gone", Revision: "old"}}
	probed := says(Engine{Probe: &Probe{Time: t0.Add(-time.Second)}})
	other := func(p *Pod) { p.UID = "other" }
	for _, tt := range []struct {
		name  string
		pods  []Pod
		probe time.Duration // before t0; 0: no time
	}{
		{"not probed by this process", []Pod{newPod(0)}, time.Hour},
		{"not probed yet", []Pod{newPod(0, says(Engine{}))}, time.Hour},
		{"probed", []Pod{newPod(0, probed)}, time.Second},
		{"another pod, not probed", []Pod{newPod(0, other)}, 0},
		{"no pod", nil, 0},
	} {
		s := newServer(1)
		s.Status.Pods = []v1alpha1.PodStatus{before}
		row := Decide(input(s, tt.pods...)).Status.Pods[0]
		if (row.LastProbeTime != nil) != (tt.probe != 0) || tt.probe != 0 && !row.LastProbeTime.Time.Equal(t0.Add(-tt.probe)) {
			t.Errorf("%s: last probe at %v", tt.name, row.LastProbeTime)
		}
		if row.NextStartTime != nil || row.FailingSince != nil {
			t.Errorf("%s: what failed is gone, and of another spec; the row has %v and %v", tt.name, row.NextStartTime, row.FailingSince)
		}
	}
	s := newServer(1)
	s.Status.Pods = []v1alpha1.PodStatus{before}
	s.Status.Pods[0].LastFailure.PodUID = "uid-0"
	if row := Decide(input(s, newPod(0, exited(t0.Add(-time.Minute), 1, "Error", ""), stale))).Status.Pods[0]; row.FailingSince == nil {
		t.Error("what failed lies there, and the row does not say since when")
	}
	for phase, percent := range map[string]*int32{"fetch": ptr(int32(7)), "load": ptr(int32(7)), "warmup": nil} {
		row := Decide(input(newServer(1), newPod(0, loads(Progress{Phase: phase, Percent: 7, BytesTotal: 1, LastAdvance: t0})))).Status.Pods[0]
		if (row.Percent == nil) != (percent == nil) || percent != nil && *row.Percent != *percent {
			t.Errorf("in phase %s the row's percent is %v", phase, row.Percent)
		}
	}
}

// TestWakes: a decision that depends on the time is made again when it may differ.
func TestWakes(t *testing.T) {
	load := func(ago time.Duration) func(*Pod) {
		return loads(Progress{Phase: "load", LastAdvance: t0.Add(-ago)})
	}
	silent := says(Engine{Progress: &Progress{Phase: "serving"}, SilentSince: t0.Add(-SilentAfter + 3*time.Second)})
	for _, tt := range []struct {
		name string
		pods []Pod
		want time.Duration
	}{
		{"nothing to come", []Pod{newPod(0, ready)}, 0},
		{"a load", []Pod{newPod(0, load(0))}, NoProgressAfter},
		{"a load that stands", []Pod{newPod(0, load(NoProgressAfter))}, DefaultLoadBudget - NoProgressAfter},
		{"two loads", []Pod{newPod(0, load(time.Second)), newPod(1, load(5*time.Second))}, NoProgressAfter - 5*time.Second},
		{"two loads, the first is shorter", []Pod{newPod(0, load(5*time.Second)), newPod(1, load(time.Second))}, NoProgressAfter - 5*time.Second},
		{"silent", []Pod{newPod(0, ready, silent)}, 3 * time.Second},
		{"terminating", []Pod{newPod(0, terminatingUntil(t0.Add(time.Second)))}, time.Second + StuckAfter},
		{"stuck", []Pod{newPod(0, terminatingUntil(t0.Add(-StuckAfter)))}, ForceAfter - StuckAfter},
		{"stable soon", []Pod{newPod(0, verifiedAt(t0.Add(-time.Minute)), silent)}, 3 * time.Second},
	} {
		s := newServer(int32(len(tt.pods)))
		if tt.name == "stable soon" { // two times of one pod
			s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-0", FailuresInRow: 2}}
		}
		if got := Decide(input(s, tt.pods...)).Requeue; got != tt.want {
			t.Errorf("%s: looks again after %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestDefaults: one replica, of one pod, is what a spec that does not say asks for.
func TestDefaults(t *testing.T) {
	s := newServer(1)
	s.Spec.Replicas = nil
	in := input(s)
	in.Nodes = 1
	if d := Decide(in); len(d.Create) != 1 || d.Group || d.Status.Ready != "0/1" || d.Status.Pods[0].Name != "s-0" {
		t.Errorf("creates %v, applies a group: %t, %s, %+v", d.Create, d.Group, d.Status.Ready, d.Status.Pods)
	}
}

// TestGroupIsApplied: the LeaderWorkerSet is made unless something is in its way.
func TestGroupIsApplied(t *testing.T) {
	for name, change := range map[string]func(*Input){
		"":                     func(*Input) {},
		"one node":             func(in *Input) { in.Nodes = 1 },
		"a download":           func(in *Input) { in.Fetch = &Fetch{Name: "s-fetch"} },
		"a name that is taken": func(in *Input) { in.NameTaken = "x" },
		"deletion":             func(in *Input) { in.Server.DeletionTimestamp = ptrTime(t0) },
	} {
		in := input(newServer(1))
		in.Nodes = 2
		change(&in)
		if got := Decide(in).Group; got != (name == "") {
			t.Errorf("%q: the group is applied: %t", name, got)
		}
	}
}

func TestLoadDeadline(t *testing.T) {
	for _, tt := range []struct {
		p  Progress
		ok bool
	}{
		{Progress{Phase: "load", LastAdvance: t0}, true}, {Progress{Phase: "warmup", LastAdvance: t0}, true}, {Progress{Phase: "load"}, false},
		{Progress{Phase: "serving", LastAdvance: t0}, false}, {Progress{Phase: "draining", LastAdvance: t0}, false},
	} {
		if at, ok := loadDeadline(&tt.p, time.Minute); ok != tt.ok || ok && !at.Equal(t0.Add(time.Minute)) {
			t.Errorf("%+v: %s, %t", tt.p, at, ok)
		}
	}
	for _, p := range []Progress{{BytesTotal: 1}, {ShardsTotal: 1}, {Percent: 1}} {
		if p.nothingToFetch() {
			t.Errorf("%+v is nothing to fetch", p)
		}
	}
}
