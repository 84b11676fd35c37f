package failure

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "s-0", CreationTimestamp: metav1.NewTime(t0.Add(-time.Hour))},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "engine", Image: "img:1"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, c := range changes {
		c(p)
	}
	return p
}

// exited is a pod whose engine ended.
func exited(code int32, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		if code == 0 {
			p.Status.Phase = corev1.PodSucceeded
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.NewTime(t0)}}}}
	}
}

// ended is a pod that was ended as a whole.
func ended(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
	}
}

// pendingOn is a pod on a node (or none) whose container waits.
func pendingOn(node, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase, p.Spec.NodeName = corev1.PodPending, node
		if reason != "" {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		}
	}
}

func with(t corev1.PodConditionType, s corev1.ConditionStatus, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: s, Message: message})
	}
}

func mounting(claims ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "tmp"})
		for _, name := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		}
	}
}

func contract(reason, message string) string {
	return `{"reason":"` + reason + `","message":"` + message + `","rank":0}` + "\n"
}

// TestEnds has every way in which an engine ends: the policy that judges, the
// reason, and T for terminal, O for outside, B for a bad node.
func TestEnds(t *testing.T) {
	for _, tt := range []struct {
		name, policy, reason, marks, says string
		pod                               *corev1.Pod
	}{
		{"bad flag", "config", "InvalidConfig", "T", "--tp-size (spec.parallelism.tensor) 0", newPod(exited(2, "Error", contract("InvalidConfig", "--tp-size 0: write 1 or more")))},
		{"bad flag, log only", "config", "InvalidConfig", "T", "unknown flag: --nope", newPod(exited(2, "Error", "Error: unknown flag: --nope"))},
		{"code 2, another reason", "config", "Internal", "", "x", newPod(exited(2, "Error", contract("Internal", "x")))},
		{"panic has exit code 2", "panic", "Error", "", "panic: oops", newPod(exited(2, "Error", "panic: oops\n\ngoroutine 1 [running]:\nmain.main()"))},
		{"exit code 2 and silence", "panic", "Error", "", "panicked", newPod(exited(2, "Error", ""))},
		{"no model", "not-found", "ModelNotFound", "T", "x", newPod(exited(10, "Error", contract("ModelNotFound", "x")))},
		{"no permission", "unauthorized", "Unauthorized", "T", "x", newPod(exited(10, "Error", contract("Unauthorized", "x")))},
		{"fetch broke off", "fetch", "FetchFailed", "O", "x", newPod(exited(10, "Error", contract("FetchFailed", "x")))},
		{"disk full", "no-space", "NoSpace", "O", "x", newPod(exited(10, "Error", contract("NoSpace", "x")))},
		{"source, silence", "fetch", "FetchFailed", "O", "could not be fetched", newPod(exited(10, "Error", ""))},
		{"wrong weights", "weights", "DraftMismatch", "T", "x", newPod(exited(11, "Error", contract("DraftMismatch", "x")))},
		{"weights, silence", "weights", "WeightsMismatch", "T", "do not fit", newPod(exited(11, "Error", ""))},
		{"engine out of memory", "out-of-memory", "OutOfMemory", "", "x", newPod(exited(12, "Error", contract("OutOfMemory", "x")))},
		{"lost device", "device", "DeviceFault", "B", "XID 79", newPod(exited(13, "Error", contract("DeviceFault", "XID 79")))},
		{"no device", "device", "DeviceMissing", "B", "x", newPod(exited(13, "Error", "a log line\n"+contract("DeviceMissing", "x")))},
		{"ranks apart", "collective", "CollectiveFailed", "", "timed out", newPod(exited(14, "Error", contract("CollectiveFailed", "timed out")))},
		{"stall", "stall", "Stalled", "", "x", newPod(exited(15, "Error", contract("Stalled", "x")))},
		{"kernel", "kernel-out-of-memory", "OutOfMemory", "", "Requests count too: large bodies take up to 512 MiB", newPod(exited(137, "OOMKilled", "last log line"))},
		{"kernel, after the engine spoke", "kernel-out-of-memory", "OutOfMemory", "", "raise spec.resources.limits.memory", newPod(exited(137, "OOMKilled", contract("Stalled", "x")))},
		{"kill -9", "killed", "Killed", "", "signal 9", newPod(exited(137, "Error", ""))},
		{"kill -9, with a log", "killed", "Killed", "", "signal 9", newPod(exited(137, "Error", "level=INFO msg=ready"))},
		{"terminated, with its account", "other", "Internal", "", "x", newPod(exited(143, "Error", contract("Internal", "x")))},
		{"terminated", "killed", "Killed", "", "signal 15", newPod(exited(143, "Error", ""))},
		{"an account that cannot be read", "device", "DeviceFault", "B", `"rank":"no"`, newPod(exited(13, "Error", `{"reason":"DeviceMissing","message":"x","rank":"no"}`))},
		{"a source's reason with another code", "other", "NoSpace", "", "x", newPod(exited(1, "Error", contract("NoSpace", "x")))},
		{"stopped", "stopped", "Stopped", "", "told to stop", newPod(exited(0, "Completed", ""))},
		{"anything else", "other", "Error", "", "boom", newPod(exited(1, "Error", "boom"))},
		{"silent end", "other", "Error", "", "kubectl logs", newPod(exited(1, "Error", ""))},
		{"hostile reason", "other", "Error", "", "<script>", newPod(exited(1, "Error", `{"reason":"<script>","message":"x"}`))},
		{"evicted", "evicted", "Evicted", "O", "low on memory", newPod(ended("Evicted", "The node was low on memory."))},
		{"evicted, the engine killed", "evicted", "Evicted", "O", "low on memory", newPod(exited(137, "Error", "x"), ended("Evicted", "The node was low on memory."))},
		{"evicted, the engine drained", "stopped", "Stopped", "", "told to stop", newPod(exited(0, "Completed", ""), ended("Evicted", "The node was low on memory."))},
		{"refused by the node", "evicted", "UnexpectedAdmissionError", "O", "kubectl describe pod", newPod(ended("UnexpectedAdmissionError", ""))},
		{"failed, nothing said", "evicted", "Error", "O", "no message", newPod(ended("", ""))},
		{"reason of spaces", "evicted", "Error", "O", "x", newPod(ended("a b", "x"))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := Of(tt.pod, "")
			if v == nil {
				t.Fatal("no verdict")
			}
			marks := ""
			for mark, is := range map[string]bool{"T": v.Terminal, "O": v.Outside, "B": v.BadNode} {
				if is {
					marks += mark
				}
			}
			if v.Policy != tt.policy || v.Reason != tt.reason || marks != tt.marks || !strings.Contains(v.Message, tt.says) || !v.Ended {
				t.Errorf("%s: %s %q %q; want %s: %s %q with %q", v.Policy, v.Reason, marks, v.Message, tt.policy, tt.reason, tt.marks, tt.says)
			}
			if want := map[bool]v1alpha1.Phase{true: v1alpha1.PhaseFailed, false: v1alpha1.PhaseCrashed}[v.Terminal]; v.Phase != want {
				t.Errorf("phase %s, want %s", v.Phase, want)
			}
			if v.Time.IsZero() {
				t.Error("no time")
			}
		})
	}
}

// TestWaits has the ways in which a pod does not come to have an engine.
func TestWaits(t *testing.T) {
	mount := `MountVolume.SetUp failed for volume "model" : hostPath type check failed: /nope is not a directory`
	for _, tt := range []struct {
		name, policy, mount, says string // policy "": nothing is wrong
		pod                       *corev1.Pod
	}{
		{"no node yet", "", "", "", newPod(pendingOn("", "", ""))},
		{"no capacity", "unschedulable", "", "Waiting for capacity: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
			newPod(pendingOn("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))},
		{"no capacity, among other conditions", "unschedulable", "", "Waiting for capacity: no room",
			newPod(pendingOn("", "", ""), with(corev1.PodInitialized, corev1.ConditionTrue, "x"), with(corev1.PodScheduled, corev1.ConditionFalse, "no room"))},
		{"not scheduled, nothing said", "", "", "", newPod(pendingOn("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, ""))},
		{"scheduled", "", "", "", newPod(pendingOn("", "", ""), with(corev1.PodScheduled, corev1.ConditionTrue, "x"))},
		{"no claim", "unschedulable", "", `The claim of a volume is not usable (x, y): 0/1 nodes are available: persistentvolumeclaim "x" not found. Make it, give it a volume (kubectl describe pvc says what it waits for), or correct the spec.`,
			newPod(pendingOn("", "", ""), mounting("x", "y", "x"), with(corev1.PodScheduled, corev1.ConditionFalse, `0/1 nodes are available: persistentvolumeclaim "x" not found. not found`))},
		{"no volume for the claim", "unschedulable", "", "(x): 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. Make it",
			newPod(pendingOn("", "", ""), mounting("x"), with(corev1.PodScheduled, corev1.ConditionFalse, "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"))},
		{"was unschedulable", "", "", "", newPod(pendingOn("node1", "ContainerCreating", ""), with(corev1.PodScheduled, corev1.ConditionFalse, "no room"))},
		{"pulling", "", "", "", newPod(pendingOn("node1", "ContainerCreating", ""))},
		{"image missing", "image", "", "manifest unknown. Correct spec.image.", newPod(pendingOn("node1", "ImagePullBackOff", "manifest unknown."))},
		{"image private", "image", "", "401 Unauthorized. Name a Secret with", newPod(pendingOn("node1", "ErrImagePull", "failed to authorize: 401 Unauthorized"))},
		{"image private, Secrets named", "image", "", "401 Unauthorized. See that of the pod's imagePullSecrets (regcred, mirror) one is there,", newPod(pendingOn("node1", "ErrImagePull", "401 Unauthorized"), func(p *corev1.Pod) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "regcred"}, {Name: "mirror"}}
		})},
		{"image, network", "image", "", "no route to host$", newPod(pendingOn("node1", "ErrImagePull", "dial tcp: no route to host"))},
		{"image name", "image", "", "InvalidImageName", newPod(pendingOn("node1", "InvalidImageName", "bad"))},
		{"image, no node", "", "", "", newPod(pendingOn("", "ErrImagePull", "x"))},
		{"image, a long complaint", "image", "", "x x x$", newPod(pendingOn("node1", "ErrImagePull", strings.Repeat("x\n", 2000)))},
		{"containers made after others", "", "", "", newPod(pendingOn("node1", "PodInitializing", ""))},
		{"container waits, nothing said", "", "", "", newPod(pendingOn("node1", "x", ""), func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State.Waiting.Reason = "" })},
		{"started again by its node", "", "", "", newPod(pendingOn("node1", "CrashLoopBackOff", "x"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
		{"over, and its node has not said so", "", "", "", newPod(exited(137, "OOMKilled", ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
		{"over, with a reason, and its node has not said so", "", "", "", newPod(exited(14, "Error", ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })},
		{"container refused", "container", "", "image will run as root", newPod(pendingOn("node1", "CreateContainerConfigError", "image will run as root"))},
		{"no folder", "volume", mount, "/nope is not a directory", newPod(pendingOn("node1", "ContainerCreating", ""))},
		{"no folder, and no sandbox", "volume", mount, "/nope is not a directory", newPod(pendingOn("node1", "ContainerCreating", ""), with(corev1.PodReadyToStartContainers, corev1.ConditionFalse, ""))},
		{"no folder, on the node before", "", mount, "", newPod(pendingOn("", "", ""))},
		{"folder was missing", "", mount, "", newPod(pendingOn("node1", "ContainerCreating", ""), with(corev1.PodReadyToStartContainers, corev1.ConditionTrue, ""))},
		{"image before folder", "image", mount, "no such image", newPod(pendingOn("node1", "ImagePullBackOff", "no such image"))},
		{"running", "", mount, "", newPod()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := Of(tt.pod, tt.mount)
			if v == nil {
				v = &Verdict{}
			}
			if v.Policy != tt.policy || !strings.Contains(v.Message+"$", tt.says) || v.Ended || len(v.Message) > 1500 {
				t.Errorf("%q: %q; want %q with %q", v.Policy, v.Message, tt.policy, tt.says)
			}
		})
	}
}

// TestEveryPolicyJudges: a policy that no case of the tables reaches is dead.
func TestEveryPolicyJudges(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Policies {
		if seen[p.Name] {
			t.Errorf("two policies are named %s", p.Name)
		}
		seen[p.Name] = true
	}
	for _, end := range []struct {
		code   int32
		reason string
	}{
		{2, ""}, {2, "InvalidConfig"}, {10, ""}, {10, "Unauthorized"}, {10, "ModelNotFound"}, {10, "NoSpace"}, {11, ""}, {12, ""}, {13, ""}, {14, ""}, {15, ""},
		{0, ""}, {137, ""}, {1, ""},
	} {
		message := ""
		if end.reason != "" {
			message = contract(end.reason, "x")
		}
		delete(seen, Of(newPod(exited(end.code, "Error", message)), "").Policy)
	}
	delete(seen, Of(newPod(exited(137, "OOMKilled", "")), "").Policy)
	delete(seen, Of(newPod(ended("Evicted", "")), "").Policy)
	for _, p := range []*corev1.Pod{
		newPod(pendingOn("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, "x")),
		newPod(pendingOn("n", "ErrImagePull", "")), newPod(pendingOn("n", "RunContainerError", "")), newPod(pendingOn("n", "", "")),
	} {
		delete(seen, Of(p, "mount").Policy)
	}
	if len(seen) > 0 {
		t.Errorf("policies that never judge: %v", seen)
	}
}

func TestRank(t *testing.T) {
	for message, want := range map[string]string{
		`{"reason":"DeviceFault","message":"XID 79","rank":3}`:     "3",
		`{"reason":"DeviceFault","message":"XID 79","rank":0}`:     "none",
		`{"reason":"DeviceFault","message":"XID 79","rank":-1}`:    "none",
		`{"reason":"DeviceFault","message":"XID 79","rank":65535}`: "65535",
		`{"reason":"DeviceFault","message":"XID 79","rank":65536}`: "none",
		`{"reason":"DeviceFault","message":"XID 79","rank":"no"}`:  "none",
	} {
		got := "none"
		if v := Of(newPod(exited(13, "Error", message)), ""); v.Rank != nil {
			got = fmt.Sprint(*v.Rank)
		}
		if got != want {
			t.Errorf("%s: rank %s, want %s", message, got, want)
		}
	}
}

// TestRankOfAnotherEnd: the rank that the engine named is that of its own account,
// and not of how the kernel ended it afterwards.
func TestRankOfAnotherEnd(t *testing.T) {
	if v := Of(newPod(exited(137, "OOMKilled", `{"reason":"Stalled","message":"x","rank":3}`)), ""); v.Rank != nil {
		t.Errorf("rank %d of %s", *v.Rank, v.Reason)
	}
}

// TestEndTime: an end is when the engine's process ended; of a pod without one,
// when its conditions last changed, or when it was made.
func TestEndTime(t *testing.T) {
	at := func(c corev1.PodConditionType, ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, LastTransitionTime: metav1.NewTime(t0.Add(-ago))})
		}
	}
	scheduled, disrupted := at(corev1.PodScheduled, 30*time.Minute), at(corev1.DisruptionTarget, time.Minute)
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		ago  time.Duration
	}{
		{"the process", newPod(exited(1, "Error", ""), disrupted), 0},
		{"no process", newPod(ended("Evicted", ""), scheduled, disrupted), time.Minute},
		{"no process, in another order", newPod(ended("Evicted", ""), disrupted, scheduled), time.Minute},
		{"no process and no condition", newPod(ended("Evicted", "")), time.Hour},
	} {
		if v := Of(tt.pod, ""); !v.Time.Equal(t0.Add(-tt.ago)) {
			t.Errorf("%s: it ended at %s, want %s before %s", tt.name, v.Time, tt.ago, t0)
		}
	}
}

// TestOfGroup: of a pod whose container its node starts again, the end that was
// judges, or the one that is; not one that a deletion has brought about.
func TestOfGroup(t *testing.T) {
	now := func(p *corev1.Pod) { // has ended, and is not started again yet
		exited(14, "Error", "")(p)
		p.Status.Phase = corev1.PodRunning
	}
	before := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 13, FinishedAt: metav1.NewTime(t0)}}}}
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: t0} }
	// beside has a container before the engine and one after it, which have ended if they are to.
	beside := func(ended bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			engine := corev1.ContainerStatus{}
			if len(p.Status.ContainerStatuses) > 0 {
				engine = p.Status.ContainerStatuses[0]
			}
			engine.Name = "engine"
			proxy := corev1.ContainerStatus{Name: "proxy"}
			if ended {
				proxy.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.NewTime(t0)}
			}
			last := *proxy.DeepCopy()
			last.Name = "last"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{proxy, engine, last}
		}
	}
	for _, tt := range []struct {
		name, policy string // policy "": nothing is wrong
		pod          *corev1.Pod
	}{
		{"runs", "", newPod()},
		{"ends", "collective", newPod(now)},
		{"ended before", "device", newPod(before)},
		{"ends beside others", "collective", newPod(now, beside(false))},
		{"ends as others have", "collective", newPod(now, beside(true))},
		{"ended before, as others have", "device", newPod(before, beside(true))},
		{"others have ended", "stopped", newPod(beside(true))}, // and the group is made again
		{"ends for its deletion", "", newPod(now, deleted)},
		{"ended before its deletion", "device", newPod(before, deleted)},
		{"no image", "image", newPod(pendingOn("node1", "ErrImagePull", "x"))},
		{"no image, and is deleted", "", newPod(pendingOn("node1", "ErrImagePull", "x"), deleted)},
	} {
		v := OfGroup(tt.pod, "")
		if v == nil {
			v = &Verdict{}
		}
		if v.Policy != tt.policy || v.Ended != (v.ExitCode != nil) {
			t.Errorf("%s: %q, ended %t; want %q", tt.name, v.Policy, v.Ended, tt.policy)
		}
	}
}

func TestClean(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  string
	}{
		{"a  b\tc\r\n d ", 100, "a b c d"},
		{"12345", 5, "12345"},
		{"123456", 5, "…56"},
		{"éééé", 7, "…éé"},
		{"éééé", 6, "…é"}, // and no half of the one before
		{"a\xffb", 9, "a\uFFFDb"},
	} {
		if got := Clean(tt.text, tt.limit); got != tt.want {
			t.Errorf("%q in %d bytes: %q, want %q", tt.text, tt.limit, got, tt.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	want := []time.Duration{5, 5, 10, 20, 40, 80, 160, 300, 300}
	for n, w := range want {
		if got := Backoff(int32(n)); got != w*time.Second {
			t.Errorf("after %d crashes: %s, want %s", n, got, w*time.Second)
		}
	}
	if got := Backoff(1 << 30); got != BackoffMax {
		t.Errorf("after very many crashes: %s", got)
	}
}

func TestExhausted(t *testing.T) {
	for _, tt := range []struct {
		n, budget int32
		outside   bool
		want      bool
	}{{9, 10, false, false}, {10, 10, false, true}, {11, 10, false, true}, {11, 10, true, false}, {11, 0, false, false}} {
		if got := Exhausted(&Verdict{Outside: tt.outside}, tt.n, tt.budget); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func FuzzParseTermination(f *testing.F) {
	for _, s := range []string{"", "x", `{"reason":"Stalled","message":"m","rank":1}`, "log\n" + `{"reason":"A","message":"\u0000"}`, "\xff", `{"reason":1}`, `{`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, ok := ParseTermination(s)
		if ok != reasonPattern.MatchString(m.Reason) || len(m.Message) > 1000 || !utf8.ValidString(m.Message) || strings.ContainsAny(m.Message, "\n\x00") {
			t.Errorf("%q: ok %v, %+v", s, ok, m)
		}
		if c := Clean(s, 100); len(c) > 100 || !utf8.ValidString(c) {
			t.Errorf("Clean(%q) = %q", s, c)
		}
	})
}
