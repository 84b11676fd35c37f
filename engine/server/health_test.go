package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

func (in *instance) getHealth(t testing.TB, path string) (int, health) {
	t.Helper()
	status, b := in.get(t, path)
	var h health
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatalf("%s: %v in %s", path, err, b)
	}
	return status, h
}

func TestHealthStates(t *testing.T) {
	s, in := stubbed(t)
	for _, c := range []struct {
		name        string
		ready, live error
		livez       int
		readyz      int
		status      string
	}{
		{"serving", nil, nil, 200, 200, statusOK},
		{"loading", errors.New("not serving yet"), nil, 200, 503, statusLoading},
		{"draining", scheduler.ErrDraining, nil, 200, 503, statusDraining},
		{"stalled", errors.New("stalled"), errors.New("stalled"), 503, 503, statusStalled},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.set(func(s *stub) { s.ready, s.live = c.ready, c.live })
			if status, _ := in.getHealth(t, "/livez"); status != c.livez {
				t.Errorf("/livez %d, want %d", status, c.livez)
			}
			for _, path := range []string{"/readyz", "/health", "/health_generate"} {
				status, h := in.getHealth(t, path)
				if status != c.readyz || h.Status != c.status {
					t.Errorf("%s %d %+v, want %d %s", path, status, h, c.readyz, c.status)
				}
				if c.ready != nil && (h.Phase == "" || h.Message != c.ready.Error()) {
					t.Errorf("%s does not say the phase and why: %+v", path, h)
				}
			}
		})
	}
}

func TestHealthGenerate(t *testing.T) {
	in := sharedInstance(t)
	// A busy engine's own requests are the proof; those of other tests may still run.
	waitFor(t, "idle", func() bool { return in.Info().KVPagesFree == in.Info().KVPagesTotal })
	status, h := in.getHealth(t, "/health_generate")
	if status != http.StatusOK || h.Status != statusOK || h.Usage.CompletionTokens < 2 || h.Speculation.Verifies < 1 {
		t.Errorf("%d %+v: a probe goes through draft and verify", status, h)
	}
}

func TestHealthGenerateSharesOneProbe(t *testing.T) {
	s, in := stubbed(t)
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		release := make(chan struct{})
		s.set(func(s *stub) {
			s.probe = func(ctx context.Context) (scheduler.Usage, error) {
				probes.Add(1)
				<-release
				return scheduler.Usage{CompletionTokens: 3}, ctx.Err()
			}
		})
		handler := in.server.Public()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/health_generate", nil))
				var h health
				if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil || w.Code != http.StatusOK || h.Usage.CompletionTokens != 3 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		synctest.Wait() // all of them wait
		close(release)
		wg.Wait()
		if n := probes.Load(); n != 1 {
			t.Errorf("%d probes for 20 callers that came together, want 1", n)
		}
	})
}

func TestHealthGenerateIsBounded(t *testing.T) {
	s, in := stubbed(t)
	in.server.cfg.ProbeTimeout = 100 * time.Millisecond
	s.set(func(s *stub) {
		s.probe = func(ctx context.Context) (scheduler.Usage, error) {
			<-ctx.Done()
			return scheduler.Usage{}, ctx.Err()
		}
	})
	start := time.Now()
	status, h := in.getHealth(t, "/health_generate")
	if took := time.Since(start); status != http.StatusServiceUnavailable || h.Status != statusFailed || took > time.Minute {
		t.Errorf("%d %+v after %s", status, h, took)
	}
}

func TestFacts(t *testing.T) {
	in := sharedInstance(t)
	in.post(t, fields{"prompt": "package main\n", "max_tokens": 8})
	var info telemetry.Info
	if _, b := in.get(t, "/server_info"); json.Unmarshal(b, &info) != nil || info.ServedModelName != servedName || info.VocabSize != 4096 || info.ContextLength != 1024 {
		t.Errorf("/server_info: %s", b)
	}
	var p telemetry.Snapshot
	if _, b := in.get(t, "/progress"); json.Unmarshal(b, &p) != nil || p.Phase != telemetry.PhaseServing || p.Percent != 100 || len(p.Ranks) != 1 || p.Ranks[0].LastStep == nil {
		t.Errorf("/progress: %s", b)
	}
	var models struct {
		Object string
		Data   []modelCard
	}
	if _, b := in.get(t, "/v1/models"); json.Unmarshal(b, &models) != nil || models.Object != "list" || len(models.Data) != 1 || models.Data[0].ID != servedName || models.Data[0].MaxModelLen != 1024 {
		t.Errorf("/v1/models: %s", b)
	}
	if _, b := in.get(t, "/metrics"); !strings.Contains(string(b), `outrider_generation_tokens_total{model="gocode-7m"}`) {
		t.Errorf("/metrics has no generated tokens:\n%s", b)
	}
	if problems, err := testutil.GatherAndLint(in.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v %v", problems, err)
	}
	for _, path := range []string{"/livez", "/readyz", "/health", "/health_generate", "/progress", "/metrics", "/server_info", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		if resp, b := do(t, http.MethodGet, in.admin.URL+path, "", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("admin %s: %d %s", path, resp.StatusCode, b)
		}
	}
	if resp, _ := do(t, http.MethodPost, in.admin.URL+"/v1/completions", "application/json", fields{"prompt": "x"}.reader(t)); resp.StatusCode != http.StatusNotFound {
		t.Errorf("completions on the admin port: %d", resp.StatusCode)
	}
}

func TestAdminOnly(t *testing.T) {
	_, in := stubbed(t)
	in.server.cfg.AdminOnly = true
	in.public.Config.Handler = in.server.Public()
	for path, want := range map[string]int{"/metrics": 404, "/progress": 404, "/server_info": 404, "/livez": 200, "/v1/models": 200} {
		if status, b := in.get(t, path); status != want {
			t.Errorf("%s: %d %s, want %d", path, status, b, want)
		}
	}
}

// noticing tells of each request that was taken.
type noticing struct {
	Backend
	submitted chan<- struct{}
}

func (n noticing) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	stream, err := n.Backend.Submit(r)
	if err == nil {
		n.submitted <- struct{}{}
	}
	return stream, err
}

// TestDrain: no new requests, the running one ends whole.
func TestDrain(t *testing.T) {
	hold := filepath.Join(t.TempDir(), "hold")
	submitted := make(chan struct{}, 1)
	in := newInstance(t, engine.Config{SimulateHang: hold}, func(b Backend) Backend { return noticing{b, submitted} })
	if err := os.WriteFile(hold, nil, 0o600); err != nil { // no pass begins until all has been asked
		t.Fatal(err)
	}
	result := make(chan reply)
	go func() { result <- in.post(t, fields{"prompt": "func ", "max_tokens": 400, "ignore_eos": true}) }()
	<-submitted
	resp, b := do(t, http.MethodPost, in.admin.URL+"/drain", "", nil)
	if resp.StatusCode != http.StatusAccepted || !strings.Contains(string(b), statusDraining) {
		t.Errorf("/drain: %d %s", resp.StatusCode, b)
	}
	if status, h := in.getHealth(t, "/readyz"); status != http.StatusServiceUnavailable || h.Status != statusDraining || h.Phase != telemetry.PhaseDraining {
		t.Errorf("/readyz while draining: %d %+v", status, h)
	}
	if status, _ := in.getHealth(t, "/livez"); status != http.StatusOK {
		t.Errorf("/livez while draining: %d", status)
	}
	if resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", fields{"prompt": "x"}.reader(t)); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a request while draining: %d %s", resp.StatusCode, b)
	}
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	if r := <-result; r.Usage.CompletionTokens != 400 {
		t.Errorf("the request that ran got %d tokens, want 400", r.Usage.CompletionTokens)
	}
	if err := in.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}
