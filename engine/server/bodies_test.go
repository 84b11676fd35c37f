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
	"strings"
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

// What bodies become counts until they are read: lists of small objects take far more than
// their bytes.
func TestWorkOfBodiesIsBound(t *testing.T) {
	var b bodies
	objects := func(n int) []byte { return bytes.Repeat([]byte(`{"a":1},`), n) }
	if done, err := b.hold(objects(1 << 20)); done != nil || !errors.Is(err, errWork) {
		t.Errorf("a million objects: %v", err)
	}
	var held []func()
	for {
		done, err := b.hold(objects(100_000))
		if err != nil {
			if !errors.Is(err, errBodies) {
				t.Fatal(err)
			}
			break
		}
		held = append(held, done)
	}
	if len(held) < 2 || len(held) > 3 {
		t.Errorf("%d bodies of 100,000 objects were let in", len(held))
	}
	for name, body := range map[string][]byte{"a chat of some kilobytes": objects(1000), "a prompt of 200 KB": bytes.Repeat([]byte("x"), 200<<10), "nothing": nil} {
		done, err := b.hold(body)
		if err != nil {
			t.Fatalf("%s beside large ones: %v", name, err)
		}
		done()
	}
	for _, done := range held {
		done()
	}
	if got := b.work.Load(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
	}
}

// A request of a million objects is refused in a line, and the next one is served.
func TestManyObjectsInABody(t *testing.T) {
	in := sharedInstance(t)
	s := New(Config{Backend: in.Engine, Metrics: in.metrics, Gatherer: in.registry, Log: slog.New(slog.DiscardHandler)})
	for path, before := range map[string]string{
		"/v1/chat/completions": `{"model":"gocode-7m","max_tokens":1,"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"a":[`,
		"/tokenize":            `{"messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"a":[`,
	} {
		for _, c := range []struct{ objects, code int }{{900_000, http.StatusRequestEntityTooLarge}, {100, http.StatusOK}} {
			w := httptest.NewRecorder()
			body := before + strings.Repeat(`{"a":1},`, c.objects) + `{}]}}`
			s.Public().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
			if w.Code != c.code || w.Code != http.StatusOK && !strings.Contains(w.Body.String(), "send fewer") {
				t.Errorf("%s with %d objects: %d %.300s", path, c.objects, w.Code, w.Body)
			}
		}
	}
	if got := s.bodies.work.Load(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
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
