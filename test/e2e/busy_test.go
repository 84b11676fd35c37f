//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestFaultBusy: deep probes, of the operator and of anyone else, are no load on a
// server that has more to do than it can; it stays in service and answers every
// request.
func TestFaultBusy(t *testing.T) {
	e := alone(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "OUTRIDER_MAX_RUNNING_REQUESTS", Value: "8"}}
		s.Spec.Health = &v1alpha1.HealthSpec{DeepProbe: &v1alpha1.DeepProbeSpec{IntervalSeconds: new(int32(5)), TimeoutSeconds: new(int32(5))}}
	})
	e.ready()
	pod := e.pod(0)
	since := condition(pod, v1alpha1.ModelVerified).LastTransitionTime
	ready := condition(pod, corev1.PodReady).LastTransitionTime
	stop := e.clients(64)
	e.within(3*time.Minute, "more requests than the engine computes at once", func() string {
		if n := e.metric(pod, "outrider_requests_waiting"); n < 32 {
			return fmt.Sprintf("%.0f wait", n)
		}
		return ""
	})
	// While drafts of clients are verified all the time, a probe has nothing to generate.
	for range 5 {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				text, err := e.admin(pod, "/health_generate")
				if err != nil {
					t.Errorf("a probe of the busy engine: %v", err)
				} else if generated := probed(t, text); generated != 0 {
					t.Errorf("a probe of the busy engine had it generate %d tokens: %s", generated, text)
				}
			})
		}
		wg.Wait()
		time.Sleep(4 * time.Second) // the operator's own probes come too
	}
	stop()
	now := e.pod(0)
	if c := condition(now, v1alpha1.ModelVerified); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&since) {
		t.Errorf("the gate was lost under load: %+v", *c)
	}
	if c := condition(now, corev1.PodReady); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&ready) {
		t.Errorf("the pod was out of service under load: %+v", *c)
	}
}

// probed is how many tokens a deep probe has generated, by its answer.
func probed(t *testing.T, answer string) int {
	var a struct {
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		t.Errorf("%v in %s", err, answer)
	}
	return a.Usage.CompletionTokens
}
