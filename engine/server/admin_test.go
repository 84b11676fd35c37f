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

// A page of another site cannot drain the engine through the browser of someone
// who has signed in here; a program can, and the engine's own page.
func TestPagesOfOtherSitesChangeNothing(t *testing.T) {
	_, in := stubbed(t)
	for _, c := range []struct {
		name, site, origin string
		want               int
	}{
		{"another site", "cross-site", "https://elsewhere.example", http.StatusForbidden},
		{"a sibling of the same site", "same-site", "https://other.here.example", http.StatusForbidden},
		{"an old browser on another site", "", "https://elsewhere.example", http.StatusForbidden},
		{"the engine's own page", "same-origin", in.admin.URL, http.StatusOK},
		{"a program", "", "", http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, in.admin.URL+"/v1/speculation", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{"Sec-Fetch-Site": c.site, "Origin": c.origin} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if resp.StatusCode != c.want {
			t.Errorf("%s: status %d, want %d", c.name, resp.StatusCode, c.want)
		}
	}
}
