package telemetry

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Traces reach a collector over OTLP/HTTP.
func TestTracesAreSent(t *testing.T) {
	got := make(chan []byte, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s, %v", r.URL, err)
		}
		got <- b
	}))
	defer collector.Close()
	traces, err := NewTraces(t.Context(), collector.URL, 1, "a-model", "v0")
	if err != nil {
		t.Fatal(err)
	}
	_, span := traces.Tracer("x").Start(context.Background(), "a-request")
	span.End()
	if err := traces.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b := <-got; !bytes.Contains(b, []byte("a-request")) || !bytes.Contains(b, []byte("a-model")) {
		t.Errorf("sent %q", b)
	}
	for _, endpoint := range []string{"", "collector", "ftp://x", "http://"} {
		if _, err := NewTraces(t.Context(), endpoint, 1, "m", "v"); err == nil {
			t.Errorf("%q was taken", endpoint)
		}
	}
	if _, err := NewTraces(t.Context(), collector.URL, 2, "m", "v"); err == nil {
		t.Error("a share of 2 was taken")
	}
}
