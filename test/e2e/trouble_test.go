//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestOutOfMemory: an engine that does not fit into its memory limit says so before
// it begins, and one that the kernel ends there is not just any crash: the status
// says which limit to raise, and raising it heals.
func TestOutOfMemory(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("16Mi")
		s.Spec.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("16Mi")
		s.Spec.Parallelism = v1alpha1.ParallelismSpec{} // shared memory of ranks would add to the limit
	})
	s := e.phase(3*time.Minute, v1alpha1.PhaseCrashed, "OutOfMemory (exit code 12)")
	if !strings.Contains(s.Status.Message, "give it more memory") {
		t.Errorf("message %q", s.Status.Message)
	}
	// All of the limit is for weights and cache. That is enough to start, and not for prompts of many megabytes at once.
	e.patch(`{"spec":{"kvCache":{"memoryFraction":"1"},"resources":{"requests":{"memory":"64Mi"},"limits":{"memory":"64Mi"}}}}`)
	e.ready()
	body, err := json.Marshal(map[string]any{"model": "gocode-7m", "prompt": strings.Repeat("var x int\n", 700_000), "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s:8000/v1/completions", e.pod(0).Status.PodIP)
	for range 16 {
		go func() { _ = post(t.Context(), url, body) }() // it ends with the engine
	}
	s = e.phase(3*time.Minute, v1alpha1.PhaseCrashed, "raise spec.resources.limits.memory")
	row := s.Status.Pods[0]
	if row.LastFailure == nil || row.LastFailure.Reason != "OutOfMemory" || *row.LastFailure.ExitCode != 137 || row.NextStartTime == nil {
		t.Errorf("row %+v, failure %+v", row, row.LastFailure)
	}
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonCrashed {
		t.Errorf("%+v", *c)
	}
	e.event(string(v1alpha1.PhaseCrashed), "OutOfMemory")
	e.patch(`{"spec":{"kvCache":null,"resources":{"requests":{"memory":"128Mi"},"limits":{"memory":"512Mi"}}}}`)
	if s := e.ready(); s.Status.Pods[0].FailingSince != nil {
		t.Errorf("row %+v", s.Status.Pods[0])
	}
	e.checkGolden(true)
}

// TestWrongDraft: a draft head of another model costs its speed-up and nothing
// else: the texts are those of plain decoding, and the status says why.
func TestWrongDraft(t *testing.T) {
	e := begin(t)
	head := filepath.Join("..", "..", "engine", "fetch", "builtin", "gocode-7m-eagle3")
	dir := filepath.Join("/var/lib", e.namespace)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var config map[string]any
	for _, file := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(head, file))
		if err != nil {
			t.Fatal(err)
		}
		if file == "config.json" {
			if err := json.Unmarshal(b, &config); err != nil {
				t.Fatal(err)
			}
			config["hidden_size"] = 2 * config["hidden_size"].(float64) // of a larger model's head
			if b, err = json.Marshal(config); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Speculation.Draft = &v1alpha1.DraftSpec{Source: v1alpha1.DraftSource{HostPath: &v1alpha1.HostPath{Path: dir}}}
	})
	s := e.ready()
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionSpeculationActive)
	if c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonDraftFailed || s.Status.DraftFailure == nil {
		t.Fatalf("%+v, %+v", *c, s.Status.DraftFailure)
	}
	t.Log(c.Message)
	e.event(v1alpha1.ReasonDraftFailed, "Serving without the draft")
	e.checkGolden(false)
	e.patch(`{"spec":{"speculation":{"draft":null}}}`)
	e.within(2*time.Minute, "the head of the model itself", func() string {
		s := e.server()
		if s.Status.Phase != v1alpha1.PhaseReady || s.Status.DraftFailure != nil || s.Status.ObservedGeneration != s.Generation ||
			!meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionSpeculationActive) {
			return fmt.Sprintf("%s: %s, %+v", s.Status.Phase, s.Status.Message, s.Status.DraftFailure)
		}
		return ""
	})
	e.checkGolden(true)
}

// TestDeletedWhileLoading: a server that is deleted while its model loads leaves
// nothing, and need not load to the end first.
func TestDeletedWhileLoading(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "OUTRIDER_SIMULATE_LOAD_RATE", Value: "50000"}} // some minutes
	})
	e.phase(3*time.Minute, v1alpha1.PhaseLoading, "Loading")
	e.deleted()
}

// TestGateLost: an engine that falls silent loses its readiness gate, and has it
// back only after its model has generated anew; no one restarts it for that.
func TestGateLost(t *testing.T) {
	e := begin(t)
	e.quickstart(nil)
	e.ready()
	before := e.pod(0)
	since := condition(before, v1alpha1.ModelVerified).LastTransitionTime
	e.signal(before, "SIGSTOP")
	e.within(2*time.Minute, "gate lost", func() string {
		c := condition(e.pod(0), v1alpha1.ModelVerified)
		if c.Status == corev1.ConditionFalse && c.Reason == "Silent" {
			return ""
		}
		return fmt.Sprintf("%+v", *c)
	})
	e.signal(before, "SIGCONT")
	e.within(3*time.Minute, "gate regained", func() string {
		p, s := e.pod(0), e.server()
		c := condition(p, v1alpha1.ModelVerified)
		if c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(since.Time) && s.Status.Phase == v1alpha1.PhaseReady {
			return ""
		}
		return fmt.Sprintf("%+v, %s: %s", *c, s.Status.Phase, s.Status.Message)
	})
	if p, row := e.pod(0), e.server().Status.Pods[0]; p.UID != before.UID || row.Restarts != 0 {
		t.Errorf("the engine was restarted: %+v", row)
	}
	e.checkGolden(true)
}
