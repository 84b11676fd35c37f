//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// gpu is a resource of which each of the test's pods needs one.
const gpu = corev1.ResourceName("nvidia.com/gpu")

// devices gives the node n devices that are only names, until the test ends.
func (e *env) devices(n int) {
	e.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "fakedevices", string(gpu), fmt.Sprint(n), "NVIDIA_VISIBLE_DEVICES")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		cancel()
		e.Fatalf("the device plugin of hack/cluster: %v", err)
	}
	e.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it ends by the signal
	})
	e.within(2*time.Minute, "devices on the node", func() string {
		var nodes corev1.NodeList
		if err := k8s.List(e.Context(), &nodes); err != nil {
			return err.Error()
		}
		if has := nodes.Items[0].Status.Allocatable[gpu]; has.Value() != int64(n) {
			return fmt.Sprintf("it has %s", has.String())
		}
		return ""
	})
}

// TestDevices changes the spec of a server that has every device there is, and
// then of one that has all but one and may use it. There are never more pods than
// devices, none waits for a device that another still holds, and no request is
// lost. In the end its engine may use them, and has no CUDA: the status says so.
func TestDevices(t *testing.T) {
	const n = 3
	e := begin(t)
	e.devices(n)
	e.quickstart(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Replicas, s.Spec.Device = new(int32(n)), v1alpha1.DeviceCPU
		s.Spec.Resources.Limits[gpu] = resource.MustParse("1")
		s.Spec.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("50m")
		s.Spec.Rollout = &v1alpha1.RolloutSpec{DrainSeconds: new(int32(10))}
	})
	e.settled(n)
	for _, change := range []struct {
		what, patch string
		replicas    int
		most        int // pods at once
		fewest      int // ready pods
	}{
		{"no device to spare", `{"spec":{"speculation":{"numSteps":2}}}`, n, n, n - 1},
		{"one device to spare", `{"spec":{"replicas":2,"rollout":{"maxSurge":1},"speculation":{"numSteps":4}}}`, n - 1, n, n - 1},
	} {
		if change.replicas < n { // first without a change of the template
			e.patch(`{"spec":{"replicas":2}}`)
			e.settled(change.replicas)
		}
		stop, unloaded, held := e.watchPods(), e.load(), e.watchScheduling()
		e.patch(change.patch)
		e.settled(change.replicas)
		if answered, errs := unloaded(); answered == 0 || len(errs) > 0 {
			t.Errorf("%s: %d requests were answered, and %d failed: %v", change.what, answered, len(errs), errs)
		}
		if most, fewest := stop(); most > change.most || fewest < change.fewest {
			t.Errorf("%s: up to %d pods, and down to %d ready; want at most %d, and at least %d", change.what, most, fewest, change.most, change.fewest)
		}
		if waited := held(); waited != "" {
			t.Errorf("%s: %s", change.what, waited)
		}
	}
	e.checkGolden(true)

	// Devices that are only names are none for the engine, and the spec does not ask for the CPU any more.
	e.patch(fmt.Sprintf(`{"spec":{"replicas":1,"parallelism":{"tensor":1},"device":"Auto","image":%q}}`, e.pod(0).Spec.Containers[0].Image))
	e.settled(1)
	e.within(3*time.Minute, "GPUs that are not used", func() string {
		s := e.server()
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
		if c.Reason != v1alpha1.ReasonGPUUnused || s.Status.Device != "CPU" || !strings.Contains(s.Status.Pods[0].DeviceMessage, "built without CUDA") {
			return fmt.Sprintf("device %q, %s: %s, row %+v", s.Status.Device, c.Reason, c.Message, s.Status.Pods[0])
		}
		return ""
	})
	e.event(v1alpha1.ReasonGPUUnused, "built without CUDA")
}

// settled waits until the server is Ready as its spec has it now.
func (e *env) settled(replicas int) {
	e.Helper()
	want := fmt.Sprintf("%d/%d", replicas, replicas)
	e.within(3*time.Minute, "ready "+want, func() string {
		s := e.server()
		if s.Status.Phase != v1alpha1.PhaseReady || s.Status.ObservedGeneration != s.Generation {
			return fmt.Sprintf("it is %s: %s", s.Status.Phase, s.Status.Message)
		}
		if s.Status.Ready != want || int(*s.Status.Replicas) != replicas || int(*s.Status.UpdatedReplicas) != replicas {
			return fmt.Sprintf("it is ready %s, with %d pods, %d of them new", s.Status.Ready, *s.Status.Replicas, *s.Status.UpdatedReplicas)
		}
		return ""
	})
}

// watchScheduling looks whether a pod is told that devices are lacking, until the
// function that it returns is called; that says which.
func (e *env) watchScheduling() func() string {
	ctx, cancel := context.WithCancel(e.Context())
	result := make(chan string)
	go func() {
		waited := ""
		for ctx.Err() == nil {
			var list corev1.PodList
			if err := k8s.List(ctx, &list, client.InNamespace(e.namespace)); err == nil {
				for i := range list.Items {
					if c := condition(&list.Items[i], corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
						waited = list.Items[i].Name + ": " + c.Message
					}
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		result <- waited
	}()
	return func() string {
		cancel()
		return <-result
	}
}
