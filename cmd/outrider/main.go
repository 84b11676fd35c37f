// Command outrider is the operator: it reconciles SpeculativeServers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/poll"
	"github.com/outrider-dev/outrider/controllers/statusmetrics"
)

// options are the flags.
type options struct {
	engineImage     string
	cudaEngineImage string
	metricsAddress  string
	metricsSecure   bool
	metricsCertDir  string
	healthAddress   string
	pprofAddress    string
	leaderElect     bool
	leaderNamespace string
	leaderID        string
	namespaces      string
	workers         int
	apiQPS          int
	probeInterval   time.Duration
	logLevel        string
	logFormat       string
	otlpEndpoint    string
	otlpShare       float64
}

// flagSet has the operator's flags, which fill o.
func flagSet(o *options) *flag.FlagSet {
	f := flag.NewFlagSet("outrider", flag.ContinueOnError)
	f.StringVar(&o.engineImage, "engine-image", "ghcr.io/outrider-dev/outrider-engine:dev", "engine `image` of servers whose spec names none; changing it replaces their pods")
	f.StringVar(&o.cudaEngineImage, "cuda-engine-image", "ghcr.io/outrider-dev/outrider-engine-cuda:dev", "the same `image` of servers with nvidia.com/gpu or another resource of nvidia.com in their limits, unless device is CPU, and of those with device CUDA")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "`address` of the operator's own /metrics; 0 for none")
	f.BoolVar(&o.metricsSecure, "metrics-secure", false, "serve /metrics over TLS, to those whom the API server lets get the path /metrics")
	f.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "`folder` of tls.crt and tls.key for --metrics-secure, read again when they change; a certificate made at start if empty")
	f.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 for none")
	f.StringVar(&o.pprofAddress, "pprof-bind-address", "0", "`address` of Go profiles under /debug/pprof/, which tell anyone much; 0 for none")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "reconcile only while holding the lease, so that several replicas can run")
	f.StringVar(&o.leaderNamespace, "leader-election-namespace", "", "`namespace` of the lease; the pod's own if empty")
	f.StringVar(&o.leaderID, "leader-election-id", "outrider.inference.outrider.dev", "`name` of the lease: of operators that share it one works, so those of different namespaces need different ones")
	f.StringVar(&o.namespaces, "watch-namespaces", "", "comma-separated `namespaces` to work in; all if empty")
	f.IntVar(&o.workers, "workers", 4, "servers reconciled at once, 1 to 64")
	f.IntVar(&o.apiQPS, "kube-api-qps", 200, "requests a second to the API server, twice as many in a burst; 0 leaves it to the API server's own fairness")
	f.DurationVar(&o.probeInterval, "probe-interval", time.Minute, "time between two deep probes of a ready pod, from 1s")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
	f.StringVar(&o.otlpEndpoint, "otlp-endpoint", "", "`URL` that OpenTelemetry traces of reconciles are sent to, over OTLP/HTTP, such as http://collector:4318")
	f.Float64Var(&o.otlpShare, "otlp-sample-ratio", 0.1, "share of the reconciles that are traced, 0 to 1")
	return f
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	f := flagSet(o)
	f.SetOutput(stderr)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: the operator takes flags only, see -help", f.Arg(0))
	case badImage(o.engineImage):
		return nil, fmt.Errorf("--engine-image %q: write an image name, for example ghcr.io/outrider-dev/outrider-engine:dev", o.engineImage)
	case badImage(o.cudaEngineImage):
		return nil, fmt.Errorf("--cuda-engine-image %q: write an image name, for example ghcr.io/outrider-dev/outrider-engine-cuda:dev", o.cudaEngineImage)
	case len(validation.IsDNS1123Subdomain(o.leaderID)) > 0:
		return nil, fmt.Errorf("--leader-election-id %q: write a name of a-z, 0-9, '-' and '.', at most 253, for example outrider.inference.outrider.dev", o.leaderID)
	case o.workers < 1 || o.workers > 64:
		return nil, fmt.Errorf("--workers %d: write 1 to 64", o.workers)
	case o.metricsCertDir != "" && !o.metricsSecure:
		return nil, fmt.Errorf("--metrics-cert-dir %q: write --metrics-secure too, without it there is no TLS", o.metricsCertDir)
	case o.apiQPS < 0 || o.apiQPS > 10000:
		return nil, fmt.Errorf("--kube-api-qps %d: write 0 to 10000", o.apiQPS)
	case o.probeInterval < time.Second:
		return nil, fmt.Errorf("--probe-interval %s: write 1s or more", o.probeInterval)
	}
	return o, checkTraces(o)
}

// badImage says whether a name cannot be that of an image; the rest is the container runtime's to judge.
func badImage(name string) bool { return name == "" || strings.ContainsAny(name, " \t\n") }

func logger(o *options, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: write debug, info, warn or error", o.logLevel)
	}
	h := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "json":
		return slog.New(slog.NewJSONHandler(w, h)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, h)), nil
	}
	return nil, fmt.Errorf("--log-format %q: write json or text", o.logFormat)
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	var log *slog.Logger
	if err == nil {
		log, err = logger(o, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "outrider:", err)
		os.Exit(2)
	}
	l := logr.FromSlogHandler(log.Handler())
	ctrl.SetLogger(l)
	klog.SetLogger(l)
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		log.Error("the operator ends", "error", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, o *options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("no way to an API server: %w: run it in a cluster, or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = float32(o.apiQPS), 2*o.apiQPS
	if o.apiQPS == 0 {
		config.QPS = -1 // to client-go, 0 is its own default of a few
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	tracer, shutDown, err := traces(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := shutDown(ctx); err != nil {
			ctrl.Log.Error(err, "the last traces were not sent")
		}
	}()
	mgr, err := ctrl.NewManager(config, managerOptions(o, scheme))
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if _, err := speculativeserver.Setup(ctx, mgr, speculativeserver.Options{
		EngineImage: o.engineImage, CUDAEngineImage: o.cudaEngineImage, Workers: o.workers, Namespace: os.Getenv("POD_NAMESPACE"),
		Intervals: poll.Intervals{Probe: o.probeInterval}, Tracer: tracer,
	}); err != nil {
		return err
	}
	if err := ctrlmetrics.Registry.Register(statusmetrics.New(mgr.GetClient(), mgr.Elected(), ctrl.Log)); err != nil {
		return fmt.Errorf("metrics of the servers: %w", err)
	}
	return mgr.Start(ctx)
}

func managerOptions(o *options, scheme *runtime.Scheme) manager.Options {
	return manager.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: speculativeserver.CacheOptions(), DefaultNamespaces: watched(o.namespaces)},
		Metrics:                       metrics(o),
		Controller:                    ctrlconfig.Controller{EnableWarmup: new(true)}, // a replica that comes to lead has its caches
		HealthProbeBindAddress:        o.healthAddress,
		PprofBindAddress:              o.pprofAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              o.leaderID,
		LeaderElectionNamespace:       o.leaderNamespace,
		LeaderElectionReleaseOnCancel: true, // run returns at once when the manager stops
	}
}

// metrics is how the operator's own metrics are served. Who may read them is the
// API server's to say: a ClusterRole with get on the path /metrics.
func metrics(o *options) metricsserver.Options {
	m := metricsserver.Options{BindAddress: o.metricsAddress}
	if o.metricsSecure {
		m.SecureServing, m.CertDir, m.FilterProvider = true, o.metricsCertDir, filters.WithAuthenticationAndAuthorization
	}
	return m
}

// watched are the namespaces of a comma-separated list; nil is all.
func watched(list string) map[string]cache.Config {
	var m map[string]cache.Config
	for ns := range strings.SplitSeq(list, ",") {
		if ns = strings.TrimSpace(ns); ns != "" {
			if m == nil {
				m = map[string]cache.Config{}
			}
			m[ns] = cache.Config{}
		}
	}
	return m
}
