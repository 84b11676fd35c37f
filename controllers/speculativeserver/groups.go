package speculativeserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// errNoGroups says why there can be no replicas of several nodes.
type errNoGroups struct{ message string }

func (e *errNoGroups) Error() string { return e.message }

// groupRetry is how long after LeaderWorkerSets were not found they are looked for
// again: each look is a discovery, for all servers.
const groupRetry = 5 * time.Second

// ofGroup is a pod of the server's LeaderWorkerSet, with its ordinal as a label
// as the operator's own pods have it, and its number among the nodes of its group.
func ofGroup(p *corev1.Pod, server string) (pod *corev1.Pod, node int32, ok bool) {
	n, err := strconv.ParseInt(p.Labels[build.LabelWorkerIndex], 10, 32)
	if err != nil || n < 0 || p.Labels[build.LabelGroupSet] != build.GroupName(server) {
		return nil, 0, false
	}
	pod = p.DeepCopy() // it is the cache's
	pod.Labels[v1alpha1.LabelOrdinal] = p.Labels[build.LabelGroupIndex]
	return pod, int32(n), true
}

// ordinalOf is the ordinal of a pod of ofGroup; −1 if it has none.
func ordinalOf(p *corev1.Pod) int32 {
	n, err := strconv.ParseInt(p.Labels[v1alpha1.LabelOrdinal], 10, 32)
	if err != nil {
		return -1
	}
	return int32(n)
}

// serverOfGroup is the server of a pod that a LeaderWorkerSet's controller made.
func serverOfGroup(_ context.Context, o client.Object) []reconcile.Request {
	l := o.GetLabels()
	server := l[v1alpha1.LabelServer]
	if server == "" || l[build.LabelGroupSet] != build.GroupName(server) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: server}}}
}

// applyGroup applies the LeaderWorkerSet when it is new to this process, changes,
// or has no pods although there should be some; rolling is how its controller
// may replace them. Its kind may not be installed, so it is neither watched nor
// cached; its pods are.
func (r *Reconciler) applyGroup(ctx context.Context, g *gathered, rolling decide.Rolling) error {
	s := g.Server
	want, err := build.Group(g.built, rolling.Missing, rolling.Surge, r.opts.build())
	if err != nil || want == nil {
		return err
	}
	b, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encoding the LeaderWorkerSet of %s/%s: %w", s.Namespace, s.Name, err)
	}
	config := string(b)
	r.mu.Lock()
	last := r.groups[s.UID]
	r.mu.Unlock()
	if last == config && (len(g.Pods) > 0 || build.Replicas(s) == 0) {
		return nil
	}
	if err := r.hasGroups(s); err != nil {
		return err
	}
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(build.LeaderWorkerSetKind)
	err = r.live.Get(ctx, client.ObjectKeyFromObject(want), there)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading LeaderWorkerSet %s/%s: %w", s.Namespace, want.GetName(), err)
	case !metav1.IsControlledBy(there, s):
		return &errTaken{fmt.Sprintf("A LeaderWorkerSet named %s/%s is there and is not this server's: delete it, or give the server another name.", s.Namespace, want.GetName())}
	case last == config && there.GetDeletionTimestamp() == nil:
		return nil // its controller has not made the pods yet
	}
	err = r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), FieldOwner, client.ForceOwnership)
	switch {
	case err == nil, namespaceGoes(err):
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsInternalError(err): // a quota, a webhook that does not answer
		return &errRefused{fmt.Sprintf("The API server refuses LeaderWorkerSet %s: %v", want.GetName(), err)}
	default:
		return fmt.Errorf("applying LeaderWorkerSet %s/%s: %w", s.Namespace, want.GetName(), err)
	}
	r.mu.Lock()
	r.groups[s.UID] = config
	r.mu.Unlock()
	return nil
}

// startPod lets the scheduler place a pod of a group. Of a pod that is not as it
// was read, the next reconcile decides.
func (r *Reconciler) startPod(ctx context.Context, start decide.Start) error {
	p := start.Pod
	patch, err := build.StartPatch(p, start.Avoid)
	if err != nil {
		return err
	}
	err = r.client.Patch(ctx, p.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch), FieldOwner)
	switch {
	case err == nil, gone(err):
		return nil
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server does not let pod %s start: %v", p.Name, err)}
	}
	return fmt.Errorf("taking the scheduling gate from pod %s/%s: %w", p.Namespace, p.Name, err)
}

// hasGroups is nil where the cluster has LeaderWorkerSets.
func (r *Reconciler) hasGroups(s *v1alpha1.SpeculativeServer) error {
	r.mu.Lock()
	missed := r.noGroups
	r.mu.Unlock()
	if missed.IsZero() || r.now().Sub(missed) >= groupRetry {
		_, err := r.client.RESTMapper().RESTMapping(build.LeaderWorkerSetKind.GroupKind(), build.LeaderWorkerSetKind.Version)
		if err == nil {
			return nil
		}
		if !meta.IsNoMatchError(err) {
			return fmt.Errorf("looking for the LeaderWorkerSet kind: %w", err)
		}
		r.mu.Lock()
		r.noGroups = r.now()
		r.mu.Unlock()
	}
	return &errNoGroups{fmt.Sprintf("parallelism.nodes is %d, and the cluster has no kind LeaderWorkerSet (%s/%s): install its controller, or set nodes to 1 in another server.",
		build.Nodes(s), build.LeaderWorkerSetKind.Group, build.LeaderWorkerSetKind.Version)}
}
