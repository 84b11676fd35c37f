package decide

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// devices are the words of /progress for what an engine computes on. An engine
// that has another word is of a version that this operator does not know.
var devices = map[string]string{"cpu": string(v1alpha1.DeviceCPU), "cuda": string(v1alpha1.DeviceCUDA)}

// computes notes what the pod's engine computes on, and why not on its GPUs if
// that is the CPU. As long as this operator process has not asked, what the last
// one saw holds.
func (m *member) computes(in Input, before v1alpha1.PodStatus) {
	e := m.pod.Engine
	if e == nil || e.Progress == nil {
		if before.UID == m.row.UID {
			m.row.Device, m.row.DeviceMessage = before.Device, before.DeviceMessage
		}
		return
	}
	m.row.Device = devices[e.Progress.Device]
	if m.row.Device == string(v1alpha1.DeviceCPU) && in.Server.Spec.Device != v1alpha1.DeviceCPU && hasGPUs(m.pod.Pod) {
		m.row.DeviceMessage = failure.Clean(e.Progress.DeviceReason, 400)
		if m.row.DeviceMessage == "" {
			m.row.DeviceMessage = "the engine does not say why"
		}
	}
}

// hasGPUs says whether a pod holds NVIDIA devices.
func hasGPUs(p *corev1.Pod) bool {
	for i := range p.Spec.Containers {
		for name, n := range p.Spec.Containers[i].Resources.Limits {
			if strings.HasPrefix(string(name), "nvidia.com/") && !n.IsZero() {
				return true
			}
		}
	}
	return false
}

// unused is the first pod of the current spec that leaves its GPUs idle; nil:
// none does.
func (o *overview) unused() *member {
	idle := func(m *member) bool {
		return m.row.DeviceMessage != "" && !m.stale && m.pod != nil && m.pod.DeletionTimestamp == nil
	}
	for i := range o.members {
		m := &o.members[i]
		if idle(m) {
			return m
		}
		for k := range m.workers {
			if idle(&m.workers[k]) {
				return &m.workers[k]
			}
		}
	}
	return nil
}

// cpuInstead words what is wrong with a pod of unused, and what to write.
func (m *member) cpuInstead() string {
	why := strings.TrimRight(m.row.DeviceMessage, ".")
	return m.row.Name + " computes on the CPU: " + why + ". If that is meant, write spec.device: CPU; with spec.device: CUDA the engine ends instead."
}

// deviceOf is what the engines of all pods compute on; "" until one has said so.
func deviceOf(members []member) string {
	device := ""
	add := func(d string) {
		switch {
		case d == "" || d == device:
		case device == "":
			device = d
		default:
			device = v1alpha1.DeviceMixed
		}
	}
	for i := range members {
		add(members[i].row.Device)
		for k := range members[i].workers {
			add(members[i].workers[k].row.Device)
		}
	}
	return device
}
