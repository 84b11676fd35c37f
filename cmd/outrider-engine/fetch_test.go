package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// A fetch says how far it is, ends with where the files are, and a server reads
// them from there; the second fetch asks for no file again.
func TestFetch(t *testing.T) {
	release := make(chan struct{}, 1)
	hub := hubOf(t, gocode, "hf_token", release)
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	cmd := command(t, []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=hf_token"},
		"fetch", "--model=hf://org/code@v1", "--download-dir="+dir, "--admin-port=0", "--termination-log="+log)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var admin []string
	for log := bufio.NewReader(stderr); admin == nil; {
		line, err := log.ReadString('\n')
		if err != nil {
			t.Fatalf("%q, %v: no address", line, err)
		}
		admin = regexp.MustCompile(`admin_url=(\S+)`).FindStringSubmatch(line)
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	p := &process{t: t}
	for end := time.Now().Add(deadline / 2); ; time.Sleep(5 * time.Millisecond) {
		if _, progress := p.get(admin[1] + "/progress"); progress["phase"] == "fetch" && progress["bytes_total"] != 0.0 && progress["shards_total"] != 0.0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no progress in time")
		}
	}
	release <- struct{}{}
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	b, err := os.ReadFile(log)
	var got fetched
	if err != nil || json.Unmarshal(b, &got) != nil || got.Draft != "" || filepath.Base(got.Model) != hubCommit {
		t.Fatalf("termination log %q, %v", b, err)
	}
	if _, err := os.Stat(filepath.Join(dir, got.Model, "model.safetensors")); err != nil {
		t.Error(err)
	}
	again := command(t, []string{"HF_ENDPOINT=" + hub.URL, "HF_TOKEN=hf_token"},
		"fetch", "--model=hf://org/code@v1", "--download-dir="+dir, "--admin-port=0")
	if out, err := again.Output(); err != nil || string(out) != string(b) {
		t.Errorf("again: %q, %v: want %q", out, err, b)
	}
}

func TestFetchEnds(t *testing.T) {
	hub := hubOf(t, gocode, "good", nil)
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		reason fault.Reason
		says   string
	}{
		{"token", []string{"HF_TOKEN=bad"}, []string{"--model=hf://org/code@v1"}, fault.Unauthorized, "access token"},
		{"revision", []string{"HF_TOKEN=good"}, []string{"--model=hf://org/code@v2"}, fault.ModelNotFound, "v2"},
		{"folder", []string{"HF_TOKEN=good"}, []string{"--model=hf://org/code@v1", "--download-dir=/dev/null/x"}, fault.FetchFailed, "--download-dir"},
		{"nothing to fetch", nil, []string{"--model=/models/x"}, fault.InvalidConfig, "nothing else to fetch"},
		{"nothing at all", nil, nil, fault.InvalidConfig, "nothing else to fetch"},
		{"port", nil, []string{"--model=hf://org/code", "--admin-port=70000"}, fault.InvalidConfig, "1 to 65535"},
		{"draft", []string{"HF_TOKEN=good"}, []string{"--draft-model=hf://org/code@v2"}, fault.ModelNotFound, "v2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "log")
			cmd := command(t, append(c.env, "HF_ENDPOINT="+hub.URL), append([]string{"fetch", "--admin-port=0", "--termination-log=" + log}, c.args...)...)
			if code := exitCode(t, cmd.Run()); code != c.reason.ExitCode() {
				t.Errorf("exit code %d: want %d", code, c.reason.ExitCode())
			}
			b, err := os.ReadFile(log)
			var m struct{ Reason, Message string }
			if err != nil || json.Unmarshal(b, &m) != nil || m.Reason != string(c.reason) || !strings.Contains(m.Message, c.says) {
				t.Errorf("termination log %q, %v: want %s saying %q", b, err, c.reason, c.says)
			}
		})
	}
}

// A draft that its source does not have ends a fetch well where it may be
// missing.
func TestFetchWithoutDraft(t *testing.T) {
	hub := hubOf(t, gocode, "good", nil)
	out, err := command(t, []string{"HF_TOKEN=good", "HF_ENDPOINT=" + hub.URL},
		"fetch", "--admin-port=0", "--model=builtin:gocode-7m", "--draft-model=hf://org/code@v2", "--draft-optional", "--download-dir="+t.TempDir()).Output()
	var got fetched
	var why struct{ Reason string }
	if err != nil || json.Unmarshal(out, &got) != nil || json.Unmarshal(got.DraftError, &why) != nil || why.Reason != "ModelNotFound" || got.Draft != "" {
		t.Errorf("%s, %v", out, err)
	}
}

// A stop is no success: whoever started the fetch would take the files as whole.
func TestFetchStopped(t *testing.T) {
	hub := hubOf(t, gocode, "a", nil)
	cmd := command(t, []string{"HF_TOKEN=a", "HF_ENDPOINT=" + hub.URL}, "fetch", "--admin-port=0", "--model=hf://org/code@v1", "--download-dir="+t.TempDir())
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stderr.Read(make([]byte, 1)); err != nil { // it logs, so it listens for signals
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != fault.FetchFailed.ExitCode() {
		t.Errorf("exit code %d", code)
	}
}

// The admin port asks for a token where it is told to, but not for what probes,
// scrapers and whoever waits need.
func TestAdminToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("old\nnew\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, nil, "--admin-token-file="+file)
	for _, c := range []struct {
		path, header string
		want         int
	}{
		{"/livez", "", 200}, {"/progress", "", 200}, {"/metrics", "", 200},
		{"/server_info", "", 401}, {"/v1/speculation", "", 401}, {"/v1/profile", "Bearer nope", 401}, {"/", "", 401},
		{"/debug/pprof/", "", 401}, {"/server_info", "Bearer new", 200}, {"/server_info", "Bearer old", 200}, {"/", "Basic OnBlZXA=", 401},
		{"/", "Basic Om5ldw==", 200}, // ":new"
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.admin+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			req.Header.Set("Authorization", c.header)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.want || c.want == 401 && len(resp.Header.Values("WWW-Authenticate")) != 2 {
			t.Errorf("%s with %q: %d, want %d (%v)", c.path, c.header, resp.StatusCode, c.want, resp.Header)
		}
	}
	resp, err := http.Post(p.admin+"/drain", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("POST /drain without a token: %d", resp.StatusCode)
	}
}
