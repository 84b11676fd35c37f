// Command benchoperator measures the operator against a real API server: how
// long it takes to bring many servers to Ready, what that costs in API calls and
// memory, that it writes nothing at rest, and how soon a change of a spec has its
// new pod. Kubelet and scheduler are played here; the operator is the binary.
//
// KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver; make
// bench-operator sets it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// Result is what was measured.
type Result struct {
	Servers        int     `json:"servers"`
	ConvergeS      float64 `json:"converge_seconds"`        // from the operator's start until all are Ready
	CallsEach      float64 `json:"api_calls_each"`          // of the operator, until then, for each server
	WritesEach     float64 `json:"api_writes_each"`         // of these, other than reads
	RestS          float64 `json:"rest_seconds"`            // how long it was watched at rest
	WritesAtRest   float64 `json:"writes_at_rest"`          // other than leases, in that time
	RSSMiB         float64 `json:"rss_mib"`                 // resident at the end
	PeakMiB        float64 `json:"peak_rss_mib"`            // at most
	RestartedOpS   float64 `json:"operator_restart_s"`      // an operator that is started again, until it is at rest
	RestartedWrite float64 `json:"operator_restart_writes"` // what it writes meanwhile
	ChangeToPodMS  float64 `json:"change_to_new_pod_ms"`    // median, from a change of a spec to its new pod
}

type settings struct {
	servers  int
	rest     time.Duration
	limit    time.Duration
	operator string
	crd      string
	json     string
}

func main() {
	s := settings{}
	flag.IntVar(&s.servers, "servers", 1000, "SpeculativeServers")
	flag.DurationVar(&s.rest, "rest", 5*time.Minute, "how long to watch at rest")
	flag.DurationVar(&s.limit, "limit", 10*time.Minute, "how long converging may take")
	flag.StringVar(&s.operator, "operator", "bin/outrider", "the operator's binary")
	flag.StringVar(&s.crd, "crd", "config/crd/inference.outrider.dev_speculativeservers.yaml", "the CRD")
	flag.StringVar(&s.json, "json", "", "file for the figures; none if empty")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchoperator:", err)
		os.Exit(1)
	}
	r.print(os.Stdout)
	if s.json != "" {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			err = os.WriteFile(s.json, append(b, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "benchoperator:", err)
			os.Exit(1)
		}
	}
}

// bench is one API server with what plays around it.
type bench struct {
	settings
	config     *rest.Config
	client     client.Client
	kubeconfig string
	namespace  string
}

func run(ctx context.Context, s settings) (r *Result, err error) {
	env := &envtest.Environment{CRDDirectoryPaths: []string{s.crd}, ErrorIfCRDPathMissing: true, BinaryAssetsDirectory: os.Getenv("KUBEBUILDER_ASSETS")}
	defer func() {
		if stopErr := env.Stop(); err == nil {
			err = stopErr
		}
	}()
	// envtest's own range has 254 addresses for Services.
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/16")
	config, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("starting an API server: %w: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver, hack/cluster/install.sh assets makes one", err)
	}
	config.QPS, config.Burst = -1, -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	b := &bench{settings: s, config: config, namespace: "default"}
	if b.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "benchoperator")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b.kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(b.kubeconfig, env.KubeConfig, 0o600); err != nil {
		return nil, err
	}
	engines, err := newEngines(ctx)
	if err != nil {
		return nil, err
	}
	defer engines.close()

	// The players must end before the API server does.
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.playNodes(ctx) })
	r, err = b.measure(ctx)
	cancel()
	if playErr := g.Wait(); err == nil && playErr != nil {
		err = playErr
	}
	return r, err
}

func (b *bench) measure(ctx context.Context) (*Result, error) {
	r := &Result{Servers: b.servers}
	if err := b.createAll(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d servers are there; the operator starts\n", b.servers)
	op, err := b.startOperator(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { op.stop() }()
	if r.ConvergeS, err = b.converged(ctx); err != nil {
		return nil, err
	}
	calls, err := op.calls(ctx)
	if err != nil {
		return nil, err
	}
	r.CallsEach, r.WritesEach = calls.all/float64(b.servers), calls.writes/float64(b.servers)

	fmt.Fprintf(os.Stderr, "all are Ready after %.1f s; watching for %s\n", r.ConvergeS, b.rest)
	if err := sleep(ctx, 10*time.Second); err != nil { // the first figures are written
		return nil, err
	}
	if calls, err = op.calls(ctx); err != nil {
		return nil, err
	}
	if err := sleep(ctx, b.rest); err != nil {
		return nil, err
	}
	later, err := op.calls(ctx)
	if err != nil {
		return nil, err
	}
	r.RestS, r.WritesAtRest = b.rest.Seconds(), later.writes-calls.writes
	if r.RSSMiB, r.PeakMiB, err = op.memory(); err != nil {
		return nil, err
	}
	if r.ChangeToPodMS, err = b.changes(ctx, 15); err != nil {
		return nil, err
	}

	if err := sleep(ctx, 15*time.Second); err != nil { // the changed ones have settled
		return nil, err
	}
	op.stop()
	start := time.Now()
	if op, err = b.startOperator(ctx); err != nil {
		return nil, err
	}
	if r.RestartedOpS, r.RestartedWrite, err = op.settle(ctx, start); err != nil {
		return nil, err
	}
	return r, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func name(i int) string { return fmt.Sprintf("s%04d", i) }

func (b *bench) createAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range b.servers {
		g.Go(func() error {
			return b.client.Create(ctx, &v1alpha1.SpeculativeServer{
				ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name(i)},
				Spec: v1alpha1.SpeculativeServerSpec{Model: v1alpha1.ModelSpec{
					Source: v1alpha1.ModelSource{Builtin: &v1alpha1.BuiltinModel{Name: "gocode-7m"}}}},
			})
		})
	}
	return g.Wait()
}

// converged waits until every server is Ready, and returns after how long.
func (b *bench) converged(ctx context.Context) (float64, error) {
	start := time.Now()
	for {
		var list v1alpha1.SpeculativeServerList
		if err := b.client.List(ctx, &list, client.InNamespace(b.namespace)); err != nil {
			return 0, err
		}
		ready, phases := 0, map[v1alpha1.Phase]int{}
		for i := range list.Items {
			phases[list.Items[i].Status.Phase]++
			if list.Items[i].Status.Phase == v1alpha1.PhaseReady {
				ready++
			}
		}
		took := time.Since(start)
		if ready == b.servers {
			return took.Seconds(), nil
		}
		if took > b.limit {
			return 0, fmt.Errorf("after %s %d of %d servers are Ready, phases %v", b.limit, ready, b.servers, phases)
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// changes is the median time from a change of a spec to the new pod, in ms. The
// played kubelet stops pods at once.
func (b *bench) changes(ctx context.Context, n int) (float64, error) {
	var took []float64
	for i := range min(n, b.servers) {
		key := client.ObjectKey{Namespace: b.namespace, Name: name(i)}
		var s v1alpha1.SpeculativeServer
		if err := b.client.Get(ctx, key, &s); err != nil {
			return 0, err
		}
		var old corev1.Pod
		podKey := client.ObjectKey{Namespace: b.namespace, Name: name(i) + "-0"}
		if err := b.client.Get(ctx, podKey, &old); err != nil {
			return 0, err
		}
		start := time.Now()
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"speculation":{"numSteps":2}}}`))
		if err := b.client.Patch(ctx, &s, patch); err != nil {
			return 0, err
		}
		for {
			var pod corev1.Pod
			err := b.client.Get(ctx, podKey, &pod)
			if err == nil && pod.UID != old.UID {
				break
			}
			if client.IgnoreNotFound(err) != nil {
				return 0, err
			}
			if time.Since(start) > time.Minute {
				return 0, fmt.Errorf("no new pod of %s within a minute", name(i))
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return 0, err
			}
		}
		took = append(took, float64(time.Since(start).Microseconds())/1000)
	}
	return stats.Median(took), nil
}

// startOperator runs the operator as a process of its own.
func (b *bench) startOperator(ctx context.Context) (*operator, error) {
	o := &operator{done: make(chan struct{})}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	o.metrics = fmt.Sprintf("http://127.0.0.1:%d/metrics", port)
	o.cmd = exec.CommandContext(ctx, b.operator, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--health-probe-bind-address=0", "--log-level=warn")
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	o.cmd.Stderr = os.Stderr
	if err := o.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w: make build makes it", b.operator, err)
	}
	go func() {
		_ = o.cmd.Wait() // it is told to stop; how it ends is not what is measured
		close(o.done)
	}()
	return o, nil
}

func (r *Result) print(w *os.File) {
	var t strings.Builder
	row := func(what string, value float64, unit string) {
		fmt.Fprintf(&t, "| %s | %.1f %s |\n", what, value, unit)
	}
	fmt.Fprintf(&t, "| %d servers of one pod | |\n| --- | --- |\n", r.Servers)
	row("from the operator's start until all are Ready", r.ConvergeS, "s")
	row("API calls for each server until then", r.CallsEach, "")
	row("of these writes", r.WritesEach, "")
	row(fmt.Sprintf("writes in %.0f s at rest", r.RestS), r.WritesAtRest, "")
	row("memory, resident", r.RSSMiB, "MiB")
	row("memory, at most", r.PeakMiB, "MiB")
	row("from a change of a spec to its new pod, median", r.ChangeToPodMS, "ms")
	row("an operator started again, until it is at rest", r.RestartedOpS, "s")
	row("what it writes meanwhile", r.RestartedWrite, "")
	fmt.Fprint(w, t.String())
}
