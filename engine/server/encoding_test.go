package server

import (
	"net/http"
	"strings"
	"testing"
)

// A compressed body is refused as such, not as JSON that is wrong.
func TestContentEncoding(t *testing.T) {
	in := sharedInstance(t)
	for coding, want := range map[string]int{"": 200, "identity": 200, "gzip": 415, "br": 415} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, in.public.URL+"/v1/completions", strings.NewReader(`{"model":"gocode-7m","prompt":[1],"max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Content-Encoding", coding)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Content-Encoding %q: status %d, want %d", coding, resp.StatusCode, want)
		}
	}
}
