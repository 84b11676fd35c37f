//go:build apiserver

package apiserver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/poll"
)

// softWrites is the operator's Options.SoftWrites.
const softWrites = 200 * time.Millisecond

var (
	apiConfig  *rest.Config
	kubeConfig []byte // the operator's, for programs

	k8s    client.Client // an administrator's, without a cache
	writes = &counter{}  // the operator's writes
	used   = &rights{used: map[string]bool{}}
	spans  = tracetest.NewSpanRecorder()
	fake   *engine // what answers at every pod's address
)

func TestMain(m *testing.M) {
	flag.Parse() // for testing.Verbose
	code, err := suite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/apiserver:", err)
		code = 1
	}
	os.Exit(code)
}

func suite(m *testing.M) (code int, err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	for _, p := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := os.Stat(filepath.Join(assets, p)); assets == "" || err != nil {
			return 1, fmt.Errorf("KUBEBUILDER_ASSETS=%q has no %s: set it to a folder with etcd, kube-apiserver and kubectl; hack/cluster/install.sh makes one", assets, p)
		}
	}
	log := logr.Discard()
	if testing.Verbose() {
		log = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctrl.SetLogger(log)
	env := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join("..", "..", "config", "crd", "inference.outrider.dev_speculativeservers.yaml")},
		ErrorIfCRDPathMissing: true,
		BinaryAssetsDirectory: assets,

		ControlPlaneStartTimeout: patience,
		ControlPlaneStopTimeout:  patience,
	}
	// As on OpenShift: owner references that block deletion need a right.
	env.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	defer func() { err = errors.Join(err, env.Stop()) }() // also after a start that failed halfway
	config, err := env.Start()
	if err != nil {
		return 1, fmt.Errorf("starting an API server: %w", err)
	}
	apiConfig = config
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return 1, err
		}
	}
	if k8s, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	user, err := grant(context.Background(), env)
	if err != nil {
		return 1, fmt.Errorf("the operator's rights: %w", err)
	}
	if kubeConfig, err = user.KubeConfig(); err != nil {
		return 1, err
	}
	if fake, err = newEngine(); err != nil {
		return 1, err
	}
	defer fake.close()

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	mgr, err := operator(ctx, user.Config(), scheme)
	if err != nil {
		cancel()
		return 1, err
	}
	go func() { stopped <- mgr.Start(ctx) }()
	if code = m.Run(); code == 0 {
		var rest []string
		if rest, err = used.unused(ctx); err == nil && len(rest) > 0 {
			err = fmt.Errorf("the operator has rights that nothing used: %s: take them out of controllers/speculativeserver/doc.go, or test what needs them", strings.Join(rest, ", "))
		}
	}
	cancel()
	return code, errors.Join(err, <-stopped)
}

// operator is the operator as cmd/outrider makes it, with shorter intervals and
// its requests noted.
func operator(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (manager.Manager, error) {
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper { return used.wrap(writes.wrap(next)) })
	mgr, err := ctrl.NewManager(counted, manager.Options{
		Scheme:  scheme,
		Cache:   cache.Options{ByObject: speculativeserver.CacheOptions()},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	_, err = speculativeserver.Setup(ctx, mgr, speculativeserver.Options{
		EngineImage: "example.test/engine:1", AdminPort: fake.port, SoftWrites: softWrites, Recheck: 300 * time.Millisecond,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"),
		Intervals: poll.Intervals{
			Loading: 50 * time.Millisecond, Serving: 50 * time.Millisecond,
			Probe: 100 * time.Millisecond, ProbeRetry: 50 * time.Millisecond,
			AskTimeout: patience, ProbeBudget: patience, // the engine answers; the machine may be slow
		},
	})
	return mgr, err
}

// counter counts requests that write, other than events and leases.
type counter struct {
	mu   sync.Mutex
	seen []string
}

func (c *counter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
			c.mu.Lock()
			c.seen = append(c.seen, r.Method+" "+r.URL.Path)
			c.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// of lists the writes so far in a namespace.
func (c *counter) of(namespace string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, s := range c.seen {
		if strings.Contains(s, "/namespaces/"+namespace+"/") {
			list = append(list, s)
		}
	}
	return list
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
