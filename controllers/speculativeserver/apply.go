package speculativeserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	apiac "github.com/outrider-dev/outrider/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// errRefused is an answer of the API server that only a person can change.
type errRefused struct{ message string }

func (e *errRefused) Error() string { return e.message }

// errTaken is a name that an object of someone else has.
type errTaken struct{ message string }

func (e *errTaken) Error() string { return e.message }

// refuses says that an answer of the API server is a refusal that only a person
// can change: of a validation, a quota, an admission policy, or a webhook, which
// may say so in many ways or not answer.
func refuses(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotAcceptable(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInternalError(err)
}

// act carries a decision out: the objects around the pods, gates, deletions, new
// pods. It goes on after an error, for the other pods' sake, and returns all errors.
func (r *Reconciler) act(ctx context.Context, g *gathered, d *decide.Decision) error {
	var errs []error
	if g.NameTaken == "" && g.Server.DeletionTimestamp == nil {
		for _, p := range g.parts {
			if p.kind == claimKind && g.Conflict != "" {
				continue // it could only be refused
			}
			errs = append(errs, r.applyPart(ctx, g.Server, p))
		}
		for _, o := range build.Optionals(g.Server) {
			errs = append(errs, r.applyOptional(ctx, g.Server, o))
		}
	}
	if g.NameTaken == "" {
		errs = append(errs, r.actFetch(ctx, g, d.Fetch))
	}
	for _, gate := range d.Gates {
		errs = append(errs, r.applyGate(ctx, gate))
	}
	for _, del := range d.Delete {
		errs = append(errs, r.deletePod(ctx, g.Server, del))
	}
	if len(d.Create)+len(d.Start) > 0 || d.Group {
		if err := r.ready(ctx, g.Server, len(d.Create)+len(d.Start) > 0); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	if d.Group {
		errs = append(errs, r.applyGroup(ctx, g, d.Rolling))
	}
	for _, start := range d.Start {
		errs = append(errs, r.startPod(ctx, start))
	}
	for _, c := range d.Create {
		errs = append(errs, r.createPod(ctx, g.built, c))
	}
	return errors.Join(errs...)
}

// ready makes what pods need before there are any, or any starts: claims that can
// serve them, and the Secrets that the operator makes.
func (r *Reconciler) ready(ctx context.Context, s *v1alpha1.SpeculativeServer, start bool) error {
	if err := r.checkClaims(ctx, s); err != nil || !start {
		return err
	}
	if _, err := r.ensureTokens(ctx, s); err != nil {
		return err
	}
	name := build.NodeSecretName(s)
	if name == "" {
		return nil
	}
	_, err := r.ensureSecret(ctx, s, name, build.NodeSecretKey)
	return err
}

// applyGate sets a pod's readiness gate. The UID keeps it from a new pod of the
// same name.
func (r *Reconciler) applyGate(ctx context.Context, gate decide.Gate) error {
	status := corev1.ConditionFalse
	if gate.Verified {
		status = corev1.ConditionTrue
	}
	err := r.client.Status().Apply(ctx, corev1ac.Pod(gate.Pod.Name, gate.Pod.Namespace).
		WithUID(gate.Pod.UID).
		WithStatus(corev1ac.PodStatus().WithConditions(corev1ac.PodCondition().
			WithType(v1alpha1.ModelVerified).WithStatus(status).
			WithReason(gate.Reason).WithMessage(gate.Message).
			WithLastTransitionTime(metav1.NewTime(r.now())))), FieldOwner, client.ForceOwnership)
	if err != nil && !gone(err) {
		return fmt.Errorf("setting the readiness gate of pod %s/%s: %w", gate.Pod.Namespace, gate.Pod.Name, err)
	}
	return nil
}

// gone says that an object is not there any more, or is another of its name.
func gone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// namespaceGoes says that nothing can be made because the namespace is being
// deleted, or is gone: the server goes with it.
func namespaceGoes(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (r *Reconciler) deletePod(ctx context.Context, s *v1alpha1.SpeculativeServer, del decide.Deletion) error {
	options := []client.DeleteOption{client.Preconditions{UID: &del.Pod.UID}}
	kind := corev1.EventTypeNormal
	if del.Group {
		options = append(options, client.PropagationPolicy(metav1.DeletePropagationForeground))
	}
	if del.Force {
		options, kind = append(options, client.GracePeriodSeconds(0)), corev1.EventTypeWarning
	}
	err := r.client.Delete(ctx, del.Pod, options...)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", del.Pod.Namespace, del.Pod.Name, err)
	}
	r.events.Eventf(s, del.Pod, kind, del.Reason, "DeletePod", "Deleted pod %s: %s.", del.Pod.Name, del.Message)
	return nil
}

// createPod makes a pod. It creates and does not apply: an apply would merge
// into a pod of someone else that has the name.
func (r *Reconciler) createPod(ctx context.Context, s *v1alpha1.SpeculativeServer, c decide.Creation) error {
	config, err := build.Pod(s, c.Ordinal, r.opts.build(), c.Avoid...)
	if err != nil {
		return err
	}
	pod, err := convert[corev1.Pod](config)
	if err != nil {
		return err
	}
	err = r.client.Create(ctx, pod, FieldOwner)
	switch {
	case err == nil:
		r.events.Eventf(s, pod, corev1.EventTypeNormal, "PodCreated", "CreatePod", "Created pod %s.", pod.Name)
		return nil
	case apierrors.IsAlreadyExists(err):
		return r.explainTaken(ctx, s, pod)
	case namespaceGoes(err):
		return nil
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server refuses pod %s: %v", pod.Name, err)}
	}
	return fmt.Errorf("creating pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// explainTaken says whose pod has the name that a new pod needs.
func (r *Reconciler) explainTaken(ctx context.Context, s *v1alpha1.SpeculativeServer, pod *corev1.Pod) error {
	var there corev1.Pod
	err := r.live.Get(ctx, client.ObjectKeyFromObject(pod), &there)
	if apierrors.IsNotFound(err) || err == nil && metav1.IsControlledBy(&there, s) {
		return nil // the cache is behind, and its next event brings the server here again
	}
	if err != nil {
		return fmt.Errorf("reading pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if there.DeletionTimestamp != nil || there.Labels[v1alpha1.LabelServer] == s.Name {
		return fmt.Errorf("pod %s/%s of a deleted SpeculativeServer of this name is not gone yet", pod.Namespace, pod.Name)
	}
	return &errTaken{fmt.Sprintf("A pod named %s/%s is there and is not this server's: delete it, or give the server another name.", pod.Namespace, pod.Name)}
}

// convert makes an object of an apply configuration.
func convert[T any](config any) (*T, error) {
	object := new(T)
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(config)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u, object)
	}
	if err != nil {
		return nil, fmt.Errorf("converting a %T: %w", object, err)
	}
	return object, nil
}

// writeStatus applies the status.
func (r *Reconciler) writeStatus(ctx context.Context, s *v1alpha1.SpeculativeServer, status *v1alpha1.SpeculativeServerStatus) error {
	b, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encoding the status of %s/%s: %w", s.Namespace, s.Name, err)
	}
	config := apiac.SpeculativeServerStatus()
	if err := json.Unmarshal(b, config); err != nil {
		return fmt.Errorf("encoding the status of %s/%s: %w", s.Namespace, s.Name, err)
	}
	err = r.client.Status().Apply(ctx, apiac.SpeculativeServer(s.Name, s.Namespace).WithUID(s.UID).WithStatus(config),
		FieldOwner, client.ForceOwnership)
	if err != nil && !gone(err) {
		return fmt.Errorf("writing the status of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}
