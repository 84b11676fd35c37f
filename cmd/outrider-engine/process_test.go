package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// asCommand makes the test binary act as the command itself, so that tests see
// a real process: its exit code, its signals, its stderr.
const asCommand = "TEST_AS_OUTRIDER_ENGINE"

func init() {
	if os.Getenv(asCommand) != "" {
		main()
	}
}

const (
	gocode   = "../../engine/fetch/builtin/gocode-7m"
	untoken  = "../../engine/model/testdata/fixtures/llama" // a model without a tokenizer
	deadline = 5 * time.Minute                              // of a process, and for what must come, however busy the machine is
)

// command prepares the process; env has only what is given and what a process needs.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append([]string{asCommand + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GOCOVERDIR=" + t.TempDir()}, env...)
	return cmd
}

// exitCode is that of a process that has ended.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// process is a running server.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	public string // URL
	admin  string
	ended  chan error

	mu  sync.Mutex
	log strings.Builder
}

var listening = regexp.MustCompile(`msg=listening url=(\S+) admin_url=(\S+)`)

// start runs serve on free ports and waits until it listens.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, env, append([]string{"serve", "--port=0", "--admin-port=0"}, args...)...), ended: make(chan error, 1)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found := make(chan []string, 1)
	go func() {
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.mu.Lock()
			p.log.WriteString(s.Text() + "\n")
			p.mu.Unlock()
			if m := listening.FindStringSubmatch(s.Text()); m != nil {
				found <- m
			}
		}
		p.ended <- p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		if t.Failed() {
			t.Log(p.logged())
		}
	})
	select {
	case m := <-found:
		p.public, p.admin = m[1], m[2]
		return p
	case err := <-p.ended:
		p.ended <- err // for wait
	}
	select {
	case m := <-found: // both are true of one that ends soon
		p.public, p.admin = m[1], m[2]
	default:
		t.Fatalf("it ended before it listened\n%s", p.logged())
	}
	return p
}

// hold makes the environment of a process that begins no pass between calls of
// stop and goOn: what a test does meanwhile comes before the end of a text.
func hold(t *testing.T) (env string, stop, goOn func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hold")
	return "OUTRIDER_SIMULATE_HANG=" + file, func() {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func (p *process) wait() int {
	p.t.Helper()
	return exitCode(p.t, <-p.ended)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) get(url string) (int, map[string]any) {
	p.t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var v map[string]any
	_ = json.Unmarshal(b, &v) // what is not JSON is looked at by its status alone
	return resp.StatusCode, v
}

func (p *process) waitReady() {
	p.t.Helper()
	for end := time.Now().Add(deadline / 2); ; time.Sleep(5 * time.Millisecond) {
		if code, _ := p.get(p.public + "/readyz"); code == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			p.t.Fatal("not ready in time")
		}
	}
}

// waitLog waits until the log has a text.
func (p *process) waitLog(text string) {
	p.t.Helper()
	for end := time.Now().Add(deadline / 2); !strings.Contains(p.logged(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%q is not in the log", text)
		}
	}
}

// complete posts a completion and leaves the answer to be read.
func (p *process) complete(body string) *http.Response {
	p.t.Helper()
	resp, err := http.Post(p.public+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// begin starts a stream of so many tokens and reads its first event.
func (p *process) begin(tokens int) *bufio.Reader {
	p.t.Helper()
	resp := p.complete(fmt.Sprintf(`{"model":"gocode-7m","prompt":"package main","max_tokens":%d,"ignore_eos":true,"stream":true,"seed":1,"stream_options":{"include_usage":true}}`, tokens))
	r := bufio.NewReader(resp.Body)
	if first, err := r.ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(first, "data: ") {
		p.t.Fatalf("status %d, %q, %v", resp.StatusCode, first, err)
	}
	return r
}

func (p *process) rest(r io.Reader) string {
	p.t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		p.t.Fatalf("the stream was cut: %v after %q", err, b)
	}
	return string(b)
}

// waitStalled waits until the health paths tell a stall, each in its time.
func (p *process) waitStalled() {
	p.t.Helper()
	for end := time.Now().Add(deadline / 2); ; time.Sleep(5 * time.Millisecond) {
		code, health := p.get(p.admin + "/livez")
		if code == http.StatusServiceUnavailable && health["status"] == "stalled" {
			break
		}
		if time.Now().After(end) {
			p.t.Fatal("no stall in time")
		}
	}
	if code, health := p.get(p.public + "/readyz"); code != http.StatusServiceUnavailable || health["status"] != "stalled" {
		p.t.Errorf("readyz: %d, %v", code, health)
	}
}
