//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// faultTime is how an engine ended.
type faultTime struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"` // from the request that meets the fault to the end of the process
	Code    int     `json:"exit_code"`
	Want    int     `json:"want_exit_code"`
	Said    string  `json:"termination_message"`
}

// faults brings a fault about on the last rank of a serving engine, and takes the
// time until the process has ended.
func (r *report) faults(o multiOptions) error {
	for _, c := range []struct {
		what   string
		reason fault.Reason
		flags  []string
	}{
		{"the last rank's GPU meets a bad address", fault.DeviceFault, nil},
		{"the last rank stays away from a pass, --collective-timeout 3s", fault.CollectiveFailed, []string{"--collective-timeout", "3s"}},
		{"the same with NCCL's sums", fault.CollectiveFailed, []string{"--collective-timeout", "3s", "--all-reduce", "nccl"}},
		{"the step loop hangs, --stall-timeout 3s", fault.Stalled, []string{"--stall-timeout", "3s"}},
		{"a panic", fault.Internal, nil},
		{"no fault: SIGTERM", "", nil},
	} {
		f, err := o.breakEngine(c.reason, c.flags)
		if err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
		f.What = c.what
		if c.reason != "" {
			f.Want = c.reason.ExitCode()
		}
		r.Fault = append(r.Fault, f)
		fmt.Printf("%s: exit code %d (want %d) after %.1f s: %s\n", f.What, f.Code, f.Want, f.Seconds, f.Said)
	}
	return nil
}

// startLimit is the longest that an engine may take to be ready, and to end.
const startLimit = 90 * time.Second

func (o multiOptions) breakEngine(reason fault.Reason, flags []string) (faultTime, error) {
	dir, err := os.MkdirTemp("", "bench-gpu-")
	if err != nil {
		return faultTime{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*startLimit)
	defer cancel()
	address, release, err := freeport.Take(ctx)
	if err != nil {
		return faultTime{}, err
	}
	defer release()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return faultTime{}, err
	}
	log := filepath.Join(dir, "termination")
	cmd := exec.CommandContext(ctx, o.engine, append([]string{"serve", "--device", "cuda", "--tp-size", strconv.Itoa(o.ranks), "--host", host, "--port", port,
		"--admin-port", "0", "--termination-log", log, "--simulate-fault=" + string(reason), "--max-total-tokens", "16384"}, flags...)...)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	if err := cmd.Start(); err != nil {
		return faultTime{}, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	url := "http://" + address
	for start := time.Now(); !answers(ctx, url+"/readyz"); time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			return faultTime{}, fmt.Errorf("the engine ended before it was ready: %w: %s", err, stderr.String())
		default:
		}
		if time.Since(start) > startLimit {
			cancel()
			return faultTime{}, fmt.Errorf("the engine was not ready in %s: %s", startLimit, stderr.String())
		}
	}
	start := time.Now()
	if reason == "" {
		err = cmd.Process.Signal(syscall.SIGTERM)
	} else {
		go complete(ctx, url)
	}
	if err == nil {
		err = <-ended
	}
	f := faultTime{Seconds: time.Since(start).Seconds()}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		f.Code = exit.ExitCode()
	}
	said, err := os.ReadFile(log)
	if err != nil && reason != "" {
		return f, fmt.Errorf("%w: %s", err, stderr.String())
	}
	f.Said = strings.TrimSpace(string(said))
	return f, nil
}

func answers(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status counts
	return resp.StatusCode == http.StatusOK
}

// complete sends the request that meets the fault; its answer is an error.
func complete(ctx context.Context, url string) {
	body, err := json.Marshal(map[string]any{"model": "gocode-7m", "prompt": "package main", "max_tokens": 64})
	if err != nil {
		return
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close() // how the process ends is what counts
	}
}
