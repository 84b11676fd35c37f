package build

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// LeaderWorkerSetKind is the kind that replicas of several nodes are groups of.
var LeaderWorkerSetKind = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}

// Labels that a LeaderWorkerSet's controller puts on its pods.
const (
	LabelGroupSet    = "leaderworkerset.sigs.k8s.io/name"
	LabelGroupIndex  = "leaderworkerset.sigs.k8s.io/group-index"
	LabelWorkerIndex = "leaderworkerset.sigs.k8s.io/worker-index"
)

// GroupName is the name of the server's LeaderWorkerSet. Its controller makes a
// headless Service of that name, so it is not the server's own.
func GroupName(server string) string { return server + "-nodes" }

// LeaderName is the name of the pod that leads, and serves for, the group of an
// ordinal.
func LeaderName(server string, ordinal int32) string { return PodName(GroupName(server), ordinal) }

// WorkerName is the name of the pod of another node of the group, from 1 on.
func WorkerName(server string, ordinal, node int32) string {
	return LeaderName(server, ordinal) + "-" + strconv.Itoa(int(node))
}

// Served selects the pods that clients may be sent to.
func Served(s *v1alpha1.SpeculativeServer) map[string]string {
	l := Selector(s.Name)
	if Nodes(s) > 1 {
		l[LabelWorkerIndex] = "0"
	}
	return l
}

// Group is the LeaderWorkerSet, with a number of groups, of a server whose
// replicas have several nodes; nil where they have one. Its controller tells the
// engines their places. A group restarts as a whole, since its ranks are one
// computation.
func Group(s *v1alpha1.SpeculativeServer, groups int32, o Options) (*unstructured.Unstructured, error) {
	if Nodes(s) == 1 {
		return nil, nil
	}
	revision, err := Revision(s, o)
	if err != nil {
		return nil, err
	}
	leader, err := groupTemplate(s, o, revision, true)
	if err != nil {
		return nil, err
	}
	worker, err := groupTemplate(s, o, revision, false)
	if err != nil {
		return nil, err
	}
	rolling := map[string]any{"maxUnavailable": int64(1), "maxSurge": int64(0)}
	if r := s.Spec.Rollout; r != nil {
		if r.MaxSurge != nil && *r.MaxSurge > 0 {
			rolling["maxSurge"], rolling["maxUnavailable"] = int64(*r.MaxSurge), int64(0)
		}
		if r.MaxUnavailable != nil {
			rolling["maxUnavailable"] = int64(*r.MaxUnavailable)
		}
	}
	all := map[string]any{}
	for k, v := range Labels(s.Name) {
		all[k] = v
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"name": GroupName(s.Name), "namespace": s.Namespace, "labels": all,
			"ownerReferences": []any{map[string]any{
				"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "SpeculativeServer",
				"name": s.Name, "uid": string(s.UID), "controller": true, "blockOwnerDeletion": true,
			}},
		},
		"spec": map[string]any{
			"replicas":      int64(groups),
			"startupPolicy": "LeaderCreated",
			"rolloutStrategy": map[string]any{
				"type": "RollingUpdate", "rollingUpdateConfiguration": rolling,
			},
			"networkConfig": map[string]any{"subdomainPolicy": "Shared"},
			"leaderWorkerTemplate": map[string]any{
				"size":          int64(Nodes(s)),
				"restartPolicy": "RecreateGroupOnPodRestart",
				// The leader has the readiness gate, and is the only one that serves.
				"leaderTemplate": leader,
				"workerTemplate": worker,
			},
		},
	}}
	u.SetGroupVersionKind(LeaderWorkerSetKind)
	return u, nil
}

// groupTemplate is the template of the pods that lead, or of the others.
func groupTemplate(s *v1alpha1.SpeculativeServer, o Options, revision string, leads bool) (map[string]any, error) {
	spec := podSpec(s, o)
	spec.WithRestartPolicy(corev1.RestartPolicyAlways) // a StatefulSet makes the pods; the group is made again when one restarts
	if !leads {
		spec.ReadinessGates = nil
	}
	l := Labels(s.Name)
	l[v1alpha1.LabelRevision] = revision
	template := corev1ac.PodTemplateSpec().WithSpec(spec)
	if m := s.Spec.PodMetadata; m != nil {
		template.WithLabels(texts(m.Labels)).WithAnnotations(m.Annotations)
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template.WithLabels(l))
	if err != nil {
		return nil, fmt.Errorf("converting the pod template of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return u, nil
}
