package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// hubOf is a hub with one repository, org/code, whose files are a folder's. It
// asks for a token, and holds the weights back until a value is in release.
func hubOf(t *testing.T, folder, token string, release <-chan struct{}) *httptest.Server {
	t.Helper()
	const sha = "0123456789abcdef0123456789abcdef01234567"
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/api/models/org/code/revision/v1" {
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Error(err)
			}
			siblings := []map[string]any{}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					t.Error(err)
					continue
				}
				siblings = append(siblings, map[string]any{"rfilename": e.Name(), "size": info.Size()})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"sha": sha, "siblings": siblings})
			return
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/org/code/resolve/"+sha+"/")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if strings.HasSuffix(name, ".safetensors") {
			select {
			case <-release:
			case <-r.Context().Done():
				return
			}
		}
		http.ServeFile(w, r, filepath.Join(folder, filepath.Base(name)))
	}))
	t.Cleanup(hub.Close)
	return hub
}

// A model of a hub is downloaded, which progress shows, and served.
func TestServesFromHub(t *testing.T) {
	release := make(chan struct{}, 1)
	hub := hubOf(t, gocode, "hf_token", release)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hf_token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"HF_ENDPOINT=" + hub.URL}
	args := []string{"--model=hf://org/code@v1", "--hf-token-file=" + file, "--download-dir=" + t.TempDir()}
	p := start(t, env, args...)
	for end := time.Now().Add(deadline / 2); ; time.Sleep(5 * time.Millisecond) {
		if _, progress := p.get(p.admin + "/progress"); progress["phase"] == "fetch" && progress["bytes_total"] != 0.0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no progress of the download in time")
		}
	}
	release <- struct{}{}
	p.waitReady()
	if _, info := p.get(p.admin + "/server_info"); info["served_model_name"] != "code" || info["model"] != "hf://org/code@v1" {
		t.Errorf("server_info: %v", info)
	}
	if strings.Contains(p.logged(), "hf_token\n") || strings.Contains(p.logged(), "Bearer") {
		t.Error("the token is in the log")
	}
	p.signal(os.Interrupt)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	hub.Close()
	p = start(t, env, args...) // from the cache
	p.waitReady()
}

// A stop ends a download at once.
func TestTermWhileFetching(t *testing.T) {
	hub := hubOf(t, gocode, "a", nil)
	p := start(t, []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=a"}, "--model=hf://org/code@v1", "--download-dir="+t.TempDir())
	p.signal(os.Interrupt)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestHubExits(t *testing.T) {
	hub := hubOf(t, gocode, "good", nil)
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		reason fault.Reason
		says   string
	}{
		{"token", []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=bad"}, []string{"--model=hf://org/code@v1"}, fault.Unauthorized, "access token"},
		{"revision", []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=good"}, []string{"--model=hf://org/code@v2"}, fault.ModelNotFound, "v2"},
		{"address", []string{"HF_ENDPOINT=huggingface.co"}, []string{"--model=hf://org/code"}, fault.InvalidConfig, "HF_ENDPOINT"},
		{"token file", nil, []string{"--hf-token-file=/nowhere"}, fault.InvalidConfig, "--hf-token-file"},
		{"folder", []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=good"}, []string{"--model=hf://org/code@v1", "--download-dir=/dev/null/models"}, fault.FetchFailed, "--download-dir"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "termination-log")
			cmd := command(t, c.env, append([]string{"serve", "--port=0", "--admin-port=0", "--termination-log=" + log}, c.args...)...)
			if code := exitCode(t, cmd.Run()); code != c.reason.ExitCode() {
				t.Errorf("exit code %d: want %d", code, c.reason.ExitCode())
			}
			b, err := os.ReadFile(log)
			var message struct{ Reason, Message string }
			if err != nil || json.Unmarshal(b, &message) != nil || message.Reason != string(c.reason) || !strings.Contains(message.Message, c.says) {
				t.Errorf("termination log %q, %v: want %s saying %q", b, err, c.reason, c.says)
			}
		})
	}
}
