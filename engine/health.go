package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/tick"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Submit starts a request; the errors are scheduler.Submit's and ErrNotReady.
func (e *Engine) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	if e.follows() {
		return nil, e.followsError()
	}
	if !e.ready.Load() {
		if e.draining.Load() {
			return nil, scheduler.ErrDraining
		}
		return nil, scheduler.ErrNotReady
	}
	return e.scheduler.Submit(r)
}

// Tokenizer is the model's, or nil while it loads or if it has none.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tokenizer
}

// Progress says how far the start is and when each rank moved last.
func (e *Engine) Progress() telemetry.Snapshot { return e.progress.Snapshot() }

// Info are the facts for /server_info.
func (e *Engine) Info() telemetry.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	info := e.info
	info.KVPagesFree = info.KVPagesTotal - int(e.stats.pagesHeld.Load())
	return info
}

// Ready is nil when requests are taken: the model is loaded, has answered
// once, and the engine is not draining.
func (e *Engine) Ready() error {
	if e.draining.Load() {
		return scheduler.ErrDraining
	}
	if e.ready.Load() {
		return e.Live()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Errorf("not serving yet: in phase %q", e.phase)
}

// Live is nil while the step loop moves, also when it has nothing to do or the
// model still loads.
func (e *Engine) Live() error {
	if stuck := e.stuck(); stuck > e.cfg.StallTimeout {
		return fmt.Errorf("the step loop is stalled: work is pending and no step has finished for %s", stuck.Round(time.Second))
	}
	return nil
}

// stuck is how long the step under way takes already.
func (e *Engine) stuck() time.Duration {
	if !e.busy.Load() {
		return 0
	}
	return tick.Since(e.beat.Load())
}

// stallGrace is how long a stall shows in /livez before the process ends
// itself, so that the termination message says why and not a probe's kill.
const stallGrace = 5 * time.Second

// watch reports the step loop's stall, and a GPU's end.
func (e *Engine) watch(ctx context.Context) <-chan error {
	stalled := make(chan error, 1)
	go func() {
		tick := time.NewTicker(min(time.Second, e.cfg.StallTimeout/4+time.Millisecond))
		defer tick.Stop()
		var faulty time.Time // since when a rank has a fault
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-e.gpuFault:
				stalled <- err
				return
			case <-tick.C:
			}
			// The loop ends by itself for a rank's fault, unless a device holds it.
			if err := e.ranks.Err(); err != nil {
				if faulty.IsZero() {
					faulty = time.Now()
				} else if time.Since(faulty) > stallGrace {
					stalled <- err
					return
				}
			}
			if stuck := e.stuck(); stuck > e.cfg.StallTimeout+stallGrace {
				stalled <- fault.Errorf(fault.Stalled, "no step has finished for %s: the limit is --stall-timeout %s", stuck.Round(time.Second), e.cfg.StallTimeout)
				return
			}
		}
	}()
	return stalled
}

// leaves tells whether the engine is on its way out.
func (e *Engine) leaves(ctx context.Context) bool { return ctx.Err() != nil || e.draining.Load() }

// warmUp sends the first request through and opens the door. A model that
// cannot answer is a fault: it would never become ready.
func (e *Engine) warmUp(ctx context.Context) error {
	start := time.Now()
	_, err := e.probe(ctx)
	switch {
	case e.leaves(ctx):
		return nil
	case err != nil:
		reason := fault.ReasonOf(err)
		switch {
		case errors.Is(err, sampling.ErrNotFinite):
			reason = fault.WeightsMismatch
		case errors.Is(err, errNoDraft):
			reason = fault.DraftMismatch
		}
		return fault.Errorf(reason, "the model does not answer its first request: %w", err)
	}
	e.metrics.LoadPhase(telemetry.PhaseWarmup).Set(time.Since(start).Seconds())
	e.enter(telemetry.PhaseServing)
	e.ready.Store(true)
	e.log.Info("ready", "served_model_name", e.cfg.ServedModelName, "warmup", time.Since(start).Round(time.Millisecond))
	return nil
}

// proofAge is how recent a pass of real requests must be to count as a probe's
// answer: a busy engine that moves needs no request more.
const proofAge = time.Second

// DeepProbe sends one bounded request through draft and verify on all ranks.
// While other requests just did the same it answers at once.
func (e *Engine) DeepProbe(ctx context.Context) (scheduler.Usage, error) {
	if !e.ready.Load() {
		return scheduler.Usage{}, e.Ready()
	}
	if e.follows() {
		return scheduler.Usage{}, e.followsError()
	}
	if e.busy.Load() && tick.Since(e.proof.Load()) < proofAge {
		return scheduler.Usage{}, nil
	}
	return e.probe(ctx)
}

// errNoDraft is what a head or draft model whose logits are not numbers comes to:
// no candidate is found in them.
var errNoDraft = errors.New("the probe was answered without a verify pass, since the draft proposes nothing: check the draft's weights")

// probe computes a few tokens after token 0: enough for one whole draft.
func (e *Engine) probe(ctx context.Context) (scheduler.Usage, error) {
	n := 2
	speculates := e.certain()
	if speculates {
		n = min(e.cfg.NumSteps+2, e.info.ContextLength-1)
	}
	stream, err := e.scheduler.Submit(&scheduler.Request{
		ID: "probe", Probe: true, PromptIDs: []int32{0}, MaxTokens: min(n, e.info.ContextLength-1), IgnoreEOS: true,
		Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs,
	})
	if err != nil {
		return scheduler.Usage{}, err
	}
	defer stream.Close()
	for {
		ev, err := stream.Next(ctx)
		switch {
		case err != nil:
			return ev.Usage, fmt.Errorf("the probe got no answer in time: %w", err)
		case ev.Err != nil:
			return ev.Usage, ev.Err
		case ev.Finish == "":
		case ev.Usage.CompletionTokens == 0:
			return ev.Usage, errors.New("the probe was answered without a token")
		case speculates && n > 2 && ev.Usage.Verifies == 0:
			return ev.Usage, errNoDraft
		default:
			return ev.Usage, nil
		}
	}
}

// Drain takes no new requests and waits until those there are have ended.
func (e *Engine) Drain(ctx context.Context) error {
	e.draining.Store(true)
	e.ready.Store(false)
	e.enter(telemetry.PhaseDraining)
	e.mu.Lock()
	s, follows := e.scheduler, e.follows() && e.ranks != nil
	e.mu.Unlock()
	switch {
	case follows:
		e.nodes.Leave() // node 0 drains, and then ends the group
	case s == nil:
		return nil
	default:
		s.Drain()
	}
	select {
	case <-e.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("requests were still running when the time to drain was over: %w", ctx.Err())
	}
}
