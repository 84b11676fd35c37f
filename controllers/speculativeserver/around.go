package speculativeserver

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	autoscalingv2ac "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// part is an object beside the pods: one that the server asks for, or that is
// there because it once did.
type part struct {
	kind    string
	name    string
	has     client.Object
	found   bool                       // has is there and is the server's
	want    runtime.ApplyConfiguration // nil: it should not be there
	extract func() (any, error)        // what the operator has set on has
	kept    func() bool                // has is the server's although nothing says that it goes with it; nil: there is no such thing
	busy    bool                       // pods still need it: it is not deleted yet
}

// claimKind is the kind of the claim of spec.modelCache.template.
const claimKind = "PersistentVolumeClaim"

// parts are the objects beside the pods. The Service is the first.
func (r *Reconciler) parts(s *v1alpha1.SpeculativeServer) []*part {
	service, headless := &corev1.Service{}, &corev1.Service{}
	claim, scaler := &corev1.PersistentVolumeClaim{}, &autoscalingv2.HorizontalPodAutoscaler{}
	budget, policy, fetchPolicy := &policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}
	field := string(FieldOwner)
	list := []*part{
		{kind: "Service", name: s.Name, has: service, want: build.Service(s),
			extract: func() (any, error) { return corev1ac.ExtractService(service, field) }},
		{kind: "Service", name: build.HeadlessName(s.Name), has: headless, want: build.Headless(s),
			extract: func() (any, error) { return corev1ac.ExtractService(headless, field) }},
		{kind: "PodDisruptionBudget", name: s.Name, has: budget, want: build.Budget(s),
			extract: func() (any, error) { return policyv1ac.ExtractPodDisruptionBudget(budget, field) }},
		{kind: "HorizontalPodAutoscaler", name: s.Name, has: scaler, want: build.Autoscaler(s),
			extract: func() (any, error) { return autoscalingv2ac.ExtractHorizontalPodAutoscaler(scaler, field) }},
		{kind: "NetworkPolicy", name: s.Name, has: policy, want: build.Network(s, r.opts.build()),
			extract: func() (any, error) { return networkingv1ac.ExtractNetworkPolicy(policy, field) }},
		{kind: "NetworkPolicy", name: build.FetchName(s.Name), has: fetchPolicy, want: build.FetchNetwork(s, r.opts.build()),
			extract: func() (any, error) { return networkingv1ac.ExtractNetworkPolicy(fetchPolicy, field) }},
		{kind: claimKind, name: s.Name + "-models", has: claim, want: build.CacheClaim(s),
			extract: func() (any, error) { return corev1ac.ExtractPersistentVolumeClaim(claim, field) },
			// One that is to outlive the server has no owner.
			kept: func() bool {
				return metav1.GetControllerOf(claim) == nil && claim.Labels[v1alpha1.LabelServer] == s.Name && claim.Labels["app.kubernetes.io/managed-by"] == build.ManagedBy
			}},
	}
	for _, p := range list {
		if reflect.ValueOf(p.want).IsNil() {
			p.want = nil // and not a nil pointer in an interface
		}
	}
	return list
}

// gatherParts finds the server's objects. One that is wanted and that the cache
// does not hold is looked for past it, so that an apply never takes over a
// stranger's.
func (r *Reconciler) gatherParts(ctx context.Context, g *gathered) error {
	for _, p := range r.parts(g.Server) {
		g.parts = append(g.parts, p)
		key := types.NamespacedName{Namespace: g.Server.Namespace, Name: p.name}
		err := r.client.Get(ctx, key, p.has)
		if apierrors.IsNotFound(err) && p.want != nil {
			err = r.live.Get(ctx, key, p.has)
		}
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("reading %s %s: %w", p.kind, key, err)
		case metav1.IsControlledBy(p.has, g.Server), p.want != nil && p.kept != nil && p.kept():
			p.found = true
		case p.want == nil:
		default:
			if c := metav1.GetControllerOf(p.has); c != nil && c.Kind == "SpeculativeServer" && c.Name == g.Server.Name {
				return fmt.Errorf("%s %s still belongs to a deleted SpeculativeServer of this name; waiting until it is gone", p.kind, key)
			}
			if g.NameTaken == "" {
				g.NameTaken = fmt.Sprintf("A %s named %s is there and is not this server's: delete it, or give the server another name.", p.kind, key)
			}
		}
		if p.kind == claimKind && (p.found || err == nil && p.kept()) {
			if g.Claim, err = claimStatus(p.has.(*corev1.PersistentVolumeClaim)); err != nil {
				return err
			}
			g.Conflict = decide.CacheConflict(g.Server, g.Claim, p.has.GetDeletionTimestamp() != nil)
		}
	}
	return nil
}

// claimStatus is what a claim that a template has made has and cannot change.
func claimStatus(claim *corev1.PersistentVolumeClaim) (*v1alpha1.CacheClaimStatus, error) {
	asked, err := corev1ac.ExtractPersistentVolumeClaim(claim, string(FieldOwner))
	if err != nil {
		return nil, fmt.Errorf("reading the managed fields of %s %s/%s: %w", claimKind, claim.Namespace, claim.Name, err)
	}
	s := &v1alpha1.CacheClaimStatus{UID: string(claim.UID), Size: claim.Spec.Resources.Requests[corev1.ResourceStorage]}
	for _, mode := range claim.Spec.AccessModes {
		s.AccessMode = string(mode)
	}
	if asked.Spec != nil && asked.Spec.StorageClassName != nil {
		s.StorageClassName = *asked.Spec.StorageClassName
	}
	return s, nil
}

// mounting says which claims the server's pods mount, or may be about to.
func (g *gathered) mounting(claim string) bool {
	mounts := func(p *corev1.Pod) bool {
		return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
			slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
			})
	}
	return g.oldJob != nil ||
		slices.ContainsFunc(g.Pods, func(p decide.Pod) bool { return mounts(p.Pod) }) ||
		slices.ContainsFunc(g.Workers, func(w decide.Worker) bool { return mounts(w.Pod.Pod) })
}

// applyPart makes, corrects or deletes one object, if that is needed.
func (r *Reconciler) applyPart(ctx context.Context, s *v1alpha1.SpeculativeServer, p *part) error {
	if p.want == nil {
		if !p.found || p.busy || p.has.GetDeletionTimestamp() != nil {
			return nil
		}
		uid := p.has.GetUID()
		if err := r.client.Delete(ctx, p.has, client.Preconditions{UID: &uid}); err != nil && !gone(err) {
			return fmt.Errorf("deleting %s %s/%s: %w", p.kind, s.Namespace, p.name, err)
		}
		return nil
	}
	if p.found {
		has, err := p.extract()
		if err != nil {
			return fmt.Errorf("reading the managed fields of %s %s/%s: %w", p.kind, s.Namespace, p.name, err)
		}
		if equality.Semantic.DeepEqual(has, p.want) {
			return nil
		}
	}
	err := r.client.Apply(ctx, p.want, FieldOwner, client.ForceOwnership)
	switch {
	case err == nil || namespaceGoes(err):
		return nil
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server refuses %s %s: %v", p.kind, p.name, err)}
	}
	return fmt.Errorf("applying %s %s/%s: %w", p.kind, s.Namespace, p.name, err)
}
