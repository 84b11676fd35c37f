//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// load sends short requests, one after the other, until the function that it
// returns is called.
func (e *env) load() func() (answered int, failed []error) {
	ctx, cancel := context.WithCancel(e.Context())
	address, done := e.address(), make(chan struct{})
	answered, failed := 0, []error(nil)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// Not ctx: the last request may end.
			if _, err := complete(e.Context(), address, "type Config struct {\n", 16); err != nil {
				failed = append(failed, err)
			} else {
				answered++
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() (int, []error) {
		cancel()
		<-done
		e.Logf("%d requests were answered meanwhile, %d failed", answered, len(failed))
		return answered, failed
	}
}

// watchPods counts pods, and ready ones, until the function that it returns is called.
func (e *env) watchPods() func() (most, fewestReady int) {
	ctx, cancel := context.WithCancel(e.Context())
	result := make(chan [2]int)
	go func() {
		most, fewest := 0, 1<<30
		for ctx.Err() == nil {
			var list corev1.PodList
			if err := k8s.List(ctx, &list, client.InNamespace(e.namespace)); err == nil {
				ready := 0
				for _, p := range list.Items {
					for _, c := range p.Status.Conditions {
						if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil {
							ready++
						}
					}
				}
				most, fewest = max(most, len(list.Items)), min(fewest, ready)
			}
			time.Sleep(50 * time.Millisecond)
		}
		result <- [2]int{most, fewest}
	}()
	return func() (int, int) {
		cancel()
		r := <-result
		return r[0], r[1]
	}
}

// clients have n clients ask for long completions, each for its own text again and
// again, until the function that is returned is called. Requests that fail are
// errors of the test.
func (e *env) clients(n int) (stop func()) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.Context())
	address := e.address()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			body, err := json.Marshal(map[string]any{
				"model": "gocode-7m", "prompt": fmt.Sprintf("// Package p%d holds", i), "max_tokens": 128, "temperature": 0,
				"seed": 1, "ignore_eos": true,
			})
			for err == nil && ctx.Err() == nil {
				err = post(ctx, address+"/v1/completions", body)
			}
			if err != nil && ctx.Err() == nil {
				e.Errorf("client %d: %v", i, err)
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// post sends a request and reads the answer.
func post(ctx context.Context, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return err
}

// admin reads a path of the admin port of a pod's engine.
func (e *env) admin(p *corev1.Pod, path string) (string, error) {
	ctx, cancel := context.WithTimeout(e.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:8001%s", p.Status.PodIP, path), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	return string(b), err
}

// metric is the sum of a metric of a pod's engine over its labels.
func (e *env) metric(p *corev1.Pod, name string) float64 {
	e.Helper()
	text, err := e.admin(p, "/metrics")
	if err != nil {
		e.Fatalf("metrics of %s: %v", p.Name, err)
	}
	sum, found := 0.0, false
	for line := range strings.SplitSeq(text, "\n") {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			e.Fatalf("metric %q: %v", line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		e.Fatalf("the engine of %s has no metric %s", p.Name, name)
	}
	return sum
}

// event waits for an event of the operator with a reason and a text in its note.
func (e *env) event(reason, says string) {
	e.Helper()
	e.within(2*time.Minute, fmt.Sprintf("an event %s with %q", reason, says), func() string {
		var list eventsv1.EventList
		if err := k8s.List(e.Context(), &list, client.InNamespace(e.namespace)); err != nil {
			return err.Error()
		}
		var reasons []string
		for i := range list.Items {
			ev := &list.Items[i]
			if ev.ReportingController != "outrider" {
				continue
			}
			if ev.Reason == reason && strings.Contains(ev.Note, says) {
				return ""
			}
			reasons = append(reasons, ev.Reason)
		}
		return fmt.Sprintf("there are %v", reasons)
	})
}

// condition is a condition of a pod; nil when it has none.
func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}
