package server

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// While nothing is taken any more, each answer asks the client to close its
// connection, and none is refused or cut.
func TestDrainingAsksClientsToLeave(t *testing.T) {
	s, in := stubbed(t)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	get := func(path string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.public.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	if resp := get("/v1/models"); resp.Close {
		t.Error("a server that takes requests closes the connection")
	}
	s.set(func(s *stub) { s.ready = scheduler.ErrDraining })
	for _, path := range []string{"/v1/models", "/readyz", "/nothing"} {
		if resp := get(path); !resp.Close {
			t.Errorf("GET %s while draining leaves the connection open", path)
		}
	}
	gone, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	in.server.Leave(gone)
	if gone.Err() != nil {
		t.Error("the clients have left, and they are waited for")
	}
}

func TestLeaveWaitsForConnections(t *testing.T) {
	_, in := stubbed(t)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", in.public.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the connection to be seen", func() bool {
		in.server.connections.mu.Lock()
		defer in.server.connections.mu.Unlock()
		return in.server.connections.open == 1
	})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	in.server.Leave(over) // not longer than it may
	left := make(chan struct{})
	go func() {
		defer close(left)
		in.server.Leave(t.Context())
	}()
	select {
	case <-left:
		t.Error("nobody was waited for")
	case <-time.After(20 * time.Millisecond):
	}
	_ = conn.Close()
	<-left
}

// A path that is not clean has no redirect: that would drop a request's body.
func TestPathsThatAreNotClean(t *testing.T) {
	_, in := stubbed(t)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]int{
		"//v1/models": 404, "/v1//models": 404, "/v1/../v1/models": 404, "/v1/./models": 404, "/v1/models//": 404,
		"/v1/models": 200, "/v1/models/" + servedName: 200, "/": 404,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.public.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Opaque = path // as it is
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var answer map[string]any
		err = json.NewDecoder(resp.Body).Decode(&answer)
		_ = resp.Body.Close()
		if resp.StatusCode != want || err != nil || (answer["error"] != nil) != (want != 200) {
			t.Errorf("GET %s: %s, %v, %v", path, resp.Status, answer, err)
		}
	}
}
