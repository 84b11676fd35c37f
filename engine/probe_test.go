package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// A server that has more to do than it can is not a broken one: the probe is
// answered while every slot and every place in the queue are taken, and it tries
// the draft though the others decode plainly.
func TestDeepProbeOfAFullEngine(t *testing.T) {
	for _, algorithm := range []string{AlgorithmEagle3, AlgorithmNGram, AlgorithmNone} {
		t.Run(algorithm, func(t *testing.T) {
			e, pace := startPaced(t, Config{Algorithm: algorithm, MaxRunningRequests: 1, MaxQueuedRequests: 1, Mode: speculation.ModeOff})
			pace(5 * time.Millisecond) // the first request is not over before the probe
			submit := func() (*scheduler.Stream, error) {
				return e.Submit(&scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 900, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
			}
			first, err := submit()
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			if ev, err := first.Next(t.Context()); err != nil || ev.Finish != "" {
				t.Fatalf("%+v, %v", ev, err)
			}
			second, err := submit()
			if err != nil {
				t.Fatal(err)
			}
			defer second.Close()
			if _, err := submit(); !errors.Is(err, scheduler.ErrQueueFull) {
				t.Fatalf("a third request: %v", err)
			}
			usage, err := e.probe(t.Context())
			if err != nil || usage.CompletionTokens == 0 || (usage.Verifies > 0) != (algorithm == AlgorithmEagle3) {
				t.Errorf("the probe: %+v, %v", usage, err)
			}
			if ev, err := first.Next(t.Context()); err != nil || ev.Finish != "" {
				t.Errorf("the probe waited for a client's request: %+v, %v", ev, err)
			}
		})
	}
}

// While a file says so no pass begins: the engine calls itself ready and live, and
// a probe gets no answer; afterwards it goes on where it was.
func TestSimulateHang(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hang")
	e := start(t, Config{SimulateHang: file, StallTimeout: time.Hour})
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stream, err := e.Submit(&scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 4, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if usage, err := e.DeepProbe(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a probe: %+v, %v", usage, err)
	}
	if err := errors.Join(e.Ready(), e.Live()); err != nil {
		t.Errorf("health: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if usage, err := e.DeepProbe(t.Context()); err != nil {
		t.Errorf("a probe afterwards: %+v, %v", usage, err)
	}
	if ev := drain(t, stream); ev.Usage.CompletionTokens == 0 {
		t.Errorf("the request: %+v", ev)
	}
}
