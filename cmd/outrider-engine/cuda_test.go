//go:build cuda && linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// emulated is the environment of a process with the emulation of CUDA, whose kernels
// are compiled once for all tests, and the file that says how its devices are.
func emulated(t *testing.T, more ...string) (env []string, state string) {
	t.Helper()
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	state = filepath.Join(t.TempDir(), "state")
	env = []string{"OUTRIDER_CHUNKED_PREFILL_SIZE=256", "OUTRIDER_MAX_RUNNING_REQUESTS=32"} // the widest passes of the defaults take long here
	env = append(append(env, more...), "XDG_CACHE_HOME="+cache, "OUTRIDER_EMULATION_NVML="+state)
	for _, name := range []string{"OUTRIDER_CUDA_PATH", "LD_LIBRARY_PATH", "OUTRIDER_EMULATION_DEVICES"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	return env, state
}

// say adds a line to a file.
func say(t *testing.T, name, line string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// waitMetric waits until the metrics have a series of a name, with a label, of a value.
func (p *process) waitMetric(name, label, value string) {
	p.t.Helper()
	var found []string
	for end := time.Now().Add(deadline / 2); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(p.admin + "/metrics")
		if err != nil {
			p.t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			p.t.Fatal(err)
		}
		found = found[:0]
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, name+"{") {
				found = append(found, line)
				if strings.Contains(line, label) && strings.HasSuffix(line, "} "+value+"\n") {
					return
				}
			}
		}
		if time.Now().After(end) {
			p.t.Fatalf("the metrics have no %s{%s} %s, but %q", name, label, value, found)
		}
	}
}

// What NVML says of a GPU is in the metrics while the engine serves on it. An error
// that ends a program's own work does not end the engine; one from which the device
// does not come back does, and the exit says so.
func TestXIDEndsTheProcess(t *testing.T) {
	for _, c := range []struct{ event, xid, says string }{
		{"event 0 xid 79", "79", "reports XID 79 (the GPU has fallen off the bus)"},
		{"event 0 ecc", "0", "reports a memory error that ECC did not correct"},
	} {
		env, state := emulated(t)
		say(t, state, "gpu 0 busy 37")
		say(t, state, "gpu 0 ecc none")
		log := filepath.Join(t.TempDir(), "termination-log")
		p := start(t, env, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none", "--termination-log="+log)
		p.waitReady()
		p.waitMetric("outrider_gpu_utilization_ratio", `gpu="0"`, "0.37")
		_, info := p.get(p.admin + "/server_info")
		device, _ := info["device"].(string)
		if gpus, _ := info["gpus"].([]any); !strings.HasPrefix(device, "cuda ") || len(gpus) != 1 {
			t.Errorf("/server_info has %v", info)
		}
		say(t, state, "event 0 xid 31")
		p.waitMetric("outrider_gpu_xid_events_total", `xid="31"`, "1")
		if code, health := p.get(p.public + "/health_generate"); code != http.StatusOK {
			t.Fatalf("after an error of a program's own: %d, %v", code, health)
		}
		say(t, state, c.event)
		if code := p.wait(); code != 13 {
			t.Errorf("%s: exit code %d, want 13", c.event, code)
		}
		checkTermination(t, log, "DeviceFault", 0, c.says)
	}
}

// checkTermination fails unless a termination log has a reason, a rank and some words.
func checkTermination(t *testing.T, log, reason string, rank int, says string) {
	t.Helper()
	var message struct {
		Reason, Message string
		Rank            *int
	}
	b, err := os.ReadFile(log)
	if err != nil || json.Unmarshal(b, &message) != nil || message.Reason != reason || !strings.Contains(message.Message, says) || message.Rank == nil || *message.Rank != rank {
		t.Errorf("the termination log is %q, %v: want %s of rank %d with %q", b, err, reason, rank, says)
	}
}

// A fault that NCCL meets on one rank while nothing is asked of it ends the process.
func TestAsyncErrorOnGPUsEndsTheProcess(t *testing.T) {
	nccl := filepath.Join(t.TempDir(), "nccl")
	env, _ := emulated(t, "OUTRIDER_EMULATION_NCCL="+nccl)
	env = append(env, "OUTRIDER_EMULATION_DEVICES=2")
	log := filepath.Join(t.TempDir(), "termination-log")
	p := start(t, env, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none", "--tp-size=2", "--all-reduce=nccl", "--termination-log="+log)
	p.waitReady()
	if code, health := p.get(p.public + "/health_generate"); code != http.StatusOK {
		t.Fatalf("two ranks: %d, %v", code, health)
	}
	say(t, nccl, "1 6")
	if code := p.wait(); code != 14 {
		t.Errorf("exit code %d, want 14", code)
	}
	checkTermination(t, log, "CollectiveFailed", 1, "GPU 1: a collective of NCCL: remote process exited")
}

// Without a start of NVML the engine serves, and has no figures of its GPUs.
func TestServesWithoutNVML(t *testing.T) {
	env, state := emulated(t)
	say(t, state, "init 9")
	p := start(t, env, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none")
	p.waitReady()
	if code, health := p.get(p.public + "/health_generate"); code != http.StatusOK {
		t.Errorf("%d, %v", code, health)
	}
	if !strings.Contains(p.logged(), "the GPUs are not watched") || !strings.Contains(p.logged(), "nvmlInit: Driver Not Loaded (9)") {
		t.Errorf("the log does not say why the GPUs are not watched: %s", p.logged())
	}
}

var cacheSized = regexp.MustCompile(`msg="KV cache sized" kv_pages=(\d+) planned=(\d+)`)

// A KV cache that has grown into all the memory there is leaves requests what they
// need, those whose tokens the device draws among them.
func TestServesWithFullMemory(t *testing.T) {
	env, _ := emulated(t, fmt.Sprintf("OUTRIDER_EMULATION_MEMORY=%d", 160<<20))
	p := start(t, env, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none", "--mem-fraction-static=1", "--max-total-tokens=1000000", "--max-running-requests=4")
	p.waitReady()
	m := cacheSized.FindStringSubmatch(p.logged())
	if m == nil || m[1] == m[2] {
		t.Fatalf("the cache has not grown into what is left: %q", m)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"model":"llama","prompt":[%d,9,8,7,6,5],"max_tokens":20,"ignore_eos":true,"temperature":1,"top_p":0.9,"repetition_penalty":1.3,"presence_penalty":0.5,"seed":%d}`, 10+i, i)
			resp, err := http.Post(p.public+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			b, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(b), `"completion_tokens":20`) {
				t.Errorf("%s, %v: %s", resp.Status, err, b)
			}
		})
	}
	wg.Wait()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// GPUs have wider passes unless told otherwise, and narrower ones where their memory
// is short; what the user says is kept. Either way it starts, and answers.
func TestDefaultsOnGPU(t *testing.T) {
	for _, c := range []struct {
		name             string
		mib              int
		chunk, running   string // the user's
		chunks, requests float64
		shrinks          bool
	}{
		{"enough memory", 2048, "", "", 2048, 128, false},
		{"little memory, and the user's requests", 170, "", "8", 256, 8, true},
		{"the user's", 170, "300", "4", 300, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, _ := emulated(t, fmt.Sprintf("OUTRIDER_EMULATION_MEMORY=%d", c.mib<<20), "OUTRIDER_CHUNKED_PREFILL_SIZE="+c.chunk, "OUTRIDER_MAX_RUNNING_REQUESTS="+c.running)
			p := start(t, env, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none", "--max-total-tokens=2048")
			p.waitReady()
			_, info := p.get(p.admin + "/server_info")
			if info["chunked_prefill_size"] != c.chunks || info["max_running_requests"] != c.requests {
				t.Errorf("chunks of %v and %v requests, want %v and %v", info["chunked_prefill_size"], info["max_running_requests"], c.chunks, c.requests)
			}
			if shrinks := strings.Contains(p.logged(), "smaller defaults"); shrinks != c.shrinks {
				t.Errorf("the log speaks of smaller defaults: %v", shrinks)
			}
			if code, health := p.get(p.public + "/health_generate"); code != http.StatusOK {
				t.Errorf("%d, %v", code, health)
			}
		})
	}
}

// Nodes compute the same passes, as wide as the one with the least memory has room for;
// one that is told another width than the others is refused.
func TestDefaultsOfNodesOnGPU(t *testing.T) {
	node := func(address string, i, mib int, more ...string) *process {
		env, _ := emulated(t, fmt.Sprintf("OUTRIDER_EMULATION_MEMORY=%d", mib<<20), "OUTRIDER_CHUNKED_PREFILL_SIZE=", "OUTRIDER_MAX_RUNNING_REQUESTS=")
		return start(t, env, append(more, "--device=cuda", "--model="+untoken, "--speculative-algorithm=none", "--tp-size=2", "--nnodes=2", fmt.Sprint("--node-rank=", i), "--dist-init-addr="+address)...)
	}
	address := freeport.Address(t)
	small, large := node(address, 1, 170), node(address, 0, 2048)
	large.waitReady()
	for _, p := range []*process{small, large} {
		if _, info := p.get(p.admin + "/server_info"); info["chunked_prefill_size"] != 256.0 || info["max_running_requests"] != 32.0 {
			t.Errorf("chunks of %v and %v requests, want 256 and 32", info["chunked_prefill_size"], info["max_running_requests"])
		}
	}
	if code, health := large.get(large.public + "/health_generate"); code != http.StatusOK {
		t.Errorf("%d, %v", code, health)
	}
	address = freeport.Address(t)
	other := node(address, 1, 2048)
	node(address, 0, 2048, "--chunked-prefill-size=2048")
	if code := other.wait(); code != 2 || !strings.Contains(other.logged(), "--chunked-prefill-size is left to its default on node 1 and 2048 on node 0") {
		t.Errorf("exit code %d", code)
	}
}
