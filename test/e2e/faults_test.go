//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// The tests whose names begin with TestFault disturb the whole cluster: they run
// one after the other, and apart from those that share it (make test-e2e-faults).

// process finds the one process of this namespace that runs a program.
func process(t *testing.T, name string) *os.Process {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) != name {
			continue // another, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	if len(found) != 1 {
		t.Fatalf("processes %v run %s here, want one: this test needs the cluster of hack/cluster", found, name)
	}
	p, err := os.FindProcess(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stopped stops a program of the control plane; it goes on when the function that
// is returned is called, at the latest at the end of the test.
func stopped(t *testing.T, name string) (goOn func()) {
	t.Helper()
	p := process(t, name)
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatalf("stopping %s: %v", name, err)
	}
	done := false
	goOn = func() {
		if done {
			return
		}
		done = true
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Errorf("letting %s go on: %v", name, err)
		}
	}
	t.Cleanup(goOn)
	return goOn
}

// operatorPod is the operator's pod, once there is one that is ready.
func (e *env) operatorPod() *corev1.Pod {
	e.Helper()
	var found *corev1.Pod
	e.within(3*time.Minute, "an operator that is ready", func() string {
		var list corev1.PodList
		if err := k8s.List(e.Context(), &list, client.InNamespace("outrider-system"), client.MatchingLabels{"app.kubernetes.io/component": "operator"}); err != nil {
			return err.Error()
		}
		for i := range list.Items {
			if c := condition(&list.Items[i], corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue && list.Items[i].DeletionTimestamp == nil {
				found = &list.Items[i]
				return ""
			}
		}
		return fmt.Sprintf("%d pods, none ready", len(list.Items))
	})
	return found
}

// TestFaultAPIServer: while the API server is away for a minute, clients are
// served as before; when it is back the operator works on, and nothing that was
// well is written or restarted.
func TestFaultAPIServer(t *testing.T) {
	e := alone(t)
	e.quickstart(nil)
	e.ready()
	e.noWrites(10 * time.Second)
	pod, address := e.pod(0), e.address()
	before := e.server()

	unloaded := e.load()
	// The controllers look at nodes by their own clock, and would call them lost: they stop first and go on last.
	controllers := stopped(t, "kube-controller")
	api := stopped(t, "kube-apiserver")
	away, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := k8s.Get(away, client.ObjectKeyFromObject(before), &v1alpha1.SpeculativeServer{}); err == nil {
		t.Fatal("the API server still answers")
	}
	time.Sleep(time.Minute)
	if _, err := complete(t.Context(), address, "type Config struct {\n", 16); err != nil {
		t.Errorf("after a minute without an API server: %v", err)
	}
	api()
	e.within(3*time.Minute, "an API server that answers", func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var node corev1.Node
		if err := k8s.Get(ctx, types.NamespacedName{Name: pod.Spec.NodeName}, &node); err != nil {
			return err.Error()
		}
		return ""
	})
	e.leased(pod.Spec.NodeName)
	controllers()
	if answered, errs := unloaded(); answered < 60 || len(errs) > 0 {
		t.Errorf("%d requests were answered, %d failed: %v", answered, len(errs), errs)
	}

	e.operatorPod()
	e.noWrites(20 * time.Second)
	after := e.server()
	if after.Status.Phase != v1alpha1.PhaseReady || after.Status.Pods[0].Restarts != 0 || e.pod(0).UID != pod.UID {
		t.Errorf("%s, row %+v", after.Status.Phase, after.Status.Pods[0])
	}
	// The figures of the load may be written once it ends; what else there is says that the operator did something.
	if v := changes(before, after); v != "" {
		t.Errorf("the status was written anew: %s", v)
	}
	e.patch(`{"spec":{"speculation":{"adaptation":{"mode":"Off"}}}}`)
	e.within(3*time.Minute, "the operator goes on", func() string {
		if f := e.server().Status.Speculation; f == nil || f.Confirmed != "1/1" || f.Mode != v1alpha1.AdaptationOff {
			return fmt.Sprintf("%+v", f)
		}
		return ""
	})
}

// changes says what differs of two statuses beyond figures.
func changes(a, b *v1alpha1.SpeculativeServer) string {
	for i, c := range a.Status.Conditions {
		if d := b.Status.Conditions[i]; !c.LastTransitionTime.Equal(&d.LastTransitionTime) {
			return fmt.Sprintf("%s went to %s, %s", c.Type, d.Status, d.Reason)
		}
	}
	if a.Status.Message != b.Status.Message {
		return fmt.Sprintf("%q, then %q", a.Status.Message, b.Status.Message)
	}
	return ""
}

// leased waits until the node's lease is renewed.
func (e *env) leased(node string) {
	e.Helper()
	renewed := func() string {
		out, err := kubectl(e.Context(), "get", "lease", node, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}")
		if err != nil {
			return ""
		}
		return out
	}
	first := renewed()
	e.within(3*time.Minute, "the node reports", func() string {
		if now := renewed(); now == "" || now == first {
			return "lease of " + now
		}
		return ""
	})
}

// noWrites waits until neither the server nor its pod has been written for a while.
func (e *env) noWrites(quiet time.Duration) {
	e.Helper()
	last, since := "", time.Now()
	e.within(2*time.Minute, fmt.Sprintf("no writes for %s", quiet), func() string {
		now := e.server().ResourceVersion + " " + e.pod(0).ResourceVersion
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < quiet {
			return "versions " + now
		}
		return ""
	})
}

// TestFaultOperatorKilled: an operator that is killed in the middle of a rollout
// goes on with it; there are never more pods than replicas, and no request is lost.
func TestFaultOperatorKilled(t *testing.T) {
	e := alone(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Replicas = new(int32(3))
		s.Spec.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("50m")
	})
	e.settled(3)
	operator := e.operatorPod()
	stop, unloaded := e.watchPods(), e.load()
	e.patch(`{"spec":{"speculation":{"numSteps":2}}}`)
	e.within(3*time.Minute, "a pod that is replaced", func() string {
		for i := range 3 {
			var p corev1.Pod
			err := k8s.Get(t.Context(), types.NamespacedName{Namespace: e.namespace, Name: fmt.Sprintf("s-%d", i)}, &p)
			if apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil {
				return ""
			}
		}
		return "all are as they were"
	})
	e.signal(operator, "SIGKILL")
	e.settled(3)
	if answered, errs := unloaded(); answered == 0 || len(errs) > 0 {
		t.Errorf("%d requests were answered, %d failed: %v", answered, len(errs), errs)
	}
	if most, fewest := stop(); most > 3 || fewest < 2 {
		t.Errorf("there were up to %d pods, and down to %d ready", most, fewest)
	}
	if now := e.operatorPod(); now.Status.ContainerStatuses[0].RestartCount == operator.Status.ContainerStatuses[0].RestartCount {
		t.Error("the operator was not killed")
	}
	for _, row := range e.server().Status.Pods {
		if row.Restarts != 0 {
			t.Errorf("a pod of the rollout counts as a crash: %+v", row)
		}
	}
	e.checkGolden(true)
}

// TestFaultDrain: a node can always be emptied. A budget lets one replica go at a
// time, and the only one of a server at once; requests that run end first, the
// status says what the pods wait for, and they come back when they may.
func TestFaultDrain(t *testing.T) {
	e := alone(t)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Disruption, s.Spec.Replicas = &v1alpha1.DisruptionSpec{}, new(int32(2))
	})
	e.settled(2)
	node := e.pod(0).Spec.NodeName
	cordon := func(verb string) {
		if out, err := kubectl(context.Background(), verb, node); err != nil {
			t.Errorf("kubectl %s: %v: %s", verb, err, out)
		}
	}
	evict := func(p *corev1.Pod) error {
		return k8s.SubResource("eviction").Create(t.Context(), p, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}})
	}
	e.within(2*time.Minute, "a budget that knows the pods", func() string {
		var b policyv1.PodDisruptionBudget
		if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s"}, &b); err != nil || b.Status.DisruptionsAllowed != 1 {
			return fmt.Sprintf("%v, %+v", err, b.Status)
		}
		return ""
	})
	cordon("cordon")
	t.Cleanup(func() { cordon("uncordon") })
	unloaded := e.load()
	if err := evict(e.pod(0)); err != nil {
		t.Fatalf("the first of two: %v", err)
	}
	if err := evict(e.pod(1)); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second before the first is back: %v", err)
	}
	e.within(3*time.Minute, "what it waits for", func() string {
		if s := e.server(); s.Status.Ready != "1/2" || s.Status.Pods[0].Phase != v1alpha1.PhaseWaitingForCapacity || !strings.Contains(s.Status.Pods[0].Message, "unschedulable") {
			return fmt.Sprintf("%s %s: %s", s.Status.Phase, s.Status.Ready, s.Status.Message)
		}
		return ""
	})
	cordon("uncordon")
	e.settled(2)
	if answered, errs := unloaded(); answered == 0 || len(errs) > 0 {
		t.Errorf("%d requests were answered, %d failed: %v", answered, len(errs), errs)
	}

	e.patch(`{"spec":{"replicas":1}}`)
	e.settled(1)
	e.within(2*time.Minute, "an eviction of the only replica", func() string {
		if err := evict(e.pod(0)); err != nil {
			return err.Error()
		}
		return ""
	})
	e.within(2*time.Minute, "another pod", func() string {
		if s := e.server(); s.Status.Phase != v1alpha1.PhaseReady || s.Status.Pods[0].Restarts != 0 {
			return fmt.Sprintf("%s: %s", s.Status.Phase, s.Status.Message)
		}
		return ""
	})
	e.checkGolden(true)
}

// TestFaultNoOperator: what happens while there is no operator is seen and healed
// by the next one.
func TestFaultNoOperator(t *testing.T) {
	e := alone(t)
	e.quickstart(nil)
	e.ready()
	scale := func(n int) {
		if out, err := kubectl(context.Background(), "scale", "-n", "outrider-system", "deployment/outrider", fmt.Sprintf("--replicas=%d", n)); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	scale(0)
	t.Cleanup(func() { scale(1) })
	e.within(3*time.Minute, "no operator", func() string {
		var d appsv1.Deployment
		if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: "outrider-system", Name: "outrider"}, &d); err != nil || d.Status.Replicas != 0 {
			return fmt.Sprintf("%v, %d replicas", err, d.Status.Replicas)
		}
		return ""
	})
	e.signal(e.pod(0), "SIGKILL")
	e.within(2*time.Minute, "an engine that has ended", func() string {
		if p := e.pod(0); p.Status.Phase != corev1.PodFailed {
			return string(p.Status.Phase)
		}
		return ""
	})
	scale(1)
	e.within(2*time.Minute, "the crash that no operator saw", func() string {
		s := e.server()
		row := s.Status.Pods[0]
		if s.Status.Phase != v1alpha1.PhaseReady || row.Restarts != 1 || row.LastFailure == nil || row.LastFailure.Reason != "Killed" {
			return fmt.Sprintf("%s: %s, %+v", s.Status.Phase, s.Status.Message, row.LastFailure)
		}
		return ""
	})
	e.checkGolden(true)
}
