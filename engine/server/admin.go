package server

import (
	"encoding/json"
	"net/http"

	drafting "github.com/outrider-dev/outrider/engine/speculation"
)

// getSpeculation says how deep drafts are now, and why.
func (s *Server) getSpeculation(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.backend.Speculation())
}

// putSpeculation changes the mode and the bounds; fields that are left out stay
// as they are. The answer is the new state.
func (s *Server) putSpeculation(w http.ResponseWriter, r *http.Request) {
	body, fail := s.readBody(w, r)
	if fail != nil {
		fail.write(w)
		return
	}
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
