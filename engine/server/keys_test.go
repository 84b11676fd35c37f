package server

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestKeys(t *testing.T) {
	_, in := stubbed(t)
	path := filepath.Join(t.TempDir(), "keys")
	modified := time.Now().Add(-time.Hour)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		modified = modified.Add(time.Second) // whatever the file system's clock resolves
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "\n# nobody\n \n"} {
		write(text)
		if _, err := ReadKeys(path, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "no key") {
			t.Errorf("keys of %q: %v, want an error", text, err)
		}
	}
	if _, err := ReadKeys(path+"x", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("no error for a file that does not exist")
	}
	write("# ours\nsecret-1\r\n\n  secret-2  \n")
	keys, err := ReadKeys(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	in.server.cfg.Keys = keys
	in.public.Config.Handler = in.server.Public()

	check := func(what, path, header string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.public.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %s with %q: status %d, want %d", what, path, header, resp.StatusCode, want)
		}
		if want == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: no WWW-Authenticate", what)
		}
	}
	for header, want := range map[string]int{
		"Bearer secret-1": 200, "bearer secret-2": 200, "": 401, "Bearer": 401, "Bearer ": 401, "Bearer secret": 401,
		"Bearer secret-1 ": 200, "Bearer # ours": 401, "Basic secret-1": 401, "secret-1": 401, "Bearer secret-11": 401,
	} {
		check("first file", "/v1/models", header, want)
	}
	for _, path := range []string{"/metrics", "/progress", "/server_info"} {
		check("facts", path, "", 401)
		check("facts", path, "Bearer secret-1", 200)
	}
	for _, path := range []string{"/livez", "/readyz", "/health", "/health_generate"} {
		check("health", path, "", 200)
	}
	resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", fields{"prompt": "x"}.reader(t))
	if e := apiErrorIn(t, b); resp.StatusCode != http.StatusUnauthorized || value(e.Code) != codeInvalidKey {
		t.Errorf("completions without a key: %d %s", resp.StatusCode, b)
	}

	write("secret-3\n")
	check("changed", "/v1/models", "Bearer secret-1", 401)
	check("changed", "/v1/models", "Bearer secret-3", 200)
	write("")
	check("emptied", "/v1/models", "Bearer secret-3", 200)
	check("emptied", "/v1/models", "Bearer ", 401)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("removed", "/v1/models", "Bearer secret-3", 200)
	write("secret-4\n")
	check("back", "/v1/models", "Bearer secret-3", 401)
	check("back", "/v1/models", "Bearer secret-4", 200)
}
