//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// volume makes a volume, a folder of the node, for a claim of the test's namespace.
func (e *env) volume(claim string) {
	e.Helper()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: e.namespace},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: e.TempDir()}},
			ClaimRef:                      &corev1.ObjectReference{Namespace: e.namespace, Name: claim},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{e.node().Labels[corev1.LabelHostname]}}},
			}}}},
		},
	}
	if err := k8s.Create(e.Context(), pv); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _, _ = kubectl(context.Background(), "delete", "pv", pv.Name, "--wait=false") })
}

// TestModelCache: two replicas serve from one download into a claim, of which the
// status tells how far it is; a pod that is made anew asks the hub for nothing.
func TestModelCache(t *testing.T) {
	e := begin(t)
	h := &hub{folder: filepath.Join("..", "..", "engine", "fetch", "builtin", "gocode-7m"), rate: 1 << 20}
	address := e.listen(h)
	e.volume("s-models")
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		two := int32(2)
		s.Spec.Replicas = &two
		s.Spec.Model.Source = v1alpha1.ModelSource{HuggingFace: &v1alpha1.HubSource{Repo: "org/code", Endpoint: address}}
		s.Spec.Model.ServedName = "gocode-7m"
		s.Spec.Speculation = v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone}
		s.Spec.ModelCache = &v1alpha1.ModelCacheSpec{Template: &v1alpha1.CacheTemplate{Size: resource.MustParse("1Gi"), AccessMode: corev1.ReadWriteMany}}
		s.Spec.NetworkPolicy = &v1alpha1.NetworkPolicySpec{}
	})
	var seen []int32
	e.within(4*time.Minute, "ready", func() string {
		s := e.server().Status
		if f := s.Fetch; f != nil && f.Phase == v1alpha1.PhaseFetching && f.Percent != nil {
			made := slices.ContainsFunc(s.Pods, func(row v1alpha1.PodStatus) bool { return row.UID != "" })
			if says := fmt.Sprintf("Fetching %d %%", *f.Percent); s.Phase != v1alpha1.PhaseFetching || !strings.Contains(s.Message, says) || made {
				t.Errorf("%s: it is %s, has pods: %v, and says %s", says, s.Phase, made, s.Message)
			}
			if n := len(seen); n == 0 || seen[n-1] != *f.Percent {
				seen = append(seen, *f.Percent)
			}
		}
		if s.Phase == v1alpha1.PhaseReady && s.Ready == "2/2" {
			return ""
		}
		return fmt.Sprintf("it is %s %s: %s", s.Phase, s.Ready, s.Message)
	})
	if len(seen) < 3 || !slices.IsSorted(seen) {
		t.Errorf("percentages seen: %v; want at least three, ascending", seen)
	}
	t.Logf("percentages seen: %v", seen)
	policy := &networkingv1.NetworkPolicy{}
	if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s-fetch"}, policy); err != nil {
		t.Error(err)
	}
	sent := h.sent.Load()
	// What broke in the middle is sent once more at most.
	if size := e.weights(h); !h.broken.Load() || sent > size+4<<20 {
		t.Errorf("of %d bytes of weights %d were sent, with the connection broken: %v; want one download, gone on with", size, sent, h.broken.Load())
	}
	e.checkGolden(false)

	old := e.pod(1)
	if err := k8s.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	e.within(3*time.Minute, "another pod s-1, ready", func() string {
		var p corev1.Pod
		if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s-1"}, &p); err != nil {
			return err.Error()
		}
		if c := condition(&p, corev1.PodReady); p.UID == old.UID || c == nil || c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("it is %+v", c)
		}
		return ""
	})
	if now := h.sent.Load(); now != sent {
		t.Errorf("the new pod downloaded %d bytes of weights", now-sent)
	}
}

// TestAutoscaled: Kubernetes' own autoscaler finds the server through the scale
// subresource and brings it to the fewest replicas that it asks for, for which
// it needs no metrics.
func TestAutoscaled(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		two := int32(2)
		s.Spec.Replicas = nil
		s.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: &two, MaxReplicas: 3}
	})
	e.within(3*time.Minute, "two replicas", func() string {
		s := e.server()
		if s.Status.Ready == "2/2" && s.Status.Phase == v1alpha1.PhaseReady {
			return ""
		}
		return fmt.Sprintf("it is %s %s of %d: %s", s.Status.Phase, s.Status.Ready, *s.Spec.Replicas, s.Status.Message)
	})
	var hpa autoscalingv2.HorizontalPodAutoscaler
	e.within(3*time.Minute, "an autoscaler that can scale", func() string {
		if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s"}, &hpa); err != nil {
			return err.Error()
		}
		for _, c := range hpa.Status.Conditions {
			if c.Type == autoscalingv2.AbleToScale && c.Status == corev1.ConditionTrue {
				return ""
			}
		}
		return fmt.Sprintf("it says %+v", hpa.Status.Conditions)
	})
	if hpa.Status.LastScaleTime == nil {
		t.Errorf("it was not the autoscaler that scaled: %+v", hpa.Status)
	}
}
