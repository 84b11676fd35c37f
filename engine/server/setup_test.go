package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

const servedName = "gocode-7m"

// instance is an engine with a server before it.
type instance struct {
	*engine.Engine
	registry *prometheus.Registry
	metrics  *telemetry.Metrics
	server   *Server
	public   *httptest.Server
	admin    *httptest.Server
}

// newInstance starts an engine and serves it until the test, or for shared
// ones the test binary, ends. wrap may put something before the engine.
func newInstance(t testing.TB, cfg engine.Config, wrap func(Backend) Backend) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	in := startInstance(ctx, t, cfg, wrap)
	t.Cleanup(func() {
		in.public.Close()
		in.admin.Close()
		cancel()
	})
	return in
}

func startInstance(ctx context.Context, t testing.TB, cfg engine.Config, wrap func(Backend) Backend) *instance {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = "builtin:gocode-7m"
	}
	if cfg.Mode == "" { // what pays differs from machine to machine, and from run to run
		cfg.Mode = "fixed"
	}
	// On an emulated GPU the widest passes of its defaults take long.
	cfg.MaxRunningRequests, cfg.ChunkedPrefillSize = cmp.Or(cfg.MaxRunningRequests, engine.DefaultRunning), cmp.Or(cfg.ChunkedPrefillSize, engine.DefaultChunk)
	cfg.ServedModelName = servedName
	cfg.TPSize = max(1, cfg.TPSize)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	in := &instance{registry: prometheus.NewRegistry()}
	in.metrics = telemetry.NewMetrics(in.registry, servedName, time.Now)
	var err error
	if in.Engine, err = engine.New(cfg, log, in.metrics, telemetry.NewProgress(cfg.TPSize, time.Now)); err != nil {
		t.Fatal(err)
	}
	var backend Backend = in.Engine
	if wrap != nil {
		backend = wrap(backend)
	}
	in.server = New(Config{Backend: backend, Metrics: in.metrics, Gatherer: in.registry, Log: log})
	in.public = httptest.NewUnstartedServer(in.server.Public())
	in.public.Config = in.server.HTTPPublic()
	in.public.Start()
	in.admin = httptest.NewServer(in.server.Admin())
	ran := make(chan error, 1)
	go func() { ran <- in.Run(ctx) }()
	waitFor(t, "the engine to be ready", func() bool {
		select {
		case err := <-ran:
			t.Fatalf("the engine ended: %v", err)
		default:
		}
		return in.Ready() == nil
	})
	return in
}

// shared is one engine for the tests that leave it as it was.
var shared = struct {
	sync.Mutex
	in *instance
}{}

func sharedInstance(t testing.TB) *instance {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.in == nil {
		shared.in = startInstance(context.Background(), t, engine.Config{}, nil)
	}
	return shared.in
}

// patience is how long a test waits for what must come, however busy the machine is.
const patience = 3 * time.Minute

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// fields is the JSON of a request.
type fields map[string]any

// with is f with more fields, of which these win.
func (f fields) with(more fields) fields {
	all := fields{"model": servedName}
	for _, m := range []fields{f, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func (f fields) reader(t testing.TB) io.Reader {
	t.Helper()
	b, err := json.Marshal(f.with(nil))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

// reply is an answer as a client reads it.
type reply struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Index          int       `json:"index"`
		Text           string    `json:"text"`
		Logprobs       *logprobs `json:"logprobs"`
		FinishReason   *string   `json:"finish_reason"`
		TokenIDs       []int32   `json:"token_ids"`
		PromptTokenIDs []int32   `json:"prompt_token_ids"`
	} `json:"choices"`
	Usage       *usage       `json:"usage"`
	Speculation *speculation `json:"speculation"`
	Error       *apiError    `json:"error"`
}

func do(t testing.TB, method, url, contentType string, body io.Reader) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

func (in *instance) get(t testing.TB, path string) (int, []byte) {
	t.Helper()
	resp, b := do(t, http.MethodGet, in.public.URL+path, "", nil)
	return resp.StatusCode, b
}

// post asks for a whole completion and expects it.
func (in *instance) post(t testing.TB, f fields) reply {
	t.Helper()
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", f.reader(t))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return r
}

// streamed asks for a streamed completion and puts it together, checking that
// the chunks are what clients rely on.
func (in *instance) streamed(t testing.TB, f fields) reply {
	t.Helper()
	f = f.with(fields{"stream": true, "stream_options": fields{"include_usage": true}})
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", f.reader(t))
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		t.Fatalf("status %d, %s: %s", resp.StatusCode, kind, b)
	}
	var all reply
	done := false
	for _, chunk := range chunks(t, b) {
		if done {
			t.Fatalf("a chunk after [DONE]: %s", chunk)
		}
		if done = chunk == "[DONE]"; done {
			continue
		}
		var r reply
		if err := json.Unmarshal([]byte(chunk), &r); err != nil {
			t.Fatalf("%v in %q", err, chunk)
		}
		join(t, &all, r)
	}
	if !done {
		t.Fatal("no [DONE] at the end")
	}
	if all.Usage == nil {
		t.Fatal("no chunk with the usage")
	}
	return all
}

// chunks are the data of server-sent events.
func chunks(t testing.TB, b []byte) []string {
	t.Helper()
	var all []string
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			all = append(all, data)
		} else if s.Text() != "" && !strings.HasPrefix(s.Text(), ":") {
			t.Fatalf("not a server-sent event: %q", s.Text())
		}
	}
	return all
}

// join adds a chunk to what came before.
func join(t testing.TB, all *reply, r reply) {
	t.Helper()
	if all.Usage != nil {
		t.Fatalf("a chunk after the one with the usage: %+v", r)
	}
	if all.ID != "" && r.ID != all.ID {
		t.Fatalf("chunks with ids %s and %s", all.ID, r.ID)
	}
	all.ID, all.Object, all.Model, all.Usage, all.Speculation, all.Error = r.ID, r.Object, r.Model, r.Usage, r.Speculation, r.Error
	if r.Usage != nil && len(r.Choices) != 0 {
		t.Fatalf("the usage has %d choices beside it", len(r.Choices))
	}
	for _, c := range r.Choices {
		for len(all.Choices) <= c.Index {
			all.Choices = append(all.Choices, r.Choices[0])
			last := &all.Choices[len(all.Choices)-1]
			*last = r.Choices[0]
			last.Index, last.Text, last.Logprobs, last.FinishReason, last.TokenIDs, last.PromptTokenIDs = len(all.Choices)-1, "", nil, nil, nil, nil
		}
		to := &all.Choices[c.Index]
		if to.FinishReason != nil {
			t.Fatalf("choice %d goes on after its finish_reason", c.Index)
		}
		if len(c.PromptTokenIDs) > 0 && (to.Text != "" || len(to.TokenIDs) > 0) {
			t.Fatalf("prompt_token_ids not in the first chunk of choice %d", c.Index)
		}
		to.Text += c.Text
		to.TokenIDs = append(to.TokenIDs, c.TokenIDs...)
		to.PromptTokenIDs = append(to.PromptTokenIDs, c.PromptTokenIDs...)
		to.FinishReason = c.FinishReason
		if c.Logprobs != nil {
			if to.Logprobs == nil {
				to.Logprobs = &logprobs{}
			}
			l := to.Logprobs
			l.Tokens = append(l.Tokens, c.Logprobs.Tokens...)
			l.TokenLogprobs = append(l.TokenLogprobs, c.Logprobs.TokenLogprobs...)
			l.TopLogprobs = append(l.TopLogprobs, c.Logprobs.TopLogprobs...)
			l.TextOffset = append(l.TextOffset, c.Logprobs.TextOffset...)
		}
	}
}

// stub is a backend whose state a test sets; what it does not set is the
// engine's.
type stub struct {
	Backend
	mu          sync.Mutex
	ready, live error
	submit      func(*scheduler.Request) (*scheduler.Stream, error)
	probe       func(context.Context) (scheduler.Usage, error)
}

func (s *stub) set(f func(*stub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *stub) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready != nil {
		return s.ready
	}
	return s.Backend.Ready()
}

func (s *stub) Live() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

func (s *stub) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	s.mu.Lock()
	submit := s.submit
	s.mu.Unlock()
	if submit != nil {
		return submit(r)
	}
	return s.Backend.Submit(r)
}

func (s *stub) DeepProbe(ctx context.Context) (scheduler.Usage, error) {
	s.mu.Lock()
	probe := s.probe
	s.mu.Unlock()
	if probe != nil {
		return probe(ctx)
	}
	return s.Backend.DeepProbe(ctx)
}

// stubbed serves a stub over the shared engine.
func stubbed(t testing.TB) (*stub, *instance) {
	t.Helper()
	return stubbedWith(t, Timeouts{})
}

// stubbedWith is stubbed with times for slow clients. Only those that a test is
// about are short: a busy machine is slow too.
func stubbedWith(t testing.TB, timeouts Timeouts) (*stub, *instance) {
	t.Helper()
	base := sharedInstance(t)
	s := &stub{Backend: base.Engine}
	in := &instance{Engine: base.Engine, registry: base.registry, metrics: base.metrics}
	in.server = New(Config{
		Backend: s, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.DiscardHandler),
		Timeouts: timeouts,
	})
	in.public = httptest.NewUnstartedServer(nil)
	in.public.Listener = smallBuffers{in.public.Listener}
	in.public.Config = in.server.HTTPPublic()
	in.public.Start()
	in.admin = httptest.NewServer(in.server.Admin())
	t.Cleanup(in.public.Close)
	t.Cleanup(in.admin.Close)
	return s, in
}

// smallBuffers accepts connections on which a write blocks soon when the other
// side does not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(4096)
	}
	return conn, err
}
