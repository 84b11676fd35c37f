package engineclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/freeport"
)

// answer serves one body on every path.
func answer(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestProgress(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		body   string
		want   string // phase and percent, or part of the error after "error "
	}{
		{"contract", 200, `{"phase":"load","percent":43.5,"bytes_done":1,"bytes_total":2,"shards_done":2,"shards_total":8,
			"last_advance":"2026-03-01T12:00:00.5Z","ranks":[{"rank":0,"phase":"load","percent":43.5,"last_step":"2026-03-01T12:00:00Z"}]}`, "load 43.5"},
		{"more fields than known", 200, `{"phase":"serving","percent":100,"new":{}}`, "serving 100"},
		{"no JSON", 200, `<html>`, "error not the expected JSON"},
		{"wrong type", 200, `{"phase":"load","percent":"x"}`, "error not the expected JSON"},
		{"no phase", 200, `{}`, "error names no phase"},
		{"error status", 503, "busy\nvery", "error status 503: busy very"},
		{"redirect", 302, "", "error status 302"},
		{"too long", 200, `{"phase":"` + strings.Repeat("x", maxProgress) + `"}`, "error longer than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := New().Progress(t.Context(), answer(t, tt.status, tt.body))
			if want, isErr := strings.CutPrefix(tt.want, "error "); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v, want one with %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%s %v", p.Phase, p.Percent); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	const text = `# HELP outrider_spec_depth x
# TYPE outrider_spec_depth gauge
outrider_spec_depth{model="m"} 3
# TYPE outrider_spec_accept_length gauge
outrider_spec_accept_length{model="m"} 3.25
# TYPE outrider_generation_tokens_per_second gauge
outrider_generation_tokens_per_second{model="m"} 100
# TYPE outrider_generation_tokens_total counter
outrider_generation_tokens_total{model="m",rank="0"} 40
outrider_generation_tokens_total{model="m",rank="1"} 2
# TYPE outrider_phase_seconds histogram
outrider_phase_seconds_bucket{phase="verify",le="+Inf"} 4
outrider_phase_seconds_sum{phase="verify"} 0.5
outrider_phase_seconds_count{phase="verify"} 4
outrider_phase_seconds_bucket{phase="draft",le="+Inf"} 9
outrider_phase_seconds_sum{phase="draft"} 9
outrider_phase_seconds_count{phase="draft"} 9
# TYPE outrider_inter_token_seconds histogram
outrider_inter_token_seconds_bucket{le="+Inf"} 2
outrider_inter_token_seconds_sum 0.25
outrider_inter_token_seconds_count 2
# TYPE outrider_requests_running gauge
outrider_requests_running 5
# TYPE outrider_requests_waiting gauge
outrider_requests_waiting 7
# TYPE outrider_kv_cache_usage_ratio gauge
outrider_kv_cache_usage_ratio{rank="0"} 0.5
outrider_kv_cache_usage_ratio{rank="1"} 0.25
# TYPE outrider_spec_gain_ratio gauge
outrider_spec_gain_ratio 1.5
`
	for _, tt := range []struct {
		name, body string
		want       Metrics
		fails      bool
	}{
		{"all", text, Metrics{Depth: 3, AcceptLength: 3.25, TokensPerSecond: 100, GenerationTokens: 42, Running: 5, Waiting: 7,
			KVUsage: 0.5, Gain: 1.5, InterToken: Timing{0.25, 2}, Verify: Timing{0.5, 4}}, false},
		{"none", "other 1\n", Metrics{}, false},
		{"no metrics", "{", Metrics{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := New().Metrics(t.Context(), answer(t, 200, tt.body))
			if (err != nil) != tt.fails {
				t.Fatalf("error %v", err)
			}
			if err == nil && *m != tt.want {
				t.Errorf("%+v, want %+v", *m, tt.want)
			}
		})
	}
}

// TestErrorsNameNoAddress: messages go into statuses, which must not change with
// each new pod or connection.
func TestErrorsNameNoAddress(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	for _, tt := range []struct {
		name, base string
		limit      time.Duration
		want       string
	}{
		{"slow", slow.URL, 50 * time.Millisecond, "GET /health_generate: no answer in time"},
		{"closed", "http://" + freeport.Address(t), time.Minute, "GET /health_generate: connect: connection refused"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
		err := New().DeepProbe(ctx, tt.base)
		cancel()
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestBase(t *testing.T) {
	for ip, want := range map[string]string{"10.0.0.1": "http://10.0.0.1:8001", "fd00::1": "http://[fd00::1]:8001"} {
		if got := Base(ip, 8001); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(`{"phase":"load","percent":1}`)
	f.Add("outrider_spec_depth 3\n")
	f.Add("# TYPE outrider_spec_depth summary\noutrider_spec_depth{quantile=\"1\"} 3\n")
	var body string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
	f.Cleanup(s.Close)
	c := New()
	f.Fuzz(func(t *testing.T, b string) {
		body = b
		if p, err := c.Progress(t.Context(), s.URL); err == nil && p.Phase == "" {
			t.Error("no phase and no error")
		}
		_, _ = c.Metrics(t.Context(), s.URL)
	})
}

func TestSpeculation(t *testing.T) {
	state := `{"mode":"fixed","min_steps":0,"max_steps":3,"num_steps":3,"reason":"fixed"}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/speculation" {
			http.NotFound(w, r)
			return
		}
		if r.Method == http.MethodPut {
			var body map[string]any
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Header.Get("Content-Type") != "application/json" || len(body) != 3 {
				http.Error(w, "bad", http.StatusBadRequest)
				return
			}
			if body["max_steps"].(float64) > 3 {
				http.Error(w, "max_steps is too much", http.StatusBadRequest)
				return
			}
			b, _ := json.Marshal(body)
			state = string(b)
		}
		_, _ = w.Write([]byte(state))
	}))
	defer server.Close()
	c := New()
	if s, err := c.Speculation(t.Context(), server.URL); err != nil || *s != (Speculation{"fixed", 0, 3, 3}) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := c.SetSpeculation(t.Context(), server.URL, "auto", 1, 2); err != nil || *s != (Speculation{Mode: "auto", MinSteps: 1, MaxSteps: 2}) {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := c.SetSpeculation(t.Context(), server.URL, "auto", 1, 9); err == nil || err.Error() != "PUT /v1/speculation: status 400: max_steps is too much" {
		t.Errorf("%v", err)
	}
	state = "{}"
	if _, err := c.Speculation(t.Context(), server.URL); err == nil || err.Error() != "GET /v1/speculation: the answer names no mode" {
		t.Errorf("%v", err)
	}
}
