package engine

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// patience is how long a test waits for what must come, however busy the machine is.
const patience = 3 * time.Minute

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = "builtin:gocode-7m"
	}
	if cfg.Mode == "" { // what pays differs from machine to machine, and from run to run
		cfg.Mode = speculation.ModeFixed
	}
	cfg.CheckInvariants = true
	cfg = narrow(cfg)
	m := telemetry.NewMetrics(prometheus.NewRegistry(), "test", time.Now)
	e, err := New(cfg, quiet(), m, telemetry.NewProgress(max(cfg.TPSize, 1), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// narrow is cfg with the CPU's defaults, whatever the device: on an emulated GPU the
// widest passes of its own take long.
func narrow(cfg Config) Config {
	cfg.MaxRunningRequests, cfg.ChunkedPrefillSize = cmp.Or(cfg.MaxRunningRequests, DefaultRunning), cmp.Or(cfg.ChunkedPrefillSize, DefaultChunk)
	return cfg
}

// start runs an engine until the test ends, and waits until it is ready.
func start(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, stop := startUntil(t, cfg)
	t.Cleanup(stop)
	return e
}

// startUntil is start for an engine that runs until stop is called.
func startUntil(t testing.TB, cfg Config) (e *Engine, stop func()) {
	t.Helper()
	e = newEngine(t, cfg)
	return e, runUntil(t, e)
}

// runUntil is startUntil for an engine that was made.
func runUntil(t testing.TB, e *Engine) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	deadline := time.Now().Add(patience)
	for e.Ready() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v", e.Ready())
		}
		select {
		case err := <-done:
			t.Fatalf("Run: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	return stop
}

// paced is a device of the CPU whose passes take as long as a test wants, at least:
// what the test does while an engine computes comes in time on any machine.
type paced struct {
	*cpu.Device
	pass *atomic.Int64 // the time of a pass, in nanoseconds
}

func (p paced) Prepare(r *compute.Rows, freqs []float32, scale float32) {
	time.Sleep(time.Duration(p.pass.Load()))
	p.Device.Prepare(r, freqs, scale)
}

// startPaced is start for an engine whose passes take as long as pace says, which
// is no time at first.
func startPaced(t testing.TB, cfg Config) (e *Engine, pace func(time.Duration)) {
	t.Helper()
	e = newEngine(t, cfg)
	pass := &atomic.Int64{}
	e.wrap = func(d compute.Device) compute.Device { return paced{d.(*cpu.Device), pass} }
	t.Cleanup(runUntil(t, e))
	return e, func(d time.Duration) { pass.Store(int64(d)) }
}

// complete reads a request to its end.
func complete(t testing.TB, e *Engine, r scheduler.Request) scheduler.Event {
	t.Helper()
	if r.Sampling.TopP == 0 {
		r.Sampling.TopP = 1
	}
	stream, err := e.Submit(&r)
	if err != nil {
		t.Error(err)
		return scheduler.Event{}
	}
	return drain(t, stream)
}

func drain(t testing.TB, stream *scheduler.Stream) scheduler.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all scheduler.Event
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			t.Errorf("no end within %s: %v", patience, err)
			return all
		}
		all.TokenIDs = append(all.TokenIDs, ev.TokenIDs...)
		all.Text += ev.Text
		all.Logprobs = append(all.Logprobs, ev.Logprobs...)
		all.Finish, all.Usage, all.Err = ev.Finish, ev.Usage, ev.Err
		if ev.Finish != "" || ev.Err != nil {
			return all
		}
	}
}

// eventually waits until what is true; otherwise it fails with trouble.
func eventually(t testing.TB, trouble string, what func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error(trouble)
			return
		}
	}
}

// loaded is an engine that is loaded and stepped by hand.
func loaded(t testing.TB, c Config) *Engine {
	t.Helper()
	e := newEngine(t, c)
	if err := e.load(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.ranks.Close)
	return e
}
