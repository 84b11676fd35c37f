package speculativeserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/poll"
)

// gathered is all that one reconcile works with.
type gathered struct {
	decide.Input
	parts []*part                     // the objects around the pods
	built *v1alpha1.SpeculativeServer // what pods are made from; see Reconciler.built

	oldJob *batchv1.Job // a fetch that is not asked for any more
}

// gather reads the server's objects from the cache, and what the poller knows.
func (r *Reconciler) gather(ctx context.Context, server *v1alpha1.SpeculativeServer) (*gathered, error) {
	g := &gathered{Input: decide.Input{Server: server, Model: build.ServedName(server), Port: build.Port(server), Nodes: build.Nodes(server), Now: r.now(),
		Selector: labels.SelectorFromSet(build.Served(server)).String()}}
	r.mu.Lock()
	if w, ok := r.written[server.UID]; ok && w.base == server.ResourceVersion {
		w.status.DeepCopyInto(&server.Status)
	}
	r.mu.Unlock()
	if err := r.gatherParts(ctx, g); err != nil {
		return nil, err
	}
	fetch, err := r.gatherFetch(ctx, g)
	if err != nil {
		return nil, err
	}
	if err := r.built(g); err != nil {
		return nil, err
	}
	targets, err := r.gatherPods(ctx, g)
	if err != nil {
		return nil, err
	}
	if fetch != nil {
		targets = append(targets, *fetch)
	}
	if err := r.observe(ctx, g, targets); err != nil {
		return nil, err
	}
	for _, p := range g.parts {
		p.busy = p.kind == claimKind && g.mounting(p.name)
	}
	err = r.preflight(ctx, g)
	g.Hold = g.NameTaken+g.Conflict+g.Refused != ""
	return g, err
}

// gatherPods lists the server's pods, and says how to ask their engines.
func (r *Reconciler) gatherPods(ctx context.Context, g *gathered) ([]poll.Target, error) {
	server := g.Server
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(server.Namespace), client.MatchingLabels(build.Selector(server.Name))); err != nil {
		return nil, fmt.Errorf("listing the pods of %s/%s: %w", server.Namespace, server.Name, err)
	}
	var targets []poll.Target
	for i := range pods.Items {
		p := &pods.Items[i]
		node := int32(0)
		if g.Nodes > 1 {
			member, n, ok := ofGroup(p, server.Name)
			if !ok {
				continue
			}
			p, node = member, n
		} else if !metav1.IsControlledBy(p, server) {
			continue
		}
		if t, ok := r.target(server, p); ok {
			t.Healthy = t.Healthy && node == 0 // the others have nothing to generate, and no figures
			targets = append(targets, t)
		}
		failure, err := r.mountFailure(ctx, p)
		if err != nil {
			return nil, err
		}
		pod := decide.Pod{Pod: p, MountFailure: failure}
		if node == 0 {
			g.Pods = append(g.Pods, pod)
			continue
		}
		g.Workers = append(g.Workers, decide.Worker{Pod: pod, Ordinal: ordinalOf(p), Node: node})
	}
	return targets, nil
}

// observe has the poller ask these engines, and takes what it knows of them.
func (r *Reconciler) observe(ctx context.Context, g *gathered, targets []poll.Target) error {
	key := client.ObjectKeyFromObject(g.Server)
	if len(targets) > 0 {
		list, err := r.tokens(ctx, g.Server, r.poller.Refused(key))
		var refused *errRefused
		var taken *errTaken
		if err != nil && !errors.As(err, &refused) && !errors.As(err, &taken) { // these are told when a pod is to be made
			return err
		}
		for i := range targets {
			targets[i].Tokens = list
		}
	}
	r.poller.Sync(key, targets)
	for i := range g.Pods {
		g.Pods[i].Engine = r.poller.Observe(key, g.Pods[i].UID)
	}
	for i := range g.Workers {
		g.Workers[i].Engine = r.poller.Observe(key, g.Workers[i].UID)
	}
	if f := g.Fetch; f != nil && f.Job != nil && f.Job.Pod != nil {
		f.Job.Pod.Engine = r.poller.Observe(key, f.Job.Pod.UID)
	}
	return nil
}

// target says how to ask the engine in a pod; ok is false while there is none.
func (r *Reconciler) target(s *v1alpha1.SpeculativeServer, p *corev1.Pod) (t poll.Target, ok bool) {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
		return t, false
	}
	t = poll.Target{UID: p.UID, Address: engineclient.Base(p.Status.PodIP, r.opts.AdminPort)}
	if h := s.Spec.Health; h != nil && h.DeepProbe != nil {
		t.ProbeEvery, t.ProbeLimit = seconds(h.DeepProbe.IntervalSeconds), seconds(h.DeepProbe.TimeoutSeconds)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.ContainersReady {
			t.Healthy = c.Status == corev1.ConditionTrue
		}
	}
	return t, true
}

func seconds(n *int32) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Second
}

// mountFailure is the kubelet's last complaint about a volume of a pod that has
// not started.
func (r *Reconciler) mountFailure(ctx context.Context, p *corev1.Pod) (string, error) {
	if p.Status.Phase != corev1.PodPending || p.Spec.NodeName == "" {
		return "", nil
	}
	var list corev1.EventList
	if err := r.client.List(ctx, &list, client.InNamespace(p.Namespace), client.MatchingFields{eventPodUID: string(p.UID)}); err != nil {
		return "", fmt.Errorf("listing the events of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	var latest time.Time
	message := ""
	for i := range list.Items {
		e := &list.Items[i]
		at := e.LastTimestamp.Time
		if e.Series != nil && e.Series.LastObservedTime.After(at) {
			at = e.Series.LastObservedTime.Time
		}
		if e.EventTime.After(at) {
			at = e.EventTime.Time
		}
		if message == "" || at.After(latest) {
			latest, message = at, e.Message
		}
	}
	return message, nil
}
