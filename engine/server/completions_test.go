package server

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/engine/internal/golden"
)

// both runs a test on whole and on streamed answers.
func both(t *testing.T, in *instance, f func(t *testing.T, ask func(testing.TB, fields) reply)) {
	t.Helper()
	t.Run("whole", func(t *testing.T) { f(t, in.post) })
	t.Run("streamed", func(t *testing.T) { f(t, in.streamed) })
}

func TestGoldenText(t *testing.T) {
	both(t, sharedInstance(t), func(t *testing.T, ask func(testing.TB, fields) reply) {
		for i, g := range golden.Cases() {
			n := len(g.Output)
			prompts := map[string]any{"text": g.Text}
			if i < 2 {
				prompts["ids"] = g.Prompt
			}
			for kind, prompt := range prompts {
				r := ask(t, fields{"prompt": prompt, "temperature": 0, "max_tokens": n, "return_token_ids": true})
				if len(r.Choices) != 1 || r.Object != "text_completion" || r.Model != servedName || !strings.HasPrefix(r.ID, "cmpl-") {
					t.Fatalf("prompt %d as %s: %+v", i, kind, r)
				}
				c := r.Choices[0]
				if c.Text != g.OutputText || !slices.Equal(c.TokenIDs, g.Output) {
					t.Errorf("prompt %d as %s: text %q, want %q", i, kind, c.Text, g.OutputText)
				}
				if !slices.Equal(c.PromptTokenIDs, g.Prompt) {
					t.Errorf("prompt %d as %s: prompt_token_ids %v, want %v", i, kind, c.PromptTokenIDs, g.Prompt)
				}
				if c.FinishReason == nil || *c.FinishReason != "length" || c.Logprobs != nil {
					t.Errorf("prompt %d as %s: finish_reason %v, logprobs %v", i, kind, c.FinishReason, c.Logprobs)
				}
				if u := r.Usage; u.PromptTokens != len(g.Prompt) || u.CompletionTokens != n || u.TotalTokens != u.PromptTokens+n {
					t.Errorf("prompt %d as %s: usage %+v", i, kind, u)
				}
				checkSpeculation(t, g, r.Speculation)
			}
		}
	})
}

// checkSpeculation compares the account with the golden cycles: all of them
// but the last few, which the end of the answer cuts short.
func checkSpeculation(t *testing.T, g golden.Case, s *speculation) {
	t.Helper()
	accepted := 0
	for _, c := range g.Cycles {
		accepted += c.Accepted
	}
	// The engine's first token comes from the prompt's pass, as the golden
	// file's does; a verify settles 1 + accepted tokens.
	if got := 1 + s.Verifies + s.Accepted; got > len(g.Output) || got < len(g.Output)-2 {
		t.Errorf("%d verifies that accepted %d make %d tokens, want about %d", s.Verifies, s.Accepted, got, len(g.Output))
	}
	if s.Accepted > accepted || s.Accepted < accepted-g.Steps-1 || s.Drafted > s.Verifies*g.Steps || s.Accepted > s.Drafted {
		t.Errorf("speculation %+v, the golden file accepts %d in %d cycles", s, accepted, len(g.Cycles))
	}
}

func TestDefaultMaxTokens(t *testing.T) {
	in := sharedInstance(t)
	if n := in.post(t, fields{"prompt": "package main\n", "ignore_eos": true}).Usage.CompletionTokens; n != defaultMaxToken {
		t.Errorf("%d tokens, want %d", n, defaultMaxToken)
	}
	// At the end of the context the default is what is left.
	ids := make([]int32, in.Info().ContextLength-3)
	if n := in.post(t, fields{"prompt": ids, "ignore_eos": true}).Usage.CompletionTokens; n != 3 {
		t.Errorf("%d tokens near the end of the context, want 3", n)
	}
}

func TestLogprobs(t *testing.T) {
	in := sharedInstance(t)
	g := golden.Cases()[0]
	for _, n := range []int{0, 5, 20} {
		f := fields{"prompt": g.Text, "temperature": 0, "max_tokens": 40, "logprobs": n}
		whole, streamed := in.post(t, f).Choices[0], in.streamed(t, f).Choices[0]
		l := whole.Logprobs
		if !reflect.DeepEqual(l, streamed.Logprobs) {
			t.Errorf("logprobs %d: whole\n%+v\nand streamed\n%+v", n, l, streamed.Logprobs)
		}
		if len(l.Tokens) != 40 || len(l.TokenLogprobs) != 40 || len(l.TopLogprobs) != 40 || len(l.TextOffset) != 40 {
			t.Fatalf("logprobs %d: %d tokens, %d logprobs, %d tops, %d offsets, want 40 of each", n, len(l.Tokens), len(l.TokenLogprobs), len(l.TopLogprobs), len(l.TextOffset))
		}
		text := []rune(whole.Text)
		for i, token := range l.Tokens {
			p := float64(l.TokenLogprobs[i])
			if math.IsNaN(p) || math.IsInf(p, 0) || p > 0 {
				t.Errorf("logprobs %d: token %d has %v", n, i, p)
			}
			if top := l.TopLogprobs[i]; len(top) < max(1, n) || len(top) > n+1 || top[token] != l.TokenLogprobs[i] {
				t.Errorf("logprobs %d: token %d: %d alternatives, %v of %q, want %v", n, i, len(top), top[token], token, l.TokenLogprobs[i])
			}
			for other, q := range l.TopLogprobs[i] {
				if q > l.TokenLogprobs[i] {
					t.Errorf("logprobs %d: token %d: greedy took %q, but %q is likelier", n, i, token, other)
				}
			}
			if !strings.HasPrefix(string(text[l.TextOffset[i]:]), token) {
				t.Errorf("logprobs %d: token %d %q is not at offset %d of the text", n, i, token, l.TextOffset[i])
			}
		}
	}
}

func TestTokenName(t *testing.T) {
	tok := sharedInstance(t).Tokenizer()
	broken := int32(-1)
	for id := range int32(tok.VocabSize()) {
		if b := tok.TokenBytes(id); len(b) > 0 && !utf8.Valid(b) {
			broken = id
			break
		}
	}
	if broken < 0 {
		t.Fatal("the vocabulary has no token of broken bytes")
	}
	want := "bytes:"
	for _, b := range tok.TokenBytes(broken) {
		want += fmt.Sprintf(`\x%02x`, b)
	}
	if got := tokenName(tok, broken); got != want {
		t.Errorf("token %d is %q, want %q", broken, got, want)
	}
	if got := tokenName(nil, 7); got != "token_id:7" {
		t.Errorf("without a tokenizer token 7 is %q", got)
	}
}

func TestStop(t *testing.T) {
	in := sharedInstance(t)
	g := golden.Cases()[0] // "…\t\"io\"\n\t\"os\"\n…"
	both(t, in, func(t *testing.T, ask func(testing.TB, fields) reply) {
		for _, stop := range []any{`"io"`, []string{"never in it", `"io"`, `"os"`}} {
			r := ask(t, fields{"prompt": g.Text, "temperature": 0, "max_tokens": 90, "stop": stop, "return_token_ids": true, "logprobs": 0})
			c := r.Choices[0]
			want := g.OutputText[:strings.Index(g.OutputText, `"io"`)]
			if c.Text != want || *c.FinishReason != "stop" {
				t.Errorf("stop %v: %q, %s, want %q, stop", stop, c.Text, *c.FinishReason, want)
			}
			if n := r.Usage.CompletionTokens; len(c.TokenIDs) != n || len(c.Logprobs.Tokens) != n || !slices.Equal(c.TokenIDs, g.Output[:n]) {
				t.Errorf("stop %v: %d token ids, %d logprobs, %d in usage", stop, len(c.TokenIDs), len(c.Logprobs.Tokens), n)
			}
		}
		id := g.Output[5]
		at := slices.Index(g.Output, id)
		r := ask(t, fields{"prompt": g.Text, "temperature": 0, "max_tokens": 90, "stop_token_ids": []int32{id}, "return_token_ids": true})
		if c := r.Choices[0]; *c.FinishReason != "stop" || !slices.Equal(c.TokenIDs, g.Output[:at+1]) {
			t.Errorf("stop_token_ids %d: %v, %s, want %v, stop", id, c.TokenIDs, *c.FinishReason, g.Output[:at+1])
		}
		r = ask(t, fields{"prompt": g.Text, "temperature": 0, "max_tokens": 90, "stop": `"io"`, "min_tokens": 50})
		if n := r.Usage.CompletionTokens; n < 50 {
			t.Errorf("min_tokens 50: %d tokens", n)
		}
	})
}

func TestSampling(t *testing.T) {
	in := sharedInstance(t)
	base := fields{"prompt": "func ", "max_tokens": 48, "ignore_eos": true}
	text := func(f fields) string { return in.post(t, base.with(f)).Choices[0].Text }
	seeded := text(fields{"seed": 7})
	if again := text(fields{"seed": 7}); again != seeded {
		t.Errorf("seed 7 gave %q and %q", seeded, again)
	}
	if streamed := in.streamed(t, base.with(fields{"seed": 7})).Choices[0].Text; streamed != seeded {
		t.Errorf("seed 7 gave %q whole and %q streamed", seeded, streamed)
	}
	if text(fields{"seed": -7}) == seeded {
		t.Error("seeds 7 and -7 gave the same text")
	}
	if one, other := text(nil), text(nil); one == other {
		t.Error("without a seed two requests gave the same text")
	}
	greedy := text(fields{"temperature": 0})
	for name, f := range map[string]fields{"top_k 1": {"top_k": 1}, "min_p 1": {"min_p": 1}, "tiny top_p": {"top_p": 1e-9}} {
		if got := text(f); got != greedy {
			t.Errorf("%s: %q, want the greedy %q", name, got, greedy)
		}
	}
	n := in.post(t, base.with(fields{"seed": 7, "n": 3}))
	if len(n.Choices) != 3 || n.Choices[0].Text != seeded || n.Choices[1].Text == seeded || n.Choices[2].Text == n.Choices[1].Text {
		t.Errorf("n 3: %+v, choice 0 should be %q and the others differ", n.Choices, seeded)
	}
	if u := n.Usage; u.CompletionTokens != 3*48 || u.PromptTokens != in.post(t, base).Usage.PromptTokens {
		t.Errorf("n 3: usage %+v: the prompt counts once", u)
	}
}

func TestPromptLists(t *testing.T) {
	in := sharedInstance(t)
	g := golden.Cases()[:4]
	var texts []string
	var ids [][]int32
	promptTokens := 0
	for _, v := range g {
		texts, ids = append(texts, v.Text), append(ids, v.Prompt)
		promptTokens += len(v.Prompt)
	}
	both(t, in, func(t *testing.T, ask func(testing.TB, fields) reply) {
		for kind, prompt := range map[string]any{"texts": texts, "ids": ids, "mixed": []any{texts[0], ids[1], texts[2], ids[3]}} {
			r := ask(t, fields{"prompt": prompt, "temperature": 0, "max_tokens": 30, "n": 2, "return_token_ids": true})
			if len(r.Choices) != 8 {
				t.Fatalf("%s: %d choices, want 8", kind, len(r.Choices))
			}
			for i, c := range r.Choices {
				want := g[i/2]
				if c.Index != i || !slices.Equal(c.TokenIDs, want.Output[:30]) || !slices.Equal(c.PromptTokenIDs, want.Prompt) || *c.FinishReason != "length" {
					t.Errorf("%s: choice %d is %+v, want the answer to %q", kind, i, c, want.Text)
				}
			}
			if r.Usage.PromptTokens != promptTokens || r.Usage.CompletionTokens != 240 {
				t.Errorf("%s: usage %+v, want %d and 240", kind, r.Usage, promptTokens)
			}
		}
	})
}

// TestPenalties: biases and penalties reach the sampler and, whole or
// streamed, speculating, give the same text.
func TestPenalties(t *testing.T) {
	in := sharedInstance(t)
	g := golden.Cases()[0]
	base := fields{"prompt": g.Text, "temperature": 0, "max_tokens": 24, "return_token_ids": true}
	for name, c := range map[string]struct {
		f  fields
		ok func(ids []int32) bool
	}{
		"a token is banned":  {fields{"logit_bias": fields{fmt.Sprint(g.Output[0]): -100}}, func(ids []int32) bool { return !slices.Contains(ids, g.Output[0]) }},
		"a token is forced":  {fields{"logit_bias": fields{"77": 100}}, func(ids []int32) bool { return slices.Min(ids) == 77 && slices.Max(ids) == 77 }},
		"presence":           {fields{"presence_penalty": 2}, func(ids []int32) bool { return !slices.Equal(ids, g.Output[:24]) }},
		"frequency":          {fields{"frequency_penalty": 2}, func(ids []int32) bool { return !slices.Equal(ids, g.Output[:24]) }},
		"repetition":         {fields{"repetition_penalty": 100}, func(ids []int32) bool { return !slices.Equal(ids, g.Output[:24]) }},
		"repetition of none": {fields{"repetition_penalty": 1, "logit_bias": fields{"77": 0}}, func(ids []int32) bool { return slices.Equal(ids, g.Output[:24]) }},
	} {
		whole, streamed := in.post(t, base.with(c.f)).Choices[0], in.streamed(t, base.with(c.f)).Choices[0]
		if !slices.Equal(whole.TokenIDs, streamed.TokenIDs) || !c.ok(whole.TokenIDs) {
			t.Errorf("%s: whole %v, streamed %v", name, whole.TokenIDs, streamed.TokenIDs)
		}
	}
}

// Echo puts the prompt before the answer, once for each choice.
func TestEcho(t *testing.T) {
	in := sharedInstance(t)
	g := golden.Cases()[0]
	both(t, in, func(t *testing.T, ask func(testing.TB, fields) reply) {
		r := ask(t, fields{"prompt": []any{g.Text, "func "}, "echo": true, "temperature": 0, "max_tokens": 5, "n": 2})
		plain := ask(t, fields{"prompt": []any{g.Text, "func "}, "temperature": 0, "max_tokens": 5, "n": 2})
		for i, c := range r.Choices {
			if want := []string{g.Text, "func "}[i/2] + plain.Choices[i].Text; c.Text != want {
				t.Errorf("choice %d: got %q: want %q", i, c.Text, want)
			}
		}
		ids := ask(t, fields{"prompt": g.Prompt, "echo": true, "temperature": 0, "max_tokens": 5})
		if want := g.Text + plain.Choices[0].Text; ids.Choices[0].Text != want {
			t.Errorf("of token ids: got %q: want %q", ids.Choices[0].Text, want)
		}
	})
}

// Of best_of answers those with the most likely tokens come back.
func TestBestOf(t *testing.T) {
	in := sharedInstance(t)
	f := fields{"prompt": []string{"func ", "type "}, "seed": 3, "temperature": 1.5, "max_tokens": 12}
	all := in.post(t, f.with(fields{"n": 6, "logprobs": 0}))
	best := in.post(t, f.with(fields{"n": 2, "best_of": 6}))
	if len(best.Choices) != 4 || best.Usage.CompletionTokens != all.Usage.CompletionTokens {
		t.Fatalf("%d choices of %d tokens: want 4 of %d", len(best.Choices), best.Usage.CompletionTokens, all.Usage.CompletionTokens)
	}
	mean := func(l *logprobs) float32 {
		sum := float32(0)
		for _, p := range l.TokenLogprobs {
			sum += p
		}
		return sum / float32(len(l.TokenLogprobs))
	}
	for prompt := range 2 {
		group := all.Choices[prompt*6 : prompt*6+6]
		slices.SortStableFunc(group, func(a, b struct {
			Index          int       `json:"index"`
			Text           string    `json:"text"`
			Logprobs       *logprobs `json:"logprobs"`
			FinishReason   *string   `json:"finish_reason"`
			TokenIDs       []int32   `json:"token_ids"`
			PromptTokenIDs []int32   `json:"prompt_token_ids"`
		}) int {
			return cmp.Compare(mean(b.Logprobs), mean(a.Logprobs))
		})
		for k := range 2 {
			c := best.Choices[prompt*2+k]
			if c.Text != group[k].Text || c.Index != prompt*2+k || c.Logprobs != nil {
				t.Errorf("prompt %d, place %d: got %+v: want %q", prompt, k, c, group[k].Text)
			}
		}
	}
}
