package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// goText is n tokens of the golden texts, one after the other, from token offset
// on, and again from the first.
func goText(offset, n int) []int32 {
	var all []int32
	for _, c := range golden.Cases() {
		all = append(append(all, c.Prompt...), c.Output...)
	}
	text := make([]int32, n)
	for i := range text {
		text[i] = all[(offset+i)%len(all)]
	}
	return text
}

// prefixCase is a kind of request: the first prefix tokens of its prompt are
// those of another one, more follow, and it asks for out tokens.
type prefixCase struct{ prefix, more, out int }

// Ways in which the beginning of a prompt was computed before.
const (
	prefixCold = "cold" // not at all
	prefixOn   = "cached while on"
	prefixOff  = "cached while off"
)

// askPrefixes has a new engine answer n prompts of a kind with speculation on,
// each twice. The answers are the texts and the usage of all first and second
// answers together.
func askPrefixes(t testing.TB, how string, c prefixCase, n int) (texts [][]int32, first, second scheduler.Usage) {
	e, stop := startUntil(t, Config{MaxRunningRequests: 1})
	defer stop()
	ask := func(mode speculation.Mode, prompt []int32, out int) scheduler.Event {
		if err := e.SetSpeculation(mode, 0, 3); err != nil {
			t.Fatal(err)
		}
		return complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: out, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
	}
	add := func(sum *scheduler.Usage, u scheduler.Usage) {
		sum.CachedTokens, sum.Verifies, sum.Accepted = sum.CachedTokens+u.CachedTokens, sum.Verifies+u.Verifies, sum.Accepted+u.Accepted
	}
	for i := range n {
		prompt := goText(41*i, c.prefix+c.more)
		switch how {
		case prefixOn:
			ask(speculation.ModeFixed, prompt[:c.prefix+1], 1)
		case prefixOff:
			ask(speculation.ModeOff, prompt[:c.prefix+1], 1)
		}
		a, b := ask(speculation.ModeFixed, prompt, c.out), ask(speculation.ModeFixed, prompt, c.out)
		if !slices.Equal(a.TokenIDs, b.TokenIDs) {
			t.Errorf("%s, prompt %d: %q, and then %q", how, i, a.Text, b.Text)
		}
		texts = append(texts, a.TokenIDs)
		add(&first, a.Usage)
		add(&second, b.Usage)
	}
	return texts, first, second
}

// A prompt gets as good drafts on cached pages as without the cache, also on
// those of plain decoding, which lack the head's entries: so many tokens as it
// needs to see are computed again, once.
func TestSpeculationOnPagesOfPlainDecoding(t *testing.T) {
	const n = 6
	c := prefixCase{prefix: 256, more: 1, out: 32}
	want, cold, warm := askPrefixes(t, prefixCold, c, n)
	if cold.CachedTokens != 0 {
		t.Fatalf("%d tokens are cached from the start", cold.CachedTokens)
	}
	texts, on, _ := askPrefixes(t, prefixOn, c, n)
	if !slices.EqualFunc(texts, want, slices.Equal) || on.CachedTokens != n*c.prefix || on.AcceptLength() != cold.AcceptLength() {
		t.Errorf("on pages with draft entries: %+v, want %+v", on, cold)
	}
	texts, off, again := askPrefixes(t, prefixOff, c, n)
	t.Logf("accept length %.3f cold, %.3f on pages of plain decoding, and then %.3f", cold.AcceptLength(), off.AcceptLength(), again.AcceptLength())
	if !slices.EqualFunc(texts, want, slices.Equal) {
		t.Error("on pages of plain decoding there are other texts")
	}
	if least := 0.9 * cold.AcceptLength(); off.AcceptLength() < least || again.AcceptLength() < least {
		t.Errorf("on pages of plain decoding %.3f tokens are accepted, and then %.3f: want %.3f", off.AcceptLength(), again.AcceptLength(), least)
	}
	if off.CachedTokens != n*(c.prefix-speculation.Window) || again.CachedTokens != warm.CachedTokens {
		t.Errorf("%d tokens of pages of plain decoding are found, and then %d: want %d and %d",
			off.CachedTokens, again.CachedTokens, n*(c.prefix-speculation.Window), warm.CachedTokens)
	}
}

// What drafts are worth on pages of plain decoding, by how many tokens at the
// prompt's end are computed again.
func BenchmarkPagesOfPlainDecoding(b *testing.B) {
	a := algorithms[AlgorithmEagle3]
	defer func(window int) { a.window = window }(a.window)
	for _, c := range []prefixCase{{512, 1, 32}, {256, 1, 128}, {512, 33, 128}} {
		measure := func(name, how string, window int) {
			b.Run(fmt.Sprintf("prefix=%d/more=%d/out=%d/%s", c.prefix, c.more, c.out, name), func(b *testing.B) {
				a.window = window
				for range b.N {
					_, u, _ := askPrefixes(b, how, c, 20)
					b.ReportMetric(u.AcceptLength(), "tokens/verify")
					b.ReportMetric(float64(u.CachedTokens)/20, "cached")
				}
			})
		}
		measure("cold", prefixCold, speculation.Window)
		measure("on", prefixOn, speculation.Window)
		for _, window := range []int{0, 16, 32, 64, 128} {
			measure(fmt.Sprintf("off,window=%d", window), prefixOff, window)
		}
	}
}
