package engine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// propertySeeds is how many models and settings TestTextsAreEqual tries.
// OUTRIDER_TEST_SEEDS makes it more.
func propertySeeds(t *testing.T) uint64 {
	s := os.Getenv("OUTRIDER_TEST_SEEDS")
	if s == "" {
		return 10
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// randomSynthRequest goes on from an earlier request's prompt now and then.
func randomSynthRequest(rng *rand.Rand, before []scheduler.Request) scheduler.Request {
	prompt := make([]int32, 1+rng.IntN(40))
	for i := range prompt {
		prompt[i] = 2 + rng.Int32N(synthVocab-2)
		if i > 4 && rng.IntN(3) > 0 { // repeats, which n-grams find
			prompt[i] = prompt[i-4]
		}
	}
	if len(before) > 0 && rng.IntN(3) == 0 {
		other := before[rng.IntN(len(before))].PromptIDs
		prompt = append(slices.Clone(other[:1+rng.IntN(len(other))]), prompt...)
	}
	prompt = prompt[:min(len(prompt), synthContext/2)]
	r := scheduler.Request{PromptIDs: prompt, MaxTokens: 1 + rng.IntN(60), Logprobs: scheduler.NoLogprobs, IgnoreEOS: rng.IntN(2) == 0,
		Sampling: sampling.Params{TopP: 1, Seed: rng.Uint64()}}
	if rng.IntN(16) == 0 { // to the end of the context
		r.MaxTokens, r.IgnoreEOS = synthContext-len(prompt), true
	}
	p := &r.Sampling
	switch rng.IntN(5) {
	case 0, 1:
	case 2:
		p.Temperature = 0.3
	case 3:
		p.Temperature, p.TopP = 0.8, 0.9
	case 4:
		p.Temperature, p.TopK, p.MinP = 1.2, 20, 0.02
	}
	switch rng.IntN(5) {
	case 0:
		p.Repetition = 1.3
	case 1:
		p.Presence, p.Frequency = 0.6, 0.3
		p.Bias = []sampling.Bias{{ID: 7, Value: -2}, {ID: 9, Value: 1.5}}
	}
	switch rng.IntN(4) {
	case 0:
		r.StopIDs, r.MinTokens = []int32{5, 6, 7}, rng.IntN(r.MaxTokens+1)
	case 1:
		r.Logprobs = 2
	}
	return r
}

// randomSettings is a way to compute them with m.
func randomSettings(rng *rand.Rand, m synthetic) Config {
	c := Config{
		Model: m.target, PageSize: []int{1, 4, 16}[rng.IntN(3)], NumSteps: 1 + rng.IntN(5),
		ChunkedPrefillSize: []int{3, 17, 256}[rng.IntN(3)], MaxRunningRequests: []int{1, 3, 8}[rng.IntN(3)],
	}
	switch rng.IntN(6) {
	case 0:
		c.Algorithm = AlgorithmNone
	case 1:
		c.Algorithm, c.NGramMin, c.NGramMax = AlgorithmNGram, 1+rng.IntN(3), 3+rng.IntN(6)
	case 2, 3:
		c.Algorithm, c.DraftModel = AlgorithmDraft, m.small
	default:
		c.Algorithm, c.DraftModel = AlgorithmEagle3, m.head
	}
	if a := algorithms[c.Algorithm]; a != nil && a.trees && rng.IntN(3) > 0 {
		c.TopK = 2 + rng.IntN(9)
		c.NumDraftTokens = 2 + rng.IntN(c.withDefaults().mostDraftTokens()-1)
	}
	if rng.IntN(4) == 0 {
		c.Mode = speculation.ModeAuto
	}
	if rng.IntN(3) == 0 { // requests are retracted
		c.MaxTotalTokens = synthContext + 2*c.PageSize
	}
	return c
}

// The text of a request and its log probabilities are those of plain decoding
// alone, whatever drafts, as chains or trees, however deep, wide and pruned, with
// any pages, chunks, windows, ranks and company; with float8 caches too.
func TestTextsAreEqual(t *testing.T) {
	var accepted atomic.Int64
	trees := 0
	seeds := propertySeeds(t)
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 31))
		ranks := []int{1, 1, 2, 1, 1, 4}[seed%6]
		cache := []string{FormatAuto, FormatAuto, "fp8"}[seed/2%3]
		m := synthesise(t, seed, []int{4, 2, 1}[rng.IntN(3)], []int{0, 0, 9}[rng.IntN(3)])
		var requests []scheduler.Request
		for range 32 {
			requests = append(requests, randomSynthRequest(rng, requests))
		}
		want := make([]scheduler.Event, len(requests))
		run(t, Config{Model: m.target, Algorithm: AlgorithmNone, TPSize: ranks, MaxRunningRequests: 1, KVCacheDType: cache}, 1, func(e *Engine, i int) {
			want[i] = complete(t, e, requests[i])
		}, len(requests))
		for range 4 {
			c := randomSettings(rng, m)
			c.TPSize, c.KVCacheDType = ranks, cache
			at := 1 + rng.IntN(2*c.MaxRunningRequests)
			changes := rng.IntN(3) == 0 && c.Algorithm != AlgorithmNone
			name := fmt.Sprintf("seed %d, %d ranks, cache %s, %s, steps %d, top-k %d, draft tokens %d, page size %d, chunks %d, %d at once, auto %v, small pool %v, changes %v",
				seed, ranks, cache, c.Algorithm, c.NumSteps, c.TopK, c.NumDraftTokens, c.PageSize, c.ChunkedPrefillSize, at, c.Mode != "", c.MaxTotalTokens > 0, changes)
			e := run(t, c, at, func(e *Engine, i int) {
				if changes && i%3 == 0 {
					change(t, e, i)
				}
				r := requests[i]
				got := complete(t, e, r)
				w := want[i]
				if !slices.Equal(got.TokenIDs, w.TokenIDs) || got.Finish != w.Finish || !equalLogprobs(got.Logprobs, w.Logprobs) {
					t.Errorf("%s: request %d %+v:\n got %v %s %v\nwant %v %s", name, i, r, got.TokenIDs, got.Finish, got.Err, w.TokenIDs, w.Finish)
				}
				accepted.Add(int64(got.Usage.Accepted))
				if u := got.Usage; u.Accepted > u.Drafted || u.Verifies > u.CompletionTokens {
					t.Errorf("%s: request %d: usage %+v", name, i, u)
				}
			}, len(requests))
			eventually(t, name+": pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
			if c.TopK > 1 {
				trees++
			}
			if t.Failed() {
				return
			}
		}
	}
	if seeds >= 10 && (accepted.Load() < 1000 || trees < 10) {
		t.Errorf("only %d accepted tokens, %d settings with trees: the test does not test them", accepted.Load(), trees)
	}
}

// change sets another depth, or none.
func change(t *testing.T, e *Engine, i int) {
	mode := []speculation.Mode{speculation.ModeOff, speculation.ModeFixed, speculation.ModeAuto}[i/3%3]
	if err := e.SetSpeculation(mode, 0, e.Info().NumSteps-i%2*(e.Info().NumSteps-1)); err != nil {
		t.Error(err)
	}
}

// run starts an engine and has it do n jobs, at most at of them at once.
func run(t *testing.T, c Config, at int, job func(e *Engine, i int), n int) *Engine {
	t.Helper()
	e, stop := startUntil(t, c)
	defer stop()
	var wg sync.WaitGroup
	gate := make(chan struct{}, at)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			job(e, i)
		})
	}
	wg.Wait()
	eventually(t, "the engine does not come to rest", func() bool { return !e.busy.Load() })
	return e
}
