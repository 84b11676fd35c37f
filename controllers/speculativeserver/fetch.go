package speculativeserver

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/poll"
)

// gatherFetch finds the Job that downloads for a server, and where the files are
// that pods are made of; target is its pod, if that can be asked.
func (r *Reconciler) gatherFetch(ctx context.Context, g *gathered) (target *poll.Target, err error) {
	s := g.Server
	key := types.NamespacedName{Namespace: s.Namespace, Name: build.FetchName(s.Name)}
	job := &batchv1.Job{}
	err = r.client.Get(ctx, key, job)
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading Job %s: %w", key, err)
	case err != nil:
		job = nil
	case !metav1.IsControlledBy(job, s):
		if c := metav1.GetControllerOf(job); build.Fetches(s) && c != nil && c.Kind == "SpeculativeServer" && c.Name == s.Name {
			return nil, fmt.Errorf("the Job %s still belongs to a deleted SpeculativeServer of this name; waiting until it is gone", key)
		}
		if build.Fetches(s) && g.NameTaken == "" {
			g.NameTaken = fmt.Sprintf("A Job named %s is there and is not this server's: delete it, or give the server another name.", key)
		}
		return nil, nil
	}
	if !build.Fetches(s) {
		g.oldJob = job
		return nil, nil
	}
	want := build.Fetch(s, r.opts.build())
	f := &decide.Fetch{Name: key.Name, Sources: want.Labels[v1alpha1.LabelSources]}
	g.Fetch = f
	if last := s.Status.Fetch; last != nil && last.Sources == f.Sources && last.Model+last.Draft+last.DraftError != "" && g.inClaim(last.ClaimUID) {
		f.Result = &decide.FetchResult{Model: last.Model, Draft: last.Draft, DraftError: last.DraftError}
	}
	if job == nil {
		return nil, nil
	}
	f.Job = &decide.FetchJob{
		Sources: job.Labels[v1alpha1.LabelSources], Current: job.Labels[v1alpha1.LabelRevision] == want.Labels[v1alpha1.LabelRevision],
		Deleting: job.DeletionTimestamp != nil,
	}
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			f.Job.Complete, f.Job.Failed, f.Job.EndedAt = c.Type == batchv1.JobComplete, c.Type == batchv1.JobFailed, c.LastTransitionTime.Time
		}
	}
	return r.gatherFetchPod(ctx, g, job)
}

// inClaim says that files which were downloaded into a claim are in the one that
// there is; "" is one that no template has made.
func (g *gathered) inClaim(uid string) bool {
	c := g.Server.Spec.ModelCache
	return c == nil || c.Template == nil || g.Claim != nil && (uid == "" || uid == g.Claim.UID)
}

// gatherFetchPod finds the newest pod of the Job, and what it said.
func (r *Reconciler) gatherFetchPod(ctx context.Context, g *gathered, job *batchv1.Job) (*poll.Target, error) {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingLabels{v1alpha1.LabelFetch: g.Server.Name}); err != nil {
		return nil, fmt.Errorf("listing the pods of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	var newest *corev1.Pod
	for i := range pods.Items {
		p := &pods.Items[i]
		if metav1.IsControlledBy(p, job) && (newest == nil || newest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			newest = p
		}
		if f := g.Fetch; f.Job.Complete && f.Job.Sources == f.Sources && metav1.IsControlledBy(p, job) && p.Status.Phase == corev1.PodSucceeded && g.older(p) {
			said, err := decide.ParseFetch(ended(p))
			if err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "the files are not used", "pod", p.Name)
				continue
			}
			f.Result = said
		}
	}
	if newest == nil {
		return nil, nil
	}
	failure, err := r.mountFailure(ctx, newest)
	if err != nil {
		return nil, err
	}
	g.Fetch.Job.Pod = &decide.Pod{Pod: newest, MountFailure: failure}
	if newest.DeletionTimestamp != nil || newest.Status.Phase != corev1.PodRunning || newest.Status.PodIP == "" {
		return nil, nil
	}
	return &poll.Target{UID: newest.UID, Address: engineclient.Base(newest.Status.PodIP, r.opts.AdminPort)}, nil
}

// older says that the claim of the template was there before a pod.
func (g *gathered) older(p *corev1.Pod) bool {
	for _, part := range g.parts {
		if part.kind == claimKind && part.want != nil {
			return part.found && !p.CreationTimestamp.Time.Before(part.has.GetCreationTimestamp().Time)
		}
	}
	return true
}

// ended is the termination message of a pod's container.
func ended(p *corev1.Pod) string {
	for i := range p.Status.ContainerStatuses {
		if t := p.Status.ContainerStatuses[i].State.Terminated; t != nil {
			return t.Message
		}
	}
	return ""
}

// built is the server that pods are made of: with its files where they are
// downloaded to, and without a draft that failed.
func (r *Reconciler) built(g *gathered) (err error) {
	s, missing := g.Server, false
	if f := g.Fetch; f != nil && f.Result != nil {
		s = build.Fetched(s, f.Result.Model, f.Result.Draft)
		missing = f.Result.DraftError != "" && g.Server.Spec.Speculation.OnDraftFailure != "Fail"
	}
	g.built = s
	if g.DraftRevision, err = build.Revision(s, r.opts.build()); err != nil {
		return err
	}
	if f := g.Server.Status.DraftFailure; missing || f != nil && f.Revision == g.DraftRevision {
		g.built = build.WithoutDraft(s)
	}
	g.Revision, err = build.Revision(g.built, r.opts.build())
	return err
}

// actFetch makes and deletes the Job.
func (r *Reconciler) actFetch(ctx context.Context, g *gathered, a decide.FetchAction) error {
	s := g.Server
	if s.DeletionTimestamp != nil {
		return nil
	}
	if g.oldJob != nil && g.oldJob.DeletionTimestamp == nil {
		return r.deleteJob(ctx, s, g.oldJob.Name, "nothing is downloaded into a claim any more")
	}
	switch {
	case a.Delete:
		return r.deleteJob(ctx, s, g.Fetch.Name, a.Why)
	case a.Create:
		if err := r.checkClaims(ctx, s); err != nil {
			return err
		}
		return r.createJob(ctx, s)
	}
	return nil
}

// deleteJob deletes the Job after its pods, so that the next one has the claim
// for itself.
func (r *Reconciler) deleteJob(ctx context.Context, s *v1alpha1.SpeculativeServer, name, why string) error {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
	err := r.client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationForeground))
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting Job %s/%s: %w", s.Namespace, name, err)
	}
	r.events.Eventf(s, nil, corev1.EventTypeNormal, "FetchDeleted", "DeleteJob", "Deleted Job %s: %s.", name, why)
	return nil
}

func (r *Reconciler) createJob(ctx context.Context, s *v1alpha1.SpeculativeServer) error {
	job, err := convert[batchv1.Job](build.Fetch(s, r.opts.build()))
	if err != nil {
		return err
	}
	err = r.client.Create(ctx, job, FieldOwner)
	switch {
	case err == nil:
		r.events.Eventf(s, nil, corev1.EventTypeNormal, "FetchCreated", "CreateJob", "Created Job %s, which downloads into claim %s.", job.Name, build.CacheClaimName(s))
		return nil
	case apierrors.IsAlreadyExists(err), namespaceGoes(err):
		return nil // the cache is behind, or it is a stranger's, which the next look tells
	case refuses(err):
		return &errRefused{fmt.Sprintf("The API server refuses Job %s: %v", job.Name, err)}
	}
	return fmt.Errorf("creating Job %s/%s: %w", job.Namespace, job.Name, err)
}

// fetchOfPod is the server that a fetch's pod downloads for.
func fetchOfPod(_ context.Context, o client.Object) []reconcile.Request {
	if name := o.GetLabels()[v1alpha1.LabelFetch]; name != "" {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
	}
	return nil
}
