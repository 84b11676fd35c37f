package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

func TestDrainLetsRequestsEnd(t *testing.T) {
	e := start(t, Config{})
	g := golden.Cases()[0]
	stream, err := e.Submit(&scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 400, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Drain(ctx); err != nil {
		t.Error(err)
	}
	if got := drain(t, stream); len(got.TokenIDs) != 400 || got.Finish != scheduler.FinishLength {
		t.Errorf("%d tokens, %s; want all 400", len(got.TokenIDs), got.Finish)
	}
	if _, err := e.Submit(&scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 1}); !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("a drained engine answers %v", err)
	}
	if err := e.Ready(); !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("a drained engine is ready: %v", err)
	}
}

// Time without work is no stall, and neither is the first step after it.
func TestIdleTimeIsNoStall(t *testing.T) {
	e := start(t, Config{ContextLength: 1024})
	eventually(t, "it does not come to rest", func() bool { return !e.busy.Load() })
	time.Sleep(300 * time.Millisecond)
	if stuck := e.stuck(); stuck != 0 {
		t.Errorf("an engine without work counts %v as a step", stuck)
	}
	begin := time.Now()
	stream, err := e.Submit(&scheduler.Request{PromptIDs: make([]int32, 900), MaxTokens: 2, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		drain(t, stream)
	}()
	for seen := 0; ; {
		stuck := e.stuck()
		if worked := time.Since(begin); stuck > worked {
			t.Fatalf("after %v of work the engine counts %v as a step", worked, stuck)
		}
		if stuck > 0 {
			seen++
		}
		select {
		case <-ended:
			if seen == 0 {
				t.Error("no step was seen")
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// A slow load shows how far it is; a request meanwhile is told to wait.
func TestSlowLoadShowsProgress(t *testing.T) {
	e := newEngine(t, Config{TPSize: 2, LoadRate: 20 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	seen := map[float64]bool{}
	last := 0.0
	for e.Ready() != nil {
		s := e.Progress()
		if s.Phase == telemetry.PhaseLoad {
			if s.Percent < last || s.Percent >= 100 || s.BytesTotal != 0 && s.BytesTotal < 17<<20 {
				t.Fatalf("progress %+v after %v %%", s, last)
			}
			last = s.Percent
			seen[s.Percent] = true
			if _, err := e.Submit(&scheduler.Request{}); !errors.Is(err, scheduler.ErrNotReady) {
				t.Fatalf("a request while loading is answered %v", err)
			}
			if err := e.Live(); err != nil {
				t.Fatalf("not live while loading: %v", err)
			}
		}
		time.Sleep(time.Millisecond)
		select {
		case err := <-done:
			t.Fatalf("Run: %v", err)
		default:
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %d different percentages were seen", len(seen))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A drain that comes while the model loads stays a drain.
func TestDrainWhileLoading(t *testing.T) {
	e := newEngine(t, Config{LoadRate: 60 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	eventually(t, "it does not load", func() bool { return e.Progress().BytesDone > 0 })
	over, stop := context.WithCancel(context.Background())
	stop()
	_ = e.Drain(over) // begin, do not wait
	eventually(t, "the load does not end", func() bool { return e.Info().Device != "" })
	for range 20 {
		if p := e.Progress(); p.Phase != telemetry.PhaseDraining || e.Ready() == nil {
			t.Fatalf("in phase %s, ready: %v", p.Phase, e.Ready())
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A stop while loading ends the loading.
func TestStopWhileLoading(t *testing.T) {
	e := newEngine(t, Config{LoadRate: 64 << 10})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := e.Run(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > time.Minute { // the load takes longer than four
		t.Errorf("it took %v to stop", took)
	}
}
