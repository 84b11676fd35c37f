package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// connections counts the open connections of the public port.
type connections struct {
	mu    sync.Mutex
	open  int
	empty chan struct{} // closed when there is none left; nil: nobody waits
}

// follow is for http.Server.ConnState.
func (c *connections) follow(_ net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open++
	case http.StateClosed, http.StateHijacked:
		if c.open--; c.open == 0 && c.empty != nil {
			close(c.empty)
			c.empty = nil
		}
	}
}

// none is closed once no connection is open.
func (c *connections) none() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.empty != nil {
		return c.empty
	}
	none := make(chan struct{})
	if c.open == 0 {
		close(none)
	} else {
		c.empty = none
	}
	return none
}

// Leave waits, after a drain, until the clients of the public port have closed
// their connections, or until ctx is done. Each answer asks them to, so a client
// that goes on sending is not cut off in the middle of a request.
func (s *Server) Leave(ctx context.Context) {
	select {
	case <-s.connections.none():
	case <-ctx.Done():
	}
}

// partings asks clients to close their connection once no requests are taken.
func (s *Server) partings(w http.ResponseWriter) {
	if errors.Is(s.backend.Ready(), scheduler.ErrDraining) {
		w.Header().Set("Connection", "close")
	}
}
