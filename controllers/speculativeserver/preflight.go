package speculativeserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// checked is what came of asking whether the pods of a revision can be made.
type checked struct {
	revision          string
	refused, conflict string
	at                time.Time
}

// preflight asks, before the first pod of another revision goes, whether one of
// this can be made: whether its claims serve, and whether the API server would take
// it, which it is asked without making it. What speaks against it is noted in the
// input, and is asked again every waitRefused.
func (r *Reconciler) preflight(ctx context.Context, g *gathered) error {
	s := g.Server
	outdated := slices.ContainsFunc(g.Pods, func(p decide.Pod) bool {
		return p.DeletionTimestamp == nil && p.Labels[v1alpha1.LabelRevision] != g.Revision
	})
	if !outdated || g.Nodes > 1 || s.DeletionTimestamp != nil || g.NameTaken+g.Conflict != "" || g.Fetch != nil && g.Fetch.Result == nil {
		return nil
	}
	r.mu.Lock()
	last := r.checked[s.UID]
	r.mu.Unlock()
	if why := last.refused + last.conflict; last.revision != g.Revision || why != "" && g.Now.Sub(last.at) >= waitRefused {
		last = checked{revision: g.Revision, at: g.Now}
		err := r.checkClaims(ctx, s)
		if err == nil {
			err = r.tryPod(ctx, g.built)
		}
		var refused *errRefused
		var conflict *errConflict
		switch {
		case errors.As(err, &refused):
			last.refused = refused.message
		case errors.As(err, &conflict):
			last.conflict = conflict.message
		case err != nil:
			return err
		}
		r.mu.Lock()
		r.checked[s.UID] = last
		r.mu.Unlock()
	}
	g.Refused, g.Conflict = last.refused, last.conflict
	return nil
}

// tryPod has the API server judge a pod of the server without making it.
func (r *Reconciler) tryPod(ctx context.Context, s *v1alpha1.SpeculativeServer) error {
	config, err := build.Pod(s, 0, r.opts.build())
	if err != nil {
		return err
	}
	pod, err := convert[corev1.Pod](config)
	if err != nil {
		return err
	}
	err = r.client.Create(ctx, pod, FieldOwner, client.DryRunAll)
	switch {
	case err == nil, apierrors.IsAlreadyExists(err), namespaceGoes(err):
		return nil
	case strings.Contains(err.Error(), "exceeded quota"), strings.Contains(err.Error(), "does not support dry run"):
		return nil // the old pod goes first, and makes room; a webhook that can only be asked in earnest
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server refuses the pods of this spec, so those from before stay: %v", err)}
	}
	return fmt.Errorf("trying a pod of %s/%s: %w", s.Namespace, s.Name, err)
}
