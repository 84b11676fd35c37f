package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/fault"
)

// An end that is not a stop says why: in the exit code, in the last line of
// stderr, and in the termination log.
func TestExits(t *testing.T) {
	broken := t.TempDir()
	copyFolder(t, gocode, broken)
	if err := os.Truncate(filepath.Join(broken, "model.safetensors"), 1<<20); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	jinja := filepath.Join(t.TempDir(), "template.jinja")
	if err := os.WriteFile(jinja, []byte("{% if x %}"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func(args ...string) []string {
		return append([]string{"serve", "--port=0", "--admin-port=0"}, args...)
	}
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		code   int
		reason string
		says   string // is in the message
	}{
		{"unknown flag", nil, serve("--speed=9"), 2, "InvalidConfig", "--speed"},
		{"unknown command", nil, []string{"frobnicate"}, 2, "InvalidConfig", `"frobnicate"`},
		{"argument", nil, serve("model"), 2, "InvalidConfig", `"model"`},
		{"not a number", nil, serve("--tp-size=two"), 2, "InvalidConfig", `--tp-size is "two": allowed is a whole number`},
		{"ranks", nil, serve("--tp-size=0"), 2, "InvalidConfig", "--tp-size is 0: allowed is 1 to 64"},
		{"ports out of range", nil, serve("--port=70000"), 2, "InvalidConfig", "--port is 70000: allowed is 1 to 65535"},
		{"the same port", nil, serve("--port=9000", "--admin-port=9000"), 2, "InvalidConfig", "--port and --admin-port are both 9000"},
		{"a port from the environment", []string{"OUTRIDER_PORT=tcp://10.0.0.1:80"}, []string{"serve"}, 2, "InvalidConfig", `OUTRIDER_PORT is "tcp://10.0.0.1:80"`},
		{"a value from the environment", []string{"OUTRIDER_SPECULATIVE_NUM_STEPS=17"}, serve(), 2, "InvalidConfig", "OUTRIDER_SPECULATIVE_NUM_STEPS"},
		{"steps", nil, serve("--speculative-num-steps=17"), 2, "InvalidConfig", "allowed is 1 to 16"},
		{"branches", nil, serve("--speculative-eagle-topk=17"), 2, "InvalidConfig", "--speculative-eagle-topk is 17"},
		{"branches of an n-gram", nil, serve("--speculative-algorithm=ngram", "--speculative-eagle-topk=4"), 2, "InvalidConfig", "drafts chains: allowed is 1"},
		{"n-grams of a head", nil, serve("--speculative-ngram-min-match-window-size=3"), 2, "InvalidConfig", "without --speculative-algorithm ngram"},
		{"steps and tokens", nil, serve("--speculative-num-steps=2", "--speculative-num-draft-tokens=4"), 2, "InvalidConfig", "which is 3"},
		{"no draft model", nil, serve("--speculative-algorithm=draft"), 2, "InvalidConfig", "needs --draft-model"},
		{"no algorithm", nil, serve("--speculative-algorithm=eagle4"), 2, "InvalidConfig", `"eagle4"`},
		{"eagle3 without a head", nil, serve("--speculative-algorithm=eagle3", "--model="+untoken), 2, "InvalidConfig", "needs --draft-model"},
		{"none with steps", nil, serve("--speculative-algorithm=none", "--speculative-num-steps=3"), 2, "InvalidConfig", "leave one of them out"},
		{"context", nil, serve("--context-length=99999"), 2, "InvalidConfig", "1024, the model's own"},
		{"log level", nil, serve("--log-level=loud"), 2, "InvalidConfig", "debug, info, warn, error"},
		{"no template", nil, serve("--chat-template=/no/such/file"), 2, "InvalidConfig", "--chat-template: open /no/such/file"},
		{"an empty template", nil, serve("--chat-template=" + file), 2, "InvalidConfig", "is empty"},
		{"no Jinja", nil, serve("--chat-template=" + jinja), 2, "InvalidConfig", "--chat-template: chat template: line 1: if has no end"},
		{"tool parser", nil, serve("--tool-call-parser=xml"), 2, "InvalidConfig", "allowed are auto, none, deepseek_v3, hermes"},
		{"reasoning parser", nil, serve("--reasoning-parser=xml"), 2, "InvalidConfig", "allowed are auto, none, think"},
		{"half a certificate", nil, serve("--tls-cert-file=" + file), 2, "InvalidConfig", "give both or neither"},
		{"no certificate", nil, serve("--tls-cert-file="+file, "--tls-key-file="+file), 2, "InvalidConfig", "--tls-cert-file: "},
		{"no collector", nil, serve("--otlp-endpoint=collector"), 2, "InvalidConfig", "no URL of the form http://HOST:4318"},
		{"metrics of another", nil, serve("--metrics-compat=sglang"), 2, "InvalidConfig", "allowed are vllm"},
		{"log of requests", nil, serve("--log-requests=all"), 2, "InvalidConfig", "allowed are off, on, text"},
		{"no such fault", nil, serve("--simulate-fault=Boredom"), 2, "InvalidConfig", "DeviceFault"},
		{"simulated rates", []string{"OUTRIDER_SIMULATE_ACCEPT=0.7,2"}, serve(), 2, "InvalidConfig", "OUTRIDER_SIMULATE_ACCEPT"},
		{"duration", nil, serve("--drain-timeout=5"), 2, "InvalidConfig", "a duration such as 30s"},
		{"address", nil, serve("--host=203.0.113.1"), 2, "InvalidConfig", "cannot be opened"},
		{"no folder", nil, serve("--model=/no/such/folder"), 10, "ModelNotFound", "/no/such/folder: no such folder"},
		{"no folder from the environment", []string{"OUTRIDER_MODEL=/no/such/folder"}, serve(), 10, "ModelNotFound", "/no/such/folder"},
		{"a file", nil, serve("--model=" + file), 10, "ModelNotFound", "is a file"},
		{"an empty folder", nil, serve("--model=" + t.TempDir()), 10, "ModelNotFound", "config.json"},
		{"no such builtin", nil, serve("--model=builtin:gocode-70b"), 10, "ModelNotFound", "there is builtin:gocode-7m"},
		{"no head", nil, serve("--draft-model=/no/such/head"), 10, "ModelNotFound", "/no/such/head"},
		{"weights cut off", nil, serve("--model=" + broken), 11, "WeightsMismatch", "model.safetensors"},
		{"the head of another model", nil, serve("--model="+untoken, "--draft-model=builtin:gocode-7m-eagle3"), 11, "DraftMismatch", "gocode-7m-eagle3"},
		{"a source to come", nil, serve("--model=oci://example.com/llama"), 11, "Unsupported", `"oci://"`},
		{"memory", nil, serve("--mem-fraction-static=0.0000001"), 12, "OutOfMemory", "not fit"},
		{"dtype", nil, serve("--dtype=bfloat16", "--device=cpu"), 2, "InvalidConfig", "this device has float32: leave it out, or give auto or float32"},
		{"no dtype", nil, serve("--dtype=int2"), 2, "InvalidConfig", "--dtype is \"int2\": allowed are auto, bfloat16, float32"},
		{"dtype of float16", nil, serve("--dtype=half"), 2, "InvalidConfig", "allowed are auto, bfloat16, float32: weights of float16 are read as they are under auto"},
		{"cache dtype", nil, serve("--kv-cache-dtype=fp8_e5m2"), 2, "InvalidConfig", "allowed are auto, bfloat16, float32, fp8, fp8_e4m3"},
		{"quantization", nil, serve("--quantization=fp8"), 2, "InvalidConfig", "of \"none\", which is not converted"},
		{"no quantization", nil, serve("--quantization=awq"), 2, "InvalidConfig", "allowed are auto, none, compressed-tensors, fp8"},
		{"admin tokens", nil, serve("--admin-token-file=" + file), 2, "InvalidConfig", "--admin-token-file: "},
		{"device", nil, serve("--device=cuda"), 13, "DeviceMissing", "built without CUDA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "termination-log")
			cmd := command(t, append(c.env, "OUTRIDER_TERMINATION_LOG="+log), c.args...)
			out, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			last := lines[len(lines)-1]
			if code := exitCode(t, err); code != c.code {
				t.Fatalf("exit code %d, want %d: %s", code, c.code, out)
			}
			if !strings.HasPrefix(last, "outrider-engine: ") || !strings.Contains(last, c.says) {
				t.Errorf("the last line is %q; want %q in it", last, c.says)
			}
			b, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			var message struct {
				Reason, Message string
				Rank            *int
			}
			if err := json.Unmarshal(b, &message); err != nil || bytes.Count(b, []byte("\n")) != 1 {
				t.Fatalf("the termination log is not one JSON line: %q", b)
			}
			if message.Reason != c.reason || !strings.Contains(message.Message, c.says) || message.Rank == nil {
				t.Errorf("the termination log is %s; want reason %s and %q", b, c.reason, c.says)
			}
			if strings.Contains(string(out), "goroutine ") {
				t.Errorf("a stack trace: %s", out)
			}
		})
	}
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"version"}, "outrider-engine "}, {[]string{"--help"}, "serve"}, {nil, "serve"},
		{[]string{"serve", "--help"}, "--speculative-num-steps"},
	} {
		out, err := command(t, nil, c.args...).Output()
		if err != nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: %v, %q; want %q in it", c.args, err, out, c.says)
		}
	}
}

// While the model loads, the process is alive, not ready, and says how far it is.
func TestLoadShows(t *testing.T) {
	p := start(t, []string{"OUTRIDER_SIMULATE_LOAD_RATE=4000000"}, "--tp-size=2")
	last, seen, phase := -1.0, map[float64]bool{}, any(nil)
	for {
		code, health := p.get(p.admin + "/readyz")
		if code == http.StatusOK {
			break
		}
		if health["phase"] == nil || health["status"] == "ok" {
			t.Fatalf("readyz: %v", health)
		}
		if code, _ := p.get(p.admin + "/livez"); code != http.StatusOK {
			t.Fatalf("livez is %d during the load", code)
		}
		_, progress := p.get(p.public + "/progress")
		if progress["phase"] != phase { // what percent counts is the phase's
			last, phase = -1, progress["phase"]
		}
		percent, ok := progress["percent"].(float64)
		if !ok || percent < last {
			t.Fatalf("percent %v after %v", progress["percent"], last)
		}
		last, seen[percent] = percent, true
		if percent < 30 { // and so for seconds
			if code, _ := p.get(p.public + "/health_generate"); code != http.StatusServiceUnavailable {
				t.Fatalf("health_generate is %d during the load", code)
			}
			resp := p.complete(`{"model":"gocode-7m","prompt":"x"}`)
			if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
				t.Fatalf("completions: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(seen) < 5 {
		t.Errorf("the load was seen at %v per cent only", seen)
	}
	if _, progress := p.get(p.admin + "/progress"); progress["phase"] != "serving" || progress["percent"] != 100.0 || len(progress["ranks"].([]any)) != 2 {
		t.Errorf("progress: %v", progress)
	}
	if code, health := p.get(p.public + "/health_generate"); code != http.StatusOK || health["speculation"].(map[string]any)["verifies"] == 0.0 {
		t.Errorf("health_generate: %d, %v", code, health)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// SIGTERM lets a running answer end whole, and nothing new begin.
func TestTermDrains(t *testing.T) {
	log := filepath.Join(t.TempDir(), "termination-log")
	env, stop, goOn := hold(t)
	p := start(t, []string{env}, "--termination-log="+log, "--drain-timeout=5m", "--stall-timeout=5m")
	p.waitReady()
	stream := p.begin(900)
	stop()
	p.signal(syscall.SIGTERM)
	for end := time.Now().Add(deadline / 2); ; time.Sleep(time.Millisecond) {
		if code, health := p.get(p.admin + "/readyz"); code == http.StatusServiceUnavailable {
			if health["status"] != "draining" {
				t.Errorf("readyz: %v", health)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("still ready after SIGTERM")
		}
	}
	if resp := p.complete(`{"model":"gocode-7m","prompt":"x"}`); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a new request: %s", resp.Status)
	}
	goOn()
	rest := p.rest(stream)
	if !strings.HasSuffix(rest, "data: [DONE]\n\n") || !strings.Contains(rest, `"completion_tokens":900`) || strings.Contains(rest, `"error"`) {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-600):])
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if b, err := os.ReadFile(log); err == nil {
		t.Errorf("a stop is in the termination log: %s", b)
	}
}

// When the time to drain is over, open streams end with an error that a client
// can tell from an answer.
func TestDrainTimeout(t *testing.T) {
	env, stop, goOn := hold(t)
	p := start(t, []string{env}, "--drain-timeout=0s", "--stall-timeout=5m")
	p.waitReady()
	stream := p.begin(900)
	stop()
	p.signal(syscall.SIGTERM)
	p.waitLog(`msg="not drained"`)
	goOn()
	if rest := p.rest(stream); !strings.Contains(rest, `"error"`) || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-600):])
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestTermWhileLoading(t *testing.T) {
	p := start(t, []string{"OUTRIDER_SIMULATE_LOAD_RATE=100000"})
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestDrainPath(t *testing.T) {
	p := start(t, nil)
	p.waitReady()
	resp, err := http.Post(p.admin+"/drain", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		t.Errorf("drain: %s", resp.Status)
	}
	if code, health := p.get(p.public + "/readyz"); code != http.StatusServiceUnavailable || health["status"] != "draining" {
		t.Errorf("readyz after the drain: %d, %v", code, health)
	}
	if code, _ := p.get(p.public + "/livez"); code != http.StatusOK {
		t.Errorf("livez after the drain: %d", code)
	}
	p.signal(os.Interrupt)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// The environment sets what the command line leaves alone.
func TestEnvironment(t *testing.T) {
	p := start(t, []string{
		"OUTRIDER_TP_SIZE=2", "OUTRIDER_SPECULATIVE_NUM_STEPS=5", "OUTRIDER_SERVED_MODEL_NAME=from-env", "OUTRIDER_CONTEXT_LENGTH=512",
		"OUTRIDER_ADMIN_ONLY=true", "OUTRIDER_PAGE_SIZE=", "OUTRIDER_SERVICE_HOST=10.0.0.1",
	}, "--served-model-name=from-flag", "--context-length=256")
	p.waitReady()
	code, info := p.get(p.admin + "/server_info")
	if code != http.StatusOK {
		t.Fatalf("server_info: %d", code)
	}
	for key, want := range map[string]any{
		"tp_size": 2.0, "speculative_num_steps": 5.0, "speculative_num_draft_tokens": 6.0, "served_model_name": "from-flag",
		"context_length": 256.0, "page_size": 16.0, "speculative_algorithm": "eagle3",
	} {
		if info[key] != want {
			t.Errorf("%s is %v, want %v", key, info[key], want)
		}
	}
	for _, path := range []string{"/metrics", "/progress", "/server_info", "/drain", "/debug/pprof/"} {
		if code, _ := p.get(p.public + path); code != http.StatusNotFound {
			t.Errorf("with --admin-only %s is %d on the public port", path, code)
		}
	}
	for _, path := range []string{"/metrics", "/progress", "/debug/pprof/", "/livez", "/health_generate"} {
		if code, _ := p.get(p.admin + path); code != http.StatusOK {
			t.Errorf("%s is %d on the admin port", path, code)
		}
	}
	if code, _ := p.get(p.admin + "/v1/models"); code != http.StatusNotFound {
		t.Errorf("/v1/models is %d on the admin port", code)
	}
}

// Without arguments it is the bundled model with its head on localhost:8000.
func TestDefaults(t *testing.T) {
	o := newOptions(newFlagSet())
	cfg := o.config()
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %s %s:%d %d %q", cfg.Model, cfg.ServedModelName, o.host, o.port, o.adminPort, cfg.Algorithm)
	if want := `builtin:gocode-7m gocode-7m 127.0.0.1:8000 8001 ""`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	p := start(t, nil)
	p.waitReady()
	if _, info := p.get(p.public + "/server_info"); info["draft_model"] != "builtin:gocode-7m-eagle3" || info["speculative_num_steps"] != 3.0 {
		t.Errorf("server_info: %v", info)
	}
	if code, _ := p.get(p.public + "/metrics"); code != http.StatusOK {
		t.Errorf("/metrics is %d on the public port", code)
	}
}

// Each reason for an end has its exit code and termination message, and the
// health paths say the same meanwhile.
func TestSimulatedFaults(t *testing.T) {
	for _, reason := range engine.SimulatedFaults() {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "termination-log")
			limit := "5m"
			if reason == fault.Stalled {
				limit = "1s"
			}
			p := start(t, nil, "--simulate-fault="+string(reason), "--termination-log="+log, "--stall-timeout="+limit, "--tp-size=2")
			switch reason {
			case fault.DeviceFault, fault.CollectiveFailed, fault.Internal, fault.Stalled:
				p.waitReady()
				resp := p.complete(`{"model":"gocode-7m","prompt":"func ","stream":true}`)
				if reason == fault.Stalled {
					p.waitStalled()
				}
				if rest := p.rest(resp.Body); !strings.Contains(rest, `"error"`) || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
					t.Errorf("the open request ends with %q", rest)
				}
			}
			if code := p.wait(); code != reason.ExitCode() {
				t.Errorf("exit code %d: want %d", code, reason.ExitCode())
			}
			b, err := os.ReadFile(log)
			var message struct {
				Reason fault.Reason
				Rank   int
			}
			if err != nil || json.Unmarshal(b, &message) != nil || message.Reason != reason {
				t.Errorf("termination log %q, %v", b, err)
			}
			if (reason == fault.DeviceFault || reason == fault.CollectiveFailed) && message.Rank != 1 {
				t.Errorf("on rank %d: want 1", message.Rank)
			}
		})
	}
}

// The names that the Gateway API's endpoint picker reads are there if asked for,
// and requests are in the log.
func TestCompatMetricsAndRequestLog(t *testing.T) {
	p := start(t, nil, "--metrics-compat=vllm", "--log-requests=on")
	p.waitReady()
	_ = p.rest(p.complete(`{"model":"gocode-7m","prompt":"func ","max_tokens":2}`).Body)
	resp, err := http.Get(p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page := p.rest(resp.Body)
	for _, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		if !strings.Contains(page, "vllm:"+name+`{model_name="gocode-7m"} `) {
			t.Errorf("no vllm:%s in the metrics", name)
		}
	}
	p.waitLog(`msg="request answered"`)
}
