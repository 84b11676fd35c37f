package speculativeserver

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// waitRefused is how long after a refusal by the API server, or a name clash,
// the operator tries again by itself.
const waitRefused = 20 * time.Second

// passingWrites is the shortest time between two writes of a healthy start.
const passingWrites = time.Second

// While more than busyQueue servers wait for each worker, that time is busyWrites
// times Options.SoftWrites: how far some have come must not delay the others' pods.
const (
	busyQueue  = 4
	busyWrites = 3
)

// maxNote is how many bytes of a message go into an event; the API takes 1024.
const maxNote = 1000

// Reconcile brings one server nearer to its spec and its status up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	err = r.traced(ctx, "reconcile", func(ctx context.Context) (err error) {
		trace.SpanFromContext(ctx).SetAttributes(attribute.String("k8s.namespace.name", req.Namespace), attribute.String("outrider.server", req.Name))
		result, err = r.reconcile(ctx, req)
		return err
	})
	return result, err
}

// traced makes a span of a step.
func (r *Reconciler) traced(ctx context.Context, name string, step func(context.Context) error) error {
	ctx, span := r.opts.Tracer.Start(ctx, name)
	defer span.End()
	err := step(ctx)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

func (r *Reconciler) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	server := &v1alpha1.SpeculativeServer{}
	if err := r.client.Get(ctx, req.NamespacedName, server); apierrors.IsNotFound(err) {
		r.poller.Sync(req.NamespacedName, nil)
		r.forget(req.NamespacedName)
		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}
	var g *gathered
	err := r.traced(ctx, "gather", func(ctx context.Context) (err error) {
		g, err = r.gather(ctx, server)
		return err
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	d := decide.Decide(g.Input)
	requeue := d.Requeue

	err = r.traced(ctx, "act", func(ctx context.Context) error { return r.act(ctx, g, &d) })
	err = g.explain(err)
	if why := g.NameTaken + g.Conflict + g.Refused + g.NoGroups; why != "" {
		ctrl.LoggerFrom(ctx).Info("cannot make what the spec asks for", "reason", why)
		d = decide.Decide(g.Input)
		requeue = shorter(requeue, waitRefused)
		if g.NoGroups != "" {
			requeue = shorter(requeue, groupRetry)
		}
	}
	for _, o := range build.Optionals(server) {
		if o.Want != nil && server.DeletionTimestamp == nil {
			requeue = shorter(requeue, r.opts.Recheck)
		}
	}
	r.poller.Hold(req.NamespacedName, d.Bounds)
	var wait time.Duration
	statusErr := r.traced(ctx, "status", func(ctx context.Context) (err error) {
		trace.SpanFromContext(ctx).SetAttributes(attribute.String("outrider.phase", string(d.Status.Phase)))
		wait, err = r.status(ctx, g, &d)
		return err
	})
	return reconcile.Result{RequeueAfter: shorter(requeue, wait)}, errors.Join(err, statusErr)
}

// explain takes out of the errors of act what the status tells, into the input of
// the next decision, and returns the rest.
func (g *gathered) explain(err error) error {
	var refused *errRefused
	var taken *errTaken
	var conflict *errConflict
	var noGroups *errNoGroups
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) {
		var rest []error
		for _, e := range list.Unwrap() {
			rest = append(rest, g.explain(e))
		}
		return errors.Join(rest...)
	}
	switch {
	case errors.As(err, &refused):
		g.Refused = cmp.Or(g.Refused, refused.message)
	case errors.As(err, &taken):
		g.NameTaken = cmp.Or(g.NameTaken, taken.message)
	case errors.As(err, &conflict):
		g.Conflict = cmp.Or(g.Conflict, conflict.message)
	case errors.As(err, &noGroups):
		g.NoGroups = cmp.Or(g.NoGroups, noGroups.message)
	default:
		return err
	}
	return nil
}

// shorter is the smaller of two waits, of which 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// status writes the status if it is worth it, then reports the transitions.
// When only figures differ and the last write is recent, it says how long to
// wait instead.
func (r *Reconciler) status(ctx context.Context, g *gathered, d *decide.Decision) (time.Duration, error) {
	s := g.Server
	if s.DeletionTimestamp != nil && s.Status.Phase == d.Status.Phase {
		return 0, nil
	}
	r.mu.Lock()
	at := r.written[s.UID].at
	r.mu.Unlock()
	switch decide.Compare(&s.Status, &d.Status) {
	case decide.Same:
		return 0, nil
	case decide.Soft:
		if wait := r.opts.SoftWrites - g.Now.Sub(at); wait > 0 {
			return wait, nil
		}
	case decide.Hard:
		if wait := r.passing() - g.Now.Sub(at); wait > 0 && decide.Passing(&s.Status, &d.Status) {
			return wait, nil
		}
	}
	if err := r.writeStatus(ctx, s, &d.Status); err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.written[s.UID] = writtenStatus{
		server: types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
		status: d.Status, base: s.ResourceVersion, at: g.Now,
	}
	r.mu.Unlock()
	ctrl.LoggerFrom(ctx).V(1).Info("wrote status", "phase", d.Status.Phase, "ready", d.Status.Ready, "message", d.Status.Message)
	r.report(g, d)
	return 0, nil
}

// passing is the shortest time between two writes of a healthy start.
func (r *Reconciler) passing() time.Duration {
	r.mu.Lock()
	q := r.queue
	r.mu.Unlock()
	if q != nil && q.Len() > busyQueue*r.opts.Workers {
		return busyWrites * r.opts.SoftWrites
	}
	return min(passingWrites, r.opts.SoftWrites)
}

// report makes an event of each transition.
func (r *Reconciler) report(g *gathered, d *decide.Decision) {
	for _, e := range d.Events {
		var related runtime.Object
		for i := range g.Pods {
			if g.Pods[i].Name == e.Pod {
				related = g.Pods[i].Pod
			}
		}
		message := e.Message
		if e.Pod != "" {
			message = e.Pod + ": " + message
		}
		if len(message) > maxNote {
			message = strings.ToValidUTF8(message[:maxNote], "") + "…"
		}
		r.events.Eventf(g.Server, related, e.Type, e.Reason, "Observe", "%s", message)
	}
}

// forget drops what is kept about a server that is gone.
func (r *Reconciler) forget(server types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, w := range r.written {
		if w.server == server {
			delete(r.written, uid)
			delete(r.groups, uid)
			delete(r.admin, uid)
			delete(r.checked, uid)
			for _, o := range build.Optionals(&v1alpha1.SpeculativeServer{}) {
				delete(r.optional, optionalKey{uid, o.Kind})
			}
		}
	}
}
