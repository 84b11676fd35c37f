package decide

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// t0 is the time at which every test begins.
var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func newServer(replicas int32) *v1alpha1.SpeculativeServer {
	return &v1alpha1.SpeculativeServer{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", Generation: 3},
		Spec: v1alpha1.SpeculativeServerSpec{
			Replicas:    &replicas,
			Speculation: v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmEAGLE3},
		},
	}
}

// newPod is a pod with an ordinal, of revision "new", running on node1 and
// nothing more; the changes make of it what a test needs.
func newPod(ordinal int, changes ...func(*Pod)) Pod {
	p := Pod{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("s-%d", ordinal), Namespace: "ns", UID: types.UID(fmt.Sprintf("uid-%d", ordinal)),
			CreationTimestamp: metav1.NewTime(t0.Add(-time.Hour)),
			Labels:            map[string]string{v1alpha1.LabelOrdinal: fmt.Sprint(ordinal), v1alpha1.LabelRevision: "new"},
		},
		Spec:   corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "engine", Image: "img:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}}
	for _, c := range changes {
		c(&p)
	}
	return p
}

func with(t corev1.PodConditionType, s corev1.ConditionStatus, since time.Time, message string) func(*Pod) {
	return func(p *Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: t, Status: s, Message: message, LastTransitionTime: metav1.NewTime(since)})
	}
}

// healthy is a pod whose kubelet probes pass.
func healthy(p *Pod) {
	with(corev1.ContainersReady, corev1.ConditionTrue, t0, "")(p)
}

// verifiedAt is a pod that serves since a time.
func verifiedAt(since time.Time) func(*Pod) {
	return func(p *Pod) {
		healthy(p)
		with(v1alpha1.ModelVerified, corev1.ConditionTrue, since, "")(p)
		with(corev1.PodReady, corev1.ConditionTrue, since, "")(p)
	}
}

func ready(p *Pod) { verifiedAt(t0.Add(-time.Minute))(p) }

func stale(p *Pod) { p.Labels[v1alpha1.LabelRevision] = "old" }

func terminatingUntil(end time.Time) func(*Pod) {
	return func(p *Pod) { p.DeletionTimestamp = ptr(metav1.NewTime(end)) }
}

func says(e Engine) func(*Pod) { return func(p *Pod) { p.Engine = &e } }

func loads(pr Progress) func(*Pod) { return says(Engine{Progress: &pr}) }

// pendingPod is a pod on a node (or none) whose container is not there yet.
func pendingPod(node, waitingReason, waitingMessage string) func(*Pod) {
	return func(p *Pod) {
		p.Status.Phase, p.Spec.NodeName = corev1.PodPending, node
		if waitingReason != "" {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: waitingReason, Message: waitingMessage}}}}
		}
	}
}

// exited is a pod whose engine ended at a time.
func exited(at time.Time, code int32, reason, message string) func(*Pod) {
	return func(p *Pod) {
		p.Status.Phase = corev1.PodFailed
		if code == 0 {
			p.Status.Phase = corev1.PodSucceeded
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, FinishedAt: metav1.NewTime(at)}}}}
	}
}

func input(s *v1alpha1.SpeculativeServer, pods ...Pod) Input {
	return Input{Server: s, Revision: "new", Model: "m", Port: 8000, Pods: pods, Now: t0}
}
