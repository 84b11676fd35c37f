package decide

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// groupWorld carries decisions out on groups of two pods. It plays the controllers
// of LeaderWorkerSets and StatefulSets, by the rules that these have: groups are
// made again at once, replaced from the last to the first, one after the other, and
// none that serves while too many are missing. One step is one second.
type groupWorld struct {
	server   *v1alpha1.SpeculativeServer
	revision string
	groups   map[int]*playedGroup
	startIn  int             // seconds from scheduled to ready
	stopIn   int             // seconds from deleted to gone
	broken   map[string]bool // revisions whose groups crash when they would be ready
	devices  int             // groups that find room; 0: all
	now      time.Time
	serial   int
	log      strings.Builder

	// The LeaderWorkerSet as applied, and the StatefulSet of the leaders.
	rolling   Rolling
	current   string // revision of pods below the partition
	update    string // and of the others
	partition int
	replicas  int
	scaled    int // replicas of the set that the StatefulSet was last made for

	fewestReady, mostPlaced int
}

type playedGroup struct {
	revision string
	pods     [2]Pod // the leader and the other
	placed   bool
	age      int
	goneAt   time.Time // zero: not being deleted
}

func newGroupWorld(replicas int32) *groupWorld {
	w := &groupWorld{server: newServer(replicas), revision: "r1", groups: map[int]*playedGroup{}, startIn: 3, stopIn: 2,
		broken: map[string]bool{}, now: t0, update: "r1", current: "r1", replicas: int(replicas), scaled: int(replicas), fewestReady: 1 << 30}
	w.server.Spec.Health = &v1alpha1.HealthSpec{CrashBudget: ptr(int32(2))}
	return w
}

func (w *groupWorld) say(format string, args ...any) {
	fmt.Fprintf(&w.log, "%3ds  %s\n", int(w.now.Sub(t0).Seconds()), fmt.Sprintf(format, args...))
}

func (g *playedGroup) ready() bool {
	return g != nil && g.goneAt.IsZero() && isTrue(g.pods[0].Pod, corev1.PodReady)
}

func (w *groupWorld) want() int { return int(*w.server.Spec.Replicas) }

// stop deletes a group.
func (w *groupWorld) stop(g *playedGroup) {
	if !g.goneAt.IsZero() {
		return
	}
	after := w.stopIn
	if !g.placed {
		after = 0
	}
	g.goneAt = w.now.Add(time.Duration(after) * time.Second)
	for k := range g.pods {
		g.pods[k].DeletionTimestamp = ptr(metav1.NewTime(g.goneAt))
	}
}

// crash ends the second node's engine, which its kubelet starts again.
func (w *groupWorld) crash(n int) {
	w.say("-- %d crashes", n)
	p := w.groups[n].pods[1]
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 1, LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 13, Message: `{"reason":"DeviceFault","message":"XID 79","rank":1}`, FinishedAt: metav1.NewTime(w.now)}}}}
}

// nodes are the scheduler and the kubelets.
func (w *groupWorld) nodes() {
	placed := 0
	for _, g := range w.groups {
		if g.placed {
			placed++
		}
	}
	for n := range 100 {
		g := w.groups[n]
		if g == nil || !g.goneAt.IsZero() {
			continue
		}
		held, _ := gates(g.pods[0].Pod)
		if !g.placed && !held && (w.devices == 0 || placed < w.devices) {
			g.placed = true
			placed++
			for k := range g.pods {
				g.pods[k].Spec.NodeName, g.pods[k].Status.Phase = "node1", corev1.PodRunning
			}
		}
		if !g.placed {
			continue
		}
		g.age++
		switch {
		case g.age == w.startIn && w.broken[g.revision]:
			w.crash(n)
		case g.age == w.startIn:
			verifiedAt(w.now)(&g.pods[0])
			computes(&g.pods[1])
		}
	}
	w.mostPlaced = max(w.mostPlaced, placed)
}

// leaderWorkerSets is that controller: groups that have crashed are deleted, and
// the partition of the leaders' StatefulSet goes down.
func (w *groupWorld) leaderWorkerSets() {
	for n, g := range w.groups {
		switch {
		case !g.goneAt.IsZero() && !w.now.Before(g.goneAt):
			delete(w.groups, n)
		case len(g.pods[1].Status.ContainerStatuses) > 0:
			w.stop(g)
		}
	}
	n, surge := w.want(), min(int(w.rolling.Surge), w.want())
	if w.update != w.revision {
		w.update, w.partition = w.revision, min(n, w.replicas)
		w.replicas = w.burst(n, n, surge)
		return
	}
	if w.partition == 0 && w.replicas == n {
		w.scaled = n
		return
	}
	updated := func(k int) bool { g := w.groups[k]; return g.ready() && g.revision == w.update }
	unready := 0
	for k := range n {
		if !updated(k) {
			unready++
		}
	}
	if w.scaled != n {
		w.partition, w.scaled = min(w.partition, n+surge), n
	} else {
		w.partition = min(w.partition, w.lower(updated, int(w.rolling.Missing)+surge-(n+surge-w.replicas)))
	}
	w.replicas = w.burst(n, unready, surge)
}

// burst is how many groups there are to be while so many of those asked for are not
// up to date.
func (w *groupWorld) burst(n, unready, surge int) int {
	if unready <= surge {
		return n + max(0, unready-1)
	}
	return n + surge
}

// lower is the first group that may be replaced, when so many may be at once.
func (w *groupWorld) lower(updated func(int) bool, step int) int {
	done := 0
	for done < w.replicas && updated(w.replicas-1-done) {
		done++
	}
	least := max(0, w.replicas-done-step)
	at := least
	for k := range least {
		if !w.groups[k].ready() {
			at++
		}
	}
	for k := min(at, w.replicas-1); k >= least && (!w.groups[k].ready() || w.groups[k].revision == w.update); k-- {
		at = k
	}
	return at
}

// statefulSets is that controller: it makes the pods that are missing, with their
// gates, and replaces one at a time.
func (w *groupWorld) statefulSets() {
	for n, g := range w.groups {
		if n >= w.replicas {
			w.stop(g)
		}
	}
	for n := range w.replicas {
		if w.groups[n] != nil {
			continue
		}
		revision := w.update
		if n < w.partition {
			revision = w.current
		}
		g := &playedGroup{revision: revision}
		for k := range g.pods {
			w.serial++
			g.pods[k] = newNode(n, k, pendingPod("", "", ""))
			g.pods[k].UID = types.UID(fmt.Sprint("uid", w.serial))
			g.pods[k].Labels[v1alpha1.LabelRevision] = revision
			g.pods[k].Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.StartGate}}
		}
		w.groups[n] = g
		w.say("%d is made (%s)", n, revision)
	}
	for n := w.replicas - 1; n >= w.partition; n-- {
		g := w.groups[n]
		if g.revision != w.update && g.goneAt.IsZero() {
			w.say("%d is replaced (%s)", n, g.revision)
			w.stop(g)
			return
		}
		if !g.ready() {
			return
		}
	}
	if w.partition == 0 {
		w.current = w.update
	}
}

// operator decides, and carries it out.
func (w *groupWorld) operator() {
	in := Input{Server: w.server, Revision: w.revision, Model: "m", Port: 8000, Now: w.now, Nodes: 2}
	for n, g := range w.groups {
		in.Pods = append(in.Pods, g.pods[0])
		in.Workers = append(in.Workers, Worker{Pod: g.pods[1], Ordinal: int32(n), Node: 1})
	}
	d := Decide(in)
	if d.Status.Phase != w.server.Status.Phase || d.Status.Ready != w.server.Status.Ready {
		w.say("%s %s: %s", d.Status.Phase, d.Status.Ready, d.Status.Message)
	}
	if why := blocked(&d.Status); why != "" && why != blocked(&w.server.Status) {
		w.say("blocked: %s", why)
	}
	if d.Rolling != w.rolling {
		w.say("%d groups may be missing, %d more", d.Rolling.Missing, d.Rolling.Surge)
	}
	w.rolling = d.Rolling
	for _, s := range d.Start {
		s.Pod.Spec.SchedulingGates = nil
		if strings.Count(s.Pod.Name, "-") == 2 { // the leader
			w.say("%s starts (%s)", s.Pod.Name, s.Pod.Labels[v1alpha1.LabelRevision])
		}
	}
	w.server.Status = d.Status
	w.fewestReady = min(w.fewestReady, int(*d.Status.ReadyReplicas))
}

func (w *groupWorld) run(seconds int) {
	for range seconds {
		w.now = w.now.Add(time.Second)
		w.nodes()
		w.leaderWorkerSets()
		w.statefulSets()
		w.operator()
	}
}

func (w *groupWorld) change(revision string) {
	w.say("-- the spec changes: %s", revision)
	w.revision = revision
	w.server.Generation++
	w.fewestReady, w.mostPlaced = 1<<30, 0
}

// spend crashes a group as often as its budget allows.
func (w *groupWorld) spend(n int) {
	for range 2 {
		w.crash(n)
		w.run(15)
	}
}

// TestGroupRollouts are whole lives of groups, second by second, as golden logs.
func TestGroupRollouts(t *testing.T) {
	for _, tt := range []struct {
		name        string
		do          func(*groupWorld)
		w           *groupWorld
		most, fewst int // bounds after the last change: groups on nodes at once, ready groups
	}{
		{"group-crash-loop", func(w *groupWorld) {
			w.server.Spec.Health = nil
			w.broken["r1"] = true
			w.run(120)
		}, newGroupWorld(1), 1, 0},
		// A new spec that fails stays at the first group that is replaced; the next one heals it.
		{"group-failing-revision", func(w *groupWorld) {
			w.run(6)
			w.broken["r2"] = true
			w.change("r2")
			w.run(40)
			w.change("r3")
			w.run(40)
		}, newGroupWorld(2), 2, 1},
		// The last group is Failed: the rollout begins with it.
		{"group-last-failed", func(w *groupWorld) { w.devices = 2; w.run(6); w.spend(1); w.change("r2"); w.run(40) }, newGroupWorld(2), 2, 1},
		// The first group is Failed: another takes its devices, so that the one that serves can be replaced.
		{"group-first-failed", func(w *groupWorld) { w.devices = 2; w.run(6); w.spend(0); w.change("r2"); w.run(60) }, newGroupWorld(2), 2, 1},
		{"group-middle-failed", func(w *groupWorld) { w.devices = 3; w.run(6); w.spend(1); w.change("r2"); w.run(60) }, newGroupWorld(3), 3, 1},
		// A change that touches no pod is one more try.
		{"group-one-more-try", func(w *groupWorld) {
			w.run(6)
			w.spend(0)
			w.say("-- the spec changes, the pods do not")
			w.server.Generation++
			w.run(10)
		}, newGroupWorld(1), 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.do(tt.w)
			if tt.w.mostPlaced > tt.most || tt.w.fewestReady < tt.fewst {
				t.Errorf("up to %d groups at once, down to %d ready; allowed are %d and %d", tt.w.mostPlaced, tt.w.fewestReady, tt.most, tt.fewst)
			}
			checkLog(t, tt.name, tt.w.log.String())
		})
	}
}

// TestGroupRolloutsEnd: whichever groups are Failed, a spec that heals them reaches
// all, never with more groups on nodes than are asked for and the surge allows, and
// no more of those that served are missing than may be, or one.
func TestGroupRolloutsEnd(t *testing.T) {
	for seed := range int64(100) {
		r := rand.New(rand.NewSource(seed))
		n := 1 + r.Intn(5)
		w := newGroupWorld(int32(n))
		w.startIn, w.stopIn = 1+r.Intn(5), 1+r.Intn(5)
		surge := r.Intn(3)
		w.server.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(surge))}
		if surge == 0 || r.Intn(2) == 0 {
			w.server.Spec.Rollout.MaxUnavailable = ptr(int32(1 + r.Intn(3)))
		}
		w.devices = n + surge
		w.run(20)
		if r.Intn(3) == 0 { // a rollout that fails, or is cut short
			w.broken["r2"] = r.Intn(2) == 0
			w.change("r2")
			w.run(r.Intn(60))
		}
		for k := range n {
			if w.groups[k].ready() && r.Intn(3) == 0 {
				w.spend(k)
			}
		}
		served := int(*w.server.Status.ReadyReplicas)
		w.change("r3")
		w.run(400)
		if w.server.Status.Phase != v1alpha1.PhaseReady || len(w.groups) != n || int(w.rolling.Surge) != surge {
			t.Fatalf("seed %d: %d groups for %d replicas, surge %d, ends %s:\n%s", seed, len(w.groups), n, w.rolling.Surge, w.server.Status.Phase, w.log.String())
		}
		// The last group that is replaced takes the place of the last one more, by the rules of the set's controller.
		if least := min(served, n) - max(int(w.rolling.Missing), 1); w.mostPlaced > n+surge || w.fewestReady < least {
			t.Fatalf("seed %d: up to %d groups on nodes for %d replicas and surge %d, down to %d ready of %d:\n%s", seed, w.mostPlaced, n, surge, w.fewestReady, served, w.log.String())
		}
	}
}
