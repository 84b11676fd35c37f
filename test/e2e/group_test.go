//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// The tests whose names begin with TestGroup need LeaderWorkerSet's controller in
// the cluster (make test-e2e-groups).

// groups makes a server of two nodes with one rank each.
func (e *env) groups(change func(*v1alpha1.SpeculativeServer)) {
	e.Helper()
	e.Cleanup(func() {
		if e.Failed() {
			for _, args := range [][]string{
				{"get", "leaderworkersets,statefulsets,controllerrevisions", "-o", "wide", "-n", e.namespace},
				{"logs", "-n", "lws-system", "deployment/lws-controller-manager", "--tail", "20"},
			} {
				out, _ := kubectl(context.Background(), args...)
				e.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
			}
		}
	})
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		nodes := int32(2)
		s.Spec.Parallelism.Nodes = &nodes
		if change != nil {
			change(s)
		}
	})
}

// member is the pod of a node of the first group.
func (e *env) member(node int32) *corev1.Pod { return e.memberOf(0, node) }

// memberOf is the pod of a node of a group.
func (e *env) memberOf(group, node int32) *corev1.Pod {
	e.Helper()
	name := build.LeaderName("s", group)
	if node > 0 {
		name = build.WorkerName("s", group, node)
	}
	p := &corev1.Pod{}
	if err := k8s.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: name}, p); err != nil {
		e.Fatal(err)
	}
	return p
}

// newGroup waits until neither pod of the first group is the one that it was, and
// the server is ready again.
func (e *env) newGroup(before ...*corev1.Pod) *v1alpha1.SpeculativeServer {
	e.Helper()
	var s *v1alpha1.SpeculativeServer
	e.within(4*time.Minute, "another group", func() string {
		s = e.server()
		if s.Status.Phase != v1alpha1.PhaseReady || s.Status.ObservedGeneration != s.Generation || len(s.Status.Pods) < len(before) {
			return fmt.Sprintf("it is %s: %s", s.Status.Phase, s.Status.Message)
		}
		for i, p := range before {
			if s.Status.Pods[i].UID == string(p.UID) {
				return p.Name + " is the same as before"
			}
		}
		return ""
	})
	return s
}

// joined checks that each pod of the first group has a rank of its own, and that
// clients are sent to the leader alone.
func (e *env) joined() {
	e.Helper()
	leader := e.member(0)
	for node := range int32(2) {
		text, err := e.admin(e.member(node), "/progress")
		if err != nil {
			e.Fatal(err)
		}
		var progress struct {
			Phase string `json:"phase"`
			Ranks []struct {
				Rank int32 `json:"rank"`
			} `json:"ranks"`
		}
		if err := json.Unmarshal([]byte(text), &progress); err != nil {
			e.Fatalf("%v in %s", err, text)
		}
		if progress.Phase != "serving" || len(progress.Ranks) != 1 || progress.Ranks[0].Rank != node {
			e.Errorf("node %d says %s, want it serving with rank %d alone", node, text, node)
		}
	}
	var slices discoveryv1.EndpointSliceList
	if err := k8s.List(e.Context(), &slices, client.InNamespace(e.namespace), client.MatchingLabels{discoveryv1.LabelServiceName: "s"}); err != nil {
		e.Fatal(err)
	}
	var addresses []string
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			addresses = append(addresses, endpoint.Addresses...)
		}
	}
	if len(addresses) != 1 || addresses[0] != leader.Status.PodIP {
		e.Errorf("the Service has %v, want the leader, %s", addresses, leader.Status.PodIP)
	}
}

// TestGroup is the whole life of a server of two nodes: joined over TCP it gives
// the golden completions; whichever engine is killed, the status names it and the
// group is made again as a whole; so it is for a new spec; and nothing stays
// behind.
func TestGroup(t *testing.T) {
	e := alone(t)
	e.groups(nil)
	s := e.phase(4*time.Minute, v1alpha1.PhaseReady, "")
	if len(s.Status.Pods) != 2 || s.Status.Pods[1].NodeRank == nil || *s.Status.Pods[1].NodeRank != 1 || s.Status.Ready != "1/1" {
		t.Fatalf("status %+v", s.Status)
	}
	for _, row := range s.Status.Pods {
		if row.Phase != v1alpha1.PhaseReady || row.Restarts != 0 {
			t.Errorf("row %+v", row)
		}
	}
	e.joined()
	e.checkGolden(true)

	for node := range int32(2) {
		leader, worker := e.member(0), e.member(1)
		victim, restarts := []*corev1.Pod{leader, worker}[node], s.Status.Pods[node].Restarts
		e.signal(victim, "SIGKILL")
		e.within(3*time.Minute, "a status that names the crash", func() string {
			row := e.server().Status.Pods[node]
			if f := row.LastFailure; f == nil || f.PodUID != string(victim.UID) || f.ExitCode == nil || *f.ExitCode != 137 || f.Reason != "Killed" {
				return fmt.Sprintf("row %+v, failure %+v", row, row.LastFailure)
			}
			return ""
		})
		e.event(string(v1alpha1.PhaseCrashed), victim.Name+": Killed (exit code 137)")
		s = e.newGroup(leader, worker)
		if got := s.Status.Pods[node].Restarts; got != restarts+1 {
			t.Errorf("%s has %d restarts, want %d", victim.Name, got, restarts+1)
		}
		e.joined()
		e.checkGolden(true)
	}

	leader, worker := e.member(0), e.member(1)
	e.patch(`{"spec":{"extraEnv":[{"name":"TRY","value":"2"}]}}`)
	e.newGroup(leader, worker)
	for node, before := range []*corev1.Pod{leader, worker} {
		if now := e.member(int32(node)); now.Labels[v1alpha1.LabelRevision] == before.Labels[v1alpha1.LabelRevision] {
			t.Errorf("%s has the revision %s as before", now.Name, now.Labels[v1alpha1.LabelRevision])
		}
	}
	e.checkGolden(true)
	e.deletedGroups()
}

// two makes a server of two groups, each of which may crash twice, and waits until
// both serve.
func (e *env) two() {
	e.Helper()
	e.groups(func(s *v1alpha1.SpeculativeServer) {
		replicas, budget := int32(2), int32(2)
		s.Spec.Replicas, s.Spec.Health = &replicas, &v1alpha1.HealthSpec{CrashBudget: &budget}
	})
	e.phase(4*time.Minute, v1alpha1.PhaseReady, "")
}

// gated waits until both pods of a group are behind the operator's gate, and says
// which they are.
func (e *env) gated(group int32) []types.UID {
	e.Helper()
	var uids []types.UID
	e.within(2*time.Minute, "a group that waits to be started", func() string {
		uids = nil
		for node := range int32(2) {
			name := build.LeaderName("s", group)
			if node > 0 {
				name = build.WorkerName("s", group, node)
			}
			p := &corev1.Pod{}
			if err := k8s.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: name}, p); err != nil {
				return err.Error()
			}
			if len(p.Spec.SchedulingGates) != 1 || p.Spec.SchedulingGates[0].Name != v1alpha1.StartGate {
				return fmt.Sprintf("%s has the gates %v", name, p.Spec.SchedulingGates)
			}
			uids = append(uids, p.UID)
		}
		return ""
	})
	return uids
}

// staysGated checks that a group is left alone: nobody starts it or makes it anew.
func (e *env) staysGated(group int32, how time.Duration) {
	e.Helper()
	before := e.gated(group)
	time.Sleep(how)
	if after := e.gated(group); after[0] != before[0] || after[1] != before[1] {
		e.Errorf("group %d was made anew: %v, before %v", group, after, before)
	}
}

// row is the status of a pod of a group.
func (e *env) row(group, node int32) v1alpha1.PodStatus {
	e.Helper()
	pods := e.server().Status.Pods
	if i := int(2*group + node); i < len(pods) {
		return pods[i]
	}
	return v1alpha1.PodStatus{}
}

// TestGroupBudget: a group whose engine is killed waits for its back-off, and when
// its budget is spent it is not started again, while another serves on. A change of
// the spec then reaches both, and one of them always serves, though the one that
// failed is the one that is replaced last.
func TestGroupBudget(t *testing.T) {
	e := alone(t)
	e.two()

	e.signal(e.memberOf(0, 1), "SIGKILL")
	var next time.Time
	e.within(3*time.Minute, "the next start in the status", func() string {
		row := e.row(0, 1)
		if row.Phase != v1alpha1.PhaseCrashed || row.NextStartTime == nil || row.LastFailure.Reason != "Killed" {
			return fmt.Sprintf("row %+v", row)
		}
		next = row.NextStartTime.Time
		return ""
	})
	s := e.phase(4*time.Minute, v1alpha1.PhaseReady, "")
	if started := e.memberOf(0, 0).Status.StartTime; started.Time.Before(next) {
		t.Errorf("started at %s, and its back-off ended at %s", started, next)
	}
	if row := s.Status.Pods[1]; row.Restarts != 1 || row.FailuresInRow != 1 || row.NextStartTime != nil {
		t.Errorf("row %+v", row)
	}

	e.signal(e.memberOf(0, 1), "SIGKILL")
	e.phase(3*time.Minute, v1alpha1.PhaseDegraded, "That is the budget of spec.health.crashBudget.")
	stop := e.load()
	e.staysGated(0, 15*time.Second)
	if row := e.row(0, 1); row.Phase != v1alpha1.PhaseFailed || row.Restarts != 2 || !strings.Contains(row.Message, "Killed (exit code 137), 2 times in a row: ") {
		t.Errorf("row %+v", row)
	}
	if s := e.server(); s.Status.Ready != "1/2" {
		t.Errorf("%s are ready", s.Status.Ready)
	}
	e.checkGolden(true)

	leaders := []*corev1.Pod{e.memberOf(0, 0), e.memberOf(1, 0)}
	counted := e.watchLeaders()
	e.patch(`{"spec":{"extraEnv":[{"name":"TRY","value":"2"}]}}`)
	e.phase(6*time.Minute, v1alpha1.PhaseReady, "")
	if fewest := counted(); fewest < 1 {
		t.Errorf("down to %d leaders were ready", fewest)
	}
	e.answered(stop())
	for group, before := range leaders {
		if now := e.memberOf(int32(group), 0); now.Labels[v1alpha1.LabelRevision] == before.Labels[v1alpha1.LabelRevision] {
			t.Errorf("group %d is of the spec from before", group)
		}
	}
	e.within(2*time.Minute, "two groups and no more", func() string {
		if n := len(e.server().Status.Pods); n != 4 {
			return fmt.Sprintf("the status has %d pods", n)
		}
		return ""
	})
	e.deletedGroups()
}

// answered checks that requests were answered all the while. That none at all is
// lost is a test of single pods: here a busy machine's proxy may learn too late
// that one of two leaders has gone.
func (e *env) answered(answered int, failed []error) {
	e.Helper()
	if answered == 0 || len(failed)*20 > answered {
		e.Errorf("%d requests answered, %d failed: %v", answered, len(failed), failed)
	}
}

// watchLeaders counts the leaders that are ready, until the function that it returns
// is called, which says how few there were.
func (e *env) watchLeaders() func() int {
	ctx, cancel := context.WithCancel(e.Context())
	result := make(chan int)
	go func() {
		fewest := 1 << 30
		for ctx.Err() == nil {
			var list corev1.PodList
			if err := k8s.List(ctx, &list, client.InNamespace(e.namespace), client.MatchingLabels{build.LabelWorkerIndex: "0"}); err == nil {
				ready := 0
				for i := range list.Items {
					for _, c := range list.Items[i].Status.Conditions {
						if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
							ready++
						}
					}
				}
				fewest = min(fewest, ready)
			}
			time.Sleep(100 * time.Millisecond)
		}
		result <- fewest
	}()
	return func() int {
		cancel()
		return <-result
	}
}

// TestGroupBadSpec: a spec that no engine takes stops at the group that is replaced
// first, which is not started a second time, and the status says why; the other
// serves on, and the next spec heals the first.
func TestGroupBadSpec(t *testing.T) {
	e := alone(t)
	e.two()
	first := e.memberOf(0, 0)
	stop := e.load()
	e.patch(`{"spec":{"extraArgs":["--no-such-flag=1"]}}`)
	e.phase(3*time.Minute, v1alpha1.PhaseDegraded, "1 of 2 replicas serve. s-nodes-1")
	e.within(3*time.Minute, "a Failed group", func() string {
		for node := range int32(2) {
			if row := e.row(1, node); row.Phase == v1alpha1.PhaseFailed && row.LastFailure.Reason == "InvalidConfig" && *row.LastFailure.ExitCode == 2 && strings.Contains(row.Message, "no-such-flag") {
				return ""
			}
		}
		return fmt.Sprintf("rows %+v and %+v", e.row(1, 0), e.row(1, 1))
	})
	e.staysGated(1, 10*time.Second)
	if now := e.memberOf(0, 0); now.UID != first.UID || e.row(0, 0).Phase != v1alpha1.PhaseReady {
		t.Errorf("the first group was replaced, or is not Ready: %+v", e.row(0, 0))
	}
	for _, c := range e.server().Status.Conditions {
		if c.Type == v1alpha1.ConditionProgressing && c.Reason != v1alpha1.ReasonBlocked {
			t.Errorf("%+v", c)
		}
	}
	e.patch(`{"spec":{"extraArgs":null}}`)
	e.phase(4*time.Minute, v1alpha1.PhaseReady, "")
	e.answered(stop())
	e.deletedGroups()
}

// deletedGroups deletes the server and waits until nothing of it is left, also of
// what LeaderWorkerSet's controller made.
func (e *env) deletedGroups() {
	e.Helper()
	e.deleted()
	sets := &unstructured.UnstructuredList{}
	sets.SetGroupVersionKind(build.LeaderWorkerSetKind)
	e.within(3*time.Minute, "nothing left of the groups", func() string {
		var left []string
		for _, list := range []client.ObjectList{sets, &appsv1.StatefulSetList{}, &appsv1.ControllerRevisionList{}} {
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
