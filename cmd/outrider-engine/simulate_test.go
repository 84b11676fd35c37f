package main

import (
	"encoding/json"
	"testing"
)

// Rates by position from the environment are what a text meets that was computed
// before.
func TestSimulatedRatesFromTheEnvironment(t *testing.T) {
	p := start(t, []string{"OUTRIDER_SIMULATE_ACCEPT=1,1,0"}, "--speculative-mode=fixed")
	p.waitReady()
	for run := range 2 {
		resp := p.complete(`{"model":"gocode-7m","prompt":"package main","max_tokens":120,"ignore_eos":true,"seed":1}`)
		var answer struct {
			Speculation struct{ Verifies, Drafted, Accepted int } `json:"speculation"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		// Two of three are accepted, but for the ends.
		if s := answer.Speculation; run == 1 && (s.Accepted < 2*s.Verifies-4 || s.Accepted > 2*s.Verifies || s.Verifies < 35) {
			t.Errorf("%+v, want two of three drafted tokens accepted", s)
		}
	}
}
