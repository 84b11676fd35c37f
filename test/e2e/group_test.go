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
func (e *env) member(node int32) *corev1.Pod {
	e.Helper()
	name := build.LeaderName("s", 0)
	if node > 0 {
		name = build.WorkerName("s", 0, node)
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
		e.within(time.Minute, "a status that names the crash", func() string {
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

// deletedGroups deletes the server and waits until nothing of it is left, also of
// what LeaderWorkerSet's controller made.
func (e *env) deletedGroups() {
	e.Helper()
	e.deleted()
	sets := &unstructured.UnstructuredList{}
	sets.SetGroupVersionKind(build.LeaderWorkerSetKind)
	e.within(time.Minute, "nothing left of the groups", func() string {
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
