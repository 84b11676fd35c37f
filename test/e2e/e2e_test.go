//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestFirstLight is the newcomer's way: apply, Ready, the golden completions
// through the Service, the columns of kubectl get, and nothing left after delete.
func TestFirstLight(t *testing.T) {
	e := begin(t)
	e.sample(nil)
	s := e.ready()
	for _, c := range []string{v1alpha1.ConditionAvailable, v1alpha1.ConditionModelLoaded} {
		if !meta.IsStatusConditionTrue(s.Status.Conditions, c) {
			t.Errorf("%s is not True: %+v", c, s.Status.Conditions)
		}
	}
	if p := e.pod(0); !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.ModelVerified && c.Status == corev1.ConditionTrue
	}) {
		t.Errorf("ready without the gate: %+v", p.Status.Conditions)
	}
	e.checkTexts()
	e.figures(func(depth int32, accept float64) bool { return depth <= 3 && accept >= 1 })

	out, err := kubectl(t.Context(), "get", "speculativeservers", "-n", e.namespace)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(out, "\n")
	if got := strings.Fields(lines[0]); !slices.Equal(got, []string{"NAME", "PHASE", "READY", "DEPTH", "ACCEPT", "TOK/S", "AGE"}) {
		t.Errorf("columns %v", got)
	}
	if row := strings.Fields(lines[1]); len(row) != 7 || row[1] != "Ready" || row[2] != "1/1" || !strings.Contains("0123", row[3]) {
		t.Errorf("row %v", row)
	}
	e.quiet()
	e.deleted()
}

// figures keeps the server busy until the status has what speculation is worth,
// and ok of it.
func (e *env) figures(ok func(depth int32, accept float64) bool) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.Context())
	done := make(chan error, 1)
	address := e.address()
	go func() {
		for {
			if _, err := complete(ctx, address, "package main\n\nimport (\n", 200); err != nil {
				done <- err
				return
			}
		}
	}()
	e.within(2*time.Minute, "figures in the status", func() string {
		f := e.server().Status.Speculation
		if f == nil || f.NumSteps == nil {
			return "there are none"
		}
		accept, _ := strconv.ParseFloat(f.AcceptLength, 64)
		rate, _ := strconv.ParseFloat(f.TokensPerSecond, 64)
		if ok(*f.NumSteps, accept) && accept <= 4 && rate > 0 {
			e.Logf("depth %d, accept length %s, %s tokens/s", *f.NumSteps, f.AcceptLength, f.TokensPerSecond)
			return ""
		}
		return fmt.Sprintf("depth %d, accept length %q, %q tokens/s", *f.NumSteps, f.AcceptLength, f.TokensPerSecond)
	})
	cancel()
	if err := <-done; err != nil && ctx.Err() == nil {
		e.Error(err)
	}
	e.within(3*time.Minute, "0 tokens/s when idle", func() string {
		if f := e.server().Status.Speculation; f.TokensPerSecond != "0" {
			return f.TokensPerSecond
		}
		return ""
	})
}

// quiet checks that an idle server's objects come to rest: the last figures of a
// load are written when it is over, and then nothing.
func (e *env) quiet() {
	e.Helper()
	e.noWrites(15 * time.Second)
}

// deleted deletes the server and waits until nothing of it is left.
func (e *env) deleted() {
	e.Helper()
	if err := k8s.Delete(e.Context(), e.server()); err != nil {
		e.Fatal(err)
	}
	e.within(2*time.Minute, "nothing left", func() string {
		left := []string{}
		for _, list := range []client.ObjectList{
			&v1alpha1.SpeculativeServerList{}, &corev1.PodList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.PersistentVolumeClaimList{},
		} {
			if err := k8s.List(e.Context(), list, client.InNamespace(e.namespace)); err != nil {
				return err.Error()
			}
			if n := meta.LenList(list); n > 0 {
				left = append(left, fmt.Sprintf("%d %T", n, list))
			}
		}
		return strings.Join(left, ", ")
	})
}

// TestKilled: the status says that the engine was killed, and it comes back.
func TestKilled(t *testing.T) {
	e := begin(t)
	e.quickstart(nil)
	e.ready()
	before := e.pod(0)
	e.signal(before, "SIGKILL")
	s := e.phase(2*time.Minute, v1alpha1.PhaseCrashed, "Killed (exit code 137), once: signal 9 ended the engine")
	row := s.Status.Pods[0]
	if row.Restarts != 1 || row.LastFailure.PodUID != string(before.UID) || *row.LastFailure.ExitCode != 137 || row.NextStartTime == nil {
		t.Errorf("row %+v", row)
	}
	if meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionAvailable) {
		t.Error("Available while no engine runs")
	}
	if out, err := kubectl(t.Context(), "logs", "-n", e.namespace, "s-0"); err != nil || out == "" {
		t.Errorf("the log of the crashed engine cannot be read: %v: %s", err, out)
	}
	s = e.ready()
	if row := s.Status.Pods[0]; row.Restarts != 1 || row.UID == string(before.UID) || row.LastFailure == nil {
		t.Errorf("row %+v", row)
	}
	e.checkGolden(true)
}

// TestStopped: a stopped process is noticed and replaced.
func TestStopped(t *testing.T) {
	e := begin(t)
	e.quickstart(nil)
	e.ready()
	e.signal(e.pod(0), "SIGSTOP")
	e.within(2*time.Minute, "noticed", func() string {
		switch s := e.server().Status; s.Phase {
		case v1alpha1.PhaseStalled, v1alpha1.PhaseCrashed, v1alpha1.PhaseUnverified:
			return ""
		default:
			return fmt.Sprintf("it is %s: %s", s.Phase, s.Message)
		}
	})
	e.within(2*time.Minute, "healed", func() string {
		if s := e.server().Status; s.Phase != v1alpha1.PhaseReady || s.Pods[0].Restarts != 1 {
			return fmt.Sprintf("it is %s with %d restarts: %s", s.Phase, s.Pods[0].Restarts, s.Message)
		}
		return ""
	})
}

func folder(path string) func(*v1alpha1.SpeculativeServer) {
	return func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Model.Source = v1alpha1.ModelSource{HostPath: &v1alpha1.HostPath{Path: path}}
		s.Spec.Speculation = v1alpha1.SpeculationSpec{Algorithm: v1alpha1.AlgorithmNone}
	}
}

// TestNoFolder: a model path that does not exist has a clear reason, the pod
// waits for the folder, and nothing loops.
func TestNoFolder(t *testing.T) {
	e := begin(t)
	path := filepath.Join("/var/lib", e.namespace)
	e.quickstart(folder(path))
	s := e.phase(2*time.Minute, v1alpha1.PhaseVolumeUnavailable, path+" is not a directory")
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonVolumeUnavailable || c.ObservedGeneration != s.Generation {
		t.Errorf("%+v", *c)
	}
	e.standsStill()
}

// TestEmptyFolder: a folder without a model ends the tries, with the engine's
// own reason; putting it right in the spec starts anew.
func TestEmptyFolder(t *testing.T) {
	e := begin(t)
	path := filepath.Join("/var/lib", e.namespace)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	e.quickstart(folder(path))
	s := e.phase(3*time.Minute, v1alpha1.PhaseFailed, "ModelNotFound (exit code 10)")
	t.Log(s.Status.Message)
	c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonModelNotFound {
		t.Errorf("%+v", *c)
	}
	e.standsStill()
	e.patch(`{"spec":{"model":{"source":{"hostPath":null,"builtin":{"name":"gocode-7m"}}}}}`)
	e.ready()
	e.checkGolden(false)
}

// standsStill checks that nothing is tried again and again.
func (e *env) standsStill() {
	e.Helper()
	count := func() (n int) {
		var list eventsv1.EventList
		if err := k8s.List(e.Context(), &list, client.InNamespace(e.namespace)); err != nil {
			e.Fatal(err)
		}
		for _, ev := range list.Items {
			if ev.ReportingController == "outrider" {
				n++
			}
		}
		return n
	}
	time.Sleep(2 * time.Second) // events are sent in the background
	pod, version, events := e.pod(0), e.server().ResourceVersion, count()
	time.Sleep(15 * time.Second)
	if now := e.pod(0); now.UID != pod.UID || now.DeletionTimestamp != nil {
		e.Error("the pod was replaced")
	}
	if v := e.server().ResourceVersion; v != version {
		e.Errorf("the status went on being written: version %s, then %s", version, v)
	}
	if n := count(); n != events || n == 0 {
		e.Errorf("%d events of the operator, then %d", events, n)
	}
}

// TestSlowLoad: while a model loads, the status says how far.
func TestSlowLoad(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.ExtraEnv = []v1alpha1.EnvVar{{Name: "OUTRIDER_SIMULATE_LOAD_RATE", Value: "500000"}}
	})
	var seen []int32
	e.within(3*time.Minute, "ready", func() string {
		s := e.server().Status
		if s.Phase == v1alpha1.PhaseLoading && len(s.Pods) == 1 && s.Pods[0].Percent != nil {
			if !strings.HasPrefix(s.Message, fmt.Sprintf("Loading %d %%", *s.Pods[0].Percent)) {
				t.Errorf("message %q at %d %%", s.Message, *s.Pods[0].Percent)
			}
			if n := len(seen); n == 0 || seen[n-1] != *s.Pods[0].Percent {
				seen = append(seen, *s.Pods[0].Percent)
			}
		}
		if s.Phase == v1alpha1.PhaseReady {
			return ""
		}
		return fmt.Sprintf("it is %s: %s", s.Phase, s.Message)
	})
	if len(seen) < 3 || !slices.IsSorted(seen) {
		t.Errorf("percentages seen: %v; want at least three, ascending", seen)
	}
	t.Logf("percentages seen: %v", seen)
	if row := e.server().Status.Pods[0]; row.Restarts != 0 {
		t.Errorf("a slow load was restarted: %+v", row)
	}
}

// TestNoCapacity: a pod that no node has room for is told apart from one that loads.
func TestNoCapacity(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Resources = &v1alpha1.Resources{Requests: map[corev1.ResourceName]resource.Quantity{"cpu": resource.MustParse("1000")}}
	})
	s := e.phase(2*time.Minute, v1alpha1.PhaseWaitingForCapacity, "Insufficient cpu")
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason != v1alpha1.ReasonUnschedulable {
		t.Errorf("%+v", *c)
	}
	e.patch(`{"spec":{"resources":{"requests":{"cpu":"10m"}}}}`)
	e.ready()
}

// TestNoImage: an image that cannot be pulled is told apart from a slow pull.
func TestNoImage(t *testing.T) {
	e := begin(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) { s.Spec.Image = "registry.invalid/outrider-engine:none" })
	e.phase(2*time.Minute, v1alpha1.PhaseImageUnavailable, "registry.invalid/outrider-engine:none")
}

// TestScaleAndRollout: 1, 2, a changed spec, 1; at least one replica serves at
// every moment in between, and the text stays the same.
func TestScaleAndRollout(t *testing.T) {
	e := begin(t)
	e.quickstart(nil)
	e.ready()
	first := e.pod(0).UID
	scale := func(n int) {
		t.Helper()
		if out, err := kubectl(t.Context(), "scale", "specsrv/s", "-n", e.namespace, fmt.Sprintf("--replicas=%d", n)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	served := func(want string) {
		t.Helper()
		e.within(2*time.Minute, "ready "+want, func() string {
			s := e.server()
			if s.Status.Phase != v1alpha1.PhaseReady || s.Status.Ready != want || fmt.Sprint(*s.Status.Replicas) != want[:1] || s.Status.ObservedGeneration != s.Generation {
				return fmt.Sprintf("it is %s %s of %d: %s", s.Status.Phase, s.Status.Ready, *s.Status.Replicas, s.Status.Message)
			}
			return ""
		})
	}
	scale(2)
	served("2/2")
	if e.pod(0).UID != first {
		t.Error("scaling up replaced the first pod")
	}
	e.checkGolden(true)

	stop, unloaded := e.watchPods(), e.load()
	e.patch(`{"spec":{"speculation":{"numSteps":2}}}`)
	served("2/2")
	if answered, errs := unloaded(); answered == 0 || len(errs) > 0 {
		t.Errorf("during the rollout %d requests were answered, and %d failed: %v", answered, len(errs), errs)
	}
	if most, fewest := stop(); most > 2 || fewest < 1 {
		t.Errorf("during the rollout there were up to %d pods, and down to %d ready", most, fewest)
	}
	if e.pod(0).UID == first {
		t.Error("the first pod is still of the old spec")
	}
	e.checkGolden(true)

	scale(1)
	served("1/1")
	e.checkGolden(true)
	e.deleted()
}
