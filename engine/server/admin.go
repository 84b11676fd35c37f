package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/outrider-dev/outrider/engine/telemetry"

	drafting "github.com/outrider-dev/outrider/engine/speculation"
)

// getSpeculation says how deep drafts are now, and why.
func (s *Server) getSpeculation(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.backend.Speculation())
}

// putSpeculation changes the mode and the bounds; fields that are left out stay
// as they are. The answer is the new state.
func (s *Server) putSpeculation(w http.ResponseWriter, r *http.Request) {
	body, done, fail := s.readBody(w, r)
	if fail != nil {
		fail.write(w)
		return
	}
	defer done()
	s.tuning.Lock() // until it is set: another change in between would be lost
	defer s.tuning.Unlock()
	now := s.backend.Speculation()
	mode, least, most := now.Mode, now.MinSteps, now.MaxSteps
	fail = eachField(body, func(name string, value json.RawMessage) *apiError {
		into := map[string]any{"mode": &mode, "min_steps": &least, "max_steps": &most}[name]
		if into == nil {
			return invalid(name, "%s is not a field of /v1/speculation: allowed are mode, min_steps and max_steps", shorten(name))
		}
		if err := json.Unmarshal(value, into); err != nil || string(value) == "null" {
			return invalid(name, "%s is %s: mode is a string, min_steps and max_steps are whole numbers", name, shorten(string(value)))
		}
		return nil
	})
	if fail != nil {
		fail.write(w)
		return
	}
	if err := s.backend.SetSpeculation(drafting.Mode(mode), least, most); err != nil {
		submitError(err).write(w)
		return
	}
	s.getSpeculation(w, r)
}

// profile says where the time goes.
func (s *Server) profile(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.backend.Profile())
}

// Seconds of a trace.
const (
	traceSeconds     = 1.0
	mostTraceSeconds = 30.0
)

// trace answers, after the seconds that the client asks for, what each rank did
// in them.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	seconds := traceSeconds
	for name, values := range r.URL.Query() {
		v, err := strconv.ParseFloat(values[0], 64)
		if name != "seconds" || len(values) > 1 || err != nil || !(v > 0 && v <= mostTraceSeconds) {
			invalid(name, "%s is %q: allowed is seconds, once, above 0 up to %v", shorten(name), shorten(values[0]), mostTraceSeconds).write(w)
			return
		}
		seconds = v
	}
	trace, err := s.backend.Trace(r.Context(), time.Duration(seconds*float64(time.Second)))
	switch {
	case r.Context().Err() != nil:
		errLeft().write(w)
		return
	case errors.Is(err, telemetry.ErrTracing):
		newError(http.StatusConflict, typeInvalid, "", err.Error()).write(w)
		return
	case err != nil:
		submitError(err).write(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := trace.WriteTo(w); err != nil {
		s.cfg.Log.Debug("a trace did not reach its client", "error", err)
	}
}
