package build

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
	group, err := Group(s, Replicas(s), options)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "group.yaml", group)
	golden(t, "group-around.yaml", []any{Service(s), Headless(s), Budget(s), Network(s, options)})

	s.Spec.Parallelism.Nodes = ptr(int32(1))
	if group, err := Group(s, Replicas(s), options); group != nil || err != nil {
		t.Errorf("one node: %v, %v", group, err)
	}
}

// What makes no other pods touches no template: LeaderWorkerSets roll out what does.
func TestGroupRevision(t *testing.T) {
	template := func(s *v1alpha1.SpeculativeServer) string {
		group, err := Group(s, Replicas(s), options)
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
		{"nodes", func(s *v1alpha1.SpeculativeServer) { s.Spec.Parallelism.Nodes = ptr(int32(4)) }, false},
	} {
		s := nodes()
		c.edit(s)
		if same := template(s) == before; same != c.same {
			t.Errorf("%s: the template is the same: %v", c.name, same)
		}
	}
}
