package decide

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func TestClaimConflict(t *testing.T) {
	modes := func(m ...corev1.PersistentVolumeAccessMode) []Claim { return []Claim{{Name: "models", Modes: m}} }
	cache := func(m ...corev1.PersistentVolumeAccessMode) []Claim {
		return []Claim{{Name: "models", Modes: m, Cache: true}}
	}
	pinned := func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Scheduling = &v1alpha1.SchedulingSpec{NodeSelector: map[string]v1alpha1.LabelValue{corev1.LabelHostname: "node1"}}
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
		{"once, on some nodes", 2, func(s *v1alpha1.SpeculativeServer) {
			s.Spec.Scheduling = &v1alpha1.SchedulingSpec{NodeSelector: map[string]v1alpha1.LabelValue{"pool": "gpu"}}
		}, modes(corev1.ReadWriteOnce), "which one node can mount"},
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
	if why := CacheConflict(newServer(1), &v1alpha1.CacheClaimStatus{}, false); why != "" {
		t.Errorf("no cache: %s", why)
	}
	in := input(newServer(2))
	in.Conflict = "Claim models is ReadWriteOnce."
	if d := Decide(in); d.Status.Phase != v1alpha1.PhasePending || d.Status.Message != in.Conflict {
		t.Errorf("%s: %s", d.Status.Phase, d.Status.Message)
	}
}

// TestCacheConflict: a claim that is there is held against the template, before an
// API server refuses to change it.
func TestCacheConflict(t *testing.T) {
	template := func(size, class string, mode corev1.PersistentVolumeAccessMode) *v1alpha1.CacheTemplate {
		return &v1alpha1.CacheTemplate{Size: resource.MustParse(size), StorageClassName: class, AccessMode: mode}
	}
	claim := func(size, class, mode string) *v1alpha1.CacheClaimStatus {
		return &v1alpha1.CacheClaimStatus{UID: "u", Size: resource.MustParse(size), StorageClassName: class, AccessMode: mode}
	}
	const change = "a claim cannot be changed"
	for _, tt := range []struct {
		name     string
		template *v1alpha1.CacheTemplate
		claim    *v1alpha1.CacheClaimStatus
		goes     bool
		want     string // "" is none
	}{
		{"no template", nil, claim("1Gi", "", "ReadWriteOnce"), false, ""},
		{"no template, and it goes", nil, claim("1Gi", "", "ReadWriteOnce"), true, ""},
		{"no claim", template("1Gi", "", ""), nil, false, ""},
		{"as asked for", template("1Gi", "fast", "ReadWriteMany"), claim("1Gi", "fast", "ReadWriteMany"), false, ""},
		{"defaults", template("1024Mi", "", ""), claim("1Gi", "", "ReadWriteOnce"), false, ""},
		{"to be raised", template("2Gi", "", ""), claim("1Gi", "", "ReadWriteOnce"), false, ""},
		{"larger", template("1Gi", "", ""), claim("2Gi", "", "ReadWriteOnce"), false, "storage class the default, ReadWriteOnce and 2Gi, and " + change},
		{"another class", template("1Gi", "fast", ""), claim("1Gi", "slow", "ReadWriteOnce"), false, "storage class slow, ReadWriteOnce and 1Gi, and " + change},
		{"the default class", template("1Gi", "", ""), claim("1Gi", "slow", "ReadWriteOnce"), false, "storage class slow"},
		{"another mode", template("1Gi", "", "ReadWriteMany"), claim("1Gi", "", "ReadWriteOnce"), false, change},
		{"it goes", template("1Gi", "", ""), claim("1Gi", "", "ReadWriteOnce"), true, "Claim s-models is being deleted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(1)
			s.Spec.ModelCache = &v1alpha1.ModelCacheSpec{Template: tt.template}
			got := CacheConflict(s, tt.claim, tt.goes)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
