package build

import (
	"encoding/json"
	"fmt"
	"slices"
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

// Group is the LeaderWorkerSet of a server whose replicas have several nodes, of
// which so many may be missing, and so many more than asked for, during a rollout;
// nil where they have one.
// Its controller tells the engines their places. A group restarts as a whole,
// since its ranks are one computation. Its pods have a gate, for that controller
// makes them again at once.
func Group(s *v1alpha1.SpeculativeServer, missing, surge int32, o Options) (*unstructured.Unstructured, error) {
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
			"replicas":      int64(Replicas(s)),
			"startupPolicy": "LeaderCreated",
			"rolloutStrategy": map[string]any{
				"type": "RollingUpdate", "rollingUpdateConfiguration": map[string]any{"maxUnavailable": int64(missing), "maxSurge": int64(surge)},
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
	spec.WithSchedulingGates(corev1ac.PodSchedulingGate().WithName(v1alpha1.StartGate))
	if !leads {
		spec.ReadinessGates = nil
	}
	l := Labels(s.Name)
	l[v1alpha1.LabelRevision] = revision
	template := corev1ac.PodTemplateSpec().WithSpec(spec)
	if m := s.Spec.PodMetadata; m != nil {
		template.WithLabels(texts(m.Labels)).WithAnnotations(texts(m.Annotations))
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template.WithLabels(l))
	if err != nil {
		return nil, fmt.Errorf("converting the pod template of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return u, nil
}

// StartPatch is the strategic merge patch that takes the operator's gate from a
// pod of a group, so that the scheduler places it, on other nodes than those to
// avoid where it can. It is for the pod as it was read, and no other.
func StartPatch(p *corev1.Pod, avoid []string) ([]byte, error) {
	spec := map[string]any{"schedulingGates": []any{map[string]any{"$patch": "delete", "name": v1alpha1.StartGate}}}
	if len(avoid) > 0 {
		var terms []corev1.PreferredSchedulingTerm
		if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			terms = slices.Clone(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		for _, node := range avoid {
			terms = append(terms, corev1.PreferredSchedulingTerm{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}}}}})
		}
		spec["affinity"] = map[string]any{"nodeAffinity": map[string]any{"preferredDuringSchedulingIgnoredDuringExecution": terms}}
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "spec": spec})
	if err != nil {
		return nil, fmt.Errorf("encoding the patch of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return b, nil
}
