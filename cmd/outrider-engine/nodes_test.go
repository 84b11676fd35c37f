package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/freeport"
)

// group starts two processes of one rank each, as a LeaderWorkerSet's pods or by
// flags; edit may add to what node i gets.
func group(t *testing.T, edit func(i int) []string) (nodes [2]*process, logs [2]string) {
	t.Helper()
	address := freeport.Address(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("not to be guessed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		logs[i] = filepath.Join(t.TempDir(), "termination-log")
		args := []string{"--tp-size=2", "--nnodes=2", fmt.Sprint("--node-rank=", i), "--dist-init-addr=" + address, "--dist-secret-file=" + secret,
			"--check-ranks", "--termination-log=" + logs[i], "--dist-node-timeout=2m", "--drain-timeout=5m"}
		if edit != nil {
			args = append(args, edit(i)...)
		}
		nodes[i] = start(t, nil, args...)
	}
	return nodes, logs
}

const prompts = `{"model":"gocode-7m","prompt":["package main\n\nimport (\n","func main() {\n","// Package x"],"max_tokens":120,"seed":7,"temperature":0.7,"logprobs":2}`

// choices are the texts and log probabilities of an answer.
func choices(t *testing.T, p *process, body string) string {
	t.Helper()
	resp := p.complete(body)
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, b)
	}
	var answer struct {
		Choices []struct {
			Text     string
			Logprobs any
		}
	}
	if err := json.Unmarshal(b, &answer); err != nil || len(answer.Choices) == 0 {
		t.Fatalf("%v: %s", err, b)
	}
	return fmt.Sprint(answer.Choices)
}

// Two processes give the texts of one, and each reports its own rank; only node
// 0 is served by, and its end is the end of both.
func TestTwoProcessesServeAsOne(t *testing.T) {
	one := start(t, nil, "--tp-size=2")
	one.waitReady()
	nodes, logs := group(t, nil)
	nodes[0].waitReady()
	if want, got := choices(t, one, prompts), choices(t, nodes[0], prompts); got != want {
		t.Errorf("two processes answer\n%s\none answers\n%s", got, want)
	}
	if code, health := nodes[0].get(nodes[0].public + "/health_generate"); code != http.StatusOK {
		t.Errorf("health_generate: %d, %v", code, health)
	}
	for i, p := range nodes {
		_, progress := p.get(p.admin + "/progress")
		ranks, _ := progress["ranks"].([]any)
		if len(ranks) != 1 || progress["phase"] != "serving" {
			t.Fatalf("node %d: %v", i, progress)
		}
		if r := ranks[0].(map[string]any); r["rank"] != float64(i) || r["last_step"] == nil {
			t.Errorf("node %d says of its rank: %v", i, r)
		}
		for _, path := range []string{"/livez", "/readyz", "/metrics", "/server_info"} {
			if code, v := p.get(p.admin + path); code != http.StatusOK {
				t.Errorf("node %d: %s is %d, %v", i, path, code, v)
			}
		}
	}
	follower := nodes[1]
	for _, path := range []string{"/v1/models", "/readyz", "/health_generate"} {
		if code, v := follower.get(follower.public + path); code != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(v), "this is node 1 of 2") {
			t.Errorf("node 1: %s is %d, %v", path, code, v)
		}
	}
	if code, _ := follower.get(follower.public + "/livez"); code != http.StatusOK {
		t.Errorf("node 1: /livez is %d", code)
	}
	if resp := follower.complete(prompts); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("node 1 completes: %s", resp.Status)
	}
	// Pods of a group are told to stop together: what runs is finished first.
	stream := nodes[0].begin(300)
	nodes[1].signal(syscall.SIGTERM)
	nodes[0].signal(syscall.SIGTERM)
	if rest := nodes[0].rest(stream); !strings.Contains(rest, `"completion_tokens":300`) || strings.Contains(rest, `"error"`) {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-600):])
	}
	for i, p := range nodes {
		if code := p.wait(); code != 0 {
			t.Errorf("node %d: exit code %d", i, code)
		}
		if b, err := os.ReadFile(logs[i]); err == nil {
			t.Errorf("node %d: a stop is in the termination log: %s", i, b)
		}
	}
}

// A node that alone is told to stop has node 0 finish what runs.
func TestANodeThatLeavesDrainsTheGroup(t *testing.T) {
	nodes, _ := group(t, nil)
	nodes[0].waitReady()
	stream := nodes[0].begin(300)
	nodes[1].signal(syscall.SIGTERM)
	if rest := nodes[0].rest(stream); !strings.Contains(rest, `"completion_tokens":300`) || strings.Contains(rest, `"error"`) {
		t.Errorf("the stream ends with %q", rest[max(0, len(rest)-600):])
	}
	for i, p := range nodes {
		if code := p.wait(); code != 0 {
			t.Errorf("node %d: exit code %d", i, code)
		}
	}
}

// A rank that ends or stands still ends every process, which says whose fault it was.
func TestAFaultOfOneNodeEndsAll(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   [2][]string
		broken func(nodes [2]*process)
		ends   []int // nodes that end by themselves
		code   int
		says   string
	}{
		{name: "a worker is killed", broken: func(n [2]*process) { n[1].signal(syscall.SIGKILL) }, ends: []int{0}, code: 14, says: `"rank":1`},
		{name: "the leader is killed", broken: func(n [2]*process) { n[0].signal(syscall.SIGKILL) }, ends: []int{1}, code: 14, says: `"rank":0`},
		{name: "a worker stands still", args: [2][]string{{"--dist-node-timeout=10s"}, {"--dist-node-timeout=10s"}}, broken: func(n [2]*process) { n[1].signal(syscall.SIGSTOP) },
			ends: []int{0}, code: 14, says: "no sign of life for 10s"},
		{name: "a rank's device fails", args: [2][]string{nil, {"--simulate-fault=DeviceFault"}}, ends: []int{0}, code: 14, says: "rank 1 has ended: DeviceFault"},
		{name: "a rank's weights are wrong", args: [2][]string{nil, {"--simulate-fault=WeightsMismatch"}}, ends: []int{0}, code: 14, says: "rank 1 has ended: WeightsMismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes, logs := group(t, func(i int) []string { return c.args[i] })
			if c.broken != nil {
				nodes[0].waitReady()
				c.broken(nodes)
			}
			for _, i := range c.ends {
				begin := time.Now()
				if code := nodes[i].wait(); code != c.code {
					t.Errorf("node %d: exit code %d after %s, want %d", i, code, time.Since(begin), c.code)
				}
				if b, err := os.ReadFile(logs[i]); err != nil || !strings.Contains(string(b), c.says) || !strings.Contains(string(b), "CollectiveFailed") {
					t.Errorf("node %d: the termination log is %s, %v: want %q", i, b, err, c.says)
				}
			}
			if len(c.args[1]) > 0 && strings.HasPrefix(c.args[1][0], "--simulate") {
				if code := nodes[1].wait(); code == 14 || code == 0 {
					t.Errorf("node 1: exit code %d: want that of its own fault", code)
				}
			}
		})
	}
}

// Nodes with other settings, or another model, are refused by name.
func TestUnequalNodesAreRefused(t *testing.T) {
	for _, c := range []struct{ flag, says string }{
		{"--page-size=8", "--page-size is 8 on node 1 and 16 on node 0"},
		{"--speculative-algorithm=ngram", "--draft-model is not set on node 1"},
		{"--model=" + untoken, "--model"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			t.Parallel()
			nodes, logs := group(t, func(i int) []string {
				if i == 1 {
					return []string{c.flag}
				}
				return []string{"--dist-timeout=20s"}
			})
			if code := nodes[1].wait(); code != 2 {
				t.Errorf("node 1: exit code %d", code)
			}
			if b, err := os.ReadFile(logs[1]); err != nil || !strings.Contains(string(b), c.says) {
				t.Errorf("node 1: the termination log is %s, %v: want %q", b, err, c.says)
			}
			if code := nodes[0].wait(); code != 14 {
				t.Errorf("node 0: exit code %d", code)
			}
			if b, err := os.ReadFile(logs[0]); err != nil || !strings.Contains(string(b), "node 1 has not joined") {
				t.Errorf("node 0: the termination log is %s, %v", b, err)
			}
		})
	}
}

// What a LeaderWorkerSet tells its pods is taken, unless flags say otherwise.
func TestPlaceAmongNodes(t *testing.T) {
	lws := map[string]string{"LWS_LEADER_ADDRESS": "llm-0.llm.default", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}
	for _, c := range []struct {
		name        string
		args        []string
		env         map[string]string
		nodes, node int
		leader      string
		wrong       string
	}{
		{"none", nil, nil, 1, 0, "", ""},
		{"a LeaderWorkerSet", nil, lws, 4, 3, "llm-0.llm.default:8002", ""},
		{"flags", []string{"--nnodes=2", "--node-rank=1", "--dist-init-addr=10.0.0.1:5000"}, lws, 2, 1, "10.0.0.1:5000", ""},
		{"one of three", nil, map[string]string{"LWS_LEADER_ADDRESS": "x", "LWS_GROUP_SIZE": "two"}, 0, 0, "", `LWS_GROUP_SIZE is "two"`},
		{"no port", []string{"--nnodes=2", "--dist-init-addr=10.0.0.1"}, nil, 0, 0, "", `--dist-init-addr is "10.0.0.1": allowed is HOST:PORT`},
		{"no secret", []string{"--dist-secret-file=/no/such/file"}, nil, 0, 0, "", "--dist-secret-file"},
		{"a short secret", []string{"--dist-secret-file=/dev/null"}, nil, 0, 0, "", "has 0 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := newFlagSet()
			o := newOptions(flags)
			if err := flags.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			err := o.readNodes(func(name string) string { return c.env[name] })
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v: want %q", err, c.wrong)
				}
				return
			}
			if e := o.engine; err != nil || e.Nodes != c.nodes || e.Node != c.node || e.Leader != c.leader {
				t.Errorf("%d nodes, node %d, leader %q, %v", e.Nodes, e.Node, e.Leader, err)
			}
		})
	}
}

// A process of a LeaderWorkerSet whose group was stopped ends when its own pod is
// told to, and any other at once.
func TestAwaitsOwnEnd(t *testing.T) {
	for _, c := range []struct {
		name  string
		inSet bool
		nodes int
		waits bool
	}{
		{"in a LeaderWorkerSet", true, 2, true},
		{"in one of one pod", true, 1, false},
		{"placed by flags", false, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOptions(newFlagSet())
			o.inSet, o.engine.Nodes = c.inSet, c.nodes
			signalled, ended := make(chan struct{}), make(chan struct{})
			go func() {
				o.awaitOwnEnd(signalled, slog.New(slog.DiscardHandler))
				close(ended)
			}()
			if c.waits {
				select {
				case <-ended:
					t.Error("ended before its pod was told to stop")
				case <-time.After(50 * time.Millisecond):
				}
				close(signalled)
			}
			<-ended
		})
	}
}
