package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// settled is how long after the last server is Ready, or changed, the last
// figures are written.
const settled = 15 * time.Second

func (b *bench) measure(ctx context.Context) (*Result, error) {
	if err := b.createAll(ctx); err != nil {
		return nil, err
	}
	r, op, err := b.converge(ctx, arm{objects: "servers", controller: "the operator", start: b.startOperator, ready: b.serversReady, change: b.changeServer})
	if err != nil {
		return nil, err
	}
	defer func() { op.stop() }()
	if b.has("restart") {
		if err := sleep(ctx, settled); err != nil {
			return nil, err
		}
		op.stop()
		start := time.Now()
		if op, err = b.startOperator(ctx); err != nil {
			return nil, err
		}
		if r.Again, err = op.settle(ctx, start); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// arm is a controller to measure.
type arm struct {
	objects, controller string // as they are called on standard error
	start               func(context.Context) (*operator, error)
	ready               func(context.Context) (count int, says string, err error)
	change              func(ctx context.Context, i int) error // of object i, so that it needs another pod
}

// converge starts a controller whose objects are there and measures what all arms
// are measured by. The controller runs on, unless there was an error.
func (b *bench) converge(ctx context.Context, a arm) (_ *Result, _ *operator, err error) {
	r := &Result{Servers: b.servers}
	before, err := b.requests(ctx)
	if err != nil {
		return nil, nil, err
	}
	times, err := processTimes(0)
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(os.Stderr, "%d %s are there; %s starts\n", b.servers, a.objects, a.controller)
	op, err := a.start(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			op.stop()
		}
	}()
	if r.ConvergeS, err = b.waitFor(ctx, a.ready); err != nil {
		return nil, nil, err
	}
	if err := b.cost(ctx, r, op, before, times); err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(os.Stderr, "all are ready after %.1f s\n", r.ConvergeS)
	if b.has("rest") {
		if r.Rest, err = b.atRest(ctx, op); err != nil {
			return nil, nil, err
		}
	}
	if b.has("change") {
		if r.Pod, err = b.changes(ctx, 15, a.change); err != nil {
			return nil, nil, err
		}
	}
	_, r.PeakMiB, err = op.memory()
	return r, op, err
}

// cost notes what converging took.
func (b *bench) cost(ctx context.Context, r *Result, op *operator, before map[[2]string]float64, times CPUTimes) error {
	calls, err := op.calls(ctx)
	if err != nil {
		return err
	}
	r.CallsEach, r.WriteEach = calls.all/float64(b.servers), calls.writes/float64(b.servers)
	now, err := processTimes(op.cmd.Process.Pid)
	if err != nil {
		return err
	}
	r.CPU = CPUTimes{now.Operator, now.APIServer - times.APIServer, now.Etcd - times.Etcd, now.Players - times.Players}
	after, err := b.requests(ctx)
	if err != nil {
		return err
	}
	for kind, n := range after {
		if n -= before[kind]; n > 0 {
			r.Kinds = append(r.Kinds, Kind{kind[0], kind[1], n})
		}
	}
	slices.SortFunc(r.Kinds, func(a, b Kind) int { return int(b.Count - a.Count) })
	r.RSSMiB, _, err = op.memory()
	return err
}

// requests counts what the API server has answered so far, by verb and resource.
func (b *bench) requests(ctx context.Context) (map[[2]string]float64, error) {
	families, err := b.apiMetrics(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[[2]string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		l := map[string]string{}
		for _, pair := range m.GetLabel() {
			l[pair.GetName()] = pair.GetValue()
		}
		if l["resource"] == "" {
			continue
		}
		resource := l["resource"]
		if l["subresource"] != "" {
			resource += "/" + l["subresource"]
		}
		counts[[2]string{l["verb"], resource}] += m.GetCounter().GetValue()
	}
	return counts, nil
}

// atRest counts what the operator does while nothing happens.
func (b *bench) atRest(ctx context.Context, op *operator) (*Rest, error) {
	fmt.Fprintf(os.Stderr, "watching at rest for %s\n", b.rest)
	if err := sleep(ctx, settled); err != nil {
		return nil, err
	}
	before, err := op.calls(ctx)
	if err != nil {
		return nil, err
	}
	times, err := processTimes(op.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, b.rest); err != nil {
		return nil, err
	}
	after, err := op.calls(ctx)
	if err != nil {
		return nil, err
	}
	now, err := processTimes(op.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	return &Rest{Seconds: b.rest.Seconds(), Writes: after.writes - before.writes, Calls: after.all - before.all, CPU: now.Operator - times.Operator}, nil
}

// waitFor waits until ready counts all, and returns after how long.
func (b *bench) waitFor(ctx context.Context, ready func(context.Context) (count int, says string, err error)) (float64, error) {
	start := time.Now()
	for {
		n, says, err := ready(ctx)
		if err != nil {
			return 0, err
		}
		took := time.Since(start)
		if n == b.servers {
			return took.Seconds(), nil
		}
		if took > b.limit {
			return 0, fmt.Errorf("after %s %d of %d are ready: %s", b.limit, n, b.servers, says)
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// serversReady counts the servers that are Ready.
func (b *bench) serversReady(ctx context.Context) (int, string, error) {
	var list v1alpha1.SpeculativeServerList
	if err := b.cache.List(ctx, &list, client.InNamespace(b.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, "", err
	}
	phases := map[v1alpha1.Phase]int{}
	for i := range list.Items {
		phases[list.Items[i].Status.Phase]++
	}
	return phases[v1alpha1.PhaseReady], fmt.Sprintf("phases %v", phases), nil
}

// changeServer changes what a server's pods are made from.
func (b *bench) changeServer(ctx context.Context, i int) error {
	s := &v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name(i)}}
	return b.client.Patch(ctx, s, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"speculation":{"numSteps":2}}}`)))
}

// changes is the time from a change of a spec to the new pod. The played kubelet
// stops pods at once.
func (b *bench) changes(ctx context.Context, n int, change func(ctx context.Context, i int) error) (*Change, error) {
	var took []float64
	for i := range min(n, b.servers) {
		var old corev1.Pod
		podKey := client.ObjectKey{Namespace: b.namespace, Name: name(i) + "-0"}
		if err := b.client.Get(ctx, podKey, &old); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := change(ctx, i); err != nil {
			return nil, err
		}
		for {
			var pod corev1.Pod
			err := b.client.Get(ctx, podKey, &pod)
			if err == nil && pod.UID != old.UID {
				break
			}
			if client.IgnoreNotFound(err) != nil {
				return nil, err
			}
			if time.Since(start) > time.Minute {
				return nil, fmt.Errorf("no new pod of %s within a minute", name(i))
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return nil, err
			}
		}
		took = append(took, float64(time.Since(start).Microseconds())/1000)
	}
	return &Change{Median: stats.Median(took), Most: slices.Max(took), Count: len(took)}, nil
}

// profiled is how long the CPU profiles are.
const profiled = 30 * time.Second

// takeProfile writes a process's CPU profile, of the next 30 s, to a file.
func takeProfile(ctx context.Context, c *http.Client, server, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", server, int(profiled.Seconds())), nil)
	if err != nil {
		return err
	}
	var resp *http.Response
	for range 50 { // until it listens
		if resp, err = c.Do(req); err == nil || sleep(ctx, 100*time.Millisecond) != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("taking the profile %s: %w", file, err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	if err != nil {
		return fmt.Errorf("taking the profile %s: %w", file, err)
	}
	return os.WriteFile(file, b, 0o644)
}

func (r *Result) print(w io.Writer) {
	r.table(w, "servers of one pod", "Ready", "operator")
	if r.Sets != nil {
		_, _ = fmt.Fprintln(w)
		r.Sets.table(w, "LeaderWorkerSets of one pod", "available", "controller")
	}
}

// table prints the figures of what a controller did with its objects.
func (r *Result) table(w io.Writer, objects, ready, controller string) {
	var t strings.Builder
	row := func(what string, value float64, unit string) {
		fmt.Fprintf(&t, "| %s | %.1f %s |\n", what, value, unit)
	}
	fmt.Fprintf(&t, "| %d %s | |\n| --- | --- |\n", r.Servers, objects)
	row(fmt.Sprintf("from the %s's start until all are %s", controller, ready), r.ConvergeS, "s")
	row("API calls for each until then", r.CallsEach, "")
	row("of these writes", r.WriteEach, "")
	row("processor time until then: "+controller, r.CPU.Operator, "s")
	row("kube-apiserver", r.CPU.APIServer, "s")
	row("etcd", r.CPU.Etcd, "s")
	row("what plays kubelet, scheduler and engines", r.CPU.Players, "s")
	row("memory, resident", r.RSSMiB, "MiB")
	row("memory, at most", r.PeakMiB, "MiB")
	if x := r.Rest; x != nil {
		row(fmt.Sprintf("writes in %.0f s at rest", x.Seconds), x.Writes, "")
		row("calls", x.Calls, "")
		row("processor time", x.CPU, "s")
	}
	if x := r.Pod; x != nil {
		row(fmt.Sprintf("from a change of a spec to its new pod, median of %d", x.Count), x.Median, "ms")
		row("the longest", x.Most, "ms")
	}
	if x := r.Again; x != nil {
		row("an operator started again, until it is at rest", x.Seconds, "s")
		row("what it writes meanwhile", x.Writes, "")
	}
	fmt.Fprint(&t, "\n| verb | resource | requests while it converged, for each |\n| --- | --- | --- |\n")
	for _, k := range r.Kinds {
		if each := k.Count / float64(r.Servers); each >= 0.05 {
			fmt.Fprintf(&t, "| %s | %s | %.2f |\n", k.Verb, k.Resource, each)
		}
	}
	_, _ = io.WriteString(w, t.String())
}
