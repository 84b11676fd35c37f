package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// The same prompt twice: the same text and as many cached tokens with
// speculation on and off, and drafts as good as without the cache; also where
// one text goes on from another's answer.
func TestPrefixCache(t *testing.T) {
	prompt := slices.Concat(golden.Cases()[0].Prompt, golden.Cases()[0].Output)
	for _, pageSize := range []int{1, 16, 128} {
		hits := map[string][]int{}
		for _, algorithm := range []string{AlgorithmEagle3, AlgorithmNone} {
			e := start(t, Config{Algorithm: algorithm, PageSize: pageSize, ChunkedPrefillSize: 50, MaxRunningRequests: 1})
			var answer []int32
			requests := []scheduler.Request{
				{PromptIDs: prompt, MaxTokens: 40, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs},
				{PromptIDs: prompt, MaxTokens: 40, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs},
				{PromptIDs: prompt[:40], MaxTokens: 40, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs,
					Sampling: sampling.Params{Temperature: 0.8, TopP: 1, Seed: 4}},
			}
			for i := range 4 {
				if i == 3 { // goes on from the second answer
					requests = append(requests, scheduler.Request{PromptIDs: slices.Concat(prompt, answer, prompt[:20]), MaxTokens: 40, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
				}
				r := requests[i]
				got := complete(t, e, r)
				want := complete(t, start(t, Config{Algorithm: algorithm, PageSize: pageSize, MaxRunningRequests: 1}), r)
				if want.Usage.CachedTokens != 0 {
					t.Fatalf("a new engine has %d tokens cached", want.Usage.CachedTokens)
				}
				if i == 1 {
					answer = want.TokenIDs
				}
				hits[algorithm] = append(hits[algorithm], got.Usage.CachedTokens)
				got.Usage.CachedTokens = 0
				for _, u := range []*scheduler.Usage{&got.Usage, &want.Usage} {
					u.Queue, u.Prefill, u.Decode = 0, 0, 0
				}
				if !slices.Equal(got.TokenIDs, want.TokenIDs) || got.Usage != want.Usage {
					t.Errorf("%s, page size %d, request %d:\n got %q %+v\nwant %q %+v", algorithm, pageSize, i, got.Text, got.Usage, want.Text, want.Usage)
				}
			}
			total := 0
			for _, n := range hits[algorithm] {
				total += n
			}
			if got := testutil.ToFloat64(e.metrics.CachedTokens); got != float64(total) {
				t.Errorf("%s, page size %d: cached_tokens_total is %v, usage says %d", algorithm, pageSize, got, total)
			}
			if got, want := testutil.ToFloat64(e.metrics.PrefixHitRatio), float64(total)/testutil.ToFloat64(e.metrics.PromptTokens); got != want {
				t.Errorf("%s, page size %d: prefix_cache_hit_ratio is %v, want %v", algorithm, pageSize, got, want)
			}
		}
		n := len(prompt)
		whole := func(tokens int) int { return (tokens - 1) / pageSize * pageSize }
		want := []int{0, whole(n), whole(40), whole(n + 40)}
		if got := hits[AlgorithmEagle3]; !slices.Equal(got, want) || !slices.Equal(hits[AlgorithmNone], want) {
			t.Errorf("page size %d: cached tokens %v with speculation, %v without, want %v", pageSize, got, hits[AlgorithmNone], want)
		}
	}
}

// A pool of 1.1 × one longest request serves four at once; those that are
// retracted go on where they were, greedy or sampled, with speculation or not.
func TestRetractedTextsAreTheSame(t *testing.T) {
	const context = 240
	prompts := golden.Cases()
	var requests []scheduler.Request
	for i := range 5 {
		prompt := slices.Concat(prompts[i%len(prompts)].Prompt, prompts[i%len(prompts)].Output[:10])
		r := scheduler.Request{PromptIDs: prompt, MaxTokens: context - len(prompt), IgnoreEOS: true, Logprobs: scheduler.NoLogprobs,
			Sampling: sampling.Params{TopP: 1, Seed: uint64(i)}}
		if i%2 == 1 {
			r.Sampling.Temperature = 0.9
		}
		if i%4 == 3 {
			r.Logprobs, r.Sampling.Frequency = 2, 0.3
		}
		requests = append(requests, r)
	}
	reference := map[int][]scheduler.Event{} // by ranks: they sum in another order
	for _, ranks := range []int{1, 2} {
		plain := start(t, Config{Algorithm: AlgorithmNone, ContextLength: context, TPSize: ranks, MaxRunningRequests: 1})
		for _, r := range requests {
			reference[ranks] = append(reference[ranks], complete(t, plain, r))
		}
	}
	for _, c := range []Config{
		{Algorithm: AlgorithmEagle3}, {Algorithm: AlgorithmNone},
		{Algorithm: AlgorithmEagle3, PageSize: 1, ChunkedPrefillSize: 30},
		{Algorithm: AlgorithmEagle3, PageSize: 32, NumSteps: 6, TPSize: 2},
	} {
		t.Run(fmt.Sprintf("%s, page size %d", c.Algorithm, c.PageSize), func(t *testing.T) {
			c.ContextLength, c.MaxTotalTokens, c.MaxRunningRequests = context, context*11/10, 4
			e := start(t, c)
			got := make([]scheduler.Event, len(requests))
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() { got[i] = complete(t, e, requests[i]) })
			}
			wg.Wait()
			want := reference[max(c.TPSize, 1)]
			for i := range requests {
				if !slices.Equal(got[i].TokenIDs, want[i].TokenIDs) || got[i].Text != want[i].Text || got[i].Finish != scheduler.FinishLength ||
					!equalLogprobs(got[i].Logprobs, want[i].Logprobs) {
					t.Errorf("request %d:\n got %q\nwant %q", i, got[i].Text, want[i].Text)
				}
			}
			eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
			if n := testutil.ToFloat64(e.metrics.Retractions); n < 3 {
				t.Errorf("retractions_total is %v: the test does not test them", n)
			}
		})
	}
}
