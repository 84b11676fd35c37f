package engine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// steadyRequests go on for as long as a test of steps needs, each sampled in
// another way.
func steadyRequests() []*scheduler.Request {
	var requests []*scheduler.Request
	for i, p := range []sampling.Params{
		{},
		{Temperature: 1},
		{Temperature: 0.8, TopP: 0.9, Presence: 0.4, Frequency: 0.2, Bias: []sampling.Bias{{ID: 7, Value: -2}, {ID: 9, Value: 1.5}}},
		{Temperature: 1.2, TopK: 20, MinP: 0.02, Repetition: 1.3},
	} {
		if p.TopP == 0 {
			p.TopP = 1
		}
		p.Seed = uint64(i)
		r := &scheduler.Request{PromptIDs: []int32{3, 4, 5, int32(6 + i)}, MaxTokens: 240, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs, Sampling: p}
		if i < 2 { // what begins it is held back
			r.Stop = []string{"\t\x00", "\n\t\t\x00"}
		}
		if i == 3 { // tokens are banned all the time
			r.StopIDs, r.MinTokens = []int32{11, 12}, r.MaxTokens
		}
		requests = append(requests, r)
	}
	return requests
}

// A step of requests that go on allocates nothing, whatever drafts, with one rank
// and with two, however the requests are sampled, with text and without, and on the
// way from plain decoding to speculation and back.
func TestSteadyStepAllocatesNothing(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	for name, c := range map[string]Config{
		"plain":                {Algorithm: AlgorithmNone},
		"head":                 {Algorithm: AlgorithmEagle3, DraftModel: m.head},
		"off":                  {Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: speculation.ModeOff},
		"auto":                 {Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: speculation.ModeAuto},
		"auto, trees":          {Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: speculation.ModeAuto, TopK: 4, NumDraftTokens: 12},
		"trees":                {Algorithm: AlgorithmEagle3, DraftModel: m.head, TopK: 4, NumDraftTokens: 12},
		"draft model":          {Algorithm: AlgorithmDraft, DraftModel: m.small},
		"auto, draft model":    {Algorithm: AlgorithmDraft, DraftModel: m.small, Mode: speculation.ModeAuto},
		"trees, draft model":   {Algorithm: AlgorithmDraft, DraftModel: m.small, TopK: 3, NumDraftTokens: 8},
		"n-grams":              {Algorithm: AlgorithmNGram},
		"auto, n-grams":        {Algorithm: AlgorithmNGram, Mode: speculation.ModeAuto},
		"text":                 {Model: "builtin:gocode-7m"},
		"text, plain":          {Model: "builtin:gocode-7m", Algorithm: AlgorithmNone},
		"simulated acceptance": {Algorithm: AlgorithmEagle3, DraftModel: m.head, SimulateAccept: "0.7"},
	} {
		for ranks := 1; ranks <= 2; ranks++ {
			if ranks == 1 && strings.Contains(name, ",") {
				continue // time
			}
			t.Run(fmt.Sprintf("%s/ranks=%d", name, ranks), func(t *testing.T) {
				if c.MaxRunningRequests, c.TPSize = 4, ranks; c.Model == "" {
					c.Model = m.target
				}
				steadyStep(t, c)
			})
		}
	}
}

func steadyStep(t *testing.T, c Config) {
	e := loaded(t, c)
	for _, r := range steadyRequests() {
		if _, err := e.scheduler.Submit(r); err != nil {
			t.Fatal(err)
		}
	}
	step := func() {
		if worked, err := e.step(); err != nil || !worked {
			t.Fatalf("%v, %v", worked, err)
		}
	}
	for range 12 {
		step()
	}
	for e.Tokenizer() != nil && e.scheduler.Running()[0].Generated() < 64 { // nobody reads: what waits for the readers becomes more
		step()
	}
	turn := func(modes ...speculation.Mode) {
		for _, mode := range modes {
			if err := e.SetSpeculation(mode, 0, 3); err != nil {
				t.Fatal(err)
			}
			step()
		}
	}
	if c.Mode == speculation.ModeAuto { // what either arm needs is there before it takes its choice
		for _, mode := range []speculation.Mode{speculation.ModeFixed, speculation.ModeOff, speculation.ModeFixed, speculation.ModeAuto} {
			turn(mode)
			steps := 3
			if mode == speculation.ModeOff {
				steps = speculation.KeptWindow + 3 // the most that the head has to catch up with
			}
			for range steps {
				step()
			}
		}
		n := 1.0
		for try := 0; n > 0 && try < 3; try++ { // once it is found out and said that such a draft does not help
			n = testing.AllocsPerRun(5, func() { turn(speculation.ModeOff, speculation.ModeFixed, speculation.ModeAuto) })
		}
		if n != 0 {
			t.Errorf("%v allocations for going to plain decoding and back, want 0", n)
		}
	}
	if n := testing.AllocsPerRun(20, step); n != 0 {
		t.Errorf("%v allocations for each step, want 0", n)
	}
	if n := len(e.scheduler.Running()); n != len(steadyRequests()) {
		t.Errorf("%d requests still run: the steps were not those of all", n)
	}
}
