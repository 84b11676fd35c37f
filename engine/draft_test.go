package engine

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// acceptLength is what the golden prompts' texts gain from drafts, which must not
// change them.
func acceptLength(t *testing.T, cfg Config) float64 {
	t.Helper()
	accepted, verifies := 0, 0
	run(t, cfg, 8, func(e *Engine, i int) {
		g := golden.Cases()[i]
		got := complete(t, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: len(g.Output), Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}})
		if !slices.Equal(got.TokenIDs, g.Output) {
			t.Errorf("%+v: %q: got %q, want %q", cfg, g.Text, got.Text, g.OutputText)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		accepted, verifies = accepted+got.Usage.Accepted, verifies+got.Usage.Verifies
	}, len(golden.Cases()))
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

// A draft model whose tokens are others is refused, though it has as many.
func TestDraftModelOfOtherTokens(t *testing.T) {
	files, err := builtin.Open("gocode-7m")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tokenizer.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer(`"func":`, `"return":`, `"return":`, `"func":`).Replace(string(b))
	if swapped == string(b) {
		t.Fatal("the test changes nothing")
	}
	if err := os.WriteFile(path, []byte(swapped), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = newEngine(t, Config{Algorithm: AlgorithmDraft, DraftModel: dir}).Run(ctx)
	if fault.ReasonOf(err) != fault.DraftMismatch || !strings.Contains(err.Error(), `", but the target's is "`) {
		t.Errorf("%v with reason %s", err, fault.ReasonOf(err))
	}
}

// The draft model goes on from the prefix cache, whoever computed the pages, and
// after plain decoding: its cache lacks nothing, so it is always right.
func TestDraftModelCatchesUp(t *testing.T) {
	e, pace := startPaced(t, Config{Algorithm: AlgorithmDraft, DraftModel: "builtin:gocode-7m", NumSteps: 3, MaxRunningRequests: 2})
	g := golden.Cases()[0]
	set := func(mode speculation.Mode) {
		t.Helper()
		if err := e.SetSpeculation(mode, 0, 3); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(prompt []int32, n int) scheduler.Event {
		t.Helper()
		return complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: n, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
	}
	set(speculation.ModeOff)
	first := ask(slices.Concat(g.Prompt, g.Output), 100) // its pages have no draft entries
	set(speculation.ModeFixed)
	for _, prompt := range [][]int32{
		slices.Concat(g.Prompt, g.Output),                 // on those pages
		slices.Concat(g.Prompt, g.Output, first.TokenIDs), // and of the answer
		slices.Concat(g.Prompt, g.Output),                 // which have them now
		g.Prompt,
	} {
		got := ask(prompt, 60)
		if u := got.Usage; u.Accepted < u.Drafted*95/100 || u.Drafted < 30 {
			t.Errorf("%d cached tokens of %d: %d of %d draft tokens are accepted", u.CachedTokens, u.PromptTokens, u.Accepted, u.Drafted)
		}
	}
	pace(time.Millisecond) // the text is not over before the last change
	stream, err := e.Submit(&scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 700, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 { // back and forth between plain and speculative
		set([]speculation.Mode{speculation.ModeOff, speculation.ModeFixed}[i%2])
		time.Sleep(5 * time.Millisecond)
	}
	set(speculation.ModeFixed)
	pace(0)
	if u := drain(t, stream).Usage; u.Accepted < u.Drafted*95/100 || u.Drafted < 30 {
		t.Errorf("back from plain decoding %d of %d draft tokens are accepted", u.Accepted, u.Drafted)
	}
}

// Text that repeats is found without a draft model.
func TestNGramFindsRepetition(t *testing.T) {
	if got := acceptLength(t, Config{Algorithm: AlgorithmNGram, NumSteps: 3}); got < 1.3 {
		t.Errorf("accept length %.3f", got)
	}
}
