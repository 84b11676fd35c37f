package decide

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Claim is a volume claim that the pods mount.
type Claim struct {
	Name  string
	Modes []corev1.PersistentVolumeAccessMode // of the claim, as it asks for them
	Cache bool                                // a download is written to it
}

// ClaimConflict says which claim cannot be mounted by as many pods as there may
// be at once; "" when all can. It is asked before pods are made: afterwards they
// would wait for one another for ever.
func ClaimConflict(s *v1alpha1.SpeculativeServer, claims []Claim) string {
	c := config(s, replicas(s))
	most := c.Desired
	if a := s.Spec.Autoscaling; a != nil {
		most = max(most, a.MaxReplicas)
	}
	most = (most + c.MaxSurge) * nodes(s)
	for _, claim := range claims {
		writable := slices.Contains(claim.Modes, corev1.ReadWriteMany) || slices.Contains(claim.Modes, corev1.ReadWriteOnce)
		switch {
		case claim.Cache && !writable:
			return fmt.Sprintf("Claim %s is %v, and the download is written to it while pods may read: use a ReadWriteMany or ReadWriteOnce claim for spec.modelCache.", claim.Name, claim.Modes)
		case most <= 1:
		case slices.Contains(claim.Modes, corev1.ReadOnlyMany) || slices.Contains(claim.Modes, corev1.ReadWriteMany):
		case slices.Contains(claim.Modes, corev1.ReadWriteOncePod):
			return fmt.Sprintf("Claim %s is ReadWriteOncePod, and up to %d pods need it: use a ReadOnlyMany or ReadWriteMany claim, or spec.replicas: 1 without autoscaling, rollout.maxSurge and parallelism.nodes.", claim.Name, most)
		case !oneNode(s):
			return fmt.Sprintf("Claim %s is ReadWriteOnce, which one node can mount, and up to %d pods need it: use a ReadOnlyMany or ReadWriteMany claim, spec.replicas: 1 without autoscaling, rollout.maxSurge and parallelism.nodes, or a scheduling.nodeSelector with %s.", claim.Name, most, corev1.LabelHostname)
		}
	}
	return ""
}

// CacheConflict says why the claim that spec.modelCache.template asks for cannot be
// had: the one of its name is another, or goes; "" when it can. claim is nil where
// there is none.
func CacheConflict(s *v1alpha1.SpeculativeServer, claim *v1alpha1.CacheClaimStatus, goes bool) string {
	if s.Spec.ModelCache == nil || s.Spec.ModelCache.Template == nil || claim == nil {
		return ""
	}
	t, name := s.Spec.ModelCache.Template, s.Name+"-models"
	mode, class := string(t.AccessMode), claim.StorageClassName
	if mode == "" {
		mode = string(corev1.ReadWriteOnce)
	}
	if class == "" {
		class = "the default"
	}
	switch {
	case goes:
		return fmt.Sprintf("Claim %s is being deleted, and gone when no pod mounts it any more; pods that are made until then could not start. Delete those that do, and it is made and filled anew.", name)
	case t.StorageClassName != claim.StorageClassName || mode != claim.AccessMode || t.Size.Cmp(claim.Size) < 0:
		return fmt.Sprintf("Claim %s is there from before with storage class %s, %s and %s, and a claim cannot be changed: write these into spec.modelCache.template, name another claim with spec.modelCache.claimName, or delete the claim.",
			name, class, claim.AccessMode, claim.Size.String())
	}
	return ""
}

// oneNode says that all pods go to one node.
func oneNode(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.Scheduling != nil && s.Spec.Scheduling.NodeSelector[corev1.LabelHostname] != ""
}

// nodes is how many pods a replica has.
func nodes(s *v1alpha1.SpeculativeServer) int32 {
	if n := s.Spec.Parallelism.Nodes; n != nil && *n > 1 {
		return *n
	}
	return 1
}
