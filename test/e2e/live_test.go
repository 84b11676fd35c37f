//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestLiveSpeculation: what the spec says of the depth reaches the engine that
// runs, changes no text, restarts nothing, and is given again to an engine that
// was killed. The objects around the pods are made by the operator's own rights.
func TestLiveSpeculation(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Disruption, s.Spec.NetworkPolicy = &v1alpha1.DisruptionSpec{}, &v1alpha1.NetworkPolicySpec{}
		s.Spec.Monitoring = &v1alpha1.MonitoringSpec{}
	})
	e.ready()
	before := e.pod(0)
	depth := func(want int32, mode v1alpha1.AdaptationMode) {
		t.Helper()
		e.within(2*time.Minute, fmt.Sprintf("mode %s, depth %d", mode, want), func() string {
			f := e.server().Status.Speculation
			if f == nil || f.NumSteps == nil {
				return "no figures"
			}
			if *f.NumSteps != want || f.Mode != mode || f.Confirmed != "1/1" {
				return fmt.Sprintf("mode %s, depth %d, confirmed %s", f.Mode, *f.NumSteps, f.Confirmed)
			}
			return ""
		})
	}
	e.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Off"}}}}`)
	depth(0, v1alpha1.AdaptationOff)
	e.checkGolden(false)
	e.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Fixed"}}}}`)
	depth(3, v1alpha1.AdaptationFixed)
	e.checkGolden(true)
	e.figures(func(depth int32, accept float64) bool { return depth == 3 && accept > 1 })
	if now := e.pod(0); now.UID != before.UID {
		t.Error("a change of the depth restarted the pod")
	}
	e.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Off"}}}}`)
	depth(0, v1alpha1.AdaptationOff)
	e.signal(before, "SIGKILL")
	e.within(2*time.Minute, "another pod", func() string {
		if s := e.server(); s.Status.Phase != v1alpha1.PhaseReady || s.Status.Pods[0].UID == string(before.UID) {
			return fmt.Sprintf("%s: %s", s.Status.Phase, s.Status.Message)
		}
		return ""
	})
	depth(0, v1alpha1.AdaptationOff)
	for _, o := range []client.Object{&policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}} {
		if err := k8s.Get(t.Context(), client.ObjectKey{Namespace: e.namespace, Name: "s"}, o); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
	e.deleted()
}
