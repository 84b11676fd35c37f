package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// All golden prompts at once, with and without speculation, on 1, 2 and 4
// ranks: the text of the reference, and as many verifies as its cycles.
func TestGoldenText(t *testing.T) {
	for _, c := range []struct {
		algorithm string
		ranks     int
	}{{AlgorithmEagle3, 1}, {AlgorithmEagle3, 2}, {AlgorithmEagle3, 4}, {AlgorithmNone, 1}, {AlgorithmNone, 2}} {
		t.Run(fmt.Sprintf("%s/tp=%d", c.algorithm, c.ranks), func(t *testing.T) {
			e := start(t, Config{TPSize: c.ranks, Algorithm: c.algorithm})
			var wg sync.WaitGroup
			for _, g := range golden.Cases() {
				wg.Go(func() {
					got := complete(t, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: len(g.Output), Logprobs: scheduler.NoLogprobs})
					if !slices.Equal(got.TokenIDs, g.Output) || got.Text != g.OutputText || got.Finish != scheduler.FinishLength {
						t.Errorf("%q: %q %s; want %q", g.Text, got.Text, got.Finish, g.OutputText)
					}
					if u := got.Usage; c.algorithm == AlgorithmNone && u.Verifies != 0 ||
						c.algorithm == AlgorithmEagle3 && (u.Verifies < len(g.Cycles)-1 || u.Verifies > len(g.Cycles)+1) {
						t.Errorf("%q: %d verifies, the reference has %d cycles", g.Text, u.Verifies, len(g.Cycles))
					}
				})
			}
			wg.Wait()
			// Pages are given back at the end of the step that ended the text.
			eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
		})
	}
}

// The text of a request does not depend on speculation, its depth, the ranks'
// threads, the page size, the chunks of its prompt or the requests beside it.
func TestTextDoesNotDependOnHowItIsComputed(t *testing.T) {
	prompts := golden.Cases()
	rng := rand.New(rand.NewPCG(1, 1))
	var requests []scheduler.Request
	for i := range 40 {
		g := prompts[i%len(prompts)]
		prompt := slices.Concat(g.Prompt, g.Output[:rng.IntN(60)])
		r := scheduler.Request{PromptIDs: prompt, MaxTokens: 1 + rng.IntN(80), Logprobs: scheduler.NoLogprobs,
			Sampling: sampling.Params{TopP: 1, Seed: rng.Uint64()}}
		switch rng.IntN(4) {
		case 0:
		case 1:
			r.Sampling.Temperature = 1
		case 2:
			r.Sampling.Temperature, r.Sampling.TopP = 0.7, 0.9
		case 3:
			r.Sampling.Temperature, r.Sampling.TopK, r.Sampling.MinP = 1.4, 30, 0.02
		}
		switch rng.IntN(4) {
		case 0:
			r.Sampling.Repetition = 1.2
		case 1:
			r.Sampling.Presence, r.Sampling.Frequency = 0.5, 0.3
			r.Sampling.Bias = []sampling.Bias{{ID: 202, Value: -2}, {ID: 391, Value: 1.5}}
		}
		switch rng.IntN(5) {
		case 0:
			r.Stop = []string{"\n"}
		case 1:
			r.Stop = []string{"err", ") {"}
		case 2:
			r.MinTokens, r.StopIDs = r.MaxTokens/2, []int32{202, 391}
		case 3:
			r.Logprobs = 3
		}
		requests = append(requests, r)
	}
	run := func(cfg Config, at int, disturb func(e *Engine, done <-chan struct{}), draws bool) []scheduler.Event {
		cfg.AsyncScheduling = draws
		e := newEngine(t, cfg)
		taken := &atomic.Int64{}
		if draws {
			e.wrap = func(d compute.Device) compute.Device {
				drawer := newDrawer(d)
				drawer.taken = taken
				return drawer
			}
		}
		t.Cleanup(runUntil(t, e))
		if disturb != nil {
			done := make(chan struct{})
			defer close(done)
			go disturb(e, done)
		}
		events := make([]scheduler.Event, len(requests))
		var wg sync.WaitGroup
		gate := make(chan struct{}, at)
		for i, r := range requests {
			gate <- struct{}{}
			wg.Go(func() {
				events[i] = complete(t, e, r)
				<-gate
			})
		}
		wg.Wait()
		if plain := cfg.Algorithm == AlgorithmNone || cfg.Mode == speculation.ModeOff; draws && plain && taken.Load() == 0 {
			t.Error("no pass was queued before its tokens were known")
		}
		return events
	}
	want := run(Config{Algorithm: AlgorithmNone}, 1, nil, false)
	for i, ev := range want {
		if requests[i].Logprobs >= 0 && len(ev.Logprobs) != len(ev.TokenIDs) {
			t.Errorf("request %d: %d logprobs for %d tokens", i, len(ev.Logprobs), len(ev.TokenIDs))
		}
	}
	for _, c := range []struct {
		name string
		cfg  Config
		at   int

		disturb func(e *Engine, done <-chan struct{})
		draws   bool // the device draws the tokens
	}{
		{name: "one at a time", at: 1},
		{name: "eight at once", at: 8},
		{name: "deep, small pages and chunks", cfg: Config{NumSteps: 7, PageSize: 1, ChunkedPrefillSize: 5, MaxRunningRequests: 3}, at: 8},
		{name: "shallow, large pages", cfg: Config{NumSteps: 1, PageSize: 128}, at: 40},
		{name: "plain, all at once", cfg: Config{Algorithm: AlgorithmNone, ChunkedPrefillSize: 7}, at: 40},
		{name: "depth by goodput", cfg: Config{Mode: speculation.ModeAuto, NumSteps: 4}, at: 8},
		{name: "trees", cfg: Config{NumSteps: 4, TopK: 4, NumDraftTokens: 12}, at: 8},
		{name: "n-grams", cfg: Config{Algorithm: AlgorithmNGram, NumSteps: 5}, at: 8},
		{name: "switched off", cfg: Config{Mode: speculation.ModeOff}, at: 8},
		{name: "depth changes all the time", cfg: Config{NumSteps: 4}, at: 8, disturb: changeDepth},
		{name: "drawn by the device", at: 8, draws: true},
		{name: "trees, drawn by the device", cfg: Config{NumSteps: 4, TopK: 4, NumDraftTokens: 12}, at: 8, draws: true},
		{name: "plain, drawn by the device", cfg: Config{Algorithm: AlgorithmNone}, at: 3, draws: true},
		{name: "one by one, plain, drawn by the device", cfg: Config{Algorithm: AlgorithmNone, PageSize: 4}, at: 1, draws: true},
		{name: "switched off, drawn by the device", cfg: Config{Mode: speculation.ModeOff}, at: 2, draws: true},
		{name: "depth by goodput, drawn by the device", cfg: Config{Mode: speculation.ModeAuto, NumSteps: 4}, at: 2, draws: true},
		{name: "depth changes, drawn by the device", cfg: Config{NumSteps: 4}, at: 2, disturb: changeDepth, draws: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := run(c.cfg, c.at, c.disturb, c.draws)
			for i := range want {
				w, g := want[i], got[i]
				if !slices.Equal(g.TokenIDs, w.TokenIDs) || g.Text != w.Text || g.Finish != w.Finish {
					t.Errorf("request %d %+v:\n got %q %s\nwant %q %s", i, requests[i].Sampling, g.Text, g.Finish, w.Text, w.Finish)
				}
				if !equalLogprobs(g.Logprobs, w.Logprobs) {
					t.Errorf("request %d: log probabilities differ", i)
				}
			}
		})
	}
}

// changeDepth moves the depth between plain decoding and the deepest.
func changeDepth(e *Engine, done <-chan struct{}) {
	rng := rand.New(rand.NewPCG(9, 9))
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rng.IntN(4000)) * time.Microsecond):
		}
		mode := speculation.ModeFixed
		if rng.IntN(2) == 0 {
			mode = speculation.ModeOff
		}
		if err := e.SetSpeculation(mode, 0, rng.IntN(5)); err != nil {
			panic(err)
		}
	}
}

// After a stretch of plain decoding the head catches up: it is right about as
// often as if it had drafted all along.
func TestBackFromPlainDecoding(t *testing.T) {
	e, pace := startPaced(t, Config{})
	prompt := golden.Cases()[4].Prompt
	rate := func(during func()) float64 {
		stream, err := e.Submit(&scheduler.Request{PromptIDs: prompt, MaxTokens: 220, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
		if err != nil {
			t.Fatal(err)
		}
		during()
		u := drain(t, stream).Usage
		if u.Drafted == 0 {
			return 0
		}
		return float64(u.Accepted) / float64(u.Drafted)
	}
	set := func(mode speculation.Mode) {
		if err := e.SetSpeculation(mode, 0, 3); err != nil {
			t.Fatal(err)
		}
	}
	all := rate(func() {})
	set(speculation.ModeOff)
	if off := rate(func() {}); off != 0 {
		t.Errorf("switched off, %v of the drafts are accepted: there must be none", off)
	}
	pace(5 * time.Millisecond) // of 220 tokens most are left when it is switched on again
	back := rate(func() {
		eventually(t, "no plain decoding", func() bool { return e.Speculation().NumSteps == 0 && e.Info().KVPagesFree < e.Info().KVPagesTotal })
		time.Sleep(20 * time.Millisecond)
		set(speculation.ModeFixed)
		pace(0)
	})
	if all < 0.3 || back < all-0.15 {
		t.Errorf("acceptance %.2f all along, %.2f after plain decoding", all, back)
	}
}

func TestSetSpeculationRefuses(t *testing.T) {
	e := start(t, Config{NumSteps: 3})
	for _, c := range []struct {
		mode        speculation.Mode
		least, most int
		param       string
	}{{"often", 0, 3, "mode"}, {"auto", 0, 4, "max_steps"}, {"auto", 3, 2, "min_steps"}, {"auto", -1, 2, "min_steps"}, {"fixed", 0, -1, "max_steps"}} {
		err := e.SetSpeculation(c.mode, c.least, c.most)
		var invalid *scheduler.InvalidRequestError
		if !errors.As(err, &invalid) || invalid.Param != c.param {
			t.Errorf("%+v: %v", c, err)
		}
	}
	plain := start(t, Config{Algorithm: AlgorithmNone})
	if err := plain.SetSpeculation(speculation.ModeFixed, 0, 0); err == nil {
		t.Error("an engine without a drafter takes mode fixed")
	}
	if s := plain.Speculation(); s.Mode != "off" || s.Reason != "no draft" {
		t.Errorf("an engine without a drafter says %+v", s)
	}
}

func equalLogprobs(a, b []scheduler.TokenLogprob) bool {
	return slices.EqualFunc(a, b, func(x, y scheduler.TokenLogprob) bool {
		return x.ID == y.ID && x.Logprob == y.Logprob && equalLogprobs(x.Top, y.Top)
	})
}

func TestModelWithoutTokenizer(t *testing.T) {
	e := start(t, Config{Model: "model/testdata/fixtures/llama", TPSize: 2})
	if e.Tokenizer() != nil || e.Info().ServedModelName != "llama" || e.Info().Algorithm != AlgorithmNone {
		t.Errorf("tokenizer %v, info %+v", e.Tokenizer(), e.Info())
	}
	got := complete(t, e, scheduler.Request{PromptIDs: []int32{232, 107}, MaxTokens: 3, Logprobs: scheduler.NoLogprobs, IgnoreEOS: true})
	if len(got.TokenIDs) != 3 || got.Text != "" || got.TokenIDs[0] != 65 {
		t.Errorf("got %+v, want three tokens from 65 on and no text", got)
	}
}

func TestDeepProbe(t *testing.T) {
	for algorithm, speculates := range map[string]bool{AlgorithmEagle3: true, AlgorithmNone: false} {
		e := start(t, Config{Algorithm: algorithm})
		usage, err := e.DeepProbe(context.Background())
		if err != nil || usage.CompletionTokens == 0 || (usage.Verifies > 0) != speculates {
			t.Errorf("%s: %+v, %v", algorithm, usage, err)
		}
		snapshot := e.Progress()
		if snapshot.Phase != telemetry.PhaseServing || snapshot.Percent != 100 || snapshot.Ranks[0].LastStep == nil {
			t.Errorf("%s: %+v", algorithm, snapshot)
		}
	}
}

// A probe's own passes prove nothing to the next one; those of a client do.
func TestDeepProbeOfABusyEngine(t *testing.T) {
	e, pace := startPaced(t, Config{})
	for range 20 {
		if usage, err := e.DeepProbe(t.Context()); err != nil || usage.Verifies == 0 {
			t.Fatalf("the probe of an idle engine: %+v, %v", usage, err)
		}
	}
	pace(5 * time.Millisecond) // it is busy until the end of the test
	stream, err := e.Submit(&scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 900, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for verifies := 0; verifies == 0; {
		ev, err := stream.Next(t.Context())
		if err != nil || ev.Finish != "" {
			t.Fatalf("%+v, %v", ev, err)
		}
		verifies = ev.Usage.Verifies
	}
	if usage, err := e.DeepProbe(t.Context()); err != nil || usage.CompletionTokens != 0 {
		t.Errorf("an engine that just verified a client's draft computed a probe: %+v, %v", usage, err)
	}
}

// The steady step allocates nothing beyond what its events carry.
func BenchmarkDecode(b *testing.B) {
	for _, algorithm := range []string{AlgorithmNone, AlgorithmEagle3} {
		b.Run(algorithm, func(b *testing.B) {
			e := start(b, Config{Algorithm: algorithm})
			g := golden.Cases()[0]
			tokens := 0
			b.ReportAllocs()
			for b.Loop() {
				ev := complete(b, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 200, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
				tokens += len(ev.TokenIDs)
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
