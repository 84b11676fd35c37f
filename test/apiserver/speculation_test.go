//go:build apiserver

package apiserver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestAdaptation: a change of the bounds reaches the engine that runs, is
// confirmed, restarts nothing, and is given again to an engine that has forgotten.
func TestAdaptation(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	pod := p.serving(manifest)
	if got := fake.held(); got != "fixed 0 3" {
		t.Errorf("an engine of which the spec says nothing was held to %s", got)
	}
	bounds := func(engine, status string) {
		t.Helper()
		p.eventually("bounds "+engine, func() string {
			if got := fake.held(); got != engine {
				return "the engine is held to " + got
			}
			f := p.server().Status.Speculation
			if f == nil || f.MaxSteps == nil {
				return "the status has none"
			}
			if got := fmt.Sprintf("%s %d %s %s", f.Mode, *f.MaxSteps, f.Reason, f.Confirmed); got != status {
				return "the status says " + got
			}
			return ""
		})
	}
	p.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Auto","maxSteps":2}}}}`)
	bounds("auto 0 2", "Auto 2 Unrestricted 1/1")
	fake.fresh() // as a restarted engine
	bounds("auto 0 2", "Auto 2 Unrestricted 1/1")

	fake.loaded(10, 0, 0.99, 1.2) // the cache is full: no drafts, at once
	bounds("auto 0 0", "Auto 0 KVCacheFull 1/1")
	p.events("SpeculationBounds")
	p.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Off","maxSteps":null}}}}`)
	bounds("off 0 3", "Off 0  1/1")
	p.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Fixed"}}}}`)
	bounds("fixed 0 3", "Fixed 3  1/1")
	p.patch(`{"spec":{"speculation":{"adaptation":null}}}`) // the default is Auto, and the cache is still full
	bounds("auto 0 0", "Auto 0 KVCacheFull 1/1")
	if now := p.pod(0, ""); now.UID != pod.UID || now.DeletionTimestamp != nil {
		t.Error("the pod was restarted")
	}
	fake.serves(3, 3.31, 118, "")
	p.quiet()
}

// TestFiguresAtIntervals: figures that change all the time are written, and not each
// time.
func TestFiguresAtIntervals(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3, 100, "")
	p.serving(manifest)
	statuses := func() (n int) {
		for _, w := range writes.of(p.namespace) {
			if strings.Contains(w, "speculativeservers/s/status") {
				n++
			}
		}
		return n
	}
	before, start, i, last := statuses(), time.Now(), 0, ""
	p.eventually("ten writes of figures", func() string {
		i++
		last = fmt.Sprint(100 * (1 + i%9))
		fake.serves(3, 3, 100*float64(1+i%9), "")
		n := statuses() - before
		return unless(n >= 10, fmt.Sprintf("there were %d", n))
	})
	if written, most := statuses()-before, int(time.Since(start)/softWrites)+2; written > most {
		t.Errorf("%d writes of figures in %s, want at most %d", written, time.Since(start), most)
	}
	p.eventually("the last figure", func() string {
		if got := p.server().Status.Speculation.TokensPerSecond; got != last {
			return got
		}
		return ""
	})
}

// TestBadDraft: a draft that does not fit is left out, the model serves, and the
// condition says why.
func TestBadDraft(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	first := p.pod(0, "")
	p.bind(first)
	p.exits(first, 11, `{"reason":"DraftMismatch","message":"hidden_size is 64, but the target's is 128","rank":0}`)
	p.gone(first)
	second := p.pod(0, first.UID)
	if args := strings.Join(second.Spec.Containers[0].Args, " "); !strings.Contains(args, "--speculative-algorithm=none") {
		t.Errorf("the second pod has %s", args)
	}
	p.bind(second)
	p.ready(second)
	p.phase(v1alpha1.PhaseReady, "")
	p.condition(v1alpha1.ConditionSpeculationActive, metav1.ConditionFalse, v1alpha1.ReasonDraftFailed)
	p.events("DraftFailed")
	p.patch(`{"spec":{"speculation":{"numSteps":2}}}`)
	p.gone(second)
	third := p.pod(0, second.UID)
	if args := strings.Join(third.Spec.Containers[0].Args, " "); !strings.Contains(args, "--speculative-algorithm=eagle3") {
		t.Errorf("another spec does not try its draft again: %s", args)
	}
	if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, &v1alpha1.SpeculativeServer{}); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := k8s.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil || len(pods.Items) != 1 {
		t.Errorf("%d pods, %v", len(pods.Items), err)
	}
}
