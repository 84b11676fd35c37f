//go:build apiserver

package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// engine plays the admin port of the pods of one test at a time.
type engine struct {
	port     int
	listener net.Listener
	mu       sync.Mutex
	progress map[string]any
	metrics  string
	probeErr string
	token    string // that /v1/speculation asks for; "": none

	speculation map[string]any // what GET and PUT /v1/speculation have

	device, deviceReason string // of /progress
}

func newEngine() (*engine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e := &engine{listener: l, port: l.Addr().(*net.TCPAddr).Port}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /progress", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		answer := maps.Clone(e.progress)
		answer["device"], answer["device_reason"] = e.device, e.deviceReason
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		_, _ = fmt.Fprint(w, e.metrics)
	})
	mux.HandleFunc("GET /health_generate", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.probeErr != "" {
			http.Error(w, e.probeErr, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/v1/speculation", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.token != "" && r.Header.Get("Authorization") != "Bearer "+e.token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodPut {
			_ = json.NewDecoder(r.Body).Decode(&e.speculation)
		}
		_ = json.NewEncoder(w).Encode(e.speculation)
	})
	go func() { _ = http.Serve(l, mux) }()
	return e, nil
}

func (e *engine) close() { _ = e.listener.Close() }

// asks makes the engine ask for a token.
func (e *engine) asks(token string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.token = token
}

// fetches makes the engine say that it downloads.
func (e *engine) fetches(percent float64, total int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.progress = map[string]any{"phase": "fetch", "percent": percent, "bytes_done": int64(percent / 100 * float64(total)), "bytes_total": total, "last_advance": time.Now()}
}

// computes makes the engine say what it computes on.
func (e *engine) computes(device, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.device, e.deviceReason = device, why
}

// loads makes the engine say that it is loading.
func (e *engine) loads(percent float64, done, total int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.progress = map[string]any{"phase": "load", "percent": percent, "shards_done": done, "shards_total": total, "last_advance": time.Now()}
}

// fresh makes the engine forget what it was held to, as a restart does.
func (e *engine) fresh() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.speculation = map[string]any{"mode": "fixed", "min_steps": 0, "max_steps": 3}
}

// held is what the engine is held to.
func (e *engine) held() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprint(e.speculation["mode"], " ", e.speculation["min_steps"], " ", e.speculation["max_steps"])
}

// loaded adds figures of the load to what the engine serves.
func (e *engine) loaded(running, waiting int, kv, gain float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics += fmt.Sprintf("outrider_requests_running %d\noutrider_requests_waiting %d\noutrider_kv_cache_usage_ratio %g\noutrider_spec_gain_ratio %g\n", running, waiting, kv, gain)
}

// serves makes the engine say that it serves, with figures.
func (e *engine) serves(depth int, accept, rate float64, probeErr string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.progress = map[string]any{"phase": "serving", "percent": 100}
	e.metrics = fmt.Sprintf("outrider_spec_depth %d\noutrider_spec_accept_length %g\noutrider_generation_tokens_per_second %g\n", depth, accept, rate)
	e.probeErr = probeErr
}

const manifest = `
apiVersion: inference.outrider.dev/v1alpha1
kind: SpeculativeServer
metadata: {name: s}
spec:
  model: {source: {builtin: {name: gocode-7m}}}
`

// play is one server in a namespace of its own.
type play struct {
	*testing.T
	namespace string
	started   time.Time
}

func begin(t *testing.T) *play {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}
	if err := k8s.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	fake.serves(3, 3.3, 100, "")
	fake.fresh()
	fake.computes("cpu", "as asked")
	p := &play{T: t, namespace: ns.Name, started: time.Now()}
	t.Cleanup(func() {
		// Without a garbage collector the pods stay; without the server the operator leaves them.
		s := &v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s"}}
		_ = k8s.Delete(t.Context(), s)
	})
	return p
}

func (p *play) create(text string) {
	p.Helper()
	s := &v1alpha1.SpeculativeServer{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		p.Fatal(err)
	}
	s.Namespace = p.namespace
	if err := k8s.Create(p.Context(), s); err != nil {
		p.Fatal(err)
	}
}

func (p *play) server() *v1alpha1.SpeculativeServer {
	p.Helper()
	s := &v1alpha1.SpeculativeServer{}
	if err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, s); err != nil {
		p.Fatal(err)
	}
	return s
}

// serving makes a server of text, and lets its first pod serve.
func (p *play) serving(text string) *corev1.Pod {
	p.Helper()
	p.create(text)
	pod := p.pod(0, "")
	p.bind(pod)
	p.ready(pod)
	p.phase(v1alpha1.PhaseReady, "")
	return pod
}

// patch changes the server's spec.
func (p *play) patch(json string) {
	p.Helper()
	if err := k8s.Patch(p.Context(), p.server(), client.RawPatch(types.MergePatchType, []byte(json))); err != nil {
		p.Fatal(err)
	}
}

// patience is how long a test waits for what must come, however busy the machine is.
const patience = 2 * time.Minute

// eventually waits until f says "", and fails with what it said last.
func (p *play) eventually(what string, f func() string) {
	p.Helper()
	deadline := time.Now().Add(patience)
	for {
		problem := f()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			p.Fatalf("%s: %s", what, problem)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// phase waits for a phase of the server, with a text in its message.
func (p *play) phase(want v1alpha1.Phase, says string) *v1alpha1.SpeculativeServer {
	p.Helper()
	var s *v1alpha1.SpeculativeServer
	p.eventually("phase "+string(want), func() string {
		s = p.server()
		if s.Status.Phase == want && strings.Contains(s.Status.Message, says) && s.Status.ObservedGeneration == s.Generation {
			return ""
		}
		return fmt.Sprintf("it is %s: %s", s.Status.Phase, s.Status.Message)
	})
	return s
}

// pod waits for the pod with an ordinal, other than one that was there before.
func (p *play) pod(ordinal int, before types.UID) *corev1.Pod {
	p.Helper()
	pod := &corev1.Pod{}
	p.eventually(fmt.Sprintf("pod s-%d", ordinal), func() string {
		err := k8s.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: fmt.Sprintf("s-%d", ordinal)}, pod)
		switch {
		case apierrors.IsNotFound(err):
			return "there is none"
		case err != nil:
			return err.Error()
		case pod.UID == before:
			return "it is still the old one"
		}
		return ""
	})
	return pod
}

// setStatus plays the scheduler or the kubelet: it changes a pod's status.
func (p *play) setStatus(pod *corev1.Pod, change func(*corev1.PodStatus)) {
	p.Helper()
	p.eventually("status of pod "+pod.Name, func() string {
		if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err.Error()
		}
		change(&pod.Status)
		if err := k8s.Status().Update(p.Context(), pod); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (p *play) bind(pod *corev1.Pod) {
	p.Helper()
	err := k8s.SubResource("binding").Create(p.Context(), pod, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node1"}})
	if err != nil {
		p.Fatal(err)
	}
}

// runs plays a kubelet that has started the container.
func (p *play) runs(pod *corev1.Pod, healthy bool) {
	p.Helper()
	p.setStatus(pod, func(s *corev1.PodStatus) {
		s.Phase, s.PodIP, s.PodIPs = corev1.PodRunning, "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
		setPodCondition(s, corev1.ContainersReady, healthy)
	})
}

// ready plays a kubelet whose probes pass and that sees the readiness gate.
func (p *play) ready(pod *corev1.Pod) {
	p.Helper()
	p.runs(pod, true)
	p.gate(pod, corev1.ConditionTrue)
	p.setStatus(pod, func(s *corev1.PodStatus) { setPodCondition(s, corev1.PodReady, true) })
}

// gate waits for the readiness gate.
func (p *play) gate(pod *corev1.Pod, want corev1.ConditionStatus) {
	p.Helper()
	p.eventually("readiness gate "+string(want), func() string {
		if err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err.Error()
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == v1alpha1.ModelVerified && c.Status == want {
				return ""
			}
		}
		return fmt.Sprintf("conditions are %v", pod.Status.Conditions)
	})
}

// exits plays a kubelet whose container has ended.
func (p *play) exits(pod *corev1.Pod, code int32, message string) {
	p.Helper()
	p.setStatus(pod, func(s *corev1.PodStatus) {
		s.Phase = corev1.PodFailed
		setPodCondition(s, corev1.ContainersReady, false)
		setPodCondition(s, corev1.PodReady, false)
		s.ContainerStatuses = []corev1.ContainerStatus{{Name: "engine", Image: "i", ImageID: "i", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message, FinishedAt: metav1.Now()}}}}
	})
}

// gone plays a kubelet that has stopped a pod which is being deleted.
func (p *play) gone(pod *corev1.Pod) {
	p.Helper()
	p.eventually("deletion of "+pod.Name, func() string {
		now := &corev1.Pod{}
		err := k8s.Get(p.Context(), client.ObjectKeyFromObject(pod), now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return ""
		}
		if err == nil && now.DeletionTimestamp == nil {
			return "nobody deletes it"
		}
		_ = k8s.Delete(p.Context(), now, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		return "it terminates"
	})
}

func setPodCondition(s *corev1.PodStatus, t corev1.PodConditionType, v bool) {
	status := corev1.ConditionFalse
	if v {
		status = corev1.ConditionTrue
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			s.Conditions[i].Status = status
			return
		}
	}
	s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: status, LastTransitionTime: metav1.Now()})
}

func (p *play) condition(t string, status metav1.ConditionStatus, reason string) {
	p.Helper()
	p.eventually("condition "+t, func() string {
		s := p.server()
		c := meta.FindStatusCondition(s.Status.Conditions, t)
		if c == nil {
			return "there is none"
		}
		if c.Status != status || c.Reason != reason || c.ObservedGeneration != s.Generation {
			return fmt.Sprintf("%+v at generation %d, want %s %s", *c, s.Generation, status, reason)
		}
		return ""
	})
}
