// Package server answers HTTP for one engine: the OpenAI API and health on the
// public port, and what operators need on the admin port. It turns HTTP
// requests into the scheduler's and streams into answers; it decides nothing
// about the computation.
package server

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/singleflight"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/scheduler"
	drafting "github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Backend is the engine behind the server. Its methods may be called at any
// time, also while the model loads.
type Backend interface {
	// Submit starts a request. The errors are ErrNotReady, ErrDraining,
	// ErrQueueFull and *InvalidRequestError of package scheduler, or the fault
	// that ended the engine.
	Submit(r *scheduler.Request) (*scheduler.Stream, error)
	// Tokenizer is nil while the model loads or if it has none.
	Tokenizer() *tokenizer.Tokenizer
	// ChatTemplate is the model's; the error says why there is none.
	ChatTemplate() (*chat.Template, error)
	// Ready is nil when requests are taken, and otherwise says why not.
	Ready() error
	// Live is nil while the step loop moves, and otherwise says since when not.
	Live() error
	// DeepProbe has the model answer one bounded request on all ranks.
	DeepProbe(ctx context.Context) (scheduler.Usage, error)
	// Drain takes no new requests and waits until the running ones have ended.
	Drain(ctx context.Context) error
	Progress() telemetry.Snapshot
	Info() telemetry.Info
	// Speculation says how deep drafts are now, and why.
	Speculation() telemetry.Speculation
	// SetSpeculation changes mode and bounds from the next cycle on; the error
	// is ErrNotReady or *InvalidRequestError.
	SetSpeculation(mode drafting.Mode, minSteps, maxSteps int) error
	// Profile says where the time goes and what the choice of the depth rests on.
	Profile() telemetry.Profile
	// Trace records what each rank does for d, or until ctx is done; the error is
	// ErrNotReady or telemetry.ErrTracing.
	Trace(ctx context.Context, d time.Duration) (*telemetry.Trace, error)
}

// Config is what a Server works with. Zero limits mean the default.
type Config struct {
	Backend  Backend
	Metrics  *telemetry.Metrics  // counts refused requests
	Gatherer prometheus.Gatherer // of /metrics
	Log      *slog.Logger

	Keys           *Keys         // that the public port asks for, but for health; nil: none
	AdminTokens    *Keys         // that the admin port asks for, but for health, /metrics and /progress; nil: none
	Certificate    *Certificate  // of the public port; nil: plain HTTP
	Closed         string        // why the public port answers nothing but /livez; empty: it does
	AdminOnly      bool          // no /progress, /metrics and /server_info on the public port
	MaxBodyBytes   int64         // of a request; 8 MiB
	MaxBodiesBytes int64         // of the large requests that arrive at the same time; 256 MiB
	MaxChoices     int           // prompts times n in a request; 128
	ProbeTimeout   time.Duration // of /health_generate; 20 s
	Timeouts       Timeouts

	Tracer          trace.Tracer // of requests; nil: none
	LogRequests     string       // LogOff, LogOn or LogText; LogOff
	ToolParser      string       // how the model writes calls: ParserAuto (by its template), ParserNone or a name of answer.ToolFormats
	ReasoningParser string       // how it writes reasoning: ParserAuto, ParserNone or Think
}

// Server makes the handlers of the two ports.
type Server struct {
	cfg     Config
	backend Backend
	bodies  bodies
	encoder encoder
	started time.Time

	connections connections

	probes singleflight.Group
	tuning sync.Mutex // a change of /v1/speculation is under way

	mu        sync.Mutex
	tokenizer *tokenizer.Tokenizer // that longest is of
	longest   int                  // most bytes of a token

	forms struct { // compiled, over a tokenizer's vocabulary
		sync.Mutex
		tokenizer *tokenizer.Tokenizer
		caches    map[string]*grammar.Cache // by the special tokens that are text
	}
}

// New makes a Server.
func New(cfg Config) *Server {
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = 8 << 20
	}
	if cfg.MaxBodiesBytes == 0 {
		cfg.MaxBodiesBytes = 256 << 20
	}
	if cfg.MaxChoices == 0 {
		cfg.MaxChoices = 128
	}
	if cfg.ProbeTimeout == 0 {
		cfg.ProbeTimeout = 20 * time.Second
	}
	if cfg.Tracer == nil {
		cfg.Tracer = noop.Tracer{}
	}
	cfg.LogRequests = cmp.Or(cfg.LogRequests, LogOff)
	cfg.ToolParser = cmp.Or(cfg.ToolParser, ParserAuto)
	cfg.ReasoningParser = cmp.Or(cfg.ReasoningParser, ParserAuto)
	cfg.Timeouts = cfg.Timeouts.withDefaults()
	s := &Server{cfg: cfg, backend: cfg.Backend, started: time.Now()}
	s.bodies.left.Store(cfg.MaxBodiesBytes)
	return s
}

// Public is the handler of the public port.
func (s *Server) Public() http.Handler {
	if s.cfg.Closed != "" {
		return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/livez" {
				s.livez(w, r)
				return
			}
			newError(http.StatusServiceUnavailable, typeUnavailable, codeUnavailable, s.cfg.Closed).write(w)
		}))
	}
	return s.guard(s.publicRoutes().handler())
}

func (s *Server) publicRoutes() routes {
	r := routes{
		"/v1/completions":      {http.MethodPost: s.completions},
		"/v1/chat/completions": {http.MethodPost: s.chatCompletions},
		"/tokenize":            {http.MethodPost: s.tokenize},
		"/detokenize":          {http.MethodPost: s.detokenize},
		"/v1/models":           {http.MethodGet: s.models},
		"/v1/models/{name...}": {http.MethodGet: s.model},
	}
	if !s.cfg.AdminOnly {
		s.facts(r)
	}
	for _, m := range r {
		for method, h := range m {
			m[method] = s.authorize(h)
		}
	}
	s.health(r) // probes have no key
	return r
}

// Admin is the handler of the admin port.
func (s *Server) Admin() http.Handler {
	return s.guard(ownPages(s.adminRoutes().handler()))
}

func (s *Server) adminRoutes() routes {
	r := routes{
		"/{$}":                 {http.MethodGet: s.page},
		"/drain":               {http.MethodPost: s.drain},
		"/v1/speculation":      {http.MethodGet: s.getSpeculation, http.MethodPut: s.putSpeculation},
		"/v1/profile":          {http.MethodGet: s.profile},
		"/v1/trace":            {http.MethodGet: s.trace},
		"/debug/pprof/":        {http.MethodGet: pprof.Index},
		"/debug/pprof/cmdline": {http.MethodGet: pprof.Cmdline},
		"/debug/pprof/profile": {http.MethodGet: pprof.Profile},
		"/debug/pprof/symbol":  {http.MethodGet: pprof.Symbol, http.MethodPost: pprof.Symbol},
		"/debug/pprof/trace":   {http.MethodGet: pprof.Trace},
	}
	s.facts(r)
	for path, m := range r {
		if path == "/metrics" || path == "/progress" {
			continue // read by scrapers, and by whoever waits; they change nothing and hold no text
		}
		for method, h := range m {
			m[method] = s.authorizeAdmin(h)
		}
	}
	s.health(r)
	return r
}

// ownPages refuses changes that a browser asks for on behalf of another site's
// page: it would send the password along that its user once gave.
func ownPages(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			newError(http.StatusForbidden, typeInvalid, "", "the page of another site may not change anything here: allowed are requests of this server's own page, and of programs that are no browsers").write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) health(r routes) {
	r["/livez"] = methods{http.MethodGet: s.livez}
	r["/readyz"] = methods{http.MethodGet: s.readyz}
	r["/health"] = methods{http.MethodGet: s.readyz}
	r["/health_generate"] = methods{http.MethodGet: s.healthGenerate}
}

func (s *Server) facts(r routes) {
	metrics := promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{})
	r["/metrics"] = methods{http.MethodGet: metrics.ServeHTTP}
	r["/progress"] = methods{http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.backend.Progress())
	}}
	r["/server_info"] = methods{http.MethodGet: func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, s.backend.Info())
	}}
}
