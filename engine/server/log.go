package server

import (
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// Values of Config.LogRequests.
const (
	LogOff  = "off"  // requests are logged at level debug
	LogOn   = "on"   // and here at level info
	LogText = "text" // with prompts and answers
)

// maxLogged bounds a text in the log, in bytes.
const maxLogged = 4096

// refused logs a request that was not begun.
func (s *Server) refused(r *http.Request, err *apiError) {
	s.cfg.Log.Log(r.Context(), s.requestLevel(), "request refused", "request_id", r.Header.Get("X-Request-Id"), "path", r.URL.Path, "status", err.status, "reason", err.Message)
}

func (s *Server) requestLevel() slog.Level {
	if s.cfg.LogRequests == LogOff {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// account is what the log says of a job when it has ended.
type account struct {
	texts    bool // keep answers
	first    time.Time
	finishes []string
	answers  []strings.Builder
}

// note takes an event of choice index into account.
func (a *account) note(index int, ev *scheduler.Event, now time.Time) {
	if a.first.IsZero() && len(ev.TokenIDs) > 0 {
		a.first = now
	}
	if ev.Finish != "" {
		a.finishes = append(a.finishes, string(ev.Finish))
	}
	if a.texts && a.answers[index].Len() < maxLogged {
		a.answers[index].WriteString(ev.Text)
	}
}

// answered logs a job that has ended. Without LogText there is nothing of the
// prompt or the answer in it.
func (s *Server) answered(r *http.Request, j *job) {
	level := s.requestLevel()
	if !s.cfg.Log.Enabled(r.Context(), level) {
		return
	}
	attrs := []any{
		"request_id", r.Header.Get("X-Request-Id"), "id", j.id, "path", r.URL.Path, "stream", j.c.stream, "choices", len(j.reqs), "finish", strings.Join(j.account.finishes, ","),
		"prompt_tokens", j.usage.PromptTokens, "cached_tokens", j.usage.Details.CachedTokens, "completion_tokens", j.usage.CompletionTokens,
		"verifies", j.speculation.Verifies, "accepted", j.speculation.Accepted, "seconds", time.Since(j.begun).Seconds(),
	}
	if !j.account.first.IsZero() {
		attrs = append(attrs, "first_token_seconds", j.account.first.Sub(j.begun).Seconds())
	}
	if j.account.texts {
		tok := s.backend.Tokenizer()
		for i, req := range j.reqs {
			if tok != nil && !req.Again {
				attrs = append(attrs, "prompt", bounded(tok.Decode(req.PromptIDs, false)))
			}
			attrs = append(attrs, "answer", bounded(j.account.answers[i].String()))
		}
	}
	s.cfg.Log.Log(r.Context(), level, "request answered", attrs...)
}

func bounded(text string) string {
	if len(text) > maxLogged {
		return strings.ToValidUTF8(text[:maxLogged], "") + "…"
	}
	return text
}
