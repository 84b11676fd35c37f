// Command benchoperator measures the operator against a real API server: how
// long it takes to bring many servers to Ready, what that costs in API calls,
// processor time and memory, that it writes nothing at rest, and how soon a change
// of a spec has its new pod. Kubelet and scheduler are played here; the operator
// is the binary.
//
// Each run brings the servers to Ready and then takes the parts of -parts:
//
//	rest     watches the operator at rest
//	change   changes specs, one after the other, and waits for the new pods
//	restart  starts the operator again, and waits until it is at rest
//
// With -sets the same is then done with LeaderWorkerSet's controller and as many
// LeaderWorkerSets of one pod, on an API server of its own.
//
// KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver; make
// bench-operator sets it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Result is what was measured; a part that was not asked for is absent.
type Result struct {
	Servers   int     `json:"servers"`
	ConvergeS float64 `json:"converge_seconds"` // from the operator's start until all are Ready
	CallsEach float64 `json:"api_calls_each"`   // of the operator, until then, for each server
	WriteEach float64 `json:"api_writes_each"`  // of these, other than reads
	RSSMiB    float64 `json:"rss_mib"`          // resident when all are Ready
	PeakMiB   float64 `json:"peak_rss_mib"`     // at most until the end of the run

	Kinds []Kind   `json:"requests"`          // to the API server while it converged, by everyone
	CPU   CPUTimes `json:"cpu_seconds"`       // while it converged
	Rest  *Rest    `json:"rest,omitempty"`    // part rest
	Pod   *Change  `json:"change,omitempty"`  // part change
	Again *Restart `json:"restart,omitempty"` // part restart

	Sets *Result `json:"leaderworkersets,omitempty"` // the same of LeaderWorkerSet's controller
}

// Kind is one kind of request to the API server.
type Kind struct {
	Verb     string  `json:"verb"`
	Resource string  `json:"resource"` // with the subresource, as in pods/status
	Count    float64 `json:"count"`
}

// CPUTimes are the processors' seconds that each process took.
type CPUTimes struct {
	Operator  float64 `json:"operator"`
	APIServer float64 `json:"kube_apiserver"`
	Etcd      float64 `json:"etcd"`
	Players   float64 `json:"players"` // this program: kubelet, scheduler, engines and the watching
}

// Rest is what the operator does when nothing happens.
type Rest struct {
	Seconds float64 `json:"seconds"`
	Writes  float64 `json:"writes"` // other than leases
	Calls   float64 `json:"calls"`
	CPU     float64 `json:"cpu_seconds"`
}

// Change is the time from a change of a spec to its new pod, in milliseconds.
type Change struct {
	Median float64 `json:"median_ms"`
	Most   float64 `json:"most_ms"`
	Count  int     `json:"count"`
}

// Restart is an operator that is started again where all is as it should be.
type Restart struct {
	Seconds float64 `json:"seconds"` // until its last call
	Writes  float64 `json:"writes"`
}

type settings struct {
	servers  int
	rest     time.Duration
	limit    time.Duration
	parts    string
	operator string
	flags    string
	profile  string
	crd      string
	json     string

	sets, setsModule string
}

// parts are the names that -parts takes.
var parts = []string{"rest", "change", "restart"}

// has says whether a part was asked for.
func (s settings) has(part string) bool {
	return slices.Contains(strings.Split(s.parts, ","), part)
}

func (s settings) check() error {
	for part := range strings.SplitSeq(s.parts, ",") {
		if part != "" && !slices.Contains(parts, part) {
			return fmt.Errorf("-parts %q has %q: allowed are %s, with commas between", s.parts, part, strings.Join(parts, ", "))
		}
	}
	if (s.sets == "") != (s.setsModule == "") {
		return errors.New("-sets and -sets-module go together: one is given without the other")
	}
	if s.servers < 1 {
		return fmt.Errorf("-servers is %d: allowed is 1 or more", s.servers)
	}
	return nil
}

func main() {
	s := settings{}
	flag.IntVar(&s.servers, "servers", 1000, "SpeculativeServers")
	flag.StringVar(&s.parts, "parts", strings.Join(parts, ","), "what is measured once all are Ready, with commas between; empty for nothing")
	flag.DurationVar(&s.rest, "rest", 5*time.Minute, "how long to watch at rest")
	flag.DurationVar(&s.limit, "limit", 10*time.Minute, "how long converging may take")
	flag.StringVar(&s.operator, "operator", "bin/outrider", "the operator's binary")
	flag.StringVar(&s.flags, "operator-flags", "", "more flags for it, with spaces between")
	flag.StringVar(&s.profile, "profile", "", "folder for CPU profiles of the operator and the API server, of the first 30 s; none if empty")
	flag.StringVar(&s.crd, "crd", "config/crd/inference.outrider.dev_speculativeservers.yaml", "the CRD")
	flag.StringVar(&s.sets, "sets", "", "binary of LeaderWorkerSet's controller, to measure too; none if empty")
	flag.StringVar(&s.setsModule, "sets-module", "", "folder of its module, for CRD and webhooks")
	flag.StringVar(&s.json, "json", "", "file for the figures; none if empty")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := s.check()
	var r *Result
	if err == nil {
		r, err = run(ctx, s)
	}
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
	cache      cache.Cache // of pods and servers: watching costs the API server less than asking
	kubeconfig string
	namespace  string
}

// run measures the operator, and then, if asked to, LeaderWorkerSet's controller.
func run(ctx context.Context, s settings) (*Result, error) {
	r, err := s.on(ctx, s.crd, func(ctx context.Context, b *bench) (*Result, error) {
		engines, err := newEngines(ctx)
		if err != nil {
			return nil, err
		}
		defer engines.close()
		return b.measure(ctx)
	})
	if err != nil || s.sets == "" {
		return r, err
	}
	r.Sets, err = s.on(ctx, filepath.Join(s.setsModule, "config", "crd", "bases"), func(ctx context.Context, b *bench) (*Result, error) {
		return b.measureSets(ctx)
	}, (*bench).playSets)
	return r, err
}

// on starts an API server with a CRD, and has measure use it while nodes, and
// whatever else is given, are played.
func (s settings) on(ctx context.Context, crd string, measure func(context.Context, *bench) (*Result, error), plays ...func(*bench, context.Context) error) (r *Result, err error) {
	env := &envtest.Environment{CRDDirectoryPaths: []string{crd}, ErrorIfCRDPathMissing: true, BinaryAssetsDirectory: os.Getenv("KUBEBUILDER_ASSETS")}
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
	dir, err := os.MkdirTemp("", "benchoperator")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b, err := s.bench(config, filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.kubeconfig, env.KubeConfig, 0o600); err != nil {
		return nil, err
	}

	// The players must end before the API server does.
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.cache.Start(ctx) })
	for _, play := range append(plays, (*bench).playNodes) {
		g.Go(func() error { return play(b, ctx) })
	}
	r, err = measure(ctx, b)
	cancel()
	if playErr := g.Wait(); err == nil && playErr != nil {
		err = playErr
	}
	return r, err
}

func (s settings) bench(config *rest.Config, kubeconfig string) (*bench, error) {
	config.QPS, config.Burst = -1, -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	b := &bench{settings: s, config: config, namespace: "default", kubeconfig: kubeconfig}
	var err error
	if b.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	b.cache, err = cache.New(config, cache.Options{Scheme: scheme})
	return b, err
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
