package engine

import (
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// acceptLength is what the golden prompts' texts gain from drafts, which must not
// change them.
func acceptLength(t *testing.T, cfg Config) float64 {
	t.Helper()
	accepted, verifies := 0, 0
	run(t, cfg, 8, func(e *Engine, i int) {
		g := golden(t)[i]
		got := complete(t, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: len(g.Output), Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}})
		if !slices.Equal(got.TokenIDs, g.Output) {
			t.Errorf("%+v: %q: got %q, want %q", cfg, g.Text, got.Text, g.OutputText)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		accepted, verifies = accepted+got.Usage.Accepted, verifies+got.Usage.Verifies
	}, len(golden(t)))
	length := 1 + float64(accepted)/float64(max(verifies, 1))
	t.Logf("%s, steps %d, top-k %d, %d draft tokens: accept length %.3f", cfg.Algorithm, cfg.NumSteps, cfg.TopK, cfg.NumDraftTokens, length)
	return length
}

// Trees accept at least as much as chains of as many steps, and more the more
// nodes they keep.
func TestTreesAcceptMoreThanChains(t *testing.T) {
	chain := acceptLength(t, Config{Algorithm: AlgorithmEagle3, NumSteps: 3})
	for _, c := range []struct {
		topK, tokens int
		least        float64
	}{{4, 8, 1.03}, {4, 16, 1.1}} {
		if tree := acceptLength(t, Config{Algorithm: AlgorithmEagle3, NumSteps: 3, TopK: c.topK, NumDraftTokens: c.tokens}); tree < chain*c.least {
			t.Errorf("top-k %d with %d draft tokens accepts %.3f, a chain %.3f: want %.2f times as much", c.topK, c.tokens, tree, chain, c.least)
		}
	}
}

// The target as its own draft model is always right; chains and trees alike.
func TestDraftModelIsRight(t *testing.T) {
	for _, topK := range []int{1, 3} {
		got := acceptLength(t, Config{Algorithm: AlgorithmDraft, DraftModel: "builtin:gocode-7m", NumSteps: 3, TopK: topK})
		if got < 3.7 {
			t.Errorf("top-k %d: accept length %.3f of a draft model that is the target, want nearly 4", topK, got)
		}
	}
}

// Text that repeats is found without a draft model.
func TestNGramFindsRepetition(t *testing.T) {
	if got := acceptLength(t, Config{Algorithm: AlgorithmNGram, NumSteps: 3}); got < 1.3 {
		t.Errorf("accept length %.3f", got)
	}
}
