package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// writeCertificate writes a certificate for name, with its key, signed by itself.
func writeCertificate(t *testing.T, certFile, keyFile, name string, at time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate that is renewed is shown from the next handshakes on; one that
// is broken is not.
func TestTLSReload(t *testing.T) {
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	if _, err := ReadCertificate(cert, key, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("files that are not there were read")
	}
	begin := time.Now().Add(-time.Hour)
	writeCertificate(t, cert, key, "first.example", begin)
	c, err := ReadCertificate(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Backend: sharedInstance(t).Engine, Metrics: sharedInstance(t).metrics, Gatherer: sharedInstance(t).registry, Log: slog.New(slog.DiscardHandler), Certificate: c})
	front := httptest.NewUnstartedServer(nil)
	front.Config = s.HTTPPublic()
	listener := tls.NewListener(front.Listener, front.Config.TLSConfig)
	go func() { _ = front.Config.Serve(listener) }()
	t.Cleanup(func() { _ = front.Config.Close() })
	shown := func() string {
		t.Helper()
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+front.Listener.Addr().String()+"/livez", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	if got := shown(); got != "first.example" {
		t.Fatalf("the certificate of %s", got)
	}
	writeCertificate(t, cert, key, "second.example", begin.Add(time.Minute))
	waitFor(t, "the new certificate", func() bool { return shown() == "second.example" })
	if err := os.WriteFile(cert, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.get(time.Now().Add(time.Hour)).Leaf.Subject.CommonName; got != "second.example" {
		t.Errorf("after a broken file: the certificate of %s", got)
	}
}

// logged serves requests with a log and gives its lines.
func logged(t *testing.T, mode string, f func(in *instance)) []map[string]any {
	t.Helper()
	base := sharedInstance(t)
	var b bytes.Buffer
	s := New(Config{Backend: base.Engine, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.NewJSONHandler(&b, nil)), LogRequests: mode})
	in := &instance{Engine: base.Engine, registry: base.registry, metrics: base.metrics, server: s, public: httptest.NewServer(s.Public())}
	f(in)
	in.public.Close() // waits for the handlers
	var lines []map[string]any
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		lines = append(lines, m)
	}
	return lines
}

// Logs say what was asked and answered in numbers, and in words only if asked to.
func TestRequestLogs(t *testing.T) {
	ask := func(in *instance) {
		in.post(t, fields{"prompt": "func secret", "max_tokens": 5, "temperature": 0})
		in.streamed(t, fields{"prompt": "func secret", "max_tokens": 5, "temperature": 0})
		do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"gocode-7m","prompt":"secret","n":0}`))
	}
	if lines := logged(t, LogOff, ask); len(lines) != 0 {
		t.Errorf("off: %v", lines)
	}
	for _, mode := range []string{LogOn, LogText} {
		lines := logged(t, mode, ask)
		if len(lines) != 3 {
			t.Fatalf("%s: %v", mode, lines)
		}
		for i, m := range lines[:2] {
			if m["msg"] != "request answered" || m["prompt_tokens"] == 0.0 || m["completion_tokens"] != 5.0 || m["finish"] != "length" || m["stream"] != (i == 1) || m["request_id"] == "" || m["first_token_seconds"] == nil {
				t.Errorf("%s: %v", mode, m)
			}
			prompt, has := m["prompt"].(string)
			if answer, _ := m["answer"].(string); has != (mode == LogText) || has && (!strings.Contains(prompt, "func secret") || answer == "") {
				t.Errorf("%s: prompt %q, answer %v", mode, prompt, m["answer"])
			}
		}
		if m := lines[2]; m["msg"] != "request refused" || m["status"] != 400.0 || !strings.Contains(m["reason"].(string), "n is 0") {
			t.Errorf("%s: %v", mode, m)
		}
		if all, _ := json.Marshal(lines); mode == LogOn && strings.Contains(string(all), "secret") {
			t.Errorf("the prompt is in the log: %s", all)
		}
	}
}

// lingering is a Backend that has a request begin before the one who submits it goes on.
type lingering struct{ Backend }

func (l lingering) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	s, err := l.Backend.Submit(r)
	time.Sleep(20 * time.Millisecond)
	return s, err
}

// A request's trace has its way: queue, prefill, cycles; and belongs to the caller's.
func TestTraces(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	base := sharedInstance(t)
	s := New(Config{Backend: lingering{base.Engine}, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.DiscardHandler), Tracer: provider.Tracer("test")})
	for _, body := range []string{`{"model":"gocode-7m","prompt":"func ","max_tokens":12,"ignore_eos":true,"n":2}`, `{"model":"gocode-7m","prompt":"func ","max_tokens":12,"ignore_eos":true,"n":2,"stream":true}`, `{"n":0}`} {
		spans.Reset()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body))
		req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		s.Public().ServeHTTP(httptest.NewRecorder(), req)
		var names []string
		var root sdk.ReadOnlySpan
		for _, span := range spans.Ended() {
			names = append(names, span.Name())
			if span.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
				t.Errorf("%s is of trace %s", span.Name(), span.SpanContext().TraceID())
			}
			if span.Name() == "POST /v1/completions" {
				root = span
			}
		}
		slices.Sort(names)
		want := []string{"POST /v1/completions", "cycles", "cycles", "prefill", "prefill", "queue", "queue"}
		if strings.Contains(body, `"n":0`) {
			want = want[:1]
		}
		if !slices.Equal(names, want) || root == nil {
			t.Fatalf("%s: spans %v: want %v", body, names, want)
		}
		for _, span := range spans.Ended() {
			if span != root && (span.Parent().SpanID() != root.SpanContext().SpanID() || span.EndTime().Before(span.StartTime()) || span.StartTime().Before(root.StartTime())) {
				t.Errorf("%s from %s to %s, in a request from %s", span.Name(), span.StartTime(), span.EndTime(), root.StartTime())
			}
			if span.Name() == "cycles" && (len(span.Events()) == 0 || !slices.Contains(span.Attributes(), attribute.Int("outrider.completion_tokens", 12))) {
				t.Errorf("cycles have %d events, %v", len(span.Events()), span.Attributes())
			}
		}
	}
}
