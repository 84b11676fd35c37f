package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// engines answers at the admin port of every pod: all have this machine's address.
type engines struct{ server *http.Server }

func newEngines(ctx context.Context) (*engines, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:8001")
	if err != nil {
		return nil, fmt.Errorf("playing the engines' admin port: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /progress", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"phase": "serving", "percent": 100})
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "outrider_spec_depth 3\noutrider_spec_accept_length 3.3\noutrider_generation_tokens_per_second 0\n")
	})
	mux.HandleFunc("GET /health_generate", func(http.ResponseWriter, *http.Request) {})
	e := &engines{server: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	go func() { _ = e.server.Serve(l) }()
	return e, nil
}

func (e *engines) close() { _ = e.server.Close() }

// lag is how long after a change of a pod its played node acts.
const lag = 500 * time.Millisecond

// playNodes plays scheduler and kubelets until ctx ends: pods run, are ready when
// their gate is set, and stop, each a while after what led to it.
func (b *bench) playNodes(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueue[client.ObjectKey]()
	informer, err := b.cache.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return err
	}
	add := func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			queue.AddAfter(client.ObjectKeyFromObject(p), lag)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }}); err != nil {
		return err
	}
	return b.work(ctx, queue, "node of pod", func(ctx context.Context, key client.ObjectKey) error {
		var p corev1.Pod
		if err := b.cache.Get(ctx, key, &p); err != nil {
			return err
		}
		return b.play(ctx, &p)
	})
}

// work has 16 players do what is queued until ctx ends, then ends the queue.
func (b *bench) work(ctx context.Context, queue workqueue.TypedInterface[client.ObjectKey], what string, do func(context.Context, client.ObjectKey) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		queue.ShutDown()
		return nil
	})
	for range 16 {
		g.Go(func() error {
			for {
				key, end := queue.Get()
				if end {
					return nil
				}
				err := do(ctx, key)
				queue.Done(key)
				if err := b.ignore(ctx, err); err != nil {
					return fmt.Errorf("playing the %s %s: %w", what, key, err)
				}
			}
		})
	}
	return g.Wait()
}

// ignore drops the errors that another event of the pod follows, or the end.
func (b *bench) ignore(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (b *bench) play(ctx context.Context, p *corev1.Pod) error {
	verified := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.ModelVerified && c.Status == corev1.ConditionTrue
	})
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	add := func(t corev1.PodConditionType) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	switch {
	case p.DeletionTimestamp != nil:
		return b.client.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
	case p.Spec.NodeName == "":
		return b.client.SubResource("binding").Create(ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node1"}})
	case p.Status.PodIP == "":
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
		add(corev1.ContainersReady)
		if len(p.Spec.ReadinessGates) == 0 {
			add(corev1.PodReady)
		}
		return b.client.Status().Update(ctx, p)
	case verified && !ready:
		add(corev1.PodReady)
		return b.client.Status().Update(ctx, p)
	}
	return nil
}
