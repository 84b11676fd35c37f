package decide

import (
	"flag"
	"fmt"
	"maps"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	devices  int               // pods that find room; 0: all
	slow     bool              // a load shows its progress
	stuck    map[string]bool   // names of pods that do not stop
	busy     map[string]int    // requests that a pod has
	now      time.Time
	serial   int
	log      strings.Builder

	mostPods, fewestReady int
}

func newWorld(replicas int32) *world {
	return &world{
		server: newServer(replicas), revision: "r1", pods: map[string]*Pod{}, age: map[types.UID]int{},
		startIn: 3, stopIn: 2, broken: map[string]string{}, now: t0, fewestReady: 1 << 30,
		stuck: map[string]bool{}, busy: map[string]int{},
	}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%3ds  %s\n", int(w.now.Sub(t0).Seconds()), fmt.Sprintf(format, args...))
}

// step lets a second pass: nodes act, then the operator does.
func (w *world) step() {
	w.now = w.now.Add(time.Second)
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		w.act(name, w.pods[name])
	}
	in := Input{Server: w.server, Revision: w.revision, Model: "m", Port: 8000, Now: w.now}
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		in.Pods = append(in.Pods, *w.pods[name])
	}
	// In any order, but in the same one each time that the test runs.
	rand.New(rand.NewSource(w.now.Unix())).Shuffle(len(in.Pods), func(i, j int) { in.Pods[i], in.Pods[j] = in.Pods[j], in.Pods[i] })
	d := Decide(in)
	if d.Status.Phase != w.server.Status.Phase || d.Status.Ready != w.server.Status.Ready {
		w.say("%s %s: %s", d.Status.Phase, d.Status.Ready, d.Status.Message)
	}
	if why := blocked(&d.Status); why != "" && why != blocked(&w.server.Status) {
		w.say("blocked: %s", why)
	}
	for _, del := range d.Delete {
		w.say("delete %s (%s): %s", del.Pod.Name, del.Pod.Labels[v1alpha1.LabelRevision], del.Reason)
		if del.Force {
			delete(w.pods, del.Pod.Name)
			continue
		}
		w.pods[del.Pod.Name].DeletionTimestamp = ptr(metav1.NewTime(w.now.Add(time.Duration(w.stopIn) * time.Second)))
	}
	for _, c := range d.Create {
		w.serial++
		p := newPod(int(c.Ordinal), pendingPod("", "", ""))
		p.UID = types.UID(fmt.Sprint("uid", w.serial))
		p.Labels[v1alpha1.LabelRevision] = w.revision
		w.say("create %s (%s)", p.Name, w.revision)
		if w.pods[p.Name] != nil {
			w.say("BUG: there are two %s", p.Name)
		}
		w.pods[p.Name] = &p
		w.place(&p)
	}
	w.server.Status = d.Status
	w.mostPods = max(w.mostPods, len(w.pods))
	w.fewestReady = min(w.fewestReady, int(*d.Status.ReadyReplicas))
}

// act is what the scheduler and the pod's node do in a second.
func (w *world) act(name string, p *Pod) {
	if p.DeletionTimestamp != nil {
		if !w.now.Before(p.DeletionTimestamp.Time) && !w.stuck[name] {
			delete(w.pods, name)
		}
		return
	}
	w.place(p)
	if p.Status.Phase != corev1.PodRunning {
		return
	}
	age := w.age[p.UID] + 1
	w.age[p.UID] = age
	engine := Engine{Metrics: &Metrics{Running: float64(w.busy[name])}}
	message, bad := w.broken[p.Labels[v1alpha1.LabelRevision]]
	switch {
	case age == w.startIn && bad:
		exited(w.now, 10, "Error", message)(p)
	case age == w.startIn:
		verifiedAt(w.now)(p)
		engine.Progress = &Progress{Phase: "serving"}
	case age < w.startIn && w.slow:
		engine.Progress = &Progress{Phase: "load", Percent: float64(100 * age / w.startIn), LastAdvance: w.now}
	}
	p.Engine = &engine
}

// place schedules a pod if there is room.
func (w *world) place(p *Pod) {
	if p.Spec.NodeName != "" {
		return
	}
	used := 0
	for _, q := range w.pods {
		if q.Spec.NodeName != "" {
			used++
		}
	}
	p.Status.Conditions = nil
	if w.devices > 0 && used >= w.devices {
		with(corev1.PodScheduled, corev1.ConditionFalse, w.now, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")(p)
		return
	}
	p.Spec.NodeName, p.Status.Phase = "node1", corev1.PodRunning
}

// blocked is why nothing goes on.
func blocked(s *v1alpha1.SpeculativeServerStatus) string {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionProgressing && c.Reason == v1alpha1.ReasonBlocked {
			return c.Message
		}
	}
	return ""
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

// life is what happens to a server, with bounds on what was there since the last
// change of its spec.
type life struct {
	name         string
	replicas     int32
	do           func(*world)
	most, fewest int // pods at once, ready pods
}

// replaced are lives in which pods are replaced, or come and go.
var replaced = []life{
	{"one-replica", 1, func(w *world) { w.run(6); w.change("r2"); w.run(12) }, 1, 0},
	{"three-replicas", 3, func(w *world) { w.run(6); w.change("r2"); w.run(30) }, 3, 2},
	{"scale", 1, func(w *world) {
		w.run(6)
		w.scale(2)
		w.run(8)
		w.scale(1)
		w.run(8)
		w.scale(0)
		w.run(5)
	}, 2, 0},
	{"scale-during-rollout", 3, func(w *world) {
		w.run(6)
		w.change("r2")
		w.run(4)
		w.scale(4)
		w.run(30)
	}, 4, 2},
	{"change-while-starting", 2, func(w *world) { w.run(2); w.change("r2"); w.run(10) }, 2, 0},
	// As many devices as replicas: a rollout goes through without one more.
	{"scarce-devices", 2, func(w *world) { w.devices = 2; w.run(6); w.change("r2"); w.run(20) }, 2, 1},
	{"two-at-once", 5, func(w *world) {
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxUnavailable: ptr(int32(2))}
		w.run(6)
		w.change("r2")
		w.run(20)
	}, 5, 3},
	{"slow-loads", 2, func(w *world) {
		w.startIn, w.slow = 1200, true
		w.run(1210)
		w.change("r2")
		w.run(2500)
	}, 2, 1},
	// The one without requests goes first, a busy one when it is idle or has been waited for long enough.
	{"wait-for-idle", 3, func(w *world) {
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{WaitForIdleSeconds: ptr(int32(30))}
		w.busy["s-0"], w.busy["s-2"] = 7, 2
		w.run(6)
		w.change("r2")
		w.run(17)
		w.say("-- s-2 is idle")
		w.busy["s-2"] = 0
		w.run(50)
	}, 3, 2},
	// Another operator whose pods are the same replaces none; see also TestRevision.
	{"operator-upgrade", 3, func(w *world) {
		w.run(6)
		w.say("-- another operator, same template")
		w.server.Status.Message, w.server.Status.ObservedGeneration = "", 0
		w.run(30)
	}, 3, 0},
}

// surging are lives in which pods are made before old ones go.
var surging = []life{
	{"surge", 3, func(w *world) {
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(1))}
		w.devices = 4
		w.run(6)
		w.change("r2")
		w.run(40)
	}, 4, 3},
	// A surge that there is no room for says so.
	{"surge-without-room", 2, func(w *world) {
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(1))}
		w.devices = 2
		w.run(6)
		w.change("r2")
		w.run(10)
		w.server.Spec.Rollout.MaxUnavailable = ptr(int32(1))
		w.say("-- maxUnavailable: 1")
		w.run(30)
	}, 3, 1},
	{"surge-failing", 3, func(w *world) {
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(2))}
		w.broken["r2"] = `{"reason":"ModelNotFound","message":"no such folder","rank":0}`
		w.run(6)
		w.change("r2")
		w.run(20)
		w.change("r3")
		w.run(40)
	}, 5, 3},
}

// troubled are lives in which something fails.
var troubled = []life{
	{"failing-revision", 3, func(w *world) {
		w.broken["r2"] = `{"reason":"ModelNotFound","message":"no such folder","rank":0}`
		w.run(6)
		w.change("r2")
		w.run(30)
		w.change("r3")
		w.run(30)
	}, 3, 2},
	{"crash-loop", 1, func(w *world) {
		w.broken["r1"] = `{"reason":"FetchFailed","message":"connection reset","rank":0}`
		w.run(90)
	}, 1, 0},
	// A pod that its node does not stop is removed in the end, and the rollout goes on.
	{"stuck-terminating", 2, func(w *world) {
		w.run(6)
		w.stuck["s-0"] = true
		w.change("r2")
		w.run(330)
	}, 2, 1},
}

// TestRollouts are whole rollouts, second by second, as golden logs.
func TestRollouts(t *testing.T) {
	for _, tt := range slices.Concat(replaced, surging, troubled) {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(tt.replicas)
			tt.do(w)
			if w.mostPods > tt.most || w.fewestReady < tt.fewest {
				t.Errorf("up to %d pods at once, down to %d ready; allowed are %d and %d", w.mostPods, w.fewestReady, tt.most, tt.fewest)
			}
			checkLog(t, tt.name, w.log.String())
		})
	}
}

// checkLog compares a log with the golden one of its name.
func checkLog(t *testing.T, name, log string) {
	t.Helper()
	path := filepath.Join("testdata", name+".log")
	if *update {
		if err := os.WriteFile(path, []byte(log), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), log); d != "" {
		t.Errorf("another life than %s (go test -update writes it, if the change is meant):\n%s", path, d)
	}
}

// TestRolloutInvariants: whatever happens, there is never a pod more than asked
// for and the surge allows, terminating ones included, and the spec is reached in
// the end.
func TestRolloutInvariants(t *testing.T) {
	for seed := range int64(200) {
		r := rand.New(rand.NewSource(seed))
		n := int32(1 + r.Intn(4))
		w := newWorld(n)
		w.startIn, w.stopIn = 1+r.Intn(5), 1+r.Intn(5)
		surge := int32(r.Intn(3))
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: &surge}
		if r.Intn(2) == 0 {
			w.server.Spec.Rollout.MaxUnavailable = ptr(int32(1 + r.Intn(3)))
		}
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
		if w.mostPods > int(n+surge) || len(w.pods) != int(n) || w.server.Status.Phase != v1alpha1.PhaseReady || strings.Contains(w.log.String(), "BUG") {
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

// TestHeld: while it is known that no pod can be made, those that are there stay,
// whatever they were made from; only what is asked for no more goes.
func TestHeld(t *testing.T) {
	const why = "A Service named ns/s is there."
	for _, tt := range []struct {
		name    string
		pods    []Pod
		deleted []string
		phase   v1alpha1.Phase
		message string
	}{
		{"nothing there", nil, nil, v1alpha1.PhasePending, why},
		{"serving", []Pod{newPod(0, ready)}, nil, v1alpha1.PhaseDegraded, "1 of 1 replicas serve. " + why},
		{"of another spec", []Pod{newPod(0, ready, stale)}, nil, v1alpha1.PhaseDegraded, "1 of 1 replicas serve. " + why},
		{"of another spec, not ready", []Pod{newPod(0, stale)}, nil, v1alpha1.PhaseStarting, "The engine starts."},
		{"not stopped by its node", []Pod{newPod(0, terminatingUntil(t0.Add(-ForceAfter)))}, []string{"s-0"}, v1alpha1.PhaseTerminating, "Removed without its word"},
		{"crashed", []Pod{newPod(0, exited(t0.Add(-time.Hour), 14, "Error", ""))}, nil, v1alpha1.PhaseCrashed, "CollectiveFailed"},
		{"more than asked for", []Pod{newPod(0, ready, stale), newPod(1, ready, stale)}, []string{"s-1"}, v1alpha1.PhaseDegraded, "1 of 1 replicas serve. " + why},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(newServer(1), tt.pods...)
			in.NameTaken, in.Hold = why, true
			d := Decide(in)
			var deleted []string
			for _, del := range d.Delete {
				deleted = append(deleted, del.Pod.Name)
			}
			if len(d.Create) > 0 || !slices.Equal(deleted, tt.deleted) || d.Status.Phase != tt.phase || !strings.Contains(d.Status.Message, tt.message) {
				t.Errorf("create %v, delete %v, %s: %s", d.Create, deleted, d.Status.Phase, d.Status.Message)
			}
			c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded)
			if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonNameTaken || c.Message != why {
				t.Errorf("%+v", *c)
			}
		})
	}
}
