package poll

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// watch asks one engine.
type watch struct {
	address string
	stop    chan struct{}
	wake    chan struct{} // there is something to do at once

	mu        sync.Mutex
	healthy   bool
	probeAnew bool // healthy has changed since it was last read: the next probe is due
	tokens    []string

	probeEvery, probeLimit time.Duration // of the target; 0: the poller's

	asked bool
	seen  decide.Engine
	told  decide.Engine // what was seen at the last announcement
	moved engineclient.Progress

	// The last scrape of the token counter, to find the rate of requests that begin and end between two scrapes.
	generated   float64
	generatedAt time.Time

	pace pace // of the load

	between, verify window // of the engine's timings
}

func (w *watch) set(t Target) {
	h := t.Healthy
	w.mu.Lock()
	changed := w.healthy != h
	w.healthy, w.probeEvery, w.probeLimit, w.tokens = h, t.ProbeEvery, t.ProbeLimit, t.Tokens
	if changed && !h && w.seen.Probe != nil && w.seen.Probe.Failures == 0 {
		w.seen.Probe = nil // what was proved before the engine turned unready proves nothing after
	}
	w.probeAnew = w.probeAnew || changed
	w.mu.Unlock()
	if changed {
		w.hurry()
	}
}

// hurry asks at once.
func (w *watch) hurry() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watch) observed() *decide.Engine {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked {
		return nil
	}
	e := w.seen // its pointers are replaced, never written through
	return &e
}

// run asks until the watch or ctx is stopped. Deep probes run beside the other
// questions: a model that takes long to answer is not a silent engine.
func (p *Poller) run(ctx context.Context, server types.NamespacedName, w *watch) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-w.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	probed := make(chan struct{}, 1)
	probing, due := false, true
	nextProbe := time.Time{}
	for ctx.Err() == nil {
		healthy, anew, changed := p.ask(ctx, server, w)
		if changed && ctx.Err() == nil {
			p.announce(server)
		}
		due = due || anew
		if healthy && !probing && (due || !time.Now().Before(nextProbe)) {
			probing, due = true, false
			go func() {
				p.probe(ctx, server, w)
				probed <- struct{}{}
			}()
		}
		interval := p.intervals.Loading
		if healthy {
			interval = p.intervals.Serving
			if wait := time.Until(nextProbe); !probing && wait > 0 {
				interval = min(interval, wait)
			}
		}
		timer := time.NewTimer(interval)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-probed:
			probing = false
			nextProbe = time.Now().Add(p.probeInterval(w))
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if probing {
		<-probed
	}
}

func (p *Poller) probeInterval(w *watch) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch probe := w.seen.Probe; {
	case probe == nil && w.seen.SilentSince.IsZero():
		return 0
	case probe == nil || probe.Failures > 0:
		return p.intervals.ProbeRetry
	}
	return cmp.Or(w.probeEvery, p.intervals.Probe)
}

// ask asks for progress, and for the metrics of a healthy engine. anew says that
// healthy has changed since the last call, and changed whether a status could look
// different for what was learned.
func (p *Poller) ask(ctx context.Context, server types.NamespacedName, w *watch) (healthy, anew, changed bool) {
	var progress *engineclient.Progress
	var metrics *engineclient.Metrics
	var err error
	w.mu.Lock()
	healthy, anew, w.probeAnew = w.healthy, w.probeAnew, false
	tokens := w.tokens
	w.mu.Unlock()
	var bounds *decide.Bounds
	refused := false
	asked := call(ctx, p.slots, p.intervals.AskTimeout, func(ctx context.Context) {
		if progress, err = p.client.Progress(ctx, w.address); err == nil && healthy {
			metrics, _ = p.client.Metrics(ctx, w.address) // without them the last ones stand
			if want, ok := p.held(server); ok {
				bounds, refused = p.hold(engineclient.WithTokens(ctx, tokens), w.address, want)
			}
		}
	})
	if !asked {
		return healthy, anew, false
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.asked
	w.asked = true
	if err != nil {
		if w.seen.SilentSince.IsZero() {
			w.seen.SilentSince = now
		}
		w.seen.SilentError = err.Error()
	} else {
		w.learn(progress, metrics, now)
		w.seen.Bounds, w.seen.Refused = bounds, refused
	}
	changed = first || differs(&w.told, &w.seen)
	if changed {
		w.told = w.seen
	}
	return healthy, anew, changed
}

// learn notes an answer. When the engine last advanced is told by this clock, not
// by the engine's, which may be another node's.
func (w *watch) learn(progress *engineclient.Progress, metrics *engineclient.Metrics, now time.Time) {
	w.seen.SilentSince, w.seen.SilentError = time.Time{}, ""
	advanced := now
	if old := w.seen.Progress; old != nil && w.moved.Phase == progress.Phase &&
		w.moved.BytesDone == progress.BytesDone && w.moved.LastAdvance.Equal(progress.LastAdvance) {
		advanced = old.LastAdvance
	}
	w.moved = *progress
	w.seen.Progress = &decide.Progress{
		Phase: progress.Phase, Percent: progress.Percent,
		ShardsDone: progress.ShardsDone, ShardsTotal: progress.ShardsTotal,
		BytesDone: progress.BytesDone, BytesTotal: progress.BytesTotal,
		BytesPerSecond: w.pace.observe(progress.Phase, progress.BytesDone, now),
		Behind:         behind(progress.Ranks),
		LastAdvance:    advanced,
		Device:         progress.Device, DeviceReason: progress.DeviceReason,
	}
	if metrics != nil {
		old := w.seen.Metrics
		w.seen.Metrics = &decide.Metrics{
			Depth: metrics.Depth, AcceptLength: metrics.AcceptLength,
			TokensPerSecond: w.rate(metrics, now),
			Running:         metrics.Running, Waiting: metrics.Waiting, KVUsage: metrics.KVUsage, Gain: metrics.Gain,
			InterTokenSeconds: w.between.since(metrics.InterToken), VerifySeconds: w.verify.since(metrics.Verify), Time: now,
		}
		if old != nil && w.seen.Metrics.VerifySeconds == 0 {
			w.seen.Metrics.VerifySeconds = old.VerifySeconds
		}
	}
}

// rate is the engine's own rate of tokens; when it is 0 although tokens came
// since the last scrape, their number over the time between the scrapes.
func (w *watch) rate(m *engineclient.Metrics, now time.Time) float64 {
	tokens, since := m.GenerationTokens-w.generated, now.Sub(w.generatedAt).Seconds()
	known := !w.generatedAt.IsZero()
	w.generated, w.generatedAt = m.GenerationTokens, now
	if m.TokensPerSecond == 0 && known && tokens > 0 && since > 0 {
		return tokens / since
	}
	return m.TokensPerSecond
}

// differs says whether a status could look different for what was learned. The
// status rounds further, so this only has to be cheap and never too narrow.
func differs(a, b *decide.Engine) bool {
	if a.SilentSince.IsZero() != b.SilentSince.IsZero() {
		return true
	}
	if (a.Progress == nil) != (b.Progress == nil) || (a.Metrics == nil) != (b.Metrics == nil) || (a.Bounds == nil) != (b.Bounds == nil) {
		return true
	}
	if b.Refused { // until it is not: the tokens are to be read again
		return true
	}
	if b.Bounds != nil && *a.Bounds != *b.Bounds {
		return true
	}
	if b.Progress != nil && (a.Progress.Phase != b.Progress.Phase || a.Progress.ShardsDone != b.Progress.ShardsDone ||
		a.Progress.ShardsTotal != b.Progress.ShardsTotal || a.Progress.Device != b.Progress.Device || int(a.Progress.Percent) != int(b.Progress.Percent)) {
		return true
	}
	if b.Metrics == nil {
		return false
	}
	near := func(x, y float64) bool { return x == y || x > 0 && y > 0 && math.Abs(x-y) <= 0.02*x }
	busy := func(m *decide.Metrics) bool { return m.Running+m.Waiting > 0 }
	if math.Abs(a.Metrics.Waiting-b.Metrics.Waiting) >= 1 || math.Abs(a.Metrics.KVUsage-b.Metrics.KVUsage) >= 0.02 {
		return true
	}
	return a.Metrics.Depth != b.Metrics.Depth || busy(a.Metrics) != busy(b.Metrics) || !near(a.Metrics.Gain, b.Metrics.Gain) || !near(a.Metrics.AcceptLength, b.Metrics.AcceptLength) ||
		!near(a.Metrics.TokensPerSecond, b.Metrics.TokensPerSecond)
}

// probe makes the model generate and notes whether it did.
func (p *Poller) probe(ctx context.Context, server types.NamespacedName, w *watch) {
	var err error
	w.mu.Lock()
	limit := cmp.Or(w.probeLimit, p.intervals.ProbeBudget)
	w.mu.Unlock()
	if !call(ctx, p.probes, limit, func(ctx context.Context) { err = p.client.DeepProbe(ctx, w.address) }) || ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	before := w.seen.Probe
	after := &decide.Probe{Time: time.Now()}
	if err != nil && !w.seen.SilentSince.IsZero() {
		after = before // an engine that is not reached has not failed to generate
	} else if err != nil {
		after.Failures, after.Message = 1, err.Error()
		if before != nil {
			after.Failures += before.Failures
		}
	} else if !w.healthy {
		after = nil // it turned unready meanwhile
	}
	w.seen.Probe = after
	w.mu.Unlock()
	if (before == nil) != (after == nil) || after != nil && (before.Failures != after.Failures) {
		p.announce(server)
	}
}
