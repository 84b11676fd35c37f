package server

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Limits on what a client can hold.
const (
	maxHeaderBytes = 64 << 10
	maxRequestID   = 128 // bytes of X-Request-Id
)

// Timeouts are how long a client may take. Zero means the default. There is
// none for a whole request: an answer may take as long as the model does.
type Timeouts struct {
	Header    time.Duration // to send the headers; 10 s
	Body      time.Duration // to send the body; 60 s
	Write     time.Duration // to take one write; 30 s
	Idle      time.Duration // between requests; 2 min
	KeepAlive time.Duration // of this side: a sign of life in a stream without news; 15 s
}

func (t Timeouts) withDefaults() Timeouts {
	return Timeouts{
		Header: cmp.Or(t.Header, 10*time.Second), Body: cmp.Or(t.Body, time.Minute), Write: cmp.Or(t.Write, 30*time.Second),
		Idle: cmp.Or(t.Idle, 2*time.Minute), KeepAlive: cmp.Or(t.KeepAlive, 15*time.Second),
	}
}

// HTTP is a server for one of the handlers of s, with the limits that they
// rely on.
func (s *Server) HTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: s.cfg.Timeouts.Header,
		IdleTimeout:       s.cfg.Timeouts.Idle,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// methods are a path's handlers.
type methods map[string]http.HandlerFunc

// routes are handlers by path, in the patterns of http.ServeMux without method
// and host: with them the mux would answer 405 in plain text.
type routes map[string]methods

func (r routes) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, m := range r {
		mux.HandleFunc(pattern, m.serve)
	}
	if _, ok := r["/"]; !ok {
		mux.HandleFunc("/", notFound)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The mux would answer with a redirect, in HTML, that drops a body.
		if p := req.URL.EscapedPath(); strings.Contains(p, "//") || path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
			notFound(w, req)
			return
		}
		mux.ServeHTTP(w, req)
	})
}

func notFound(w http.ResponseWriter, r *http.Request) {
	newError(http.StatusNotFound, typeInvalid, "", fmt.Sprintf("there is no %s %s here: see the paths in the API reference", shorten(r.Method), shorten(r.URL.Path))).write(w)
}

func (m methods) serve(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // net/http drops the body
	}
	h, ok := m[method]
	if !ok {
		allowed := strings.Join(slices.Sorted(maps.Keys(m)), ", ")
		w.Header().Set("Allow", allowed)
		newError(http.StatusMethodNotAllowed, typeInvalid, "", fmt.Sprintf("%s is not allowed for %s: allowed is %s", shorten(r.Method), shorten(r.URL.Path), allowed)).write(w)
		return
	}
	h(w, r)
}

// response notes whether an answer has begun, and bounds each write by itself.
type response struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // of a write
	begun   bool
}

// extend sets the deadline anew. A connection keeps the one of the request
// before, so there must be no write without it.
func (r *response) extend() {
	r.begun = true
	_ = r.rc.SetWriteDeadline(time.Now().Add(r.timeout))
}

func (r *response) WriteHeader(status int) {
	r.extend()
	r.ResponseWriter.WriteHeader(status)
}

func (r *response) Write(b []byte) (int, error) {
	r.extend()
	return r.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (r *response) FlushError() error {
	r.extend()
	return r.rc.Flush()
}

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// guard gives each request an id, bounds how long it may take to be read and
// its answer to be written, and answers 500 when a handler panics.
func (s *Server) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !printable(id, maxRequestID) {
			id = newID()
			r.Header.Set("X-Request-Id", id)
		}
		w.Header().Set("X-Request-Id", id)
		s.partings(w)
		resp := &response{ResponseWriter: w, rc: http.NewResponseController(w), timeout: s.cfg.Timeouts.Write}
		if r.ContentLength != 0 {
			// A handler that waits for the model lifts it once it has the body.
			_ = resp.rc.SetReadDeadline(time.Now().Add(s.cfg.Timeouts.Body))
		}
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v) // net/http asks for it: it cuts the connection
			default:
				s.cfg.Log.Error("request failed by a bug", "request_id", id, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
				if resp.begun {
					panic(http.ErrAbortHandler) // the client must not take half an answer for a whole one
				}
				newError(http.StatusInternalServerError, typeServer, "", "internal error: the log has the details under request id "+id).write(resp)
			}
		}()
		h.ServeHTTP(resp, r)
	})
}

// newID is a random name: 26 letters and digits.
func newID() string { return strings.ToLower(rand.Text()) }

// printable tells whether s is 1 to most visible ASCII characters.
func printable(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// shorten makes a client's text fit for a message.
func shorten(s string) string {
	const most = 60
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
