//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestFaultGeneration: an engine that answers /readyz and /livez while its model
// generates nothing is taken out of the Service, the others serve on, and it comes
// back when its model answers again; no one restarts it for that.
func TestFaultGeneration(t *testing.T) {
	e := alone(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Replicas = new(int32(2))
		s.Spec.Health = &v1alpha1.HealthSpec{StallTimeoutSeconds: new(int32(600)),
			DeepProbe: &v1alpha1.DeepProbeSpec{IntervalSeconds: new(int32(5)), TimeoutSeconds: new(int32(3))}}
		s.Spec.ExtraVolumes = []v1alpha1.Volume{{Name: "faults", MountPath: "/faults", EmptyDir: &v1alpha1.EmptyDir{}}}
		s.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "OUTRIDER_SIMULATE_HANG", Value: "/faults/hang"}}
	})
	e.settled(2)
	before := e.pod(0)
	e.endpoints(2)

	file := filepath.Join("/var/lib/kubelet/pods", string(before.UID), "volumes/kubernetes.io~empty-dir/x-faults/hang")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	e.within(3*time.Minute, "gate lost", func() string {
		if c := condition(e.pod(0), v1alpha1.ModelVerified); c.Status != corev1.ConditionFalse || c.Reason != "ProbeFailed" {
			return fmt.Sprintf("%+v", *c)
		}
		return ""
	})
	for _, path := range []string{"/readyz", "/livez"} {
		if _, err := e.admin(before, path); err != nil {
			t.Errorf("%s of the engine whose model hangs: %v", path, err)
		}
	}
	if c := condition(e.pod(0), corev1.ContainersReady); c.Status != corev1.ConditionTrue {
		t.Errorf("the kubelet's probes fail: %+v", *c)
	}
	e.endpoints(1)
	s := e.phase(2*time.Minute, v1alpha1.PhaseDegraded, "1 of 2 replicas serve")
	if row := s.Status.Pods[0]; row.Phase != v1alpha1.PhaseUnverified || !strings.Contains(row.Message, "the model does not answer") {
		t.Errorf("row %+v", row)
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonVerificationFailed {
		t.Errorf("%+v", *c)
	}
	e.event(string(v1alpha1.PhaseUnverified), "the model does not answer")
	e.checkGolden(true) // by the other

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	e.settled(2)
	e.endpoints(2)
	p := e.pod(0)
	if row := e.server().Status.Pods[0]; p.UID != before.UID || row.Restarts != 0 || row.FailuresInRow != 0 {
		t.Errorf("the engine was restarted: %+v", row)
	}
	was := condition(before, v1alpha1.ModelVerified).LastTransitionTime
	if c := condition(p, v1alpha1.ModelVerified); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.After(was.Time) {
		t.Errorf("the gate was not set anew: %+v", *c)
	}
	e.checkGolden(true)
}

// endpoints waits until the Service has so many ready endpoints.
func (e *env) endpoints(want int) {
	e.Helper()
	e.within(2*time.Minute, fmt.Sprintf("%d endpoints", want), func() string {
		var slices discoveryv1.EndpointSliceList
		if err := k8s.List(e.Context(), &slices, client.InNamespace(e.namespace), client.MatchingLabels{discoveryv1.LabelServiceName: "s"}); err != nil {
			return err.Error()
		}
		ready := 0
		for _, slice := range slices.Items {
			for _, p := range slice.Endpoints {
				if p.Conditions.Ready != nil && *p.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != want {
			return fmt.Sprintf("%d are ready", ready)
		}
		return ""
	})
}
