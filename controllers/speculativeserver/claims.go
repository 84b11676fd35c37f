package speculativeserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// errConflict is a spec that its volume claims cannot serve.
type errConflict struct{ message string }

func (e *errConflict) Error() string { return e.message }

// checkClaims looks at the server's claims before pods are made. A claim that is
// not there yet is the scheduler's to report: it may come.
func (r *Reconciler) checkClaims(ctx context.Context, s *v1alpha1.SpeculativeServer) error {
	var claims []decide.Claim
	for i, name := range build.Claims(s) {
		cache := i == 0 && build.Fetches(s)
		var pvc corev1.PersistentVolumeClaim
		err := r.live.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, &pvc)
		if apierrors.IsNotFound(err) && cache && s.Spec.ModelCache.Template != nil {
			claims = append(claims, decide.Claim{Name: name, Modes: []corev1.PersistentVolumeAccessMode{build.CacheAccess(s)}, Cache: true})
			continue
		}
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading PersistentVolumeClaim %s/%s: %w", s.Namespace, name, err)
		}
		claims = append(claims, decide.Claim{Name: name, Modes: pvc.Spec.AccessModes, Cache: cache})
	}
	if message := decide.ClaimConflict(s, claims); message != "" {
		return &errConflict{message}
	}
	return nil
}
