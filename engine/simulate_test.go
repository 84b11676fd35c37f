package engine

import (
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Simulated acceptance is what was asked for, and the text is the target's.
func TestSimulateAccept(t *testing.T) {
	request := func(seed uint64, temperature float64) scheduler.Request {
		return scheduler.Request{PromptIDs: golden.Cases()[1].Prompt, MaxTokens: 200, IgnoreEOS: true,
			Sampling: sampling.Params{TopP: 1, Temperature: temperature, Seed: seed}, Logprobs: scheduler.NoLogprobs}
	}
	plain := start(t, Config{Algorithm: AlgorithmNone})
	for _, c := range []struct {
		accept string
		length float64 // wanted
	}{{"2.5", 2.5}, {"1,0", 2}} {
		e := start(t, Config{SimulateAccept: c.accept})
		for run := range 2 { // each text is another one's beginning, and is told from it by how it is sampled
			for _, temperature := range []float64{0, 0.9} {
				want := complete(t, plain, request(7, temperature)).TokenIDs
				got := complete(t, e, request(7, temperature))
				if !slices.Equal(got.TokenIDs, want) {
					t.Fatalf("%s, temperature %v, run %d: the text differs from plain decoding's", c.accept, temperature, run)
				}
				u := got.Usage
				length := 1 + float64(u.Accepted)/float64(u.Verifies)
				if run == 1 && math.Abs(length-c.length) > 0.2*c.length {
					t.Errorf("%s, temperature %v: accept length %.2f, want about %v", c.accept, temperature, length, c.length)
				}
			}
		}
	}
}

func TestSimulateAcceptRefuses(t *testing.T) {
	_, err := New(Config{NumSteps: 2, SimulateAccept: "3.5"}, quiet(), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "--simulate-accept") || !strings.Contains(err.Error(), "1 to 3") {
		t.Errorf("%v: want an error that names the flag and what is allowed", err)
	}
}

// A draft that is never right is reported, in fixed mode too: once in the log, and
// in the metrics. In mode auto it is left out.
func TestUselessDraft(t *testing.T) {
	for _, mode := range []speculation.Mode{speculation.ModeAuto, speculation.ModeFixed} {
		t.Run(string(mode), func(t *testing.T) {
			var log logged
			registry := prometheus.NewRegistry()
			e, err := New(Config{Model: "builtin:gocode-7m", SimulateAccept: "0", Mode: mode}, slog.New(slog.NewTextHandler(&log, nil)),
				telemetry.NewMetrics(registry, "test", time.Now), telemetry.NewProgress(1, time.Now))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(runUntil(t, e))
			r := scheduler.Request{PromptIDs: golden.Cases()[1].Prompt, MaxTokens: 200, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs}
			set := func(mode speculation.Mode) {
				if err := e.SetSpeculation(mode, 0, 3); err != nil {
					t.Fatal(err)
				}
			}
			set(speculation.ModeOff)
			complete(t, e, r) // teaches the text
			set(mode)
			for deadline := time.Now().Add(patience); !e.Speculation().Useless && time.Now().Before(deadline); {
				complete(t, e, r)
			}
			s := e.Speculation()
			if !s.Useless {
				t.Fatalf("a draft that is never right is not found out: %+v, %+v", s, e.Profile())
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(helpsNot), "outrider_spec_draft_helps"); err != nil {
				t.Error(err)
			}
			defer func() {
				if n := len(log.lines("the draft does not help: hardly any of its tokens is accepted. In mode auto it is left out and tried again rarely; is it the one that was trained for this model?")); n != 1 {
					t.Errorf("%d lines of the log say that the draft does not help, want one", n)
				}
			}()
			want := telemetry.Speculation{NumSteps: 3, Reason: "fixed"}
			if mode == speculation.ModeAuto {
				want = telemetry.Speculation{Reason: "draft does not help"}
			}
			for range 20 { // a probe may be under way
				complete(t, e, r)
				if s = e.Speculation(); s.NumSteps == want.NumSteps && s.Reason == want.Reason {
					return
				}
			}
			t.Errorf("%+v: want %d steps, %s", s, want.NumSteps, want.Reason)
		})
	}
}

// helpsNot is what a scrape has of a draft that does not help.
const helpsNot = `
# HELP outrider_spec_draft_helps 0 while hardly any draft token is accepted at any depth; absent until that was found once, 1 when the draft is right again.
# TYPE outrider_spec_draft_helps gauge
outrider_spec_draft_helps{model="test"} 0
`
