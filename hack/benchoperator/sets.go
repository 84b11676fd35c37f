package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outrider-dev/outrider/internal/freeport"
)

// LeaderWorkerSet's controller, on as many sets of one pod, with the same players
// and, beside them, one of StatefulSets, for it makes these instead of pods.

var setKind = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}

// revisionLabel is on a set's StatefulSets and their pods.
const revisionLabel = "leaderworkerset.sigs.k8s.io/template-revision-hash"

// hooks are the webhooks of LeaderWorkerSet's module. Its manifest has them called
// for all pods; its kustomization only for the sets' own, which here all are.
func (s settings) hooks() envtest.WebhookInstallOptions {
	return envtest.WebhookInstallOptions{Paths: []string{filepath.Join(s.setsModule, "config", "webhook", "manifests.yaml")}}
}

// measureSets is measure for LeaderWorkerSet's controller. The sets are made before
// its webhooks are there, with all that these would fill in, so that they too wait
// for it.
func (b *bench) measureSets(ctx context.Context) (*Result, error) {
	g, create := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range b.servers {
		g.Go(func() error { return b.client.Create(create, b.set(i)) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	hooks := b.hooks()
	if err := hooks.Install(b.config); err != nil {
		return nil, fmt.Errorf("installing the webhooks of %s: %w", hooks.Paths[0], err)
	}
	defer func() { _ = hooks.Cleanup() }()
	c, err := b.metricsClient(ctx)
	if err != nil {
		return nil, err
	}
	r, op, err := b.converge(ctx, arm{
		objects: "LeaderWorkerSets", controller: "their controller", ready: b.setsReady,
		start: func(ctx context.Context) (*operator, error) { return b.startSets(ctx, hooks, c) },
		change: func(ctx context.Context, i int) error {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"labels":{"changed":"yes"}}}}}}`))
			return b.client.Patch(ctx, b.set(i), patch)
		},
	})
	if err != nil {
		return nil, err
	}
	op.stop()
	return r, nil
}

// setsReady counts the sets that are available.
func (b *bench) setsReady(ctx context.Context) (int, string, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(setKind)
	if err := b.cache.List(ctx, list, client.InNamespace(b.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, "", err
	}
	ready := 0
	for i := range list.Items {
		if n, _, _ := unstructured.NestedInt64(list.Items[i].Object, "status", "readyReplicas"); n == 1 {
			ready++
		}
	}
	return ready, fmt.Sprintf("%d sets", len(list.Items)), nil
}

// startSets runs LeaderWorkerSet's controller, whose metrics c reads.
func (b *bench) startSets(ctx context.Context, hooks envtest.WebhookInstallOptions, c *http.Client) (*operator, error) {
	address, release, err := freeport.Take(ctx)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, release)
	file := filepath.Join(filepath.Dir(b.kubeconfig), "sets.yaml")
	config := fmt.Sprintf(`apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
metrics: {bindAddress: "%s"}
health: {healthProbeBindAddress: "0"}
webhook: {host: %s, port: %d, certDir: %s}
`, address, hooks.LocalServingHost, hooks.LocalServingPort, hooks.LocalServingCertDir)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	o := &operator{done: make(chan struct{}), http: c, metrics: "https://" + address + "/metrics"}
	o.cmd = exec.CommandContext(ctx, b.sets, "--config="+file, "--zap-log-level=error")
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	o.cmd.Stderr = os.Stderr
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w: hack/lws.sh build makes it", b.sets, err)
	}
	go func() {
		_ = o.cmd.Wait()
		close(o.done)
	}()
	return o, nil
}

// metricsClient shows the token that LeaderWorkerSet's controller asks for.
func (b *bench) metricsClient(ctx context.Context) (*http.Client, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "reader"}}
	for _, o := range []client.Object{account, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: b.namespace, Name: account.Name}},
	}} {
		if err := b.client.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	token := &authenticationv1.TokenRequest{}
	if err := b.client.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, err
	}
	return rest.HTTPClientFor(&rest.Config{BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
}

// set has all that the webhooks of its controller would fill in.
func (b *bench) set(i int) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": b.namespace, "name": name(i)},
		"spec": map[string]any{
			"replicas":      int64(1),
			"startupPolicy": "LeaderCreated",
			"networkConfig": map[string]any{"subdomainPolicy": "Shared"},
			"rolloutStrategy": map[string]any{
				"type":                       "RollingUpdate",
				"rollingUpdateConfiguration": map[string]any{"maxUnavailable": int64(1), "maxSurge": int64(0), "partition": int64(0)},
			},
			"leaderWorkerTemplate": map[string]any{
				"size": int64(1), "restartPolicy": "RecreateGroupOnPodRestart",
				"workerTemplate": map[string]any{
					"spec": map[string]any{"containers": []any{map[string]any{"name": "engine", "image": "engine"}}},
				},
			},
		},
	}}
	u.SetGroupVersionKind(setKind)
	return u
}

// playSets plays the controller of StatefulSets of one pod until ctx ends. It acts
// at once, and again a second later when the API server refuses what it does: the
// pods' webhook is not there yet.
func (b *bench) playSets(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueue[client.ObjectKey]()
	add := func(o any) {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			queue.Add(client.ObjectKeyFromObject(o))
		case *corev1.Pod:
			if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "StatefulSet" {
				queue.Add(client.ObjectKey{Namespace: o.Namespace, Name: owner.Name})
			}
		}
	}
	for _, o := range []client.Object{&appsv1.StatefulSet{}, &corev1.Pod{}} {
		informer, err := b.cache.GetInformer(ctx, o)
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add}); err != nil {
			return err
		}
	}
	return b.work(ctx, queue, "StatefulSet", func(ctx context.Context, key client.ObjectKey) error {
		err := b.playSet(ctx, key)
		if apierrors.IsInternalError(err) || apierrors.IsAlreadyExists(err) {
			queue.AddAfter(key, time.Second)
			return nil
		}
		return err
	})
}

func (b *bench) playSet(ctx context.Context, key client.ObjectKey) error {
	var set appsv1.StatefulSet
	if err := b.cache.Get(ctx, key, &set); err != nil {
		return err
	}
	var p corev1.Pod
	err := b.cache.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-0"}, &p)
	template := set.Spec.Template
	switch {
	case apierrors.IsNotFound(err):
		p = corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		p.Namespace, p.Name = key.Namespace, key.Name+"-0"
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		return b.client.Create(ctx, &p)
	case err != nil:
		return err
	}
	current := p.Labels[revisionLabel] == template.Labels[revisionLabel]
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; !current && p.DeletionTimestamp == nil && rolling != nil && *rolling.Partition == 0 {
		return b.client.Delete(ctx, &p, client.Preconditions{UID: &p.UID})
	}
	status := appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, Replicas: 1, CurrentRevision: "r", UpdateRevision: "r"}
	if current {
		status.CurrentReplicas, status.UpdatedReplicas = 1, 1
	}
	if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady }) {
		status.ReadyReplicas, status.AvailableReplicas = 1, 1
	}
	if reflect.DeepEqual(status, set.Status) {
		return nil
	}
	set.Status = status
	return b.client.Status().Update(ctx, &set)
}
