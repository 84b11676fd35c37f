package poll

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

func TestIntervals(t *testing.T) {
	want := Intervals{Loading: 2 * time.Second, Serving: 5 * time.Second, Probe: time.Minute, ProbeRetry: 5 * time.Second, AskTimeout: 3 * time.Second, ProbeBudget: 30 * time.Second}
	if got := (Intervals{}).withDefaults(); got != want {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	want.Probe = time.Second
	if got := (Intervals{Probe: time.Second}).withDefaults(); got != want {
		t.Errorf("one that is set: %+v, want %+v", got, want)
	}
}

// TestDiffers: what can change a status is announced, and noise is not.
func TestDiffers(t *testing.T) {
	engine := func() decide.Engine {
		return decide.Engine{
			Progress: &decide.Progress{Phase: "serving", Percent: 40.2, ShardsDone: 1, ShardsTotal: 8, Device: "cpu"},
			Metrics:  &decide.Metrics{TokensPerSecond: 100, Running: 2, Waiting: 3, KVUsage: 0.5, Depth: 2, Gain: 1.5, AcceptLength: 3},
			Bounds:   &decide.Bounds{Mode: "auto", Max: 3},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*decide.Engine)
		want   bool
	}{
		{"nothing", func(*decide.Engine) {}, false},
		{"silent", func(e *decide.Engine) { e.SilentSince = time.Unix(1, 0) }, true},
		{"no progress", func(e *decide.Engine) { e.Progress = nil }, true},
		{"no metrics", func(e *decide.Engine) { e.Metrics = nil }, true},
		{"no bounds", func(e *decide.Engine) { e.Bounds = nil }, true},
		{"refused", func(e *decide.Engine) { e.Refused = true }, true},
		{"bounds", func(e *decide.Engine) { e.Bounds.Max = 2 }, true},
		{"phase", func(e *decide.Engine) { e.Progress.Phase = "draining" }, true},
		{"shard", func(e *decide.Engine) { e.Progress.ShardsDone = 2 }, true},
		{"shards", func(e *decide.Engine) { e.Progress.ShardsTotal = 9 }, true},
		{"device", func(e *decide.Engine) { e.Progress.Device = "cuda" }, true},
		{"percent", func(e *decide.Engine) { e.Progress.Percent = 41 }, true},
		{"part of a percent", func(e *decide.Engine) { e.Progress.Percent = 40.9 }, false},
		{"bytes", func(e *decide.Engine) { e.Progress.BytesDone = 9 }, false},
		{"depth", func(e *decide.Engine) { e.Metrics.Depth = 1 }, true},
		{"a request waits", func(e *decide.Engine) { e.Metrics.Waiting = 4 }, true},
		{"one less waits", func(e *decide.Engine) { e.Metrics.Waiting = 2 }, true},
		{"as many run", func(e *decide.Engine) { e.Metrics.Running = 5 }, false},
		{"idle", func(e *decide.Engine) { e.Metrics.Running, e.Metrics.Waiting = 0, 2.5 }, false},
		{"cache", func(e *decide.Engine) { e.Metrics.KVUsage = 0.53 }, true},
		{"cache, hardly", func(e *decide.Engine) { e.Metrics.KVUsage = 0.51 }, false},
		{"gain", func(e *decide.Engine) { e.Metrics.Gain = 1.6 }, true},
		{"gain, hardly", func(e *decide.Engine) { e.Metrics.Gain = 1.52 }, false},
		{"accept length", func(e *decide.Engine) { e.Metrics.AcceptLength = 2.5 }, true},
		{"accept length, hardly", func(e *decide.Engine) { e.Metrics.AcceptLength = 3.05 }, false},
		{"rate", func(e *decide.Engine) { e.Metrics.TokensPerSecond = 110 }, true},
		{"rate, hardly", func(e *decide.Engine) { e.Metrics.TokensPerSecond = 101 }, false},
		{"no rate", func(e *decide.Engine) { e.Metrics.TokensPerSecond = 0 }, true},
	} {
		a, b := engine(), engine()
		tt.change(&b)
		if got := differs(&a, &b); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
	// The first request of an idle engine, and the end of its last one.
	a, b := engine(), engine()
	a.Metrics.Running, a.Metrics.Waiting, b.Metrics.Running, b.Metrics.Waiting = 0, 0, 1, 0
	if !differs(&a, &b) || !differs(&b, &a) {
		t.Error("an engine that begins or ends to work does not differ")
	}
}

// TestAdvance: a load has advanced when its phase, its bytes or the engine's own
// time of it have.
func TestAdvance(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		p.Sync(key, target(false))
		last := time.Time{}
		for i, change := range []func(){
			func() {},
			func() { e.progress.BytesDone = 5 },
			func() { e.progress.Phase = "collective" },
			func() { e.progress.LastAdvance = time.Unix(9, 0) },
		} {
			e.set(change)
			after(10 * time.Second)
			got := p.Observe(key, "u").Progress.LastAdvance
			if !got.After(last) || time.Since(got) < 5*time.Second {
				t.Errorf("change %d: it advanced %s ago, and before at %s", i, time.Since(got), last)
			}
			last = got
		}
	})
}

// TestLastVerify: the time of a verification stays while there is none, and a
// counter that began anew gives no rate.
func TestLastVerify(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		e.set(func() {
			e.metrics.Verify = engineclient.Timing{Seconds: 1, Count: 10}
			e.metrics.GenerationTokens = 500
		})
		p.Sync(key, target(true))
		after(time.Minute)
		if got := p.Observe(key, "u").Metrics; got.VerifySeconds != 0.1 || got.TokensPerSecond != 0 {
			t.Errorf("at rest after ten verifications of 0.1 s: %+v", got)
		}
		e.set(func() { e.metrics.Verify = engineclient.Timing{Seconds: 3, Count: 20}; e.metrics.GenerationTokens = 3 })
		after(5 * time.Second)
		if got := p.Observe(key, "u").Metrics; got.VerifySeconds != 0.2 || got.TokensPerSecond != 0 {
			t.Errorf("ten more of 0.2 s, from an engine that began anew: %+v", got)
		}
	})
}

// TestHoldAtOnce: another bound is brought to the engines at once, the same one
// with the next question, and none to a server that has come back.
func TestHoldAtOnce(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		p.Sync(key, target(true))
		p.Hold(key, &decide.Bounds{Mode: "auto", Max: 2})
		after(time.Second)
		asked := e.progressed.Load()
		p.Hold(key, &decide.Bounds{Mode: "auto", Max: 2})
		after(time.Millisecond)
		if got := e.progressed.Load(); got != asked {
			t.Errorf("asked %d times for the same bounds", got-asked)
		}
		p.Hold(key, &decide.Bounds{Mode: "auto", Max: 1})
		after(time.Millisecond)
		if o := p.Observe(key, "u"); e.progressed.Load() != asked+1 || o.Bounds == nil || o.Bounds.Max != 1 {
			t.Errorf("asked %d times for others, which are %+v", e.progressed.Load()-asked, o.Bounds)
		}
		p.Sync(key, nil)
		e.puts.Store(0)
		e.set(func() { e.speculation.MaxSteps = 7 })
		p.Sync(key, target(true))
		after(time.Minute)
		if e.puts.Load() != 0 {
			t.Error("bounds of a server that was gone are held")
		}
	})
}

// TestRefused: an engine that asks for another token is announced each time, until
// it takes one.
func TestRefused(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		e.set(func() { e.speculationErr = fmt.Errorf("GET /v1/speculation: %w", engineclient.ErrUnauthorized) })
		p.Sync(key, target(true))
		p.Hold(key, &decide.Bounds{Mode: "auto", Max: 2})
		after(time.Second)
		before := announced.Load()
		after(10 * time.Second)
		if !p.Refused(key) || announced.Load() != before+2 {
			t.Errorf("refused %t, announced %d times in 10 s", p.Refused(key), announced.Load()-before)
		}
		e.set(func() { e.speculationErr = errors.New("status 500") })
		after(5 * time.Second)
		if p.Refused(key) {
			t.Error("another error counts as a refusal")
		}
		e.set(func() { e.speculationErr = nil })
		after(5 * time.Second)
		if o := p.Observe(key, "u"); p.Refused(key) || o.Bounds == nil {
			t.Errorf("refused %t, bounds %+v", p.Refused(key), o.Bounds)
		}
	})
}

// TestProbeAcrossUnready: a probe that passes after the engine turned unready proves
// nothing; one that failed before is remembered.
func TestProbeAcrossUnready(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		e.set(func() { e.probeTakes = 10 * time.Second })
		p.Sync(key, target(true))
		after(time.Second)
		p.Sync(key, target(false))
		after(20 * time.Second)
		if o := p.Observe(key, "u"); o.Probe != nil {
			t.Errorf("passed while the engine was not ready: %+v", o.Probe)
		}
		e.set(func() { e.probeTakes, e.probeErr = 0, errors.New("no token") })
		before := announced.Load()
		p.Sync(key, target(true))
		after(6 * time.Second)
		if o := p.Observe(key, "u"); o.Probe == nil || o.Probe.Failures != 2 || announced.Load() != before+2 {
			t.Errorf("%+v, announced %d times", o.Probe, announced.Load()-before)
		}
		p.Sync(key, target(false))
		if o := p.Observe(key, "u"); o.Probe == nil || o.Probe.Failures != 2 {
			t.Errorf("what failed is forgotten: %+v", o.Probe)
		}
	})
}
