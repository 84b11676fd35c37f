package decide

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// holds is a pod that has a device.
func holds(name corev1.ResourceName) func(*Pod) {
	return func(p *Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
	}
}

// on is a pod whose engine computes on a device, in its own words, for a reason.
func on(device, why string) func(*Pod) {
	return loads(Progress{Phase: "serving", Percent: 100, Device: device, DeviceReason: why})
}

// TestDevice: each pod's row and the server say what engines compute on; GPUs
// that an engine leaves idle are a fault, with the engine's reason, and no phase.
func TestDevice(t *testing.T) {
	const why = "libcuda.so.1 cannot be opened."
	gpu, idle := holds("nvidia.com/gpu"), on("cpu", why)
	for _, tt := range []struct {
		name   string
		spec   v1alpha1.Device
		pods   []Pod
		device string
		reason string // of Degraded
	}{
		{"not asked yet", "", []Pod{newPod(0, ready, gpu)}, "", v1alpha1.ReasonAsExpected},
		{"not chosen yet", "", []Pod{newPod(0, gpu, on("", ""))}, "", v1alpha1.ReasonAsExpected},
		{"on its GPU", "", []Pod{newPod(0, ready, gpu, on("cuda", "1 GPU is there"))}, "CUDA", v1alpha1.ReasonAsExpected},
		{"no GPU, none asked for", "", []Pod{newPod(0, ready, idle)}, "CPU", v1alpha1.ReasonAsExpected},
		{"another kind of device", "", []Pod{newPod(0, ready, idle, holds("example.com/nic"))}, "CPU", v1alpha1.ReasonAsExpected},
		{"a device that this operator does not know", "", []Pod{newPod(0, ready, gpu, on("tpu", why))}, "", v1alpha1.ReasonAsExpected},
		{"idle", "", []Pod{newPod(0, ready, gpu, idle)}, "CPU", v1alpha1.ReasonGPUUnused},
		{"a part of a GPU", v1alpha1.DeviceAuto, []Pod{newPod(0, ready, idle, holds("nvidia.com/mig-1g.10gb"))}, "CPU", v1alpha1.ReasonGPUUnused},
		{"meant", v1alpha1.DeviceCPU, []Pod{newPod(0, ready, gpu, on("cpu", "as asked"))}, "CPU", v1alpha1.ReasonAsExpected},
		{"while it loads", "", []Pod{newPod(0, gpu, loads(Progress{Phase: "load", LastAdvance: t0, Device: "cpu", DeviceReason: why}))}, "CPU", v1alpha1.ReasonGPUUnused},
		{"one of two", "", []Pod{newPod(0, ready, gpu, on("cuda", "")), newPod(1, ready, gpu, idle)}, v1alpha1.DeviceMixed, v1alpha1.ReasonGPUUnused},
		{"both of them", "", []Pod{newPod(0, ready, gpu, idle), newPod(1, ready, gpu, idle)}, "CPU", v1alpha1.ReasonGPUUnused},
		{"none of the devices that it could have", "", []Pod{newPod(0, ready, func(p *Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}
		}, idle)}, "CPU", v1alpha1.ReasonAsExpected},
		{"being deleted", "", []Pod{newPod(0, gpu, idle, terminatingUntil(t0))}, "CPU", v1alpha1.ReasonAsExpected},
		{"of the spec from before", "", []Pod{newPod(0, stale, ready, gpu, idle)}, "CPU", v1alpha1.ReasonAsExpected},
		{"beside a worse fault", "", []Pod{newPod(0, ready, gpu, idle), newPod(1, exited(t0, 12, "Error", ""))}, "CPU", v1alpha1.ReasonCrashed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(int32(len(tt.pods)))
			s.Spec.Device = tt.spec
			st := Decide(input(s, tt.pods...)).Status
			c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionDegraded)
			if st.Device != tt.device || c.Reason != tt.reason {
				t.Errorf("device %q, Degraded for %s (%s); want %q and %s", st.Device, c.Reason, c.Message, tt.device, tt.reason)
			}
		})
	}
}

// TestDeviceWords: what people read where GPUs are idle, the event of it, and
// that another operator process says the same before it has asked.
func TestDeviceWords(t *testing.T) {
	s := newServer(1)
	d := Decide(input(s, newPod(0, ready, holds("nvidia.com/gpu"), on("cpu", "the driver\nis too old."))))
	const words = "s-0 computes on the CPU: the driver is too old. If that is meant, write spec.device: CPU; with spec.device: CUDA the engine ends instead."
	row := d.Status.Pods[0]
	if want := "Serving. It computes on the CPU, not on its GPUs: the driver is too old."; row.Message != want || row.Device != "CPU" || row.DeviceMessage != "the driver is too old." {
		t.Errorf("row %+v; want the message %q", row, want)
	}
	if d.Status.Phase != v1alpha1.PhaseReady || !strings.HasSuffix(d.Status.Message, "/v1. GPUs are not used: "+words) {
		t.Errorf("%s: %s", d.Status.Phase, d.Status.Message)
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionDegraded); c.Message != words {
		t.Errorf("Degraded: %s", c.Message)
	}
	told := 0
	for _, e := range d.Events {
		if e.Reason == v1alpha1.ReasonGPUUnused {
			told++
			if e.Type != corev1.EventTypeWarning || e.Message != words {
				t.Errorf("event %+v", e)
			}
		}
	}
	if told != 1 {
		t.Errorf("%d events of it, want 1: %+v", told, d.Events)
	}
	s.Status = d.Status
	again := Decide(input(s, newPod(0, ready, holds("nvidia.com/gpu"))))
	if change := Compare(&s.Status, &again.Status); change != Same || len(again.Events) > 0 {
		t.Errorf("before it has asked, another process would write %+v, with the events %+v", again.Status, again.Events)
	}
	other := newPod(0, ready, holds("nvidia.com/gpu"))
	other.UID = "another"
	if row := Decide(input(s, other)).Status.Pods[0]; row.Device != "" || row.DeviceMessage != "" {
		t.Errorf("another pod has the device of the one before: %+v", row)
	}
	for name, changes := range map[string][]func(*Pod){"Loading 5 %": {loads(Progress{Phase: "load", Percent: 5, LastAdvance: t0, Device: "cpu"}), holds("nvidia.com/gpu")}, "Serving.": {ready}} {
		if row := Decide(input(newServer(1), newPod(0, changes...))).Status.Pods[0]; row.Message != name {
			t.Errorf("message %q, want %q", row.Message, name)
		}
	}
	group := input(newServer(1), newNode(0, 0, ready, on("cuda", "")))
	group.Nodes, group.Workers = 2, []Worker{worker(0, 1, computes, on("cpu", ""))}
	if got := Decide(group).Status.Device; got != v1alpha1.DeviceMixed {
		t.Errorf("the nodes of a replica compute on different devices, and the server says %q", got)
	}
	if row := Decide(input(newServer(1), newPod(0, ready, holds("nvidia.com/gpu"), on("cpu", "")))).Status.Pods[0]; row.DeviceMessage == "" {
		t.Error("an engine that does not say why is not found")
	}
}
