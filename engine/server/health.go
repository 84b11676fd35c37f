package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Values of health.Status.
const (
	statusOK       = "ok"
	statusLoading  = "loading"
	statusDraining = "draining"
	statusStalled  = "stalled"
	statusFailed   = "failed" // the deep probe got no answer
)

// health is the answer of the health paths.
type health struct {
	Status  string          `json:"status"`
	Phase   telemetry.Phase `json:"phase,omitempty"`   // while not ok
	Percent *float64        `json:"percent,omitempty"` // of the load, while loading
	Message string          `json:"message,omitempty"` // why not ok

	Seconds     float64      `json:"seconds,omitempty"` // that the deep probe took
	Usage       *usage       `json:"usage,omitempty"`   // of the deep probe
	Speculation *speculation `json:"speculation,omitempty"`
}

// livez answers whether the process should go on: also while it loads.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) {
	if err := s.backend.Live(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, health{Status: statusStalled, Message: err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, health{Status: statusOK})
}

// readyz answers whether requests are taken.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.backend.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, s.notReady(err))
		return
	}
	writeJSON(w, http.StatusOK, health{Status: statusOK})
}

// notReady says what err of Backend.Ready means.
func (s *Server) notReady(err error) health {
	p := s.backend.Progress()
	h := health{Phase: p.Phase, Message: err.Error()}
	switch {
	case errors.Is(err, scheduler.ErrDraining):
		h.Status = statusDraining
	case s.backend.Live() != nil:
		h.Status = statusStalled
	default:
		h.Status, h.Percent = statusLoading, &p.Percent
	}
	return h
}

// healthGenerate has the model answer. Callers that come while a probe is
// under way share its answer, so that probes are no load however many ask.
func (s *Server) healthGenerate(w http.ResponseWriter, r *http.Request) {
	if err := s.backend.Ready(); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, s.notReady(err))
		return
	}
	probe := s.probes.DoChan("", func() (any, error) {
		// Not the first caller's context: others wait too.
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.ProbeTimeout)
		defer cancel()
		start := time.Now()
		u, err := s.backend.DeepProbe(ctx)
		return probed{u, time.Since(start)}, err
	})
	select {
	case <-r.Context().Done():
		errLeft().write(w)
	case res := <-probe:
		p, _ := res.Val.(probed)
		if res.Err != nil {
			writeJSON(w, http.StatusServiceUnavailable, health{Status: statusFailed, Message: res.Err.Error(), Seconds: p.took.Seconds()})
			return
		}
		h := health{Status: statusOK, Seconds: p.took.Seconds(), Usage: &usage{}, Speculation: &speculation{}}
		h.Usage.add(p.usage, true)
		h.Speculation.add(p.usage)
		writeJSON(w, http.StatusOK, h)
	}
}

type probed struct {
	usage scheduler.Usage
	took  time.Duration
}

// drain takes no new requests from now on and answers at once; /progress and
// the metrics show when the running ones have ended. The process stays until
// it gets a signal.
func (s *Server) drain(w http.ResponseWriter, _ *http.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // begin, do not wait
	_ = s.backend.Drain(ctx)
	writeJSON(w, http.StatusAccepted, s.notReady(scheduler.ErrDraining))
}
