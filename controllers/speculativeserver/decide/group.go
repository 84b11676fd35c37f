package decide

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/failure"
)

// workersOf lists the nodes of a replica but its first, each with its pod, when
// there is one, and its row of the last status.
func (in *Input) workersOf(ordinal int32, old map[string]v1alpha1.PodStatus) []member {
	var ms []member
	for node := int32(1); node < in.Nodes; node++ {
		m := member{ordinal: ordinal, node: node, grouped: true}
		name := fmt.Sprintf("%s-%d", in.podName(ordinal), node)
		row := old[name]
		row.DeepCopyInto(&m.row)
		m.row.Name = name
		for i := range in.Workers {
			if w := &in.Workers[i]; w.Ordinal == ordinal && w.Node == node && w.Name == name {
				m.pod = &w.Pod
			}
		}
		ms = append(ms, m)
	}
	return ms
}

// recordGroup notes a failure in the row of a pod of a LeaderWorkerSet, once for
// each pod. Its controller makes the whole group again, at once and without end.
func (m *member) recordGroup(v *failure.Verdict) {
	row, uid := &m.row, string(m.pod.UID)
	if last := row.LastFailure; last == nil || last.PodUID != uid {
		row.Restarts++
		row.FailuresInRow++
	}
	if row.FailingSince == nil {
		row.FailingSince = ptrTime(v.Time)
	}
	row.LastFailure = &v1alpha1.PodFailure{
		Time: metav1.NewTime(v.Time), PodUID: uid, Revision: m.pod.Labels[v1alpha1.LabelRevision], Node: m.pod.Spec.NodeName,
		ExitCode: v.ExitCode, Rank: v.Rank, Reason: v.Reason, Message: v.Message,
	}
	m.badDraft = isDraft(v)
	message := strings.TrimRight(v.Message, ".")
	if v.Rank != nil {
		message = fmt.Sprintf("rank %d: %s", *v.Rank, message)
	}
	advice := "Its group starts again as a whole."
	if v.Terminal {
		advice = "Its group starts again, and will end the same way until the spec changes."
	}
	m.set(v1alpha1.PhaseCrashed, "%s, %s: %s. %s", ended(row.LastFailure), times(row.FailuresInRow), message, advice)
}
