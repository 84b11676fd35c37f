package engine

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/tick"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// follows tells whether this process computes what node 0 decides, and nothing else.
func (e *Engine) follows() bool { return e.cfg.Node > 0 }

// followsError says why this process answers no requests.
func (e *Engine) followsError() error {
	return fmt.Errorf("this is node %d of %d, which computes for node 0 and answers no requests: send them to node 0 (%s)", e.cfg.Node, e.cfg.Nodes, e.cfg.Leader)
}

// join waits for the other nodes, if there are some. From then on a failure of
// the group ends ctx.
func (e *Engine) join(ctx context.Context, spec *model.Spec, cancel func()) error {
	if e.cfg.Nodes == 1 {
		return nil
	}
	e.enter(telemetry.PhaseJoin)
	same, err := e.sameEverywhere(*spec)
	if err != nil {
		return err
	}
	start := time.Now()
	first := e.cfg.Node * e.cfg.localRanks()
	nodes, err := collective.Join(ctx, collective.JoinConfig{
		Node: e.cfg.Node, Nodes: e.cfg.Nodes, Ranks: e.cfg.localRanks(), Address: e.cfg.Leader, Secret: e.cfg.GroupSecret, Same: same,
		Wait: e.cfg.JoinTimeout, Silence: e.cfg.NodeTimeout, Log: e.log, Waiting: func() { e.progress.Touch(first) },
	})
	if err != nil {
		return err
	}
	e.metrics.LoadPhase(telemetry.PhaseJoin).Set(time.Since(start).Seconds())
	e.log.Info("joined", "node", e.cfg.Node, "nodes", e.cfg.Nodes, "ranks", e.cfg.localRanks(), "first_rank", first, "took", time.Since(start).Round(time.Millisecond))
	e.mu.Lock()
	e.nodes = nodes
	e.mu.Unlock()
	spec.Nodes = nodes
	go func() {
		for leaving := nodes.Leaving(); ; leaving = nil {
			select {
			case <-nodes.Failed():
				cancel()
				return
			case <-leaving:
				e.log.Info("another node has been told to stop: this one drains")
				go e.leaveWithOthers(ctx, cancel)
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// leaveWithOthers finishes what runs and ends the engine: a node less, it cannot go on.
func (e *Engine) leaveWithOthers(ctx context.Context, cancel func()) {
	if err := e.Drain(ctx); err != nil {
		e.log.Warn("not drained", "error", err)
	}
	cancel()
}

// sameEverywhere are the settings that would make nodes compute different things,
// or wait for each other for ever, if they were not alike.
func (e *Engine) sameEverywhere(spec model.Spec) ([]collective.Setting, error) {
	c := e.cfg
	algorithm := AlgorithmNone
	if e.algorithm != nil {
		algorithm = e.algorithm.name
	}
	same := []collective.Setting{{Name: "the version", Value: c.Version + " " + runtime.Version()}}
	for _, s := range []struct {
		name   string
		source model.Source
	}{{"the config.json of --model", spec.Target}, {"the config.json of --draft-model", spec.Draft}} {
		digest := ""
		if s.source.Files != nil {
			b, err := fs.ReadFile(s.source.Files, "config.json")
			if err != nil {
				return nil, fault.Errorf(fault.ModelNotFound, "%s: %w", s.source.Name, err)
			}
			digest = fmt.Sprintf("%x", sha256.Sum256(b))[:16]
		}
		same = append(same, collective.Setting{Name: s.name, Value: digest})
	}
	same = append(same, []collective.Setting{
		{Name: "the device", Value: e.backend.name}, {Name: "--kv-cache-dtype", Value: e.backend.cacheFormat()}, {Name: "--speculative-algorithm", Value: algorithm},
		{Name: "--check-ranks", Value: strconv.FormatBool(c.CheckRanks)},
		{Name: "--max-running-requests", Value: setting(c.MaxRunningRequests, e.chosen.running)},
		{Name: "--chunked-prefill-size", Value: setting(c.ChunkedPrefillSize, e.chosen.chunk)},
	}...)
	for _, v := range []struct {
		name  string
		value int
	}{
		{"--tp-size", c.TPSize}, {"--page-size", c.PageSize}, {"--context-length", c.ContextLength},
		{"--speculative-num-steps", c.NumSteps}, {"--speculative-eagle-topk", c.TopK},
		{"--speculative-num-draft-tokens", c.NumDraftTokens},
	} {
		same = append(same, collective.Setting{Name: v.name, Value: strconv.Itoa(v.value)})
	}
	return same, nil
}

// followLeader computes what node 0 decides until it ends.
func (e *Engine) followLeader(ctx context.Context) error {
	e.enter(telemetry.PhaseServing)
	e.ready.Store(!e.draining.Load())
	e.log.Info("ready", "node", e.cfg.Node, "nodes", e.cfg.Nodes, "leader", e.cfg.Leader)
	ended := make(chan error, 1)
	go func() { ended <- e.followPasses() }()
	select {
	case err := <-ended:
		e.ranks.Close()
		e.idleOnce.Do(func() { close(e.idle) })
		return err
	case err := <-e.watch(ctx):
		return err
	case <-ctx.Done():
	}
	e.nodes.Close() // ends the waiting for node 0, though not a pass that is under way
	select {
	case err := <-ended:
		e.log.Debug("the step loop has ended", "error", err)
		e.ranks.Close()
	case <-time.After(time.Second):
	}
	return ctx.Err()
}

// followPasses is the step loop of a node that follows. A panic in it is a fault,
// as in loop.
func (e *Engine) followPasses() (err error) {
	defer func() {
		if p := recover(); p != nil {
			os.Stderr.Write(debug.Stack())
			err = &fault.Error{Reason: fault.Internal, Rank: e.ranks.First(), Err: fmt.Errorf("the step loop failed: %v", p)}
		}
	}()
	return e.ranks.Follow(func() {
		e.beat.Store(tick.Of(time.Now()))
		e.busy.Store(true)
		if e.cfg.SimulateFault != "" {
			if err := e.breakPass(); err != nil {
				e.nodes.Abort(err)
			}
		}
	}, func() {
		e.beat.Store(tick.Of(time.Now()))
		e.busy.Store(false)
	})
}

// groupError is what ended an engine that is part of a group: what the group
// failed of, where err is only what came of it.
func (e *Engine) groupError(err error) error {
	if e.nodes == nil {
		return err
	}
	failed := e.nodes.Err()
	switch {
	case failed == nil:
		return err
	case e.follows() && e.draining.Load():
		e.log.Info("the group has ended while this node was stopping", "error", failed)
		return nil
	}
	return failed
}

// leaveGroup ends the group for all: with err, if that is not what it has failed of.
func (e *Engine) leaveGroup(err error) {
	if e.nodes == nil {
		return
	}
	if err != nil {
		if first := e.cfg.Node * e.cfg.localRanks(); rankOf(err) < first { // it concerns all ranks of this node
			err = fault.OnRank(first, err)
		}
		e.nodes.Abort(err)
	}
	e.nodes.Close()
}

// rankOf is the rank that met a fault.
func rankOf(err error) int {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Rank
	}
	return 0
}
