package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/internal/freeport"
)

// startNodes runs an engine on each of nodes nodes, and returns node 0's when it is
// ready, and what stops it.
func startNodes(t *testing.T, cfg Config, nodes int) (lead *Engine, stop func()) {
	t.Helper()
	cfg = narrow(cfg)
	cfg.Nodes, cfg.Leader, cfg.CheckRanks, cfg.NodeTimeout = nodes, freeport.Address(t), true, 30*time.Second
	ends := make(chan error, nodes)
	for node := nodes - 1; node > 0; node-- {
		c := cfg
		c.Node = node
		ranks := cfg.TPSize / nodes
		e, err := New(c, quiet(), telemetry.NewMetrics(prometheus.NewRegistry(), "test", time.Now), telemetry.NewProgressOf(node*ranks, ranks, time.Now))
		if err != nil {
			t.Fatal(err)
		}
		go func() { ends <- e.Run(context.Background()) }() // until node 0 ends
	}
	lead, end := startUntil(t, cfg)
	return lead, func() {
		end()
		for range nodes - 1 {
			if err := <-ends; err != nil {
				t.Errorf("a node that follows: %v", err)
			}
		}
	}
}

// Texts and log probabilities are those of as many ranks in one process, whatever
// drafts, with any pages, chunks and company.
func TestNodesGiveTheTextsOfOneProcess(t *testing.T) {
	for seed := range min(propertySeeds(t), 4) {
		rng := rand.New(rand.NewPCG(seed, 47))
		nodes, ranks := []int{2, 2, 4, 2}[seed], []int{2, 4, 4, 2}[seed]
		m := synthesise(t, seed, []int{4, 2, 1}[rng.IntN(3)], 0)
		var requests []scheduler.Request
		for range 7 {
			requests = append(requests, randomSynthRequest(rng, requests))
		}
		c := randomSettings(rng, m)
		c.TPSize = ranks
		name := fmt.Sprintf("seed %d, %d nodes, %d ranks, %s, steps %d, top-k %d, page size %d, chunks %d", seed, nodes, ranks, c.Algorithm, c.NumSteps, c.TopK, c.PageSize, c.ChunkedPrefillSize)
		want := make([]scheduler.Event, len(requests))
		run(t, c, 1, func(e *Engine, i int) { want[i] = complete(t, e, requests[i]) }, len(requests))
		e, stop := startNodes(t, c, nodes)
		for i, r := range requests {
			got := complete(t, e, r)
			if w := want[i]; !slices.Equal(got.TokenIDs, w.TokenIDs) || got.Finish != w.Finish || !equalLogprobs(got.Logprobs, w.Logprobs) {
				t.Errorf("%s: request %d: got %v %s %v, want %v %s", name, i, got.TokenIDs, got.Finish, got.Err, w.TokenIDs, w.Finish)
			}
		}
		stop()
	}
}
