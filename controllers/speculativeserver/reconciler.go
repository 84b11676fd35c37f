package speculativeserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/poll"
)

// FieldOwner is the field manager of all that the operator applies.
const FieldOwner = client.FieldOwner("outrider")

// eventPodUID is the cache index of events by the pod that they are about.
const eventPodUID = "involvedObject.uid"

// Options are the settings of the controller.
type Options struct {
	EngineImage     string         // image of servers whose spec names none
	CUDAEngineImage string         // the same, of servers with NVIDIA GPUs; default EngineImage
	Workers         int            // reconciles at once; default 4
	Intervals       poll.Intervals // how often engines are asked
	Client          poll.Client    // how engines are asked; default engineclient.New()
	AdminPort       int            // admin port of the engines; default build.AdminPort
	Namespace       string         // where the operator runs; empty: not known

	// SoftWrites is the shortest time between two writes of a status that differ only in figures and percentages;
	// default 3 s.
	SoftWrites time.Duration

	Tracer trace.Tracer // of reconciles; default none

	// Recheck is how often objects of kinds that may not be installed are looked at; default 5 min.
	Recheck time.Duration
}

// build are the settings that go into objects.
func (o Options) build() build.Options {
	return build.Options{EngineImage: o.EngineImage, CUDAEngineImage: o.CUDAEngineImage, OperatorNamespace: o.Namespace}
}

// Reconciler reconciles SpeculativeServers. Make it with Setup.
type Reconciler struct {
	client client.Client
	live   client.Reader // past the cache
	events events.EventRecorder
	poller *poll.Poller
	opts   Options
	now    func() time.Time

	mu      sync.Mutex
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
	written map[types.UID]writtenStatus

	admin   map[types.UID]adminTokens
	checked map[types.UID]checked

	optional map[optionalKey]applied
	missing  map[schema.GroupVersionKind]time.Time // when a kind was last looked for in vain

	groups   map[types.UID]string // the LeaderWorkerSet as last applied by this process
	noGroups time.Time            // when LeaderWorkerSets were last looked for in vain
}

// writtenStatus is the status last written, and the version of the object that
// it was computed from: while the cache still has that version, it has not seen
// the write.
type writtenStatus struct {
	server types.NamespacedName
	status v1alpha1.SpeculativeServerStatus
	base   string
	at     time.Time
}

// CacheOptions bounds what a manager's cache holds: what the operator made, and the kubelet's complaints about volumes.
func CacheOptions() map[client.Object]cache.ByObject {
	mine := labels.SelectorFromSet(labels.Set{"app.kubernetes.io/managed-by": build.ManagedBy})
	return map[client.Object]cache.ByObject{
		&corev1.Pod{}:     {Label: mine},
		&corev1.Service{}: {Label: mine},

		&batchv1.Job{}:                  {Label: mine},
		&corev1.PersistentVolumeClaim{}: {Label: mine},

		&policyv1.PodDisruptionBudget{}: {Label: mine},
		&networkingv1.NetworkPolicy{}:   {Label: mine},

		&autoscalingv2.HorizontalPodAutoscaler{}: {Label: mine},
		&corev1.Event{}: {Field: fields.AndSelectors(
			fields.OneTermEqualSelector("involvedObject.kind", "Pod"),
			fields.OneTermEqualSelector("reason", "FailedMount"))},
	}
}

// Setup adds the controller to a manager whose cache has CacheOptions.
func Setup(ctx context.Context, mgr ctrl.Manager, opts Options) (*Reconciler, error) {
	if opts.Workers <= 0 {
		opts.Workers = 4
	}
	if opts.SoftWrites <= 0 {
		opts.SoftWrites = 3 * time.Second
	}
	if opts.Tracer == nil {
		opts.Tracer = noop.Tracer{}
	}
	if opts.Recheck <= 0 {
		opts.Recheck = recheck
	}
	if opts.Client == nil {
		opts.Client = engineclient.New()
	}
	if opts.AdminPort == 0 {
		opts.AdminPort = build.AdminPort
	}
	r := &Reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), events: mgr.GetEventRecorder("outrider"),
		opts: opts, now: time.Now, written: map[types.UID]writtenStatus{}, admin: map[types.UID]adminTokens{}, checked: map[types.UID]checked{}, optional: map[optionalKey]applied{}, missing: map[schema.GroupVersionKind]time.Time{},
		groups: map[types.UID]string{},
	}
	r.poller = poll.New(opts.Client, opts.Intervals, r.enqueue)
	if err := mgr.Add(r.poller); err != nil {
		return nil, fmt.Errorf("adding the poller to the manager: %w", err)
	}
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Event{}, eventPodUID, func(o client.Object) []string {
		return []string{string(o.(*corev1.Event).InvolvedObject.UID)}
	})
	if err != nil {
		return nil, fmt.Errorf("indexing events by pod: %w", err)
	}
	return r, ctrl.NewControllerManagedBy(mgr).
		Named("speculativeserver").
		For(&v1alpha1.SpeculativeServer{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.Pod{}).
		Owns(&corev1.Service{}).
		Owns(&batchv1.Job{}).
		Owns(&corev1.PersistentVolumeClaim{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(fetchOfPod)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(serverOfGroup)).
		Owns(&policyv1.PodDisruptionBudget{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&networkingv1.NetworkPolicy{}).
		Owns(&autoscalingv2.HorizontalPodAutoscaler{}, builder.WithPredicates(scalerChanged)).
		Watches(&corev1.Event{}, handler.EnqueueRequestsFromMapFunc(r.podOfEvent)).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.queue = q
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: opts.Workers}).
		Complete(r)
}

// scalerChanged leaves out the status, which an autoscaler writes every few
// seconds; its generation does not tell the two apart.
var scalerChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*autoscalingv2.HorizontalPodAutoscaler), e.ObjectNew.(*autoscalingv2.HorizontalPodAutoscaler)
	return !equality.Semantic.DeepEqual(was.Spec, is.Spec) || !equality.Semantic.DeepEqual(was.Labels, is.Labels) ||
		!equality.Semantic.DeepEqual(was.OwnerReferences, is.OwnerReferences)
}}

// enqueue asks for a reconcile of a server; it never blocks.
func (r *Reconciler) enqueue(server types.NamespacedName) {
	r.mu.Lock()
	q := r.queue
	r.mu.Unlock()
	if q != nil {
		q.Add(reconcile.Request{NamespacedName: server})
	}
}

// podOfEvent is the server of the pod that an event is about.
func (r *Reconciler) podOfEvent(ctx context.Context, o client.Object) []reconcile.Request {
	ref := o.(*corev1.Event).InvolvedObject
	var pod corev1.Pod
	if err := r.client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, &pod); err != nil {
		return nil // not a pod of the operator, or gone
	}
	server := pod.Labels[v1alpha1.LabelServer]
	if server == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: server}}}
}
