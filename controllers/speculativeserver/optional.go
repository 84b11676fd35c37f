package speculativeserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// recheck is how often an object of a kind that may not be installed is looked
// at, and a kind that is not there looked for.
const recheck = 5 * time.Minute

// optionalKey is such an object.
type optionalKey struct {
	server types.UID
	kind   schema.GroupVersionKind
}

// applied is such an object as last applied or looked at by this process.
type applied struct {
	config string
	at     time.Time
	missed bool // its kind was not there
}

// applyOptional applies an object of a kind that may not be installed, and puts
// it right when someone has changed it. Such objects are neither watched nor
// cached, since a watch of a kind that goes away ends the process's caches: each
// is looked at every recheck.
func (r *Reconciler) applyOptional(ctx context.Context, s *v1alpha1.SpeculativeServer, o build.Optional) error {
	config := ""
	if o.Want != nil {
		b, err := json.Marshal(o.Want)
		if err != nil {
			return fmt.Errorf("encoding the %s of %s/%s: %w", o.Kind.Kind, s.Namespace, s.Name, err)
		}
		config = string(b)
	}
	key := optionalKey{s.UID, o.Kind}
	r.mu.Lock()
	last, known := r.optional[key]
	r.mu.Unlock()
	same := known && last.config == config
	if same && (config == "" || r.now().Sub(last.at) < r.opts.Recheck) {
		return nil
	}
	next := applied{config: config, at: r.now()}
	there, err := r.installed(o.Kind)
	if err != nil {
		return fmt.Errorf("looking for the kind %s: %w", o.Kind.Kind, err)
	}
	if there && o.Want != nil {
		if err = r.putOptional(ctx, s, o, same && !last.missed); errors.Is(err, errKindGone) {
			r.misses(o.Kind)
			there, err = false, nil
		}
	}
	switch {
	case !there:
		next.missed = true
		if o.Want != nil && (!same || !last.missed) {
			r.events.Eventf(s, nil, corev1.EventTypeWarning, "No"+o.Kind.Kind, "Apply"+o.Kind.Kind,
				"%s asks for an object of the kind %s, which the cluster does not have: install %s, or leave the field out.", o.From, o.Kind.Kind, o.Of)
		}
	case o.Want == nil:
		err = r.deleteOptional(ctx, s, o.Kind)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.optional[key] = next
	r.mu.Unlock()
	return nil
}

// errKindGone says that a kind was there when this process last looked.
var errKindGone = errors.New("the kind is not there any more")

// putOptional applies an object, unless it is applied already and as it should
// be. The error is errKindGone when its kind has gone.
func (r *Reconciler) putOptional(ctx context.Context, s *v1alpha1.SpeculativeServer, o build.Optional, done bool) error {
	has := &unstructured.Unstructured{}
	has.SetGroupVersionKind(o.Kind)
	err := r.live.Get(ctx, client.ObjectKeyFromObject(s), has)
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return errKindGone // the path is unknown, not the name
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading %s %s/%s: %w", o.Kind.Kind, s.Namespace, s.Name, err)
	case !metav1.IsControlledBy(has, s):
		return &errTaken{fmt.Sprintf("The %s named %s/%s is not this server's: delete it, leave out %s, or give the server another name.", o.Kind.Kind, s.Namespace, s.Name, o.From)}
	case done && within(o.Want.Object, has.Object):
		return nil
	}
	err = r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.Want), FieldOwner, client.ForceOwnership)
	switch {
	case err == nil || namespaceGoes(err):
		return nil
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server refuses %s %s: %v", o.Kind.Kind, s.Name, err)}
	}
	return fmt.Errorf("applying %s %s/%s: %w", o.Kind.Kind, s.Namespace, s.Name, err)
}

// within says that has is as want has it; members that want does not name are
// the API server's or someone else's.
func within(want, has any) bool {
	switch w := want.(type) {
	case map[string]any:
		h, ok := has.(map[string]any)
		for k, v := range w {
			ok = ok && within(v, h[k])
		}
		return ok
	case []any:
		h, ok := has.([]any)
		ok = ok && len(h) == len(w)
		for i := 0; ok && i < len(w); i++ {
			ok = within(w[i], h[i])
		}
		return ok
	}
	return reflect.DeepEqual(want, has)
}

// installed says whether the cluster has a kind. That it does not holds for a
// while, for all servers: each look is a discovery.
func (r *Reconciler) installed(kind schema.GroupVersionKind) (bool, error) {
	r.mu.Lock()
	missed, known := r.missing[kind]
	r.mu.Unlock()
	if known && r.now().Sub(missed) < r.opts.Recheck {
		return false, nil
	}
	_, err := r.client.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		r.misses(kind)
		return false, nil
	}
	return err == nil, err
}

// misses notes that a kind is not there.
func (r *Reconciler) misses(kind schema.GroupVersionKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing[kind] = r.now()
}

// deleteOptional deletes the object of a server that asks for none any more.
func (r *Reconciler) deleteOptional(ctx context.Context, s *v1alpha1.SpeculativeServer, kind schema.GroupVersionKind) error {
	there := &metav1.PartialObjectMetadata{}
	there.SetGroupVersionKind(kind)
	err := r.live.Get(ctx, client.ObjectKeyFromObject(s), there)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(there, s) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading %s %s/%s: %w", kind.Kind, s.Namespace, s.Name, err)
	}
	if err := r.client.Delete(ctx, there, client.Preconditions{UID: &there.UID}); err != nil && !gone(err) {
		return fmt.Errorf("deleting %s %s/%s: %w", kind.Kind, s.Namespace, s.Name, err)
	}
	return nil
}
