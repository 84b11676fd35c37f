//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestFaultCrossover takes a server through the load beyond which drafts cost
// more than they bring, and back. The depth goes to 0 and comes up again, the
// status says so and why, and each time the engine does more with its processors than
// the other way would: than with drafts under the high load, than without under the low.
func TestFaultCrossover(t *testing.T) {
	e := alone(t)
	e.sample(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Parallelism = v1alpha1.ParallelismSpec{}
		s.Spec.ExtraEnv = []v1alpha1.EnvVar{
			{Name: "OUTRIDER_SIMULATE_ACCEPT", Value: "0.9,0.9,0.9"},
			// One thread: on a busy machine threads that wait for one another would make every pass long, whatever it
			// computes, and drafts nearly free.
			{Name: "GOMAXPROCS", Value: "1"},
		}
		s.Spec.Speculation.Adaptation = &v1alpha1.AdaptationSpec{Mode: v1alpha1.AdaptationAuto}
	})
	e.ready()
	low, high := 1, 56 // clients

	stop := e.clients(low)
	e.drafts(true)
	stop()

	stop = e.clients(high)
	e.drafts(false)
	if got := e.worth(v1alpha1.AdaptationFixed); got < 1.03 {
		t.Errorf("%d clients: without drafts there are %.2f times the tokens of always drafting", high, got)
	}
	e.within(2*time.Minute, "a bound for all replicas", func() string {
		f := e.server().Status.Speculation
		if f.Reason == "RequestsQueue" && *f.MaxSteps < 3 {
			return ""
		}
		return fmt.Sprintf("up to %d steps, %s: %s", *f.MaxSteps, f.Reason, f.Detail)
	})
	e.event("SpeculationBounds", "RequestsQueue")
	stop()

	stop = e.clients(low)
	e.drafts(true)
	if got := e.worth(v1alpha1.AdaptationOff); got < 1.03 {
		t.Errorf("%d client: with drafts there are %.2f times the tokens of plain decoding", low, got)
	}
	stop()
	if row := e.server().Status.Pods[0]; row.Restarts != 0 {
		t.Errorf("the engine was restarted: %+v", row)
	}
}

// drafts waits until the status says that the engines draft, or that they do not
// under their load.
func (e *env) drafts(want bool) {
	e.Helper()
	e.within(3*time.Minute, fmt.Sprintf("drafts: %v", want), func() string {
		s := e.server()
		f, c := s.Status.Speculation, meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionSpeculationActive)
		if f == nil || f.NumSteps == nil {
			return "no figures"
		}
		says := fmt.Sprintf("depth %d, %s tokens/s, gain %s, up to %d steps, %s: %s; %s, %s", *f.NumSteps, f.TokensPerSecond, f.Gain, *f.MaxSteps, f.Reason, f.Detail, c.Reason, c.Message)
		if want && *f.NumSteps > 0 && c.Status == metav1.ConditionTrue ||
			!want && *f.NumSteps == 0 && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonOff {
			e.Log(says)
			return ""
		}
		return says
	})
}

// worth is how many times the tokens of another mode the server generates in mode
// Auto, under the load that it has, over turns of both. What counts is tokens by
// the engine's own processor time: how much of it the machine grants differs from
// turn to turn where others compute too.
func (e *env) worth(other v1alpha1.AdaptationMode) float64 {
	e.Helper()
	const turns, turn = 3, 5 * time.Second
	pod := e.pod(0)
	var auto, fixed work
	for range turns {
		auto.add(e.work(pod, turn))
		e.mode(other)
		fixed.add(e.work(pod, turn))
		e.mode(v1alpha1.AdaptationAuto)
		e.drafts(other == v1alpha1.AdaptationOff)
	}
	e.Logf("mode Auto: %.0f tokens/s, %.0f by second of processor time; mode %s: %.0f, %.0f", auto.tokens/auto.seconds, auto.tokens/auto.cpu,
		other, fixed.tokens/fixed.seconds, fixed.tokens/fixed.cpu)
	return auto.tokens / auto.cpu / (fixed.tokens / fixed.cpu)
}

// work is what an engine did in a while.
type work struct{ tokens, cpu, seconds float64 }

func (w *work) add(v work) {
	w.tokens, w.cpu, w.seconds = w.tokens+v.tokens, w.cpu+v.cpu, w.seconds+v.seconds
}

// work measures the engine of a pod for a while.
func (e *env) work(p *corev1.Pod, d time.Duration) work {
	e.Helper()
	look := func() work {
		return work{e.metric(p, "outrider_generation_tokens_total"), e.metric(p, "process_cpu_seconds_total"), 0}
	}
	start, before := time.Now(), look()
	time.Sleep(d)
	after := look()
	return work{after.tokens - before.tokens, after.cpu - before.cpu, time.Since(start).Seconds()}
}

// mode asks for a mode, and waits until the engine has confirmed it.
func (e *env) mode(m v1alpha1.AdaptationMode) {
	e.Helper()
	e.patch(fmt.Sprintf(`{"spec":{"speculation":{"adaptation":{"mode":%q}}}}`, m))
	e.within(2*time.Minute, "mode "+string(m), func() string {
		s := e.server()
		if f := s.Status.Speculation; f == nil || f.Mode != m || f.Confirmed != "1/1" || s.Status.ObservedGeneration != s.Generation {
			return fmt.Sprintf("%+v", f)
		}
		return ""
	})
}
