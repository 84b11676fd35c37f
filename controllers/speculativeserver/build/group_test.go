package build

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func nodes() *v1alpha1.SpeculativeServer {
	s := server("big", v1alpha1.SpeculativeServerSpec{
		Replicas: ptr(int32(3)), Model: builtin(), Speculation: eagle3(3),
		Parallelism: v1alpha1.ParallelismSpec{Tensor: ptr(int32(16)), Nodes: ptr(int32(2))},
		Resources: &v1alpha1.Resources{Limits: map[corev1.ResourceName]resource.Quantity{
			"memory": resource.MustParse("64Gi"), "nvidia.com/gpu": resource.MustParse("8")}},
		PodMetadata:   &v1alpha1.PodMetadata{Labels: map[string]v1alpha1.LabelValue{"team": "a"}},
		Service:       &v1alpha1.ServiceSpec{Headless: v1alpha1.Enabled},
		Disruption:    &v1alpha1.DisruptionSpec{},
		NetworkPolicy: &v1alpha1.NetworkPolicySpec{},
		Rollout:       &v1alpha1.RolloutSpec{MaxUnavailable: ptr(int32(2))},
	})
	return s
}

// TestGroupGolden holds the LeaderWorkerSet: what changes its templates restarts
// every replica of several nodes.
func TestGroupGolden(t *testing.T) {
	s := nodes()
	group, err := Group(s, 2, 0, options)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "group.yaml", group)
	golden(t, "group-around.yaml", []any{Service(s), Headless(s), Budget(s), Network(s, options)})

	s.Spec.Parallelism.Nodes = ptr(int32(1))
	if group, err := Group(s, 2, 0, options); group != nil || err != nil {
		t.Errorf("one node: %v, %v", group, err)
	}
}

// What makes no other pods touches no template: LeaderWorkerSets roll out what does.
func TestGroupRevision(t *testing.T) {
	template := func(s *v1alpha1.SpeculativeServer) string {
		group, err := Group(s, 2, 0, options)
		if err != nil {
			t.Fatal(err)
		}
		labels := group.Object["spec"].(map[string]any)["leaderWorkerTemplate"].(map[string]any)["leaderTemplate"].(map[string]any)["metadata"].(map[string]any)["labels"].(map[string]any)
		return labels[v1alpha1.LabelRevision].(string)
	}
	before := template(nodes())
	for _, c := range []struct {
		name string
		edit func(s *v1alpha1.SpeculativeServer)
		same bool
	}{
		{"replicas", func(s *v1alpha1.SpeculativeServer) { s.Spec.Replicas = ptr(int32(9)) }, true},
		{"tensor", func(s *v1alpha1.SpeculativeServer) { s.Spec.Parallelism.Tensor = ptr(int32(8)) }, false},
		{"secret", func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Parallelism.NodeSecretRef = &v1alpha1.SecretKeyRef{Name: "mine", Key: "k"}
		}, false},
		{"nodes", func(s *v1alpha1.SpeculativeServer) { s.Spec.Parallelism.Nodes = ptr(int32(4)) }, false},
	} {
		s := nodes()
		c.edit(s)
		if same := template(s) == before; same != c.same {
			t.Errorf("%s: the template is the same: %v", c.name, same)
		}
	}
}

// TestStartPatch: only the operator's gate goes, from the pod as it was read, and
// what the pod prefers stays.
func TestStartPatch(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Name, pod.ResourceVersion = "s-nodes-0", "42"
	zone := corev1.PreferredSchedulingTerm{Weight: 5, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue.test/admission"}, {Name: v1alpha1.StartGate}}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{zone}}}
	before, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, avoid := range [][]string{nil, {"bad"}} {
		patch, err := StartPatch(pod, avoid)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		got := &corev1.Pod{}
		if err := json.Unmarshal(after, got); err != nil {
			t.Fatal(err)
		}
		want := pod.DeepCopy()
		want.Spec.SchedulingGates = want.Spec.SchedulingGates[:1]
		if avoid != nil {
			n := want.Spec.Affinity.NodeAffinity
			n.PreferredDuringSchedulingIgnoredDuringExecution = append(n.PreferredDuringSchedulingIgnoredDuringExecution, corev1.PreferredSchedulingTerm{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"bad"}}}}})
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("avoiding %v:\n%s", avoid, d)
		}
		if !strings.Contains(string(patch), `"resourceVersion":"42"`) {
			t.Errorf("%s is for any pod of the name", patch)
		}
	}
}

// TestNodeSecret: the nodes' secret is a file, the operator's or one that the spec
// names, and there is none where there is one node.
func TestNodeSecret(t *testing.T) {
	for _, c := range []struct {
		name, made, mounted, key string
		change                   func(*v1alpha1.ParallelismSpec)
	}{
		{"made", "big-nodes", "big-nodes", "secret", func(*v1alpha1.ParallelismSpec) {}},
		{"named", "", "mine", "k", func(p *v1alpha1.ParallelismSpec) { p.NodeSecretRef = &v1alpha1.SecretKeyRef{Name: "mine", Key: "k"} }},
		{"one node", "", "", "", func(p *v1alpha1.ParallelismSpec) { p.Nodes = nil }},
	} {
		s := nodes()
		c.change(&s.Spec.Parallelism)
		spec := podSpec(s, options)
		mounted, key := "", ""
		for _, v := range spec.Volumes {
			if *v.Name == "node-secret" {
				mounted, key = *v.Secret.SecretName, *v.Secret.Items[0].Key
			}
		}
		flag := slices.Contains(spec.Containers[0].Args, "--dist-secret-file=/var/run/outrider/nodes/secret")
		if made := NodeSecretName(s); made != c.made || mounted != c.mounted || key != c.key || flag != (c.mounted != "") {
			t.Errorf("%s: makes %q, mounts %q of %q, flag %v", c.name, made, key, mounted, flag)
		}
	}
}
