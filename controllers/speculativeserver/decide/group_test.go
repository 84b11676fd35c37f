package decide

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// newNode is newPod of a group: the pod that leads it for node 0.
func newNode(ordinal, node int, changes ...func(*Pod)) Pod {
	p := newPod(ordinal, changes...)
	p.Name = fmt.Sprintf("s-nodes-%d", ordinal)
	p.UID = types.UID(fmt.Sprintf("uid-%d-%d", ordinal, node))
	if node > 0 {
		p.Name += fmt.Sprintf("-%d", node)
	}
	return p
}

func worker(ordinal, node int, changes ...func(*Pod)) Worker {
	return Worker{Pod: newNode(ordinal, node, changes...), Ordinal: int32(ordinal), Node: int32(node)}
}

// restarted is a pod whose engine ended and was started again in place.
func restarted(code int32, message string) func(*Pod) {
	return func(p *Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, FinishedAt: metav1.NewTime(t0)}}}}
	}
}

// stopping is a pod that is deleted, whose engine has ended for that.
func stopping(p *Pod) {
	terminatingUntil(t0.Add(30 * time.Second))(p)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(t0)}}}}
}

func computes(p *Pod) { healthy(p); with(corev1.PodReady, corev1.ConditionTrue, t0, "")(p) }

// A replica of two nodes: its status has both, whatever befalls them, and nothing
// is made or deleted, which its LeaderWorkerSet's controller does.
func TestGroups(t *testing.T) {
	lost := `{"reason":"CollectiveFailed","message":"rank 1, on node 1 at 10.0.0.2, is lost: its process has ended","rank":1}`
	for _, c := range []struct {
		name     string
		leader   []func(*Pod) // nil: no pod
		worker   []func(*Pod)
		phase    v1alpha1.Phase // of the server
		leads    v1alpha1.Phase // of the rows
		works    v1alpha1.Phase
		degraded string
		says     string // in the server's message, or its Degraded condition
	}{
		{"nothing there yet", nil, nil, v1alpha1.PhasePending, v1alpha1.PhasePending, v1alpha1.PhasePending, v1alpha1.ReasonAsExpected, "about to be made"},
		{"the other alone", nil, []func(*Pod){computes}, v1alpha1.PhasePending, v1alpha1.PhasePending, v1alpha1.PhaseReady, v1alpha1.ReasonAsExpected, "about to be made"},
		{"both compute", []func(*Pod){ready}, []func(*Pod){computes}, v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.ReasonAsExpected, "Serving m"},
		{"waiting for the other", []func(*Pod){loads(Progress{Phase: "join", LastAdvance: t0})}, []func(*Pod){pendingPod("", "", ""), with(corev1.PodScheduled, corev1.ConditionFalse, t0, "0/1 nodes are available")},
			v1alpha1.PhaseStarting, v1alpha1.PhaseStarting, v1alpha1.PhaseWaitingForCapacity, v1alpha1.ReasonUnschedulable, "Waiting for capacity"},
		{"verified by the operator only when the first answers", []func(*Pod){healthy}, []func(*Pod){computes}, v1alpha1.PhaseVerifying, v1alpha1.PhaseVerifying, v1alpha1.PhaseReady, v1alpha1.ReasonAsExpected, "Making the model answer"},
		{"the other ends", []func(*Pod){restarted(14, lost)}, []func(*Pod){restarted(137, "")}, v1alpha1.PhaseCrashed, v1alpha1.PhaseCrashed, v1alpha1.PhaseCrashed, v1alpha1.ReasonCrashed, "s-nodes-0-1: Killed (exit code 137), once: signal 9"},
		{"the other is lost with its node", []func(*Pod){restarted(14, lost)}, []func(*Pod){stopping}, v1alpha1.PhaseCrashed, v1alpha1.PhaseCrashed, v1alpha1.PhaseTerminating, v1alpha1.ReasonCrashed, "rank 1: rank 1, on node 1 at 10.0.0.2, is lost"},
		{"a fault of the other's own", []func(*Pod){ready}, []func(*Pod){restarted(13, `{"reason":"DeviceFault","message":"GPU 0: XID 79","rank":1}`)}, v1alpha1.PhaseDegraded, v1alpha1.PhaseReady, v1alpha1.PhaseCrashed, v1alpha1.ReasonCrashed, "rank 1: GPU 0: XID 79"},
		{"the other leaves its GPUs idle", []func(*Pod){ready, holds("nvidia.com/gpu"), on("cuda", "")}, []func(*Pod){computes, holds("nvidia.com/gpu"), on("cpu", "no driver")}, v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.ReasonGPUUnused, "GPUs are not used: s-nodes-0-1 computes on the CPU: no driver"},
		{"deleted together", []func(*Pod){stopping}, []func(*Pod){stopping}, v1alpha1.PhaseTerminating, v1alpha1.PhaseTerminating, v1alpha1.PhaseTerminating, v1alpha1.ReasonAsExpected, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := input(newServer(1))
			in.Nodes = 2
			if c.leader != nil {
				in.Pods = append(in.Pods, newNode(0, 0, c.leader...))
			}
			if c.worker != nil {
				in.Workers = append(in.Workers, worker(0, 1, c.worker...))
			}
			d := Decide(in)
			if len(d.Create)+len(d.Delete) > 0 || !d.Group {
				t.Errorf("creates %v, deletes %v, applies the group: %v", d.Create, d.Delete, d.Group)
			}
			s := d.Status
			if s.Phase != c.phase {
				t.Errorf("phase %s, %q: want %s", s.Phase, s.Message, c.phase)
			}
			if len(s.Pods) != 2 || s.Pods[0].Name != "s-nodes-0" || s.Pods[1].Name != "s-nodes-0-1" || s.Pods[0].NodeRank != nil || s.Pods[1].NodeRank == nil || *s.Pods[1].NodeRank != 1 {
				t.Fatalf("rows %+v", s.Pods)
			}
			if s.Pods[0].Phase != c.leads || s.Pods[1].Phase != c.works {
				t.Errorf("rows are %s %q and %s %q", s.Pods[0].Phase, s.Pods[0].Message, s.Pods[1].Phase, s.Pods[1].Message)
			}
			if c.name == "the other ends" && !strings.HasPrefix(s.Message, "Killed") {
				t.Errorf("the server's message is not that of the pod whose end was the reason: %s", s.Message)
			}
			for _, cond := range s.Conditions {
				if cond.Type == v1alpha1.ConditionDegraded && (cond.Reason != c.degraded || !strings.Contains(s.Message+cond.Message, c.says)) {
					t.Errorf("Degraded has reason %s, %q; message %q: want %s, %q", cond.Reason, cond.Message, s.Message, c.degraded, c.says)
				}
			}
		})
	}
}

// A failure is counted once for each pod, and stays until the group serves again.
func TestGroupFailures(t *testing.T) {
	server := newServer(1)
	at := func(uid types.UID, changes ...func(*Pod)) v1alpha1.PodStatus {
		in := input(server)
		in.Nodes = 2
		p := newNode(0, 0, changes...)
		p.UID = uid
		in.Pods, in.Workers = []Pod{p}, []Worker{worker(0, 1, computes)}
		d := Decide(in)
		server.Status = d.Status
		return d.Status.Pods[0]
	}
	crash := restarted(1, "out of luck")
	for range 2 {
		if row := at("a", crash); row.Restarts != 1 || row.FailuresInRow != 1 || row.FailingSince == nil || !row.NextStartTime.Time.Equal(t0.Add(5*time.Second)) {
			t.Errorf("after the first: %+v", row)
		}
	}
	at("a", crash, terminatingUntil(t0.Add(time.Minute)))
	since := metav1.NewTime(t0.Add(-time.Hour))
	server.Status.Pods[0].FailingSince = &since
	if row := at("b", loads(Progress{Phase: "load", LastAdvance: t0})); row.Restarts != 1 || row.FailingSince == nil || row.NextStartTime != nil {
		t.Errorf("on its way back: %+v", row)
	}
	if row := at("b", crash); row.Restarts != 2 || row.FailuresInRow != 2 || !row.FailingSince.Equal(&since) {
		t.Errorf("after the second: %+v", row)
	}
	if row := at("c", verifiedAt(t0.Add(-time.Hour))); row.FailingSince != nil || row.FailuresInRow != 0 || row.Restarts != 2 {
		t.Errorf("serving: %+v", row)
	}
}

func TestNoLeaderWorkerSet(t *testing.T) {
	in := input(newServer(1))
	in.Nodes, in.NoGroups = 2, "the cluster has no kind LeaderWorkerSet"
	s := Decide(in).Status
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDegraded); c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonNoLeaderWorkerSet || c.Message != in.NoGroups {
		t.Errorf("Degraded: %+v", c)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionProgressing); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonBlocked || c.Message != in.NoGroups {
		t.Errorf("Progressing: %+v", c)
	}
	if s.Phase != v1alpha1.PhasePending || s.Message != in.NoGroups {
		t.Errorf("phase %s, %q", s.Phase, s.Message)
	}
}
