package poll

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// engine answers as a test sets it, and counts what it is asked.
type engine struct {
	mu                         sync.Mutex
	progress                   engineclient.Progress
	metrics                    engineclient.Metrics
	progressErr, probeErr      error
	probeTakes                 time.Duration
	stopped                    bool // the process takes connections and answers nothing
	progressed, scraped, probe atomic.Int32

	speculation    engineclient.Speculation
	speculationErr error
	puts           atomic.Int32
}

func (e *engine) set(f func()) { e.mu.Lock(); defer e.mu.Unlock(); f() }

func (e *engine) Progress(ctx context.Context, _ string) (*engineclient.Progress, error) {
	e.mu.Lock()
	stopped := e.stopped
	e.mu.Unlock()
	if stopped {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.progressed.Add(1)
	p := e.progress
	return &p, e.progressErr
}

func (e *engine) Metrics(context.Context, string) (*engineclient.Metrics, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scraped.Add(1)
	m := e.metrics
	return &m, nil
}

func (e *engine) DeepProbe(ctx context.Context, _ string) error {
	e.mu.Lock()
	e.probe.Add(1)
	takes, err := e.probeTakes, e.probeErr
	e.mu.Unlock()
	select {
	case <-time.After(takes):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *engine) Speculation(context.Context, string) (*engineclient.Speculation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.speculation
	return &s, e.speculationErr
}

func (e *engine) SetSpeculation(_ context.Context, _ string, mode string, least, most int) (*engineclient.Speculation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.puts.Add(1)
	e.speculation = engineclient.Speculation{Mode: mode, MinSteps: least, MaxSteps: most}
	s := e.speculation
	return &s, e.speculationErr
}

var key = types.NamespacedName{Namespace: "ns", Name: "s"}

// poll runs f with a poller of one engine, in the test's own time.
func poll(t *testing.T, f func(p *Poller, e *engine, announced *atomic.Int32)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &engine{progress: engineclient.Progress{Phase: "load"}}
		var announced atomic.Int32
		p := New(e, Intervals{}, func(types.NamespacedName) { announced.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Start(ctx) }()
		synctest.Wait()
		f(p, e, &announced)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func target(healthy bool) []Target {
	return []Target{{UID: "u", Address: "http://a", Healthy: healthy}}
}

// after lets time pass and the poller settle.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestLoading(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		if p.Observe(key, "u") != nil {
			t.Error("observed before it was asked for")
		}
		p.Sync(key, target(false))
		after(time.Millisecond)
		if o := p.Observe(key, "u"); o == nil || o.Progress.Phase != "load" || announced.Load() != 1 {
			t.Fatalf("%+v, announced %d", o, announced.Load())
		}
		after(10 * time.Second)
		if e.progressed.Load() != 6 || e.scraped.Load() != 0 || e.probe.Load() != 0 || announced.Load() != 1 {
			t.Errorf("asked %d, scraped %d, probed %d, announced %d", e.progressed.Load(), e.scraped.Load(), e.probe.Load(), announced.Load())
		}
		e.set(func() { e.progress.Percent = 7 })
		after(2 * time.Second)
		if announced.Load() != 2 {
			t.Errorf("announced %d after progress", announced.Load())
		}
	})
}

// TestDevice: what an engine computes on is passed on, and announced when it is known.
func TestDevice(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		p.Sync(key, target(false))
		after(time.Second)
		before := announced.Load()
		e.set(func() { e.progress.Device, e.progress.DeviceReason = "cpu", "no driver" })
		after(3 * time.Second)
		if got := p.Observe(key, "u").Progress; got.Device != "cpu" || got.DeviceReason != "no driver" || announced.Load() != before+1 {
			t.Errorf("%+v after %d announcements, want %d", got, announced.Load(), before+1)
		}
	})
}

// TestAdvanceByOwnClock: the engine's clock may be another node's.
func TestAdvanceByOwnClock(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		e.set(func() { e.progress.LastAdvance = time.Unix(1, 0) })
		p.Sync(key, target(false))
		after(time.Millisecond)
		first := p.Observe(key, "u").Progress.LastAdvance
		if time.Since(first) > time.Second {
			t.Errorf("last advance %s", first)
		}
		after(30 * time.Second)
		if got := p.Observe(key, "u").Progress.LastAdvance; !got.Equal(first) {
			t.Errorf("advanced at %s though nothing moved since %s", got, first)
		}
		e.set(func() { e.progress.BytesDone++ })
		after(2 * time.Second)
		if got := p.Observe(key, "u").Progress.LastAdvance; !got.After(first) {
			t.Error("bytes moved, and it did not advance")
		}
	})
}

func TestSilence(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		p.Sync(key, target(false))
		after(time.Millisecond)
		e.set(func() { e.progressErr = errors.New("connection refused") })
		after(10 * time.Second)
		o := p.Observe(key, "u")
		if o.SilentSince.IsZero() || o.SilentError != "connection refused" || o.Progress == nil || announced.Load() != 2 {
			t.Errorf("%+v, announced %d", o, announced.Load())
		}
		e.set(func() { e.progressErr = nil })
		after(2 * time.Second)
		if o := p.Observe(key, "u"); !o.SilentSince.IsZero() || announced.Load() != 3 {
			t.Errorf("%+v, announced %d", o, announced.Load())
		}
	})
}

// TestStoppedIsNoticed: of an engine that stops, whenever that is, the status says
// so within half a minute, and it has asked to look again by then.
func TestStoppedIsNoticed(t *testing.T) {
	server := &v1alpha1.SpeculativeServer{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "s-0", UID: "u", Labels: map[string]string{v1alpha1.LabelOrdinal: "0"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: v1alpha1.ModelVerified, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}},
	}
	for delay := range 6 {
		poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
			e.set(func() { e.progress.Phase = "serving" })
			p.Sync(key, target(true))
			after(time.Minute + time.Duration(delay)*time.Second)
			e.set(func() { e.stopped = true })
			stopped, looks := time.Now(), time.Time{}
			for {
				d := decide.Decide(decide.Input{Server: server, Now: time.Now(), Pods: []decide.Pod{{Pod: pod, Engine: p.Observe(key, "u")}}})
				if d.Status.Phase == v1alpha1.PhaseStalled {
					break
				}
				if d.Requeue > 0 {
					looks = time.Now().Add(d.Requeue)
				}
				if time.Since(stopped) > 30*time.Second {
					t.Fatalf("stopped %d s after a minute: after %s it is %s: %s", delay, time.Since(stopped), d.Status.Phase, d.Status.Message)
				}
				after(time.Second)
			}
			if looks.IsZero() || looks.Sub(stopped) > 30*time.Second {
				t.Errorf("stopped %d s after a minute: it would have looked again after %s", delay, looks.Sub(stopped))
			}
		})
	}
}

func TestDeepProbe(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		e.set(func() { e.probeErr = errors.New("status 503") })
		p.Sync(key, target(false))
		after(time.Minute)
		if e.probe.Load() != 0 {
			t.Fatal("an engine that is not ready was probed")
		}
		p.Sync(key, target(true))
		after(11 * time.Second)
		if o := p.Observe(key, "u"); e.probe.Load() != 3 || o.Probe.Failures != 3 || o.Probe.Message != "status 503" {
			t.Fatalf("probed %d times, %+v", e.probe.Load(), o.Probe)
		}
		e.set(func() { e.probeErr = nil })
		after(5 * time.Second)
		before := announced.Load()
		if o := p.Observe(key, "u"); o.Probe.Failures != 0 {
			t.Fatalf("%+v", o.Probe)
		}
		e.probe.Store(0)
		after(3*time.Minute + time.Second)
		if e.probe.Load() != 3 || announced.Load() != before {
			t.Errorf("probed %d times in three minutes, announced %d times", e.probe.Load(), announced.Load()-before)
		}
		p.Sync(key, target(false))
		if o := p.Observe(key, "u"); o.Probe != nil {
			t.Error("a probe of before the engine turned unready still counts")
		}
		p.Sync(key, target(true))
		after(time.Millisecond)
		if o := p.Observe(key, "u"); o.Probe == nil || e.probe.Load() != 4 {
			t.Errorf("ready again: %+v after %d probes", o.Probe, e.probe.Load())
		}
	})
}

// TestSlowProbe: an engine that takes long to generate is still asked for its
// progress meanwhile, is probed once at a time, and not for ever.
func TestSlowProbe(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		e.set(func() { e.probeTakes = time.Hour })
		p.Sync(key, target(true))
		after(29 * time.Second)
		if e.probe.Load() != 1 || e.progressed.Load() < 5 {
			t.Errorf("probed %d times, asked %d times", e.probe.Load(), e.progressed.Load())
		}
		after(2 * time.Second)
		if o := p.Observe(key, "u"); o.Probe == nil || o.Probe.Failures != 1 {
			t.Errorf("after the budget: %+v", o.Probe)
		}
	})
}

func TestRate(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		e.set(func() { e.metrics = engineclient.Metrics{Depth: 3, GenerationTokens: 1000} })
		p.Sync(key, target(true))
		after(time.Millisecond)
		rate := func() float64 { return p.Observe(key, "u").Metrics.TokensPerSecond }
		if rate() != 0 {
			t.Errorf("tokens of before the first scrape count as a rate: %v", rate())
		}
		e.set(func() { e.metrics.GenerationTokens = 1100 })
		after(5 * time.Second)
		if rate() != 20 {
			t.Errorf("100 tokens in 5 s: %v", rate())
		}
		e.set(func() { e.metrics.TokensPerSecond = 70; e.metrics.GenerationTokens = 1200 })
		after(5 * time.Second)
		if rate() != 70 {
			t.Errorf("the engine says 70: %v", rate())
		}
		// A slow drift is announced too, however small each step is.
		before := announced.Load()
		for range 10 {
			e.set(func() { e.metrics.TokensPerSecond *= 1.01 })
			after(5 * time.Second)
		}
		if announced.Load() == before {
			t.Error("a drift by ten per cent was not announced")
		}
	})
}

func TestSyncForgets(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		p.Sync(key, target(false))
		after(time.Millisecond)
		p.Sync(key, []Target{{UID: "u", Address: "http://b"}})
		if p.Observe(key, "u") != nil {
			t.Error("what another address said was kept")
		}
		after(time.Millisecond)
		p.Sync(key, nil)
		if len(p.servers) != 0 || p.Observe(key, "u") != nil {
			t.Error("a server without pods was kept")
		}
		e.progressed.Store(0)
		after(time.Minute)
		if e.progressed.Load() != 0 {
			t.Errorf("a forgotten pod was asked %d times", e.progressed.Load())
		}
	})
}

// TestProbeOfSilentEngine: a deep probe that does not reach an engine which is
// silent anyway says nothing of its model, and is not tried all the time.
func TestProbeOfSilentEngine(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		refused := errors.New("connection refused")
		e.set(func() { e.progressErr, e.probeErr = refused, refused })
		p.Sync(key, target(true))
		after(28 * time.Second)
		if o := p.Observe(key, "u"); o.Probe != nil || e.probe.Load() != 6 {
			t.Errorf("%+v after %d probes in 28 s, one every 5", o.Probe, e.probe.Load())
		}
		e.set(func() { e.progressErr, e.probeErr = nil, nil })
		after(7 * time.Second)
		if o := p.Observe(key, "u"); o.Probe == nil || o.Probe.Failures != 0 {
			t.Errorf("reached again: %+v", o.Probe)
		}
	})
}

// TestSyncBeforeStart: pods named before the poller runs are asked once it does.
func TestSyncBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{progress: engineclient.Progress{Phase: "load"}}
		p := New(e, Intervals{}, func(types.NamespacedName) {})
		p.Sync(key, target(false))
		if p.Observe(key, "u") != nil || p.Refused(key) {
			t.Error("an engine that was not asked yet has said something")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Start(ctx) }()
		after(time.Millisecond)
		if p.Observe(key, "u") == nil {
			t.Error("not asked")
		}
		cancel()
		<-done
		p.Sync(key, nil)
	})
}

// TestFirstProbe: an engine that is ready when it is first named is probed once,
// whoever comes first, the one that names it or the one that asks it.
func TestFirstProbe(t *testing.T) {
	for range 300 {
		poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
			p.Sync(key, target(true))
			after(time.Second)
			if n := e.probe.Load(); n != 1 {
				t.Errorf("probed %d times at once", n)
			}
		})
	}
}

// TestProbeOfTarget: a target's own interval and limit win over the poller's.
func TestProbeOfTarget(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		own := target(true)
		own[0].ProbeEvery, own[0].ProbeLimit = 7*time.Second, 2*time.Second
		p.Sync(key, own)
		after(29 * time.Second)
		if e.probe.Load() != 5 {
			t.Errorf("probed %d times in 29 s, every 7", e.probe.Load())
		}
		e.set(func() { e.probeTakes = time.Hour })
		after(9 * time.Second)
		if o := p.Observe(key, "u"); o.Probe.Failures != 1 {
			t.Errorf("a probe of more than 2 s: %+v", o.Probe)
		}
	})
}

// TestProbesBlockNoQuestions: when every deep probe hangs, all engines are still
// asked for their progress.
func TestProbesBlockNoQuestions(t *testing.T) {
	poll(t, func(p *Poller, e *engine, _ *atomic.Int32) {
		e.set(func() { e.probeTakes = time.Hour })
		var many []Target
		for i := range cap(p.probes) + 50 {
			many = append(many, Target{UID: types.UID(fmt.Sprint(i)), Address: fmt.Sprint("http://", i), Healthy: true})
		}
		p.Sync(key, many)
		after(time.Second)
		asked := e.progressed.Load()
		after(10 * time.Second)
		if got := e.progressed.Load() - asked; got < int32(len(many)) {
			t.Errorf("of %d engines %d were asked in 10 s while the probes hang", len(many), got)
		}
	})
}

func TestPace(t *testing.T) {
	var p pace
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for _, tt := range []struct {
		phase string
		bytes int64
		at    int
		want  float64
	}{
		{"load", 100, 0, 0}, {"load", 200, 2, 0}, {"load", 600, 5, 100}, {"load", 700, 6, 100}, {"load", 500, 7, 0},
		{"load", 1500, 12, 200}, {"load", 1500, 17, 0}, {"warmup", 1500, 18, 0},
	} {
		if got := p.observe(tt.phase, tt.bytes, at(tt.at)); got != tt.want {
			t.Errorf("%+v: %g", tt, got)
		}
	}
}

func TestBehind(t *testing.T) {
	rank := func(n int, percent float64) engineclient.Rank { return engineclient.Rank{Rank: n, Percent: percent} }
	for _, tt := range []struct {
		ranks []engineclient.Rank
		want  string
	}{
		{nil, "none"},
		{[]engineclient.Rank{rank(0, 5)}, "none"},
		{[]engineclient.Rank{rank(0, 50), rank(1, 31)}, "none"},
		{[]engineclient.Rank{rank(0, 50), rank(1, 30), rank(2, 49)}, "1"},
		{[]engineclient.Rank{rank(0, 30), rank(1, 30), rank(2, 50)}, "0"},
	} {
		got := "none"
		if r := behind(tt.ranks); r != nil {
			got = fmt.Sprint(r.Rank)
		}
		if got != tt.want {
			t.Errorf("%v: %s, want %s", tt.ranks, got, tt.want)
		}
	}
}

// TestHold: an engine is asked to keep to bounds once, confirms them, and is
// asked again when it has forgotten, as one that was restarted has.
func TestHold(t *testing.T) {
	poll(t, func(p *Poller, e *engine, announced *atomic.Int32) {
		e.set(func() { e.speculation = engineclient.Speculation{Mode: "fixed", MaxSteps: 3} })
		p.Sync(key, target(true))
		after(20 * time.Second)
		if o := p.Observe(key, "u"); o.Bounds != nil || e.puts.Load() != 0 {
			t.Fatalf("bounds %+v and %d changes, though none were asked for", o.Bounds, e.puts.Load())
		}
		want := decide.Bounds{Mode: "auto", Min: 0, Max: 2}
		p.Hold(key, &want)
		before := announced.Load()
		after(time.Millisecond) // at once
		if o := p.Observe(key, "u"); e.puts.Load() != 1 || o.Bounds == nil || *o.Bounds != want || announced.Load() != before+1 {
			t.Fatalf("%d changes, %+v, announced %d", e.puts.Load(), o.Bounds, announced.Load()-before)
		}
		p.Hold(key, &want)
		after(time.Minute)
		if e.puts.Load() != 1 {
			t.Errorf("%d changes of what was confirmed", e.puts.Load())
		}
		e.set(func() { e.speculation = engineclient.Speculation{Mode: "fixed", MaxSteps: 3} })
		after(5 * time.Second)
		if o := p.Observe(key, "u"); e.puts.Load() != 2 || *o.Bounds != want {
			t.Errorf("after the engine forgot: %d changes, %+v", e.puts.Load(), o.Bounds)
		}
		e.set(func() { e.speculationErr = errors.New("status 400") })
		after(5 * time.Second)
		if o := p.Observe(key, "u"); o.Bounds != nil || !o.SilentSince.IsZero() {
			t.Errorf("an engine that does not confirm: %+v", o)
		}
		p.Hold(key, nil)
		e.set(func() { e.speculationErr, e.speculation.Mode = nil, "off" })
		e.puts.Store(0)
		after(time.Minute)
		if e.puts.Load() != 0 {
			t.Error("an engine that is let be was changed")
		}
	})
}

func TestAgrees(t *testing.T) {
	for _, tt := range []struct {
		want        decide.Bounds
		mode        string
		least, most int
		agrees      bool
	}{
		{decide.Bounds{Mode: "auto", Min: 1, Max: 3}, "auto", 1, 3, true},
		{decide.Bounds{Mode: "auto", Min: 1, Max: 3}, "auto", 0, 3, false},
		{decide.Bounds{Mode: "auto", Min: 1, Max: 3}, "fixed", 1, 3, false},
		{decide.Bounds{Mode: "fixed", Max: 3}, "fixed", 1, 3, true},
		{decide.Bounds{Mode: "fixed", Max: 3}, "fixed", 0, 2, false},
		{decide.Bounds{Mode: "off", Max: 3}, "off", 0, 1, true},
	} {
		if got := tt.want.Agrees(tt.mode, tt.least, tt.most); got != tt.agrees {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestWindow(t *testing.T) {
	var w window
	for _, tt := range []struct{ seconds, count, want float64 }{
		{1, 10, 0.1}, {2, 12, 0.5}, {2, 12, 0}, {0.5, 1, 0}, {1.5, 3, 0.5}, {1, 4, 0},
	} {
		if got := w.since(engineclient.Timing{Seconds: tt.seconds, Count: tt.count}); got != tt.want {
			t.Errorf("%+v: %g", tt, got)
		}
	}
}
