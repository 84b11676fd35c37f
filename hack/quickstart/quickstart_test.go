package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func TestReadStream(t *testing.T) {
	event := func(s string) string { return "data: " + s + "\n\n" }
	for _, c := range []struct {
		name, in string
		text     string
		want     result
		err      string
	}{
		{
			name: "whole",
			in: event(`{"choices":[{"index":0,"text":"func "}]}`) + ": comment\n" + event(`{"choices":[{"text":"main","finish_reason":"length"}]}`) +
				event(`{"choices":[],"usage":{"completion_tokens":9},"speculation":{"verifies":4,"drafted":12,"accepted":5}}`) + event("[DONE]"),
			text: "func main",
			want: result{tokens: 9, verifies: 4, drafted: 12, accepted: 5, finish: "length"},
		},
		{name: "no space, CRLF", in: "data:{\"choices\":[{\"text\":\"x\"}]}\r\n\r\ndata:[DONE]\r\n", text: "x"},
		{name: "cut short", in: event(`{"choices":[{"text":"x"}]}`), text: "x", err: "ended before"},
		{name: "empty", in: "", err: "ended before"},
		{name: "error event", in: event(`{"error":{"message":"device fault"}}`) + event("[DONE]"), err: "device fault"},
		{name: "not JSON", in: event("hello"), err: `event "hello"`},
		{name: "endless line", in: "data: " + strings.Repeat("x", 2<<20), err: "token too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			got, err := readStream(strings.NewReader(c.in), &out)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error is %v, want one with %q", err, c.err)
			}
			if out.String() != c.text {
				t.Errorf("text is %q, want %q", out.String(), c.text)
			}
			if err == nil && got != c.want {
				t.Errorf("result is %+v, want %+v", got, c.want)
			}
		})
	}
}

func FuzzReadStream(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n"))
	f.Add([]byte("data: {\"error\":null}\n"))
	f.Add([]byte("data:\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := readStream(bytes.NewReader(b), io.Discard)
		if err == nil && !bytes.Contains(b, []byte("[DONE]")) {
			t.Error("a stream without [DONE] was taken for a whole one")
		}
	})
}

// A stream must reach the reader as it is made, not when it ends.
func TestStreamIsLive(t *testing.T) {
	seen := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req completionRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || !req.Stream || r.URL.Path != "/v1/completions" {
			t.Errorf("%s %s: %+v, %v", r.Method, r.URL, req, err)
		}
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"%d\"}]}\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case got := <-seen:
				if got != fmt.Sprint(i) {
					t.Errorf("read %q after event %d", got, i)
				}
			case <-time.After(time.Minute):
				t.Errorf("event %d did not arrive while the stream was open", i)
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	defer server.Close()
	if _, err := stream(context.Background(), server.URL, completionRequest{Stream: true}, writerFunc(func(b []byte) (int, error) {
		seen <- string(b)
		return len(b), nil
	})); err != nil {
		t.Fatal(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestStreamRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":{"message":"draining"}}`, http.StatusServiceUnavailable)
	}))
	defer server.Close()
	_, err := stream(context.Background(), server.URL, completionRequest{}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "503") || !strings.Contains(err.Error(), "draining") {
		t.Errorf("error is %v, want one with the status and the body", err)
	}
}

func server(phase v1alpha1.Phase, message string, generation, observed int64) *v1alpha1.SpeculativeServer {
	s := &v1alpha1.SpeculativeServer{}
	s.Namespace, s.Name, s.Generation = "default", "quickstart", generation
	s.Status.Phase, s.Status.Message, s.Status.ObservedGeneration = phase, message, observed
	return s
}

func TestWaitReady(t *testing.T) {
	boom := errors.New("connection refused")
	type answer struct {
		s   *v1alpha1.SpeculativeServer
		err error
	}
	for _, c := range []struct {
		name    string
		answers []answer // the last is repeated
		want    string   // of the error
		shows   []string
	}{
		{
			name: "comes up",
			answers: []answer{
				{s: server("", "", 1, 0)}, {s: server("Loading", "Loading 43 %, shard 3 of 8", 1, 1)}, {err: boom},
				{s: server("Verifying", "one bounded request", 1, 1)}, {s: server("Ready", "", 1, 1)},
			},
			shows: []string{"waiting for the operator", "  Loading 43 %, shard 3 of 8", "connection refused", "Verifying: one bounded request", "Ready"},
		},
		{
			name:    "ready for an older spec",
			answers: []answer{{s: server("Ready", "", 2, 1)}, {s: server("Loading", "", 2, 2)}, {s: server("Ready", "", 2, 2)}},
			shows:   []string{"Ready", "Loading"},
		},
		{
			name:    "fails",
			answers: []answer{{s: server("Failed", "ModelNotFound: no folder /models/x", 1, 1)}},
			want:    "default/quickstart failed: ModelNotFound: no folder /models/x",
		},
		{
			name:    "failed for an older spec",
			answers: []answer{{s: server("Failed", "old", 2, 1)}, {s: server("Ready", "", 2, 2)}},
		},
		{
			name:    "never",
			answers: []answer{{s: server("WaitingForCapacity", "0/1 nodes are available", 1, 1)}},
			want:    "WaitingForCapacity: 0/1 nodes are available",
		},
		{name: "unreachable", answers: []answer{{err: boom}}, want: "connection refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := -1
			get := func(context.Context) (*v1alpha1.SpeculativeServer, error) {
				i = min(i+1, len(c.answers)-1)
				return c.answers[i].s, c.answers[i].err
			}
			var out strings.Builder
			var s *v1alpha1.SpeculativeServer
			var err error
			synctest.Test(t, func(t *testing.T) { // no real time passes
				s, err = waitReady(t.Context(), get, &liveLine{out: &out, start: time.Now()}, 5*time.Minute, 500*time.Millisecond)
			})
			if c.want == "" {
				if err != nil || s.Status.Phase != v1alpha1.PhaseReady || i != len(c.answers)-1 {
					t.Errorf("server %+v, error %v after %d answers", s, err, i+1)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			rest := out.String()
			for _, want := range c.shows {
				_, after, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("shown:\n%s\nwhich lacks %q, in this order", out.String(), want)
				}
				rest = after
			}
		})
	}
}

func TestLiveLine(t *testing.T) {
	for terminal, want := range map[bool]string{
		false: "   0 s  a b\n   0 s  c\n",
		true:  "\r   0 s  a b\x1b[K\r   0 s  a b\x1b[K\r   0 s  c\x1b[K\n",
	} {
		var out strings.Builder
		l := &liveLine{out: &out, terminal: terminal, start: time.Now()}
		for _, s := range []string{"a\nb", "a b", "c"} {
			l.show(s)
		}
		l.end()
		if out.String() != want {
			t.Errorf("terminal %t: wrote %q, want %q", terminal, out.String(), want)
		}
	}
}

func TestForwarded(t *testing.T) {
	for line, want := range map[string]string{
		"Forwarding from 127.0.0.1:40123 -> 8000": "127.0.0.1:40123",
		"Forwarding from [::1]:40123 -> 8000":     "[::1]:40123",
		"Forwarding from nonsense -> 8000":        "",
		"Handling connection for 40123":           "",
		"":                                        "",
	} {
		got, ok := forwarded(line)
		if got != want || ok != (want != "") {
			t.Errorf("forwarded(%q) is %q, %t, want %q", line, got, ok, want)
		}
	}
}

func TestSummary(t *testing.T) {
	r := result{tokens: 60, verifies: 20, drafted: 60, accepted: 40}
	if got, want := r.summary(500*time.Millisecond), "60 tokens in 0.50 s (120 tokens/s); 40 of 60 drafted tokens accepted in 20 verify passes, accept length 3.00"; got != want {
		t.Errorf("summary is %q, want %q", got, want)
	}
	if got, want := (result{tokens: 3}).summary(time.Second), "3 tokens in 1.00 s (3 tokens/s)"; got != want {
		t.Errorf("summary is %q, want %q", got, want)
	}
}
