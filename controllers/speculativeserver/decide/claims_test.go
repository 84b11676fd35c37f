package decide

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func TestClaimConflict(t *testing.T) {
	modes := func(m ...corev1.PersistentVolumeAccessMode) []Claim { return []Claim{{Name: "models", Modes: m}} }
	cache := func(m ...corev1.PersistentVolumeAccessMode) []Claim {
		return []Claim{{Name: "models", Modes: m, Cache: true}}
	}
	pinned := func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Scheduling = &v1alpha1.SchedulingSpec{NodeSelector: map[string]string{corev1.LabelHostname: "node1"}}
	}
	surge := func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Rollout = &v1alpha1.RolloutSpec{MaxSurge: ptr(int32(1))}
	}
	nodes := func(s *v1alpha1.SpeculativeServer) { s.Spec.Parallelism.Nodes = ptr(int32(3)) }
	scaled := func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	}
	for _, tt := range []struct {
		name     string
		replicas int32
		change   func(*v1alpha1.SpeculativeServer)
		claims   []Claim
		want     string // part of the message; "": no conflict
	}{
		{"none", 5, nil, nil, ""},
		{"one pod", 1, nil, modes(corev1.ReadWriteOncePod), ""},
		{"stopped", 0, nil, modes(corev1.ReadWriteOncePod), ""},
		{"many", 5, nil, modes(corev1.ReadOnlyMany), ""},
		{"once or many", 5, nil, modes(corev1.ReadWriteOnce, corev1.ReadWriteMany), ""},
		{"once", 2, nil, modes(corev1.ReadWriteOnce), "ReadWriteOnce, which one node can mount, and up to 2 pods"},
		{"once, on one node", 2, pinned, modes(corev1.ReadWriteOnce), ""},
		{"one pod only", 2, nil, modes(corev1.ReadWriteOncePod), "ReadWriteOncePod, and up to 2 pods"},
		{"one pod only, on one node", 2, pinned, modes(corev1.ReadWriteOncePod), "ReadWriteOncePod"},
		{"cache of one pod", 1, nil, cache(corev1.ReadWriteOnce), ""},
		{"cache that cannot be written", 1, nil, cache(corev1.ReadOnlyMany), "the download is written to it"},
		{"cache for a single pod", 1, nil, cache(corev1.ReadWriteOncePod), "the download is written to it"},
		{"cache of many", 4, nil, cache(corev1.ReadWriteMany), ""},
		{"cache on one node", 2, nil, cache(corev1.ReadWriteOnce), "which one node can mount"},
		{"one replica of several nodes", 1, nodes, modes(corev1.ReadWriteOnce), "up to 3 pods"},
		{"replicas of several nodes", 2, nodes, modes(corev1.ReadWriteOncePod), "up to 6 pods"},
		{"several nodes, stopped", 0, nodes, modes(corev1.ReadWriteOnce), ""},
		{"several nodes, many", 2, nodes, modes(corev1.ReadWriteMany), ""},
		{"one pod that may become three", 1, scaled, modes(corev1.ReadWriteOnce), "up to 3 pods"},
		{"one pod and a surge", 1, surge, modes(corev1.ReadWriteOnce), "up to 2 pods"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(tt.replicas)
			if tt.change != nil {
				tt.change(s)
			}
			got := ClaimConflict(s, tt.claims)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	in := input(newServer(2))
	in.Conflict = "Claim models is ReadWriteOnce."
	if d := Decide(in); d.Status.Phase != v1alpha1.PhasePending || d.Status.Message != in.Conflict {
		t.Errorf("%s: %s", d.Status.Phase, d.Status.Message)
	}
}
