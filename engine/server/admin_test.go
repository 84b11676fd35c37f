package server

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// slowly is a backend whose Speculation answers late, so that others come in between.
type slowly struct{ Backend }

func (s slowly) Speculation() telemetry.Speculation {
	now := s.Backend.Speculation()
	time.Sleep(100 * time.Millisecond)
	return now
}

// Two that change different fields at once both have their way.
func TestChangesOfSpeculationAtOnce(t *testing.T) {
	_, in := stubbed(t)
	in.server.backend = slowly{in.server.backend}
	before := in.server.backend.Speculation()
	put := func(body string) {
		if resp, b := do(t, http.MethodPut, in.admin.URL+"/v1/speculation", "application/json", strings.NewReader(body)); resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", body, resp.StatusCode, b)
		}
	}
	defer put(`{"mode": "` + before.Mode + `", "max_steps": 3}`) // the engine is others' too
	var clients sync.WaitGroup
	for _, body := range []string{`{"mode": "off"}`, `{"max_steps": 2}`} {
		clients.Go(func() { put(body) })
	}
	clients.Wait()
	if now := in.server.backend.Speculation(); now.Mode != "off" || now.MaxSteps != 2 {
		t.Errorf("%+v; want mode off with at most 2 steps", now)
	}
}
