//go:build apiserver

package apiserver

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestAround: the objects around the pods come and go with the fields that ask
// for them, are put right when someone changes them, and cost nothing at rest.
func TestAround(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  disruption: {}\n  networkPolicy: {}\n  service: {headless: Enabled, port: 80}\n  monitoring: {}\n")
	pod := p.pod(0, "")
	p.bind(pod)
	p.ready(pod)
	p.phase(v1alpha1.PhaseReady, "http://s."+p.namespace+".svc:80/v1")
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: p.namespace, Name: name} }
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: meta("s")}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: meta("s")}
	headless := &corev1.Service{ObjectMeta: meta("s-pods")}
	all := []client.Object{budget, policy, headless}
	for _, o := range all {
		p.eventually(fmt.Sprintf("%T", o), func() string {
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err.Error()
			}
			return ""
		})
		if !metav1.IsControlledBy(o, p.server()) {
			t.Errorf("%T is not the server's: %v", o, o.GetOwnerReferences())
		}
	}
	if headless.Spec.ClusterIP != corev1.ClusterIPNone || budget.Spec.MaxUnavailable.IntValue() != 1 || len(policy.Spec.Ingress) != 3 {
		t.Errorf("%+v\n%+v\n%+v", headless.Spec, budget.Spec, policy.Spec)
	}
	p.events("NoPodMonitor") // there is no such kind here, and nothing else minds
	p.quiet()

	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"maxUnavailable":0}}`))
	if err := k8s.Patch(t.Context(), budget, patch, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	p.eventually("budget put right", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(budget), budget); err != nil {
			return err.Error()
		}
		if n := budget.Spec.MaxUnavailable.IntValue(); n != 1 {
			return fmt.Sprint("it allows ", n)
		}
		return ""
	})
	p.patch(`{"spec":{"disruption":null,"networkPolicy":null,"service":null,"monitoring":null}}`)
	for _, o := range all {
		p.eventually(fmt.Sprintf("no %T", o), func() string {
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return fmt.Sprint("it is there: ", err)
			}
			return ""
		})
	}
	if now := p.pod(0, ""); now.UID != pod.UID || now.DeletionTimestamp != nil {
		t.Error("fields that take effect at once restarted the pod")
	}
}

// TestClaimConflict: a claim that the pods would wait for for ever is told before
// there are pods.
func TestClaimConflict(t *testing.T) {
	p := begin(t)
	if err := k8s.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "models"},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}}},
	}); err != nil {
		t.Fatal(err)
	}
	p.create(strings.Replace(manifest, "{builtin: {name: gocode-7m}}", "{pvc: {claimName: models}}", 1) + "  speculation: {algorithm: None}\n  replicas: 2\n")
	p.phase(v1alpha1.PhasePending, "Claim models is ReadWriteOnce")
	p.condition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonVolumeConflict)
	var pods corev1.PodList
	if err := k8s.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods were made, %v", len(pods.Items), err)
	}
	p.patch(`{"spec":{"replicas":1}}`)
	p.pod(0, "")
}

// TestImageVolume: the API server takes the pods of an image volume and of API keys.
func TestImageVolume(t *testing.T) {
	p := begin(t)
	p.create(strings.Replace(manifest, "{builtin: {name: gocode-7m}}", "{image: {name: 'registry.test/m:1', path: llama}}", 1) +
		"  speculation: {algorithm: None}\n  security: {apiKeySecretRef: {name: keys, key: k}}\n  scheduling: {nodeAffinity: [{key: a, operator: Exists}]}\n")
	if pod := p.pod(0, ""); pod.Spec.Volumes[1].Image == nil || pod.Spec.Containers[0].VolumeMounts[1].SubPath != "llama" {
		t.Errorf("%+v", pod.Spec.Volumes)
	}
}
