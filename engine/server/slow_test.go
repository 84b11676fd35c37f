package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// dial opens a connection to the public port and sends text.
func (in *instance) dial(t testing.TB, text string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(in.public.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestSlowSenders: who does not send a request to its end is cut off, and
// meanwhile others are served.
func TestSlowSenders(t *testing.T) {
	_, in := stubbedWith(t, Timeouts{Header: time.Second, Body: time.Second})
	const head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	var conns []net.Conn
	for range 10 {
		conns = append(conns, in.dial(t, head+"X-Slow: "), in.dial(t, head+"Content-Length: 1000\r\n\r\n{"), in.dial(t, head+"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"),
			in.dial(t, "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"))
	}
	in.post(t, fields{"prompt": []int{1}, "max_tokens": 1})
	for i, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d is still open", i)
		}
	}
}

// TestReadTimeoutSparesAnswers: an answer may take longer than a body may.
func TestReadTimeoutSparesAnswers(t *testing.T) {
	s, in := stubbedWith(t, Timeouts{Body: time.Second})
	s.set(func(s *stub) {
		s.submit = func(r *scheduler.Request) (*scheduler.Stream, error) {
			time.Sleep(1200 * time.Millisecond)
			return s.Backend.Submit(r)
		}
	})
	f := fields{"prompt": "func ", "max_tokens": 50, "ignore_eos": true}
	if r := in.post(t, f); r.Usage.CompletionTokens != 50 {
		t.Errorf("%d tokens, want 50", r.Usage.CompletionTokens)
	}
	if r := in.streamed(t, f); r.Usage.CompletionTokens != 50 {
		t.Errorf("%d tokens streamed, want 50", r.Usage.CompletionTokens)
	}
}

// TestSlowReader: who does not read its stream loses it, and the engine has
// its pages back.
func TestSlowReader(t *testing.T) {
	_, in := stubbedWith(t, Timeouts{Write: 300 * time.Millisecond})
	in.idle(t) // what others gave up is counted
	aborts := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeAbort))
	// Much to say of each token: more than the buffers of the connection take.
	prompts := strings.TrimSuffix(strings.Repeat(`"func ",`, 8), ",")
	body := fmt.Sprintf(`{"model":"gocode-7m","prompt":[%s],"max_tokens":900,"ignore_eos":true,"stream":true,"logprobs":20}`, prompts)
	conn := in.dial(t, fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4096)
	}
	waitFor(t, "the request to run", func() bool { return testutil.ToFloat64(in.metrics.Running) > 0 })
	in.idle(t)
	if n := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeAbort)) - aborts; n != 8 {
		t.Errorf("%v of 8 choices were given up", n)
	}
}

// TestKeepAlive: a stream that has nothing to say yet says that it lives.
func TestKeepAlive(t *testing.T) {
	s, in := stubbedWith(t, Timeouts{KeepAlive: 20 * time.Millisecond})
	var streams []*scheduler.Stream
	cancelled := make(chan struct{})
	s.set(func(s *stub) {
		s.submit = func(*scheduler.Request) (*scheduler.Stream, error) {
			streams = append(streams, scheduler.NewStream(func() { close(cancelled) }))
			return streams[0], nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.public.URL+"/v1/completions", fields{"prompt": []int{1}, "stream": true}.reader(t))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for range 3 {
		if !lines.Scan() || lines.Text() != ": keep-alive" || !lines.Scan() || lines.Text() != "" {
			t.Fatalf("got %q, want a comment", lines.Text())
		}
	}
	cancel()
	select {
	case <-cancelled:
	case <-time.After(patience):
		t.Error("the request was not given up when its client left")
	}
}
