//go:build apiserver

package apiserver

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// TestGroup: a server of several nodes makes a LeaderWorkerSet, and serves when the
// first pod of its group answers.
func TestGroup(t *testing.T) {
	installSets(t)
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n  disruption: {}\n")
	set := p.set()
	if !metav1.IsControlledBy(set, p.server()) {
		t.Errorf("owners %v", set.GetOwnerReferences())
	}
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	leader, worker := p.member(set, 0), p.member(set, 1)
	p.free(leader)
	p.free(worker)
	secret := &corev1.Secret{}
	if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-nodes"}, secret); err != nil || len(secret.Data["secret"]) < 26 || !metav1.IsControlledBy(secret, p.server()) {
		t.Errorf("the nodes' secret has %d bytes, owners %v, %v", len(secret.Data["secret"]), secret.OwnerReferences, err)
	}
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

// installSets gives the API server the kind LeaderWorkerSet. Before it does so for
// the first time it tries what can be tried only then: a server of several nodes
// says that the kind is missing, and has its set as soon as it is there.
func installSets(t *testing.T) {
	t.Helper()
	setsOnce.Do(func() {
		p := begin(t)
		p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n")
		p.phase(v1alpha1.PhasePending, "the cluster has no kind LeaderWorkerSet")
		p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNoLeaderWorkerSet)
		p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
		installSetsKind(t)
		p.set()
		p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	})
}

var setsOnce sync.Once

func installSetsKind(t *testing.T) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-C", "../../hack/lws", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envtest.InstallCRDs(apiConfig, envtest.CRDInstallOptions{Paths: []string{filepath.Join(strings.TrimSpace(string(dir)), "config/crd/bases")}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
}

// set is the server's LeaderWorkerSet, once it is there.
func (p *play) set() *unstructured.Unstructured {
	p.Helper()
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(build.LeaderWorkerSetKind)
	p.eventually("LeaderWorkerSet", func() string {
		if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s-nodes"}, set); err != nil {
			return err.Error()
		}
		return ""
	})
	return set
}

// groupGoes deletes the pods of a group, as its controller or a person does.
func (p *play) groupGoes(pods []*corev1.Pod) {
	p.Helper()
	for _, pod := range pods {
		if err := k8s.Delete(p.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
			p.Fatal(err)
		}
	}
}

// groupCrashes starts a group whose second node ends then; its controller removes it.
func (p *play) groupCrashes(pods []*corev1.Pod) {
	p.Helper()
	for _, pod := range pods {
		p.free(pod)
		p.bind(pod)
		p.runs(pod, false)
	}
	p.setStatus(pods[1], func(s *corev1.PodStatus) { failed(s, 13, `{"reason":"DeviceFault","message":"XID 79","rank":1}`) })
	p.eventually("the crash in the status", func() string {
		if s := p.server(); len(s.Status.Pods) != 2 || s.Status.Pods[1].LastFailure == nil || s.Status.Pods[1].LastFailure.PodUID != string(pods[1].UID) {
			return fmt.Sprintf("rows %+v", s.Status.Pods)
		}
		return ""
	})
	p.groupGoes(pods)
}

// groupHeld checks that the pods of a group stay behind their gates.
func (p *play) groupHeld(pods []*corev1.Pod) {
	p.Helper()
	p.quiet()
	for _, pod := range pods {
		if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || len(pod.Spec.SchedulingGates) != 1 {
			p.Errorf("%s: %v, gates %v", pod.Name, err, pod.Spec.SchedulingGates)
		}
	}
}

// TestGroupBudget: a group that crashes is let start again after its back-off, on
// another node if a device failed; one whose tries are over is not, the status keeps
// why, and another spec or the deletion of its pod is one more try.
func TestGroupBudget(t *testing.T) {
	p := begin(t)
	installSets(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n  health: {crashBudget: 2}\n")
	set := p.set()
	group := func() []*corev1.Pod { return []*corev1.Pod{p.member(set, 0), p.member(set, 1)} }
	p.groupCrashes(group())
	second := group()
	s := p.phase(v1alpha1.PhaseCrashed, "DeviceFault (exit code 13), once: rank 1: XID 79. Its group starts again as a whole at ")
	if row := s.Status.Pods[1]; row.NextStartTime == nil || row.NextStartTime.Sub(row.LastFailure.Time.Time) < 4*time.Second {
		t.Errorf("row %+v", row)
	}
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRetrying)
	p.free(second[0])
	p.free(second[1])
	if now := time.Now(); now.Before(s.Status.Pods[1].NextStartTime.Time) {
		t.Errorf("started %s too soon", s.Status.Pods[1].NextStartTime.Sub(now))
	}
	if a := second[1].Spec.Affinity; a == nil || a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Preference.MatchFields[0].Values[0] != "node1" || second[0].Spec.Affinity != nil {
		t.Errorf("affinities %v and %v, want only the second to avoid node1", second[0].Spec.Affinity, a)
	}
	p.groupCrashes(second)
	third := group()
	p.eventually("a Failed server whose pods wait", func() string {
		s := p.server()
		if row := s.Status.Pods[1]; s.Status.Phase != v1alpha1.PhaseFailed || *s.Status.Replicas != 1 || row.Phase != v1alpha1.PhaseFailed || row.FailuresInRow != 2 || row.LastFailure.Reason != "DeviceFault" || row.UID != string(third[1].UID) {
			return fmt.Sprintf("status %+v", s.Status)
		}
		return ""
	})
	p.phase(v1alpha1.PhaseFailed, "DeviceFault (exit code 13), 2 times in a row: rank 1: XID 79. That is the budget of spec.health.crashBudget.")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFailed)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
	p.groupHeld(third)

	p.groupGoes(third) // by hand: one more try
	fourth := group()
	p.groupCrashes(fourth)
	p.phase(v1alpha1.PhaseFailed, "3 times in a row")
	fifth := group()
	p.groupHeld(fifth)

	p.patch(`{"spec":{"extraEnv":[{"name":"TRY","value":"2"}]}}`)
	p.eventually("another template", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
			return err.Error()
		}
		labels, _, _ := unstructured.NestedStringMap(set.Object, "spec", "leaderWorkerTemplate", "leaderTemplate", "metadata", "labels")
		if labels[v1alpha1.LabelRevision] == fifth[0].Labels[v1alpha1.LabelRevision] {
			return "it is the same as before"
		}
		return ""
	})
	p.groupHeld(fifth) // they are of the old spec, and not tried again
	p.groupGoes(fifth)
	pods := group()
	for _, pod := range pods {
		p.free(pod)
		p.bind(pod)
	}
	p.ready(pods[0])
	p.runs(pods[1], true)
	p.setStatus(pods[1], func(s *corev1.PodStatus) { setPodCondition(s, corev1.PodReady, true) })
	p.phase(v1alpha1.PhaseReady, "Serving")
}

// TestGroupSecretTaken: pods do not start without a secret of the nodes, and one
// that is somebody else's is left alone.
func TestGroupSecretTaken(t *testing.T) {
	p := begin(t)
	installSets(t)
	if err := k8s.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s-nodes"}, StringData: map[string]string{"secret": "someone's"}}); err != nil {
		t.Fatal(err)
	}
	p.create(manifest + "  parallelism: {tensor: 2, nodes: 2}\n")
	set := p.set()
	leader := p.member(set, 0)
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
	p.phase(v1alpha1.PhasePending, "")
	if p.ungated(leader) {
		t.Error("the leader started without a secret")
	}
	p.patch(`{"spec":{"parallelism":{"nodeSecretRef":{"name":"s-nodes","key":"secret"}}}}`) // it was meant for it
	p.free(leader)
}

// ungated says that a pod has no scheduling gate.
func (p *play) ungated(pod *corev1.Pod) bool {
	p.Helper()
	if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
		p.Fatal(err)
	}
	return len(pod.Spec.SchedulingGates) == 0
}

// free waits until the operator has taken its scheduling gate from a pod.
func (p *play) free(pod *corev1.Pod) {
	p.Helper()
	p.eventually("start of "+pod.Name, func() string {
		if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err.Error()
		}
		if len(pod.Spec.SchedulingGates) > 0 {
			return fmt.Sprintf("gates %v", pod.Spec.SchedulingGates)
		}
		return ""
	})
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
