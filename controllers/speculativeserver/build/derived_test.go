package build

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestSharedMemory: /dev/shm holds the segments of the ranks of one pod, and what
// it holds is counted in the memory that the pod asks for.
func TestSharedMemory(t *testing.T) {
	for _, tt := range []struct {
		tensor, nodes int32
		shm           string // "" is the container runtime's
		memory        string
	}{
		{1, 1, "", "4Gi"},
		{2, 1, "512Mi", "4608Mi"},
		{8, 1, "2Gi", "6Gi"},
		{64, 1, "16Gi", "20Gi"},
		{8, 4, "512Mi", "4608Mi"},
		{8, 8, "", "4Gi"},
	} {
		t.Run(fmt.Sprintf("%d ranks, %d nodes", tt.tensor, tt.nodes), func(t *testing.T) {
			memory := map[corev1.ResourceName]resource.Quantity{corev1.ResourceMemory: resource.MustParse("4Gi")}
			s := server("s", v1alpha1.SpeculativeServerSpec{Model: builtin(), Resources: &v1alpha1.Resources{Requests: memory, Limits: memory},
				Parallelism: v1alpha1.ParallelismSpec{Tensor: &tt.tensor, Nodes: &tt.nodes}})
			spec := podSpec(s, options)
			size := ""
			for _, v := range spec.Volumes {
				if *v.Name == "shm" {
					size = v.EmptyDir.SizeLimit.String()
					if *v.EmptyDir.Medium != corev1.StorageMediumMemory {
						t.Errorf("it is on %q", *v.EmptyDir.Medium)
					}
				}
			}
			want := resource.MustParse(tt.memory)
			got := spec.Containers[0].Resources
			if size != tt.shm || !(*got.Requests).Memory().Equal(want) || !(*got.Limits).Memory().Equal(want) {
				t.Errorf("/dev/shm of %q, memory %s and %s", size, (*got.Requests).Memory(), (*got.Limits).Memory())
			}
			memory = s.Spec.Resources.Limits
			if q := memory[corev1.ResourceMemory]; q.String() != "4Gi" {
				t.Errorf("the spec became %s", q.String())
			}
		})
	}
}

// TestGraceFollowsDrain: the kubelet gives a pod as long as the engine drains, and
// the time around it, whatever the one setting is.
func TestGraceFollowsDrain(t *testing.T) {
	for _, tt := range []struct {
		drain *int32
		flag  string
		grace int64
	}{
		{nil, "--drain-timeout=30s", 38},
		{ptr(int32(0)), "--drain-timeout=0s", 8},
		{ptr(int32(600)), "--drain-timeout=600s", 608},
		{ptr(int32(86400)), "--drain-timeout=86400s", 86408},
	} {
		s := server("s", v1alpha1.SpeculativeServerSpec{Model: builtin(), Rollout: &v1alpha1.RolloutSpec{DrainSeconds: tt.drain}})
		spec := podSpec(s, options)
		c := spec.Containers[0]
		// Before it is told to stop the engine goes on for 3 s, in which nodes stop sending requests.
		if *spec.TerminationGracePeriodSeconds != tt.grace || !slices.Contains(c.Args, tt.flag) || *c.Lifecycle.PreStop.Sleep.Seconds != 3 {
			t.Errorf("%s: grace %d, %d s before, args %q", tt.flag, *spec.TerminationGracePeriodSeconds, *c.Lifecycle.PreStop.Sleep.Seconds, c.Args)
		}
	}
}
