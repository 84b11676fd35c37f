//go:build apiserver

package apiserver

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// TestGroup: a server of several nodes says that LeaderWorkerSets are missing,
// makes one when there are, and serves when the first pod of its group answers.
func TestGroup(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n  disruption: {}\n")
	p.phase(v1alpha1.PhasePending, "the cluster has no kind LeaderWorkerSet")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNoLeaderWorkerSet)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)

	installSets(t)
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(build.LeaderWorkerSetKind)
	p.eventually("LeaderWorkerSet", func() string {
		if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-nodes"}, set); err != nil {
			return err.Error()
		}
		return ""
	})
	if !metav1.IsControlledBy(set, p.server()) {
		t.Errorf("owners %v", set.GetOwnerReferences())
	}
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	leader, worker := p.member(set, 0), p.member(set, 1)
	p.bind(leader)
	p.bind(worker)
	p.runs(worker, true)
	p.setStatus(worker, func(s *corev1.PodStatus) { setPodCondition(s, corev1.PodReady, true) })
	p.ready(leader)
	s := p.phase(v1alpha1.PhaseReady, "Serving")
	if len(s.Status.Pods) != 2 || s.Status.Pods[1].Name != "s-nodes-0-1" || s.Status.Pods[1].Phase != v1alpha1.PhaseReady || *s.Status.Replicas != 1 {
		t.Errorf("status %+v", s.Status)
	}
	service := &corev1.Service{}
	if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, service); err != nil || service.Spec.Selector[build.LabelWorkerIndex] != "0" {
		t.Errorf("the Service selects %v, %v", service.Spec.Selector, err)
	}
	// Autoscalers divide a metric of the pods by those that it selects.
	if want := v1alpha1.LabelServer + "=s," + build.LabelWorkerIndex + "=0"; s.Status.Selector != want {
		t.Errorf("the scale subresource selects %q, want %q", s.Status.Selector, want)
	}
	p.quiet()

	for _, nodes := range []string{"1", "null"} {
		err := k8s.Patch(t.Context(), p.server(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"parallelism":{"nodes":`+nodes+`}}}`)), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "make another server") {
			t.Errorf("nodes %s: %v", nodes, err)
		}
	}
	p.patch(`{"spec":{"replicas":3}}`) // the scale subresource's field
	p.eventually("three groups", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
			return err.Error()
		}
		if n, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas"); n != 3 {
			return "not asked for"
		}
		return ""
	})
	p.setStatus(worker, func(s *corev1.PodStatus) { failed(s, 13, `{"reason":"DeviceFault","message":"XID 79","rank":1}`) })
	p.phase(v1alpha1.PhaseDegraded, "s-nodes-0-1: DeviceFault (exit code 13), once: rank 1: ")
}

// installSets gives the API server the kind LeaderWorkerSet.
func installSets(t *testing.T) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-C", "../../hack/lws", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(apiConfig, envtest.CRDInstallOptions{Paths: []string{filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases")}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
}

// TestGroupBudget: a group whose tries are over is left out of its LeaderWorkerSet,
// the status keeps why, and another spec begins anew.
func TestGroupBudget(t *testing.T) {
	p := begin(t)
	installSets(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n  health: {crashBudget: 2}\n")
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(build.LeaderWorkerSetKind)
	groups := func(want int64) {
		t.Helper()
		p.eventually(fmt.Sprintf("a LeaderWorkerSet of %d groups", want), func() string {
			if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-nodes"}, set); err != nil {
				return err.Error()
			}
			if n, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas"); n != want {
				return fmt.Sprintf("it has %d", n)
			}
			return ""
		})
	}
	groups(1)
	crash := func() { // of the second node; then the controller removes the group
		t.Helper()
		leader, worker := p.member(set, 0), p.member(set, 1)
		for _, pod := range []*corev1.Pod{leader, worker} {
			p.bind(pod)
			p.runs(pod, false)
		}
		p.setStatus(worker, func(s *corev1.PodStatus) { failed(s, 13, `{"reason":"DeviceFault","message":"XID 79","rank":1}`) })
		p.eventually("the crash in the status", func() string {
			if s := p.server(); len(s.Status.Pods) != 2 || s.Status.Pods[1].LastFailure == nil || s.Status.Pods[1].LastFailure.PodUID != string(worker.UID) {
				return fmt.Sprintf("rows %+v", s.Status.Pods)
			}
			return ""
		})
		for _, pod := range []*corev1.Pod{leader, worker} {
			if err := k8s.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	crash()
	p.phase(v1alpha1.PhasePending, "")
	groups(1)
	crash()
	groups(0)
	p.eventually("a Failed server without pods", func() string {
		s := p.server()
		if row := s.Status.Pods[1]; s.Status.Phase != v1alpha1.PhaseFailed || *s.Status.Replicas != 0 || row.Phase != v1alpha1.PhaseFailed || row.FailuresInRow != 2 || row.LastFailure.Reason != "DeviceFault" {
			return fmt.Sprintf("status %+v", s.Status)
		}
		return ""
	})
	p.phase(v1alpha1.PhaseFailed, "DeviceFault (exit code 13), 2 times in a row: rank 1: ")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFailed)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
	p.quiet()

	p.patch(`{"spec":{"extraEnv":[{"name":"TRY","value":"2"}]}}`)
	groups(1)
	leader, worker := p.member(set, 0), p.member(set, 1)
	p.bind(leader)
	p.bind(worker)
	p.ready(leader)
	p.runs(worker, true)
	p.setStatus(worker, func(s *corev1.PodStatus) { setPodCondition(s, corev1.PodReady, true) })
	p.phase(v1alpha1.PhaseReady, "Serving")
}

// failed is a status of an engine that ended and was started again in place.
func failed(s *corev1.PodStatus, code int32, message string) {
	s.ContainerStatuses = []corev1.ContainerStatus{{Name: "engine", Image: "i", ImageID: "i", RestartCount: 1, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message, FinishedAt: metav1.Now()}}}}
}

// member plays the controller of LeaderWorkerSets: it makes the pod of a node of
// the first group.
func (p *play) member(set *unstructured.Unstructured, node int) *corev1.Pod {
	p.Helper()
	which, name, index := "leaderTemplate", "s-nodes-0", "0"
	if node > 0 {
		which, name, index = "workerTemplate", "s-nodes-0-1", "1"
	}
	template, _, err := unstructured.NestedMap(set.Object, "spec", "leaderWorkerTemplate", which)
	if err != nil {
		p.Fatal(err)
	}
	b, err := json.Marshal(template)
	if err != nil {
		p.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(b, pod); err != nil {
		p.Fatal(err)
	}
	pod.Namespace, pod.Name = p.namespace, name
	pod.Labels[build.LabelGroupSet], pod.Labels[build.LabelGroupIndex], pod.Labels[build.LabelWorkerIndex] = set.GetName(), "0", index
	if err := k8s.Create(p.Context(), pod); err != nil {
		p.Fatal(err)
	}
	return pod
}
