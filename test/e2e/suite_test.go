//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

var k8s client.Client

func TestMain(m *testing.M) {
	if err := connect(); err != nil {
		fmt.Fprintln(os.Stderr, "test/e2e:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// connect finds the cluster and the operator in it.
func connect() error {
	if os.Getenv("KUBECONFIG") == "" {
		return fmt.Errorf("KUBECONFIG is not set: make test-e2e starts a cluster, deploys the operator and sets it")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	if k8s, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		var d appsv1.Deployment
		err := k8s.Get(ctx, types.NamespacedName{Namespace: "outrider-system", Name: "outrider"}, &d)
		switch {
		case err == nil && d.Status.AvailableReplicas > 0:
			return nil
		case apierrors.IsNotFound(err):
			return fmt.Errorf("no operator is deployed in outrider-system: make test-e2e does it, or hack/deploy.sh")
		case ctx.Err() != nil:
			return fmt.Errorf("the operator in outrider-system is not available: %+v, %w", d.Status, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// env is one server, named s, in a namespace of its own.
type env struct {
	*testing.T
	namespace string
}

// begin makes the namespace of a test that runs beside others.
func begin(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	return alone(t)
}

// alone makes the namespace of a test that has the cluster to itself; when it
// fails, the state of things in it is logged before it is deleted.
func alone(t *testing.T) *env {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	if err := k8s.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	e := &env{T: t, namespace: ns.Name}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{
				{"get", "speculativeservers", "-o", "yaml"}, {"get", "pods", "-o", "wide"}, {"get", "events"},
				{"logs", "--selector", v1alpha1.LabelServer, "--tail", "40"},
			} {
				out, _ := kubectl(context.Background(), append(args, "-n", ns.Name)...)
				t.Logf("kubectl %s\n%s", strings.Join(args, " "), out)
			}
			out, _ := kubectl(context.Background(), "logs", "-n", "outrider-system", "deployment/outrider", "--tail", "40")
			t.Logf("operator\n%s", out)
		}
		if err := k8s.Delete(context.Background(), ns); err != nil {
			t.Error(err)
		}
	})
	return e
}

func kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "kubectl", args...).CombinedOutput()
	return string(out), err
}

// quickstart is the sample that newcomers apply, as server s of the test's
// namespace, but of a fixed depth: what pays on a busy machine is not known.
func (e *env) quickstart(change func(*v1alpha1.SpeculativeServer)) {
	e.Helper()
	e.sample(func(s *v1alpha1.SpeculativeServer) {
		s.Spec.Speculation.Adaptation = &v1alpha1.AdaptationSpec{Mode: v1alpha1.AdaptationFixed}
		if change != nil {
			change(s)
		}
	})
}

// sample is the sample that newcomers apply, changed by nothing but change.
func (e *env) sample(change func(*v1alpha1.SpeculativeServer)) {
	e.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "quickstart.yaml"))
	if err != nil {
		e.Fatal(err)
	}
	s := &v1alpha1.SpeculativeServer{}
	if err := yaml.UnmarshalStrict(b, s); err != nil {
		e.Fatal(err)
	}
	s.Name, s.Namespace = "s", e.namespace
	if change != nil {
		change(s)
	}
	if err := k8s.Create(e.Context(), s); err != nil {
		e.Fatal(err)
	}
}

func (e *env) server() *v1alpha1.SpeculativeServer {
	e.Helper()
	s := &v1alpha1.SpeculativeServer{}
	if err := k8s.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: "s"}, s); err != nil {
		e.Fatal(err)
	}
	return s
}

func (e *env) patch(json string) {
	e.Helper()
	if err := k8s.Patch(e.Context(), e.server(), client.RawPatch(types.MergePatchType, []byte(json))); err != nil {
		e.Fatal(err)
	}
}

// within waits until f says "", and fails with what it said last.
func (e *env) within(limit time.Duration, what string, f func() string) {
	e.Helper()
	deadline := time.Now().Add(limit)
	for {
		problem := f()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("%s: not within %s: %s", what, limit, problem)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// phase waits for a phase of the current generation, with a text in its message.
func (e *env) phase(limit time.Duration, want v1alpha1.Phase, says string) *v1alpha1.SpeculativeServer {
	e.Helper()
	var s *v1alpha1.SpeculativeServer
	e.within(limit, fmt.Sprintf("phase %s with %q", want, says), func() string {
		s = e.server()
		if s.Status.Phase == want && strings.Contains(s.Status.Message, says) && s.Status.ObservedGeneration == s.Generation {
			return ""
		}
		return fmt.Sprintf("it is %s %s: %s", s.Status.Phase, s.Status.Ready, s.Status.Message)
	})
	return s
}

func (e *env) ready() *v1alpha1.SpeculativeServer {
	e.Helper()
	return e.phase(2*time.Minute, v1alpha1.PhaseReady, "")
}

func (e *env) pod(ordinal int) *corev1.Pod {
	e.Helper()
	p := &corev1.Pod{}
	if err := k8s.Get(e.Context(), types.NamespacedName{Namespace: e.namespace, Name: fmt.Sprintf("s-%d", ordinal)}, p); err != nil {
		e.Fatal(err)
	}
	return p
}

// signal sends a signal to the engine of a pod, past Kubernetes.
func (e *env) signal(p *corev1.Pod, name string) {
	e.Helper()
	id, ok := strings.CutPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if !ok {
		e.Fatalf("container %q of %s is not containerd's: this test signals engines with ctr", p.Status.ContainerStatuses[0].ContainerID, p.Name)
	}
	out, err := exec.CommandContext(e.Context(), "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", name, id).CombinedOutput()
	if err != nil {
		e.Fatalf("ctr tasks kill: %v: %s", err, out)
	}
}
