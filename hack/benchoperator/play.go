package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// playEvery is how often the played nodes look at their pods.
const playEvery = 500 * time.Millisecond

// playNodes plays scheduler and kubelets: pods run, are ready when their gate is
// set, and stop, each at the nodes' next look.
func (b *bench) playNodes(ctx context.Context) error {
	for sleep(ctx, playEvery) == nil {
		var pods corev1.PodList
		if err := b.client.List(ctx, &pods, client.InNamespace(b.namespace)); err != nil {
			return b.ignore(ctx, err)
		}
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(16)
		for i := range pods.Items {
			g.Go(func() error { return b.ignore(ctx, b.play(ctx, &pods.Items[i])) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
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
		return b.client.Status().Update(ctx, p)
	case verified && !ready:
		add(corev1.PodReady)
		return b.client.Status().Update(ctx, p)
	}
	return nil
}

// operator is the operator's process.
type operator struct {
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has ended
	metrics string
	ended   bool
}

func (o *operator) stop() {
	if o.ended {
		return
	}
	o.ended = true
	_ = o.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-o.done:
	case <-time.After(15 * time.Second):
		_ = o.cmd.Process.Kill()
		<-o.done
	}
}

// calls are requests to the API server so far.
type calls struct{ all, writes float64 }

// calls reads the operator's own count of its requests.
func (o *operator) calls(ctx context.Context) (calls, error) {
	var c calls
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.metrics, nil)
	if err != nil {
		return c, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return c, err
	}
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return c, err
	}
	f := families["rest_client_requests_total"]
	if f == nil {
		return c, errors.New("the operator's metrics lack rest_client_requests_total")
	}
	for _, m := range f.GetMetric() {
		n := m.GetCounter().GetValue()
		c.all += n
		for _, l := range m.GetLabel() {
			if l.GetName() == "method" && l.GetValue() != http.MethodGet {
				c.writes += n
			}
		}
	}
	return c, nil
}

// settle waits until the operator has made no call for five seconds, and returns
// when the last was and how many writes there were.
func (o *operator) settle(ctx context.Context, start time.Time) (seconds, writes float64, err error) {
	var last calls
	quiet := time.Time{}
	for {
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return 0, 0, err
		}
		now, err := o.calls(ctx)
		if err != nil {
			if time.Since(start) < 30*time.Second {
				continue // it has not opened its port yet
			}
			return 0, 0, err
		}
		if now.all != last.all {
			last, quiet = now, time.Now()
		}
		if !quiet.IsZero() && time.Since(quiet) > 5*time.Second {
			return quiet.Sub(start).Seconds(), last.writes, nil
		}
		if time.Since(start) > 5*time.Minute {
			return 0, 0, errors.New("the operator that was started again does not come to rest")
		}
	}
}

// memory is the process's resident memory now and at most, in MiB.
func (o *operator) memory() (now, most float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", o.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	read := func(key string) float64 {
		for line := range strings.SplitSeq(string(b), "\n") {
			if rest, ok := strings.CutPrefix(line, key+":"); ok {
				kb, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
				return kb / 1024
			}
		}
		return 0
	}
	return read("VmRSS"), read("VmHWM"), nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
