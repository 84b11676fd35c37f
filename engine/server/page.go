package server

import (
	_ "embed"
	"net/http"
)

// pageHTML is what the admin port shows to people: one file, which loads
// nothing but this engine's own answers.
//
//go:embed page.html
var pageHTML []byte

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'")
	_, _ = w.Write(pageHTML)
}
