package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// The mode changes while the server runs, and what is wrong says what is allowed.
func TestSpeculationChangesLive(t *testing.T) {
	in := newInstance(t, engine.Config{Model: "builtin:gocode-7m"}, nil)
	url := in.admin.URL + "/v1/speculation"
	read := func(b []byte) (s telemetry.Speculation) {
		t.Helper()
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		return s
	}
	put := func(body string) (int, []byte) {
		t.Helper()
		resp, b := do(t, http.MethodPut, url, "application/json", strings.NewReader(body))
		return resp.StatusCode, b
	}
	if _, b := do(t, http.MethodGet, url, "", nil); read(b).Mode != "fixed" || read(b).MaxSteps != 3 {
		t.Errorf("at the start: %s", b)
	}
	for _, c := range []struct {
		body string
		want telemetry.Speculation
	}{
		{`{"mode": "off"}`, telemetry.Speculation{Mode: "off", MaxSteps: 3}},
		{`{"mode": "auto", "max_steps": 2, "min_steps": 1}`, telemetry.Speculation{Mode: "auto", MinSteps: 1, MaxSteps: 2}},
		{`{"mode": "fixed", "min_steps": 0}`, telemetry.Speculation{Mode: "fixed", MaxSteps: 2}},
	} {
		status, b := put(c.body)
		if got := read(b); status != http.StatusOK || got.Mode != c.want.Mode || got.MinSteps != c.want.MinSteps || got.MaxSteps != c.want.MaxSteps {
			t.Errorf("%s: %d %s", c.body, status, b)
		}
	}
	in.post(t, fields{"prompt": "func main() {\n", "max_tokens": 30, "temperature": 0})
	deadline := time.Now().Add(10 * time.Second)
	for in.Speculation().NumSteps != 2 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if got := in.Speculation(); got.NumSteps != 2 || got.Reason != "fixed" {
		t.Errorf("after a request: %+v", got)
	}
	for body, says := range map[string]string{
		`{"mode": "sometimes"}`: "allowed are",
		`{"max_steps": 4}`:      "allowed is 0 to 3",
		`{"min_steps": 3}`:      "allowed is 0 to max_steps",
		`{"max_steps": 1.5}`:    "whole numbers",
		`{"mode": null}`:        "mode is a string",
		`{"depth": 2}`:          "allowed are mode, min_steps and max_steps",
		`[]`:                    "not a JSON object",
	} {
		if status, b := put(body); status != http.StatusBadRequest || !strings.Contains(string(b), says) {
			t.Errorf("%s: %d %s; want 400 saying %q", body, status, b, says)
		}
	}
	if resp, _ := do(t, http.MethodGet, in.public.URL+"/v1/speculation", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("on the public port: %d", resp.StatusCode)
	}
}
