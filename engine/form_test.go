package engine

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// formCase is a form of a text, and what tells whether a whole text has it.
type formCase struct {
	name string
	src  grammar.Source
	has  func(text string) bool
}

func formCases() []formCase {
	object := func(text string) bool {
		var v map[string]any
		return json.Unmarshal([]byte(text), &v) == nil
	}
	matches := func(pattern string) func(string) bool {
		return regexp.MustCompile(`\A(?:` + pattern + `)\z`).MatchString
	}
	const code = `(func [a-z]{1,12}\(\) \{\n(\t[a-z]{1,8}(\.[A-Z][a-z]{0,9})?\([^)\n]{0,12}\)\n){0,4}\}\n){1,2}`
	const words = `([a-z]+ ){2,6}[a-z]+\.`
	return []formCase{
		{"object", grammar.JSONObject(), object},
		{"schema", grammar.Schema([]byte(`{"type":"object","properties":{"name":{"type":"string","maxLength":20},"size":{"type":"integer","minimum":3,"maximum":70},
			"kind":{"enum":["func","type","var"]},"parts":{"type":"array","items":{"$ref":"#/properties/kind"},"maxItems":3}},"required":["name","size","parts"]}`)), func(text string) bool {
			var v struct {
				Name  *string
				Size  int
				Kind  string
				Parts []string
			}
			d := json.NewDecoder(strings.NewReader(text))
			d.DisallowUnknownFields()
			return d.Decode(&v) == nil && v.Name != nil && len([]rune(*v.Name)) <= 20 && v.Size >= 3 && v.Size <= 70 && v.Parts != nil && len(v.Parts) <= 3
		}},
		{"code", grammar.Regex(code), matches(code)},
		{"words", grammar.Regex(words), matches(words)},
		{"choice", grammar.Choice("return err", "return nil", "panic(err)"), matches(`return err|return nil|panic\(err\)`)},
	}
}

// A text that must have a form has it, and is the same with speculation on, off,
// deep, shallow and changing, greedy and by chance, whatever runs beside it.
func TestFormDoesNotDependOnHowItIsComputed(t *testing.T) {
	cases, prompts := formCases(), golden.Cases()
	rng := rand.New(rand.NewPCG(2, 2))
	var requests []scheduler.Request
	plain := start(t, Config{Algorithm: AlgorithmNone})
	v := grammar.NewVocabulary(plain.Tokenizer())
	for i := range 40 {
		g, err := grammar.Compile(v, cases[i%len(cases)].src)
		if err != nil {
			t.Fatal(err)
		}
		p := prompts[i%len(prompts)]
		r := scheduler.Request{PromptIDs: slices.Concat(p.Prompt, p.Output[:rng.IntN(40)]), MaxTokens: 30 + rng.IntN(120), Logprobs: scheduler.NoLogprobs,
			Grammar: g, Sampling: sampling.Params{TopP: 1, Seed: rng.Uint64()}}
		switch rng.IntN(3) {
		case 0:
			r.Sampling.Temperature = 1
		case 1:
			r.Sampling.Temperature, r.Sampling.TopP, r.Sampling.Repetition = 0.8, 0.9, 1.1
		}
		switch rng.IntN(4) {
		case 0:
			r.Stop = []string{"}\n"}
		case 1:
			r.MinTokens = 5
		}
		requests = append(requests, r)
	}
	run := func(t *testing.T, e *Engine, at int) []scheduler.Event {
		events := make([]scheduler.Event, len(requests))
		gate := make(chan struct{}, at)
		var wg sync.WaitGroup
		for i, r := range requests {
			gate <- struct{}{}
			wg.Go(func() {
				events[i] = complete(t, e, r)
				<-gate
			})
		}
		wg.Wait()
		return events
	}
	want := run(t, plain, 1)
	whole := 0
	for i, ev := range want {
		c := cases[i%len(cases)]
		switch {
		case ev.Err != nil:
			t.Errorf("%s: %v", c.name, ev.Err)
		case ev.Finish == scheduler.FinishStop && requests[i].Stop == nil:
			whole++
			if !c.has(ev.Text) {
				t.Errorf("%s: the text is %q", c.name, ev.Text)
			}
		}
	}
	if whole < 10 {
		t.Errorf("only %d texts are whole: the test shows too little", whole)
	}
	const drawn = "drawn by the device"
	for _, c := range []struct {
		name string
		cfg  Config
		at   int
	}{
		{"one at a time", Config{}, 1},
		{"deep, small chunks", Config{NumSteps: 7, PageSize: 4, ChunkedPrefillSize: 5, MaxRunningRequests: 3}, 8},
		{"shallow, all at once", Config{NumSteps: 1}, 40},
		{"trees", Config{NumSteps: 4, TopK: 4, NumDraftTokens: 12}, 8},
		{"n-grams", Config{Algorithm: AlgorithmNGram, NumSteps: 4}, 8},
		{"changing", Config{NumSteps: 4}, 8},
		{"switched off", Config{Mode: speculation.ModeOff}, 8},
		{drawn, Config{}, 8},
		{drawn + ", trees", Config{NumSteps: 4, TopK: 4, NumDraftTokens: 12}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.AsyncScheduling = strings.HasPrefix(c.name, drawn)
			e := newEngine(t, c.cfg)
			if c.cfg.AsyncScheduling {
				e.wrap = func(d compute.Device) compute.Device { return newDrawer(d) }
			}
			t.Cleanup(runUntil(t, e))
			if c.name == "changing" {
				done := make(chan struct{})
				defer close(done)
				go changeDepth(e, done)
			}
			accepted := 0
			for i, ev := range run(t, e, c.at) {
				w := want[i]
				accepted += ev.Usage.Accepted
				if !slices.Equal(ev.TokenIDs, w.TokenIDs) || ev.Text != w.Text || ev.Finish != w.Finish {
					t.Errorf("%s: %q %s %v, want %q %s", cases[i%len(cases)].name, ev.Text, ev.Finish, ev.Err, w.Text, w.Finish)
				}
			}
			if c.cfg.Mode == "" && accepted == 0 {
				t.Error("no draft token was accepted: the test shows nothing of drafts")
			}
		})
	}
}

// What the form forbids is cut off a draft before the target computes it.
func TestDraftsFitTheForm(t *testing.T) {
	e := start(t, Config{NumSteps: 5})
	v := grammar.NewVocabulary(e.Tokenizer())
	g, err := grammar.Compile(v, grammar.Regex(`[0-9 ]{40,60}`)) // nothing that the head would propose
	if err != nil {
		t.Fatal(err)
	}
	r := scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 60, Logprobs: scheduler.NoLogprobs}
	free := complete(t, e, r).Usage
	r.Grammar = g
	bound := complete(t, e, r)
	if u := bound.Usage; u.Drafted*2 > free.Drafted {
		t.Errorf("%d tokens drafted for digits, %d for code: forbidden ones must be cut", u.Drafted, free.Drafted)
	}
	if !regexp.MustCompile(`^[0-9 ]+$`).MatchString(bound.Text) {
		t.Errorf("the text is %q", bound.Text)
	}
}

// Where nothing may follow the request ends with a reason, and the others go on.
func TestDeadEnd(t *testing.T) {
	e := start(t, Config{})
	v := grammar.NewVocabulary(e.Tokenizer())
	g, err := grammar.Compile(v, grammar.Regex(`[01]{30}`))
	if err != nil {
		t.Fatal(err)
	}
	prompt := golden.Cases()[0].Prompt
	r := scheduler.Request{PromptIDs: prompt, MaxTokens: 50, Grammar: g, Logprobs: scheduler.NoLogprobs}
	if ev := complete(t, e, r); ev.Finish != scheduler.FinishStop || len(ev.Text) != 30 {
		t.Errorf("%q %s %v", ev.Text, ev.Finish, ev.Err)
	}
	r.Grammar, err = grammar.Compile(grammar.NewVocabulary(letters{e.Tokenizer()}), grammar.Regex(`x[01]`))
	if err != nil {
		t.Fatal(err)
	}
	if ev := complete(t, e, r); !errors.Is(ev.Err, sampling.ErrDeadEnd) || ev.Finish != "" {
		t.Errorf("%q %s %v, want %v", ev.Text, ev.Finish, ev.Err, sampling.ErrDeadEnd)
	}
	if ev := complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: 5, Logprobs: scheduler.NoLogprobs}); ev.Finish != scheduler.FinishLength {
		t.Errorf("the next request: %s %v", ev.Finish, ev.Err)
	}
	r.IgnoreEOS = true
	var invalid *scheduler.InvalidRequestError
	if _, err := e.Submit(&r); !errors.As(err, &invalid) || invalid.Param != "ignore_eos" {
		t.Errorf("ignore_eos: %v", err)
	}
}

// letters is a vocabulary without digits.
type letters struct{ grammar.Tokens }

func (l letters) IsSpecial(id int32) bool {
	return l.Tokens.IsSpecial(id) || strings.ContainsAny(string(l.TokenBytes(id)), "0123456789")
}
