package decide

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// world carries decisions out on pods that start, stop and crash in a given
// time, and writes down what happens. One step is one second.
type world struct {
	server   *v1alpha1.SpeculativeServer
	revision string
	pods     map[string]*Pod
	age      map[types.UID]int // seconds since a pod was made
	startIn  int               // seconds from made to ready
	stopIn   int               // seconds from deleted to gone
	broken   map[string]string // revision: termination message that its pods end with
	now      time.Time
	serial   int
	log      strings.Builder

	mostPods, fewestReady int
}

func newWorld(replicas int32) *world {
	return &world{
		server: newServer(replicas), revision: "r1", pods: map[string]*Pod{}, age: map[types.UID]int{},
		startIn: 3, stopIn: 2, broken: map[string]string{}, now: t0, fewestReady: 1 << 30,
	}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%3ds  %s\n", int(w.now.Sub(t0).Seconds()), fmt.Sprintf(format, args...))
}

func (w *world) step() {
	w.now = w.now.Add(time.Second)
	for name, p := range w.pods {
		w.age[p.UID]++
		if p.DeletionTimestamp != nil {
			if !w.now.Before(p.DeletionTimestamp.Time) {
				delete(w.pods, name)
			}
			continue
		}
		if w.age[p.UID] == w.startIn && p.Status.Phase == corev1.PodRunning {
			if message, bad := w.broken[p.Labels[v1alpha1.LabelRevision]]; bad {
				exited(w.now, 10, "Error", message)(p)
			} else {
				verifiedAt(w.now)(p)
			}
		}
	}
	in := Input{Server: w.server, Revision: w.revision, Model: "m", Now: w.now}
	for _, p := range w.pods {
		in.Pods = append(in.Pods, *p)
	}
	rand.Shuffle(len(in.Pods), func(i, j int) { in.Pods[i], in.Pods[j] = in.Pods[j], in.Pods[i] })
	d := Decide(in)
	if d.Status.Phase != w.server.Status.Phase || d.Status.Ready != w.server.Status.Ready {
		w.say("%s %s: %s", d.Status.Phase, d.Status.Ready, d.Status.Message)
	}
	for _, del := range d.Delete {
		w.say("delete %s (%s): %s", del.Pod.Name, del.Pod.Labels[v1alpha1.LabelRevision], del.Reason)
		w.pods[del.Pod.Name].DeletionTimestamp = ptr(metav1.NewTime(w.now.Add(time.Duration(w.stopIn) * time.Second)))
	}
	for _, c := range d.Create {
		w.serial++
		p := newPod(int(c.Ordinal))
		p.UID = types.UID(fmt.Sprint("uid", w.serial))
		p.Labels[v1alpha1.LabelRevision] = w.revision
		w.say("create %s (%s)", p.Name, w.revision)
		if w.pods[p.Name] != nil {
			w.say("BUG: there are two %s", p.Name)
		}
		w.pods[p.Name] = &p
	}
	w.server.Status = d.Status
	w.mostPods = max(w.mostPods, len(w.pods))
	w.fewestReady = min(w.fewestReady, int(*d.Status.ReadyReplicas))
}

func (w *world) run(seconds int) {
	for range seconds {
		w.step()
	}
}

func (w *world) change(revision string) {
	w.say("-- the spec changes: %s", revision)
	w.revision = revision
	w.server.Generation++
	w.mostPods, w.fewestReady = 0, 1<<30
}

func (w *world) scale(n int32) {
	w.say("-- scaled to %d", n)
	w.server.Spec.Replicas = &n
}

// TestRollouts are whole rollouts, second by second, as golden logs.
func TestRollouts(t *testing.T) {
	for _, tt := range []struct {
		name        string
		do          func(*world)
		w           *world
		most, fewst int // bounds after the last change: pods at once, ready pods
	}{
		{"one-replica", func(w *world) { w.run(6); w.change("r2"); w.run(12) }, newWorld(1), 1, 0},
		{"three-replicas", func(w *world) { w.run(6); w.change("r2"); w.run(30) }, newWorld(3), 3, 2},
		{"failing-revision", func(w *world) {
			w.broken["r2"] = `{"reason":"ModelNotFound","message":"no such folder","rank":0}`
			w.run(6)
			w.change("r2")
			w.run(30)
			w.change("r3")
			w.run(30)
		}, newWorld(3), 3, 2},
		{"crash-loop", func(w *world) {
			w.broken["r1"] = `{"reason":"FetchFailed","message":"connection reset","rank":0}`
			w.run(90)
		}, newWorld(1), 1, 0},
		{"scale", func(w *world) {
			w.run(6)
			w.scale(2)
			w.run(8)
			w.scale(1)
			w.run(8)
			w.scale(0)
			w.run(5)
		}, newWorld(1), 2, 0},
		{"scale-during-rollout", func(w *world) {
			w.run(6)
			w.change("r2")
			w.run(4)
			w.scale(4)
			w.run(30)
		}, newWorld(3), 4, 2},
		{"change-while-starting", func(w *world) { w.run(2); w.change("r2"); w.run(10) }, newWorld(2), 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.do(tt.w)
			if tt.w.mostPods > tt.most || tt.w.fewestReady < tt.fewst {
				t.Errorf("up to %d pods at once, down to %d ready; allowed are %d and %d", tt.w.mostPods, tt.w.fewestReady, tt.most, tt.fewst)
			}
			path := filepath.Join("testdata", tt.name+".log")
			if *update {
				if err := os.WriteFile(path, []byte(tt.w.log.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), tt.w.log.String()); d != "" {
				t.Errorf("another rollout than %s (go test -update writes it, if the change is meant):\n%s", path, d)
			}
		})
	}
}

// TestRolloutInvariants: whatever happens, there is never a pod more than asked
// for, terminating ones included, and the spec is reached in the end.
func TestRolloutInvariants(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		n := int32(1 + r.Intn(4))
		w := newWorld(n)
		w.startIn, w.stopIn = 1+r.Intn(5), 1+r.Intn(5)
		for range 5 {
			w.run(r.Intn(8))
			w.change(fmt.Sprint("r", r.Intn(4)))
			for _, p := range w.pods { // one pod crashes
				if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && r.Intn(3) == 0 {
					exited(w.now, 13, "Error", "")(p)
					break
				}
			}
		}
		w.run(200)
		if w.mostPods > int(n) || w.server.Status.Phase != v1alpha1.PhaseReady || strings.Contains(w.log.String(), "BUG") {
			t.Fatalf("seed %d: up to %d pods for %d replicas, ends %s:\n%s", seed, w.mostPods, n, w.server.Status.Phase, w.log.String())
		}
	}
}

// TestRestartWaitsForTheRecord: a crashed pod is not deleted before its crash is
// in the written status, even when its back-off is over.
func TestRestartWaitsForTheRecord(t *testing.T) {
	s := newServer(1)
	in := input(s, newPod(0, exited(t0.Add(-time.Hour), 1, "Error", "boom")))
	d := Decide(in)
	if len(d.Delete) != 0 || d.Requeue == 0 {
		t.Fatalf("deleted %v before it was recorded; requeue %s", d.Delete, d.Requeue)
	}
	s.Status = d.Status
	if d = Decide(in); len(d.Delete) != 1 || len(d.Create) != 0 {
		t.Fatalf("after it was recorded: delete %v, create %v", d.Delete, d.Create)
	}
}

func TestNothingWhileDeleting(t *testing.T) {
	s := newServer(2)
	s.DeletionTimestamp = ptr(metav1.NewTime(t0))
	if d := Decide(input(s, newPod(0, ready, stale))); len(d.Create)+len(d.Delete) > 0 || d.Status.Phase != v1alpha1.PhaseTerminating {
		t.Errorf("decided %+v", d)
	}
}

func TestNameTaken(t *testing.T) {
	in := input(newServer(1))
	in.NameTaken = "A Service named ns/s is there."
	d := Decide(in)
	if len(d.Create) > 0 || d.Status.Phase != v1alpha1.PhaseFailed || d.Status.Message != in.NameTaken {
		t.Errorf("create %v, %s: %s", d.Create, d.Status.Phase, d.Status.Message)
	}
}
