package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func TestBodiesAreBoundTogether(t *testing.T) {
	var b bodies
	b.left.Store(4 * bodyStep)
	var open []*bodyReader
	read := func(n int) error {
		r := b.reader(bytes.NewReader(make([]byte, n)))
		open = append(open, r)
		_, err := io.Copy(io.Discard, r)
		return err
	}
	for i, c := range []struct {
		bytes int
		fits  bool
	}{{bodyStep, true}, {3 * bodyStep, true}, {bodyStep, true}, {3*bodyStep + 1, false}, {2 * bodyStep, true}} {
		err := read(c.bytes)
		if fits := err == nil; fits != c.fits || err != nil && !errors.Is(err, errBodies) {
			t.Errorf("body %d, of %d bytes: %v", i, c.bytes, err)
		}
		if !c.fits {
			open[i].done() // what it had is free for the next
		}
	}
	for _, r := range open {
		r.done()
		r.done() // a second time is nothing
	}
	if got := b.left.Load(); got != 4*bodyStep {
		t.Errorf("%d bytes are left in the end, of %d", got, 4*bodyStep)
	}
}

// A slow body that takes what there is makes others wait, and its end frees it.
func TestLargeBodyWhileOthersArrive(t *testing.T) {
	in := sharedInstance(t)
	s := New(Config{Backend: in.Engine, Metrics: in.metrics, Gatherer: in.registry, Log: slog.New(slog.DiscardHandler), MaxBodiesBytes: 2 * bodyStep})
	post := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.Public().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", body))
		return w
	}
	large := append([]byte(`{"model":"gocode-7m","prompt":[1],"max_tokens":1,"user":"`), bytes.Repeat([]byte("a"), 3*bodyStep-100)...)
	slow, rest := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		if w := post(slow); w.Code != http.StatusOK {
			t.Errorf("the slow one: %d %s", w.Code, w.Body)
		}
	})
	if _, err := rest.Write(large); err != nil {
		t.Fatal(err)
	}
	if w := post(bytes.NewReader(append(large, `"}`...))); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("another large one meanwhile: %d %s", w.Code, w.Body)
	}
	if w := post(bytes.NewReader([]byte(`{"model":"gocode-7m","prompt":[1],"max_tokens":1}`))); w.Code != http.StatusOK {
		t.Errorf("a small one meanwhile: %d %s", w.Code, w.Body)
	}
	if _, err := rest.Write([]byte(`"}`)); err != nil {
		t.Fatal(err)
	}
	rest.Close()
	wg.Wait()
	if w := post(bytes.NewReader(append(large, `"}`...))); w.Code != http.StatusOK {
		t.Errorf("a large one afterwards: %d %s", w.Code, w.Body)
	}
}

// A client that asks before it sends too much is told at once, not invited.
func TestTooLargeIsRefusedBeforeItIsSent(t *testing.T) {
	in := sharedInstance(t)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", in.public.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || line != "HTTP/1.1 413 Request Entity Too Large\r\n" {
		t.Errorf("got %q, %v", line, err)
	}
}
