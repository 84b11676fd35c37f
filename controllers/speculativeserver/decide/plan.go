package decide

import (
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// plan chooses the pods to make and to delete.
//
// A pod's name is its ordinal's, so a new pod is made only when the old one is
// gone: a pod that terminates still holds its devices, and there is never a pod
// more than asked for. Of the pods made from another template, those that are
// not ready go at once, they serve no one; of the ready ones, one goes when all
// others are ready.
func (d *Decision) plan(in Input, members []member, desired int32) {
	if in.Server.DeletionTimestamp != nil {
		return // the garbage collector takes the pods
	}
	unavailable := 0
	for i := range members {
		if m := &members[i]; m.ordinal < desired && m.row.Phase != v1alpha1.PhaseReady {
			unavailable++
		}
	}
	for i := range members {
		m := &members[i]
		switch {
		case m.pod == nil:
			if in.NameTaken == "" {
				d.Create = append(d.Create, Creation{Ordinal: m.ordinal, Avoid: m.avoid()})
			}
		case m.pod.DeletionTimestamp != nil:
		case m.ordinal >= desired:
			d.delete(m, "ScaledDown", "%d replicas are asked for", desired)
		case m.stale && m.row.Phase != v1alpha1.PhaseReady:
			d.delete(m, "Outdated", "made from another spec, and not ready")
		case m.stale:
			if unavailable == 0 {
				unavailable++
				d.delete(m, "Outdated", "made from another spec")
			}
		case m.row.NextStartTime != nil:
			d.restart(in, m)
		}
	}
}

func (d *Decision) delete(m *member, reason, format string, args ...any) {
	d.Delete = append(d.Delete, Deletion{Pod: m.pod.Pod, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// restart deletes a crashed pod when its back-off has ended, and not before the
// crash is in the status: a crash that is not written down is not counted.
func (d *Decision) restart(in Input, m *member) {
	if wait := m.row.NextStartTime.Sub(in.Now); wait > 0 {
		d.wakeIn(wait)
		return
	}
	for i := range in.Server.Status.Pods {
		row := &in.Server.Status.Pods[i]
		if row.Name == m.row.Name && row.LastFailure != nil && row.LastFailure.PodUID == string(m.pod.UID) {
			d.delete(m, "Restarting", "its back-off has ended")
			return
		}
	}
	d.wakeIn(time.Second)
}
