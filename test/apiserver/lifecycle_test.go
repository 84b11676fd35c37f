//go:build apiserver

package apiserver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestToReady follows a server from nothing to ready, and then writes nothing.
func TestToReady(t *testing.T) {
	p := begin(t)
	fake.loads(43.2, 2, 8)
	p.create(manifest)
	pod := p.pod(0, "")
	p.setStatus(pod, func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient memory.", LastTransitionTime: metav1.Now()}}
	})
	p.phase(v1alpha1.PhaseWaitingForCapacity, "1 Insufficient memory")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonUnschedulable)

	p.bind(pod)
	p.setStatus(pod, func(s *corev1.PodStatus) { s.Conditions = nil })
	p.phase(v1alpha1.PhasePulling, "example.test/engine:1")
	p.runs(pod, false)
	s := p.phase(v1alpha1.PhaseLoading, "Loading 43 %, shard 3 of 8")
	if row := s.Status.Pods[0]; row.Percent == nil || *row.Percent != 43 || row.Node != "node1" {
		t.Errorf("row %+v", row)
	}
	p.condition(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading)
	fake.loads(77, 6, 8)
	p.phase(v1alpha1.PhaseLoading, "Loading 77 %, shard 7 of 8")

	fake.serves(3, 3.31, 118, "no token came out")
	p.runs(pod, true)
	p.phase(v1alpha1.PhaseVerifying, "no token came out")
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNotReady)
	fake.serves(3, 3.31, 118, "")
	p.ready(pod)
	p.phase(v1alpha1.PhaseReady, "http://s."+p.namespace+".svc:8000/v1")
	for _, c := range []struct {
		condition string
		status    metav1.ConditionStatus
		reason    string
	}{
		{v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing},
		{v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonComplete},
		{v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected},
		{v1alpha1.ConditionModelLoaded, metav1.ConditionTrue, v1alpha1.ReasonLoaded},
		{v1alpha1.ConditionSpeculationActive, metav1.ConditionTrue, v1alpha1.ReasonDrafting},
	} {
		p.condition(c.condition, c.status, c.reason)
	}
	p.eventually("figures", func() string {
		f := p.server().Status.Speculation
		if f != nil && *f.NumSteps == 3 && f.AcceptLength == "3.31" && f.TokensPerSecond == "118" {
			return ""
		}
		return fmt.Sprintf("%+v", f)
	})
	p.service()
	p.quiet()
	p.events("WaitingForCapacity", "Loading", "Verifying", "Ready", "PodCreated")
}

// service checks the server's Service.
func (p *play) service() {
	p.Helper()
	var svc corev1.Service
	if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, &svc); err != nil {
		p.Fatal(err)
	}
	if port := svc.Spec.Ports[0]; port.Port != 8000 || port.TargetPort.StrVal != "http" || svc.Spec.Selector[v1alpha1.LabelServer] != "s" {
		p.Errorf("%+v", svc.Spec)
	}
}

// quiet checks that nothing is written while nothing happens, through many
// scrapes and deep probes and reconciles, and with noise in the figures.
func (p *play) quiet() {
	p.Helper()
	p.eventually("rest", func() string { // what has happened is written by now
		before := len(writes.of(p.namespace))
		time.Sleep(500 * time.Millisecond)
		return unless(len(writes.of(p.namespace)) == before, "it still writes")
	})
	version, before := p.server().ResourceVersion, len(writes.of(p.namespace))
	for i := range 20 {
		fake.serves(3, 3.31+float64(i%2)/100, 118+float64(i%3), "")
		time.Sleep(100 * time.Millisecond)
	}
	if list := writes.of(p.namespace); len(list) != before {
		p.Errorf("writes though nothing happened: %s", strings.Join(list[before:], ", "))
	}
	if v := p.server().ResourceVersion; v != version {
		p.Errorf("resourceVersion went from %s to %s though nothing happened", version, v)
	}
}

// events waits until the operator has reported some transitions.
func (p *play) events(reasons ...string) {
	p.Helper()
	p.eventually("events", func() string {
		var list eventsv1.EventList
		if err := k8s.List(p.Context(), &list, client.InNamespace(p.namespace)); err != nil {
			return err.Error()
		}
		seen := map[string]bool{}
		for _, e := range list.Items {
			if e.Regarding.Kind == "SpeculativeServer" {
				seen[e.Reason] = true
			}
		}
		for _, r := range reasons {
			if !seen[r] {
				return fmt.Sprintf("no %s among %v", r, seen)
			}
		}
		return ""
	})
}

// TestCrash: a crash is explained and counted, the pod stays until the back-off
// ends, and a new one takes its place.
func TestCrash(t *testing.T) {
	p := begin(t)
	first := p.serving(manifest)
	p.exits(first, 14, `{"reason":"CollectiveFailed","message":"all-reduce timed out","rank":3}`)
	s := p.phase(v1alpha1.PhaseCrashed, "CollectiveFailed (exit code 14), once: rank 3: all-reduce timed out. Next start at ")
	row := s.Status.Pods[0]
	if row.Restarts != 1 || row.LastFailure == nil || *row.LastFailure.ExitCode != 14 || row.NextStartTime == nil {
		t.Fatalf("row %+v", row)
	}
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNotReady)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRetrying)
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonCrashed)
	next := row.NextStartTime.Time
	p.gone(first)
	if early := time.Until(next); early > 0 {
		t.Errorf("the crashed pod was deleted %s before its back-off ended", early)
	}
	second := p.pod(0, first.UID)
	p.bind(second)
	p.exits(second, 14, "")
	s = p.phase(v1alpha1.PhaseCrashed, "2 times in a row")
	if row := s.Status.Pods[0]; row.Restarts != 2 || row.FailuresInRow != 2 || row.NextStartTime.Sub(row.LastFailure.Time.Time) != 10*time.Second {
		t.Errorf("row %+v", row)
	}
}

// TestFailed: a reason that a new start would not heal ends the tries, until the
// spec changes.
func TestFailed(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	first := p.pod(0, "")
	p.bind(first)
	p.exits(first, 10, `{"reason":"ModelNotFound","message":"no config.json in /models/target","rank":0}`)
	p.phase(v1alpha1.PhaseFailed, "ModelNotFound (exit code 10): no config.json in /models/target. Not started again")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonModelNotFound)
	p.condition(v1alpha1.ConditionModelLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoadFailed)
	p.quiet()
	if pod := p.pod(0, ""); pod.UID != first.UID || pod.DeletionTimestamp != nil {
		t.Error("the failed pod was not kept")
	}
	p.patch(`{"spec":{"speculation":{"numSteps":2}}}`)
	p.gone(first)
	second := p.pod(0, first.UID)
	if second.Labels[v1alpha1.LabelRevision] == first.Labels[v1alpha1.LabelRevision] {
		t.Error("the new pod has the old revision")
	}
	p.bind(second)
	p.ready(second)
	p.phase(v1alpha1.PhaseReady, "")
}

// TestMountFailure: what the kubelet says about a volume is in the status.
func TestMountFailure(t *testing.T) {
	p := begin(t)
	p.create(strings.Replace(manifest, "{builtin: {name: gocode-7m}}", "{hostPath: {path: /nope}}", 1) + "  speculation: {algorithm: None}\n")
	pod := p.pod(0, "")
	p.bind(pod)
	p.phase(v1alpha1.PhasePulling, "")
	now := metav1.Now()
	if err := k8s.Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: p.namespace, Name: "mount"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.namespace, Name: pod.Name, UID: pod.UID},
		Reason:         "FailedMount", Type: "Warning", Message: `MountVolume.SetUp failed for volume "model" : hostPath type check failed: /nope is not a directory`,
		FirstTimestamp: now, LastTimestamp: now, Count: 1, Source: corev1.EventSource{Component: "kubelet"},
	}); err != nil {
		t.Fatal(err)
	}
	p.phase(v1alpha1.PhaseVolumeUnavailable, "/nope is not a directory")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonVolumeUnavailable)
	p.quiet()
}

// TestGateLost: a model that does not answer any more is taken out of service,
// and comes back when it answers.
func TestGateLost(t *testing.T) {
	p := begin(t)
	pod := p.serving(manifest)
	fake.serves(3, 3, 0, "rank 1 does not answer")
	p.gate(pod, corev1.ConditionFalse)
	p.setStatus(pod, func(s *corev1.PodStatus) { setPodCondition(s, corev1.PodReady, false) })
	p.phase(v1alpha1.PhaseUnverified, "rank 1 does not answer")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonVerificationFailed)
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonNotReady)
	fake.serves(3, 3, 0, "")
	p.ready(pod)
	p.phase(v1alpha1.PhaseReady, "")
}

// scale sets replicas through the scale subresource, and returns what it said.
func (p *play) scale(n int32) *autoscalingv1.Scale {
	p.Helper()
	sc := &autoscalingv1.Scale{}
	if err := k8s.SubResource("scale").Get(p.Context(), p.server(), sc); err != nil {
		p.Fatal(err)
	}
	sc.Spec.Replicas = n
	if err := k8s.SubResource("scale").Update(p.Context(), p.server(), client.WithSubResourceBody(sc)); err != nil {
		p.Fatal(err)
	}
	return sc
}

// TestScale goes through the scale subresource, as kubectl scale and autoscalers do.
func TestScale(t *testing.T) {
	p := begin(t)
	pod0 := p.serving(manifest)
	if sc := p.scale(2); sc.Status.Replicas != 1 || sc.Status.Selector != v1alpha1.LabelServer+"=s" {
		t.Errorf("scale %+v", sc.Status)
	}
	pod1 := p.pod(1, "")
	p.phase(v1alpha1.PhaseUpdating, "1 of 2 replicas serve")
	p.bind(pod1)
	p.ready(pod1)
	if s := p.phase(v1alpha1.PhaseReady, ""); s.Status.Ready != "2/2" || *s.Status.Replicas != 2 {
		t.Errorf("ready %s of %d", s.Status.Ready, *s.Status.Replicas)
	}
	p.scale(1)
	p.gone(pod1)
	p.eventually("one pod", func() string {
		if s := p.server().Status; s.Ready != "1/1" || *s.Replicas != 1 || len(s.Pods) != 1 || s.Phase != v1alpha1.PhaseReady {
			return fmt.Sprintf("%s %s, %d pods", s.Phase, s.Ready, *s.Replicas)
		}
		return ""
	})
	if pod := p.pod(0, ""); pod.UID != pod0.UID {
		t.Error("scaling replaced pod 0")
	}
}

// TestRollout replaces one pod at a time, never with a pod more than asked for.
func TestRollout(t *testing.T) {
	p := begin(t)
	p.create(manifest + "  replicas: 2\n")
	var old []*corev1.Pod
	for i := range 2 {
		pod := p.pod(i, "")
		p.bind(pod)
		p.ready(pod)
		old = append(old, pod)
	}
	p.phase(v1alpha1.PhaseReady, "")
	p.patch(`{"spec":{"parallelism":{"tensor":2}}}`)
	for i := range 2 {
		p.gone(old[i])
		pod := p.pod(i, old[i].UID)
		p.phase(v1alpha1.PhaseUpdating, "1 of 2 replicas serve")
		p.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
		if i == 0 {
			p.condition(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
			if other := p.pod(1, ""); other.UID != old[1].UID || other.DeletionTimestamp != nil {
				t.Error("the second pod went before the first was back")
			}
		}
		p.bind(pod)
		p.ready(pod)
	}
	if s := p.phase(v1alpha1.PhaseReady, ""); *s.Status.UpdatedReplicas != 2 {
		t.Errorf("%d updated", *s.Status.UpdatedReplicas)
	}
}

// TestSurge: with a surge the new pod comes first, on the next ordinal, and goes
// when the rollout has ended.
func TestSurge(t *testing.T) {
	p := begin(t)
	p.create(manifest + "  rollout: {maxSurge: 1}\n")
	old := p.pod(0, "")
	p.bind(old)
	p.ready(old)
	p.phase(v1alpha1.PhaseReady, "")
	p.patch(`{"spec":{"parallelism":{"tensor":2}}}`)
	surge := p.pod(1, "")
	if now := p.pod(0, ""); now.UID != old.UID || now.DeletionTimestamp != nil {
		t.Error("the old pod went before the new one was ready")
	}
	p.bind(surge)
	p.ready(surge)
	p.gone(old)
	pod := p.pod(0, old.UID)
	p.condition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonServing)
	p.bind(pod)
	p.ready(pod)
	p.gone(surge)
	if s := p.phase(v1alpha1.PhaseReady, ""); *s.Status.UpdatedReplicas < 1 {
		t.Errorf("%d updated", *s.Status.UpdatedReplicas)
	}
	p.events("RolloutEnded")
}

// TestCrashBudget: the budget's last crash is final, and its pod stays.
func TestCrashBudget(t *testing.T) {
	p := begin(t)
	p.create(manifest + "  health: {crashBudget: 1}\n")
	pod := p.pod(0, "")
	p.bind(pod)
	p.exits(pod, 12, `{"reason":"OutOfMemory","message":"no room for the KV cache"}`)
	p.phase(v1alpha1.PhaseFailed, "OutOfMemory (exit code 12), once: no room for the KV cache. That is the budget")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFailed)
	p.quiet()
	if now := p.pod(0, ""); now.UID != pod.UID || now.DeletionTimestamp != nil {
		t.Error("the last pod was not kept")
	}
}

// TestNamesTaken: objects of others are never taken over.
func TestNamesTaken(t *testing.T) {
	container := []corev1.Container{{Name: "c", Image: "i"}}
	for _, tt := range []struct {
		name   string
		object client.Object
	}{
		{"service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}},
		{"pod", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "s-0"}, Spec: corev1.PodSpec{Containers: container}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := begin(t)
			tt.object.SetNamespace(p.namespace)
			if err := k8s.Create(t.Context(), tt.object); err != nil {
				t.Fatal(err)
			}
			p.create(manifest)
			p.phase(v1alpha1.PhasePending, "is not this server's: delete it, or give the server another name")
			p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonNameTaken)
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(tt.object), tt.object); err != nil {
				t.Fatal(err)
			}
			if len(tt.object.GetOwnerReferences()) > 0 || tt.object.GetLabels()[v1alpha1.LabelServer] != "" {
				t.Errorf("it was taken over: %v", tt.object)
			}
		})
	}
}

// TestRefused: why the API server refuses the pods is in the status.
func TestRefused(t *testing.T) {
	p := begin(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`))
	if err := k8s.Patch(t.Context(), ns, patch); err != nil {
		t.Fatal(err)
	}
	p.create(strings.Replace(manifest, "{builtin: {name: gocode-7m}}", "{hostPath: {path: /m}}", 1) + "  speculation: {algorithm: None}\n")
	p.phase(v1alpha1.PhasePending, "hostPath")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonPodRefused)
	p.condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonBlocked)
}

// TestServiceRefused: a server whose pods serve and whose Service is refused says
// so in its phase, and is Ready when that is mended.
func TestServiceRefused(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	none := corev1.ResourceList{corev1.ResourceServices: quantity("0")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: none}}
	if err := k8s.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none} // as its controller would
	if err := k8s.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	p.create(manifest)
	p.ready(p.pod(0, ""))
	p.phase(v1alpha1.PhaseDegraded, "1 of 1 replicas serve. The API server refuses Service s:")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonPodRefused)
	if err := k8s.Delete(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	p.eventually("a Service", func() string {
		p.patch(fmt.Sprintf(`{"spec":{"service":{"port":%d}}}`, 8000+time.Now().UnixMilli()%1000)) // sooner than by itself
		time.Sleep(100 * time.Millisecond)
		return unless(k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, &corev1.Service{}) == nil, "none")
	})
	p.phase(v1alpha1.PhaseReady, "Serving")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
}

// TestNoFinalizers: nothing that the operator makes, and no server, waits for the
// operator when it is deleted: both go with its namespace, or without the operator.
func TestNoFinalizers(t *testing.T) {
	p := begin(t)
	p.create(manifest + "  service: {headless: Enabled}\n  disruption: {}\n  networkPolicy: {}\n  autoscaling: {maxReplicas: 2}\n")
	p.pod(0, "")
	var objects int
	for _, list := range []client.ObjectList{&v1alpha1.SpeculativeServerList{}, &corev1.PodList{}, &corev1.ServiceList{}, &corev1.SecretList{},
		&policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}, &autoscalingv2.HorizontalPodAutoscalerList{}} {
		if err := k8s.List(t.Context(), list, client.InNamespace(p.namespace)); err != nil {
			t.Fatal(err)
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			m := o.(client.Object)
			objects++
			if len(m.GetFinalizers()) > 0 {
				t.Errorf("%T %s has the finalizers %v", o, m.GetName(), m.GetFinalizers())
			}
			if _, ok := o.(*v1alpha1.SpeculativeServer); !ok && !metav1.IsControlledBy(m, p.server()) {
				t.Errorf("%T %s stays when the server goes", o, m.GetName())
			}
			return nil
		})
	}
	if objects < 8 {
		t.Errorf("%d objects were seen", objects)
	}
}

// TestRestricted: pods and downloads pass the restricted Pod Security Standard.
func TestRestricted(t *testing.T) {
	p := begin(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.namespace}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`))
	if err := k8s.Patch(t.Context(), ns, patch); err != nil {
		t.Fatal(err)
	}
	p.create(manifest + "  parallelism: {tensor: 2}\n  security: {tlsSecretName: cert, apiKeySecretRef: {name: keys, key: k}}\n")
	p.pod(0, "")
	p.patch(`{"spec":{"model":{"source":{"builtin":null,"s3":{"uri":"s3://models/llama","credentialsSecretRef":{"name":"c","key":"k"}}}},"speculation":{"algorithm":"None"},"modelCache":{"template":{"size":"1Gi"}}}}`)
	p.fetchPod(p.job(""), "s-fetch-a") // admitted, as the Job controller's would be
}

// TestDrift: a Service that someone changes is put right.
func TestDrift(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	p.pod(0, "")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s"}}
	p.eventually("service", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
			return err.Error()
		}
		return ""
	})
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":{"`+v1alpha1.LabelServer+`":"other"}}}`))
	if err := k8s.Patch(t.Context(), svc, patch, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	p.eventually("selector", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
			return err.Error()
		}
		if got := svc.Spec.Selector[v1alpha1.LabelServer]; got != "s" {
			return "it selects " + got
		}
		return ""
	})
}
