package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// sent opens a connection, sends text and, if shut, closes the sending side; it gives what
// comes back until the other side closes.
func sent(t *testing.T, addr net.Addr, text string, shut bool) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if shut {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(conn)
	if err != nil && len(b) == 0 {
		t.Fatal(err)
	}
	return string(b)
}

// answered is the status and the error of an answer.
func answered(t *testing.T, text string) (int, *apiError) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
	if err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	var r struct{ Error *apiError }
	if err := errors.Join(err, json.Unmarshal(b, &r)); err != nil || r.Error == nil {
		t.Fatalf("status %d, %v in %q", resp.StatusCode, err, b)
	}
	return resp.StatusCode, r.Error
}

const head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

// Who closes its sending side before the answer has no empty 200: it hears of it, or the
// answer is visibly cut off.
func TestHalfClosed(t *testing.T) {
	s, in := stubbed(t)
	release := make(chan struct{})
	defer close(release)
	s.set(func(s *stub) {
		s.submit = func(*scheduler.Request) (*scheduler.Stream, error) { return scheduler.NewStream(func() {}), nil } // never an event
		s.probe = func(context.Context) (scheduler.Usage, error) {
			<-release
			return scheduler.Usage{}, nil
		}
	})
	post := func(path, body string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
	}
	const completion = `{"model":"gocode-7m","prompt":[1]`
	for _, c := range []struct{ name, text, message string }{
		{"a completion", post("/v1/completions", completion+`}`), "before the answer"},
		{"several", post("/v1/completions", completion+`,"n":3}`), "before the answer"},
		{"a probe", "GET /health_generate HTTP/1.1\r\nHost: x\r\n\r\n", "before the answer"},
		{"a short body", head + "Content-Length: 1000\r\n\r\n{", "after 1 of 1000 bytes"},
		{"no body", head + "Content-Length: 1000\r\n\r\n", "after 0 of 1000 bytes"},
		{"a short chunk", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", "after 1 byte\n"},
		{"no last chunk", head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "after 1 byte\n"},
		{"no byte of one", head + "Content-Length: 1\r\n\r\n", "after 0 of 1 byte\n"},
		{"no chunks", head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "did not arrive whole"},
		{"tokens of a short body", "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", "after 1 of 9 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, e := answered(t, sent(t, in.public.Listener.Addr(), c.text, true))
			if status != http.StatusBadRequest || !strings.Contains(e.Message+"\n", c.message) {
				t.Errorf("%d %s", status, e.Message)
			}
		})
	}
	t.Run("a trace", func(t *testing.T) {
		status, e := answered(t, sent(t, in.admin.Listener.Addr(), "GET /v1/trace?seconds=30 HTTP/1.1\r\nHost: x\r\n\r\n", true))
		if status != http.StatusBadRequest || !strings.Contains(e.Message, "before the answer") {
			t.Errorf("%d %s", status, e.Message)
		}
	})
	t.Run("a stream", func(t *testing.T) {
		got := sent(t, in.public.Listener.Addr(), post("/v1/completions", completion+`,"stream":true}`), true)
		if strings.HasPrefix(got, "HTTP/1.1 400") { // it was seen before the stream began
			if _, e := answered(t, got); !strings.Contains(e.Message, "before the answer") {
				t.Error(e.Message)
			}
			return
		}
		// A client that reads by the length of chunks sees that they break off.
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
		if err != nil {
			t.Fatalf("%v in %q", err, got)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(b), "before the answer") || strings.Contains(string(b), "[DONE]") {
			t.Errorf("the stream has an end, or none has begun, or it does not say why it ends: %v, %q", err, got)
		}
	})
}

// A body that says that it is too large is refused without waiting for it, however small
// the limit is.
func TestDeclaredTooLarge(t *testing.T) {
	base := sharedInstance(t)
	for limit, declared := range map[int64]string{0: "8388609", 100: "101"} {
		s := New(Config{Backend: base.Engine, Metrics: base.metrics, Gatherer: base.registry, Log: slog.New(slog.DiscardHandler), MaxBodyBytes: limit, Timeouts: Timeouts{Body: time.Hour}})
		server := httptest.NewUnstartedServer(nil)
		server.Config = s.HTTPPublic()
		server.Start()
		defer server.Close()
		for _, part := range []string{"", "{"} {
			status, e := answered(t, sent(t, server.Listener.Addr(), head+"Content-Length: "+declared+"\r\n\r\n"+part, false))
			if status != http.StatusRequestEntityTooLarge || value(e.Code) != codeBodyTooLarge || !strings.Contains(e.Message, "the body is larger than") {
				t.Errorf("%s bytes declared: %d %s", declared, status, e.Message)
			}
		}
	}
}

// A body that does not arrive in time is told so in words of this server.
func TestLateBody(t *testing.T) {
	_, in := stubbedWith(t, Timeouts{Body: 200 * time.Millisecond})
	for rest, want := range map[string]string{
		"Content-Length: 1000\r\n\r\n{":                "the body did not arrive within 200ms: 1 of 1000 bytes came",
		"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n": "the body did not arrive within 200ms: 1 byte came",
	} {
		status, e := answered(t, sent(t, in.public.Listener.Addr(), head+rest, false))
		if status != http.StatusRequestTimeout || !strings.HasPrefix(e.Message, want) {
			t.Errorf("%d %s, want 408 and %q", status, e.Message, want)
		}
	}
}

// What the connection says of its end has addresses, and is not passed on.
func TestCutOffHasNoAddresses(t *testing.T) {
	s := New(Config{Backend: &stub{Backend: sharedInstance(t).Engine}})
	for _, err := range []error{
		&net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000}, Err: errors.New("connection reset by peer")},
		&net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8000}, Err: context.DeadlineExceeded},
	} {
		if e := s.cutOff(err, 3, -1); strings.Contains(e.Message, "127.0.0.1") || !strings.Contains(e.Message, "3 bytes") {
			t.Error(e.Message)
		}
	}
}
