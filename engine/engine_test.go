package engine

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	if cfg.Model == "" {
		cfg.Model = "builtin:gocode-7m"
	}
	cfg.CheckInvariants = true
	m := telemetry.NewMetrics(prometheus.NewRegistry(), "test", time.Now)
	e, err := New(cfg, quiet(), m, telemetry.NewProgress(max(cfg.TPSize, 1), time.Now))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// start runs an engine until the test ends, and waits until it is ready.
func start(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, stop := startUntil(t, cfg)
	t.Cleanup(stop)
	return e
}

// startUntil is start for an engine that runs until stop is called.
func startUntil(t testing.TB, cfg Config) (e *Engine, stop func()) {
	t.Helper()
	e = newEngine(t, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for e.Ready() != nil {
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %v", e.Ready())
		}
		select {
		case err := <-done:
			t.Fatalf("Run: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	return e, stop
}

// complete reads a request to its end.
func complete(t testing.TB, e *Engine, r scheduler.Request) scheduler.Event {
	t.Helper()
	if r.Sampling.TopP == 0 {
		r.Sampling.TopP = 1
	}
	stream, err := e.Submit(&r)
	if err != nil {
		t.Error(err)
		return scheduler.Event{}
	}
	return drain(t, stream)
}

func drain(t testing.TB, stream *scheduler.Stream) scheduler.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var all scheduler.Event
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			t.Errorf("no end within a minute: %v", err)
			return all
		}
		all.TokenIDs = append(all.TokenIDs, ev.TokenIDs...)
		all.Text += ev.Text
		all.Logprobs = append(all.Logprobs, ev.Logprobs...)
		all.Finish, all.Usage, all.Err = ev.Finish, ev.Usage, ev.Err
		if ev.Finish != "" || ev.Err != nil {
			return all
		}
	}
}

// eventually waits until what is true; otherwise it fails with trouble.
func eventually(t testing.TB, trouble string, what func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error(trouble)
			return
		}
	}
}

type goldenCase struct {
	Text       string
	Prompt     []int32 `json:"prompt_ids"`
	Output     []int32 `json:"output_ids"`
	OutputText string  `json:"output_text"`
	Cycles     []struct{ Accepted int }
}

func golden(t testing.TB) []goldenCase {
	t.Helper()
	b, err := os.ReadFile("model/testdata/golden/gocode.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct{ Speculation []goldenCase }
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g.Speculation
}

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
			for _, g := range golden(t) {
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
	prompts := golden(t)
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
	run := func(cfg Config, at int, disturb func(e *Engine, done <-chan struct{})) []scheduler.Event {
		e := start(t, cfg)
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
		return events
	}
	want := run(Config{Algorithm: AlgorithmNone}, 1, nil)
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
	}{
		{"one at a time", Config{}, 1, nil},
		{"eight at once", Config{}, 8, nil},
		{"deep, small pages and chunks", Config{NumSteps: 7, PageSize: 1, ChunkedPrefillSize: 5, MaxRunningRequests: 3}, 8, nil},
		{"shallow, large pages", Config{NumSteps: 1, PageSize: 128}, 40, nil},
		{"plain, all at once", Config{Algorithm: AlgorithmNone, ChunkedPrefillSize: 7}, 40, nil},
		{"depth by goodput", Config{Mode: speculation.ModeAuto, NumSteps: 4}, 8, nil},
		{"trees", Config{NumSteps: 4, TopK: 4, NumDraftTokens: 12}, 8, nil},
		{"n-grams", Config{Algorithm: AlgorithmNGram, NumSteps: 5}, 8, nil},
		{"switched off", Config{Mode: speculation.ModeOff}, 8, nil},
		{"depth changes all the time", Config{NumSteps: 4}, 8, changeDepth},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := run(c.cfg, c.at, c.disturb)
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
	e := start(t, Config{})
	prompt := golden(t)[4].Prompt
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
	set(speculation.ModeOff)
	back := rate(func() {
		eventually(t, "no plain decoding", func() bool { return e.Speculation().NumSteps == 0 && e.Info().KVPagesFree < e.Info().KVPagesTotal })
		time.Sleep(20 * time.Millisecond)
		set(speculation.ModeFixed)
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
	e := start(t, Config{})
	for range 20 {
		if usage, err := e.DeepProbe(t.Context()); err != nil || usage.Verifies == 0 {
			t.Fatalf("the probe of an idle engine: %+v, %v", usage, err)
		}
	}
	stream, err := e.Submit(&scheduler.Request{PromptIDs: golden(t)[0].Prompt, MaxTokens: 900, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
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

func TestDrainLetsRequestsEnd(t *testing.T) {
	e := start(t, Config{})
	g := golden(t)[0]
	stream, err := e.Submit(&scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 400, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.Drain(ctx); err != nil {
		t.Error(err)
	}
	if got := drain(t, stream); len(got.TokenIDs) != 400 || got.Finish != scheduler.FinishLength {
		t.Errorf("%d tokens, %s; want all 400", len(got.TokenIDs), got.Finish)
	}
	if _, err := e.Submit(&scheduler.Request{PromptIDs: g.Prompt, MaxTokens: 1}); !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("a drained engine answers %v", err)
	}
	if err := e.Ready(); !errors.Is(err, scheduler.ErrDraining) {
		t.Errorf("a drained engine is ready: %v", err)
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		code int
		says string
	}{
		{Config{TPSize: 65}, 2, "--tp-size is 65: allowed is 1 to 64"},
		{Config{NumSteps: 17}, 2, "--speculative-num-steps is 17"},
		{Config{NumSteps: 2, NumDraftTokens: 4}, 2, "which is 3"},
		{Config{TopK: 17}, 2, "--speculative-eagle-topk is 17: allowed is 1 to 16"},
		{Config{TopK: 2, Algorithm: "ngram"}, 2, "--speculative-algorithm ngram drafts chains: allowed is 1"},
		{Config{TopK: 10, NumSteps: 8}, 2, "--speculative-eagle-topk 10 times --speculative-num-steps 8 less one is 70: allowed are 64"},
		{Config{TopK: 2, NumSteps: 2, NumDraftTokens: 8}, 2, "--speculative-num-draft-tokens is 8: with --speculative-eagle-topk 2 and --speculative-num-steps 2 allowed is 2 to 7"},
		{Config{TopK: 4, NumSteps: 5, NumDraftTokens: 65}, 2, "allowed is 2 to 64"},
		{Config{NGramMin: 65}, 2, "--speculative-ngram-min-match-window-size is 65"},
		{Config{NGramMin: 4, NGramMax: 3}, 2, "--speculative-ngram-max-match-window-size is 3, less than"},
		{Config{Algorithm: "medusa"}, 2, `--speculative-algorithm is "medusa": allowed are eagle3, ngram, draft, none`},
		{Config{Algorithm: "none", DraftModel: "x"}, 2, "leave one of them out"},
		{Config{Algorithm: "ngram", DraftModel: "x"}, 2, "leave one of them out"},
		{Config{Device: "cuda"}, 13, "without CUDA"},
		{Config{Device: "tpu"}, 2, "allowed are auto, cpu and cuda"},
		{Config{MemFractionStatic: 1.5}, 2, "--mem-fraction-static is 1.5"},
		{Config{ContextLength: -1}, 2, "--context-length is -1"},
		{Config{MaxTotalTokens: -1}, 2, "--max-total-tokens is -1: allowed is --context-length or more"},
	} {
		_, err := New(c.cfg, quiet(), telemetry.NewMetrics(prometheus.NewRegistry(), "m", time.Now), telemetry.NewProgress(1, time.Now))
		if err == nil || fault.ReasonOf(err).ExitCode() != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v (exit code %d); want %d saying %q", c.cfg, err, fault.ReasonOf(err).ExitCode(), c.code, c.says)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		reason fault.Reason
		says   string
	}{
		{Config{Model: "builtin:none"}, fault.ModelNotFound, "builtin:gocode-7m"},
		{Config{Model: "/no/such/folder"}, fault.ModelNotFound, "no such folder"},
		{Config{TPSize: 3}, fault.InvalidConfig, "--tp-size is 3: this model (4 heads"},
		{Config{ContextLength: 4096}, fault.InvalidConfig, "--context-length is 4096: allowed is 2"},
		{Config{ContextLength: 100, MaxTotalTokens: 111}, fault.InvalidConfig, "--max-total-tokens is 111: one request of --context-length 100 takes 7 pages of --page-size 16: allowed is 112 or more"},
		{Config{Model: "model/testdata/fixtures/llama", Algorithm: AlgorithmEagle3}, fault.InvalidConfig, "needs --draft-model"},
		{Config{DraftModel: "model/testdata/fixtures/llama"}, fault.Unsupported, "num_hidden_layers is 3"},
		{Config{Model: "model/testdata/fixtures/llama", DraftModel: "builtin:gocode-7m-eagle3"}, fault.DraftMismatch, "vocab_size is 4096, but the target's is 320"},
		{Config{Algorithm: AlgorithmDraft}, fault.InvalidConfig, "--speculative-algorithm draft needs --draft-model"},
		{Config{Algorithm: AlgorithmDraft, DraftModel: "builtin:gocode-7m-eagle3"}, fault.Unsupported, "is an EAGLE-3 head, not a whole model"},
		{Config{Algorithm: AlgorithmDraft, DraftModel: "model/testdata/fixtures/llama"}, fault.DraftMismatch, "vocab_size is 320, but the target's is 4096"},
		{Config{MemFractionStatic: 1e-9}, fault.OutOfMemory, "not fit: "},
	} {
		if c.cfg.Model == "" {
			c.cfg.Model = "builtin:gocode-7m"
		}
		err := newEngine(t, c.cfg).Run(context.Background())
		if fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v with reason %s; want %s saying %q", c.cfg, err, fault.ReasonOf(err), c.reason, c.says)
		}
	}
}

// A model that cannot answer ends the start with a reason: it would load forever.
func TestFailedWarmUpIsAFault(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("model/testdata/fixtures/llama")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "model.safetensors")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 8 + binary.LittleEndian.Uint64(b); i < uint64(len(b)); i++ {
		b[i] = 0xff // bfloat16 NaNs
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	err = newEngine(t, Config{Model: dir}).Run(context.Background())
	if fault.ReasonOf(err) != fault.WeightsMismatch || !strings.Contains(err.Error(), "does not answer its first request") {
		t.Errorf("%v with reason %s", err, fault.ReasonOf(err))
	}
}

// Time without work is no stall, and neither is the first step after it.
func TestIdleTimeIsNoStall(t *testing.T) {
	e := start(t, Config{StallTimeout: 200 * time.Millisecond, ContextLength: 1024})
	time.Sleep(2 * time.Second) // longer than the limit, and than any step here
	stream, err := e.Submit(&scheduler.Request{PromptIDs: make([]int32, 900), MaxTokens: 2, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 { // while the first steps run
		if stuck := e.stuck(); stuck > 1900*time.Millisecond {
			t.Fatalf("the engine counts %v of idle time as a step", stuck)
		}
		time.Sleep(time.Millisecond)
	}
	drain(t, stream)
}

// A slow load shows how far it is; a request meanwhile is told to wait.
func TestSlowLoadShowsProgress(t *testing.T) {
	e := newEngine(t, Config{TPSize: 2, LoadRate: 100 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	seen := map[float64]bool{}
	last := 0.0
	for e.Ready() != nil {
		s := e.Progress()
		if s.Phase == telemetry.PhaseLoad {
			if s.Percent < last || s.Percent >= 100 || s.BytesTotal != 0 && s.BytesTotal < 17<<20 {
				t.Fatalf("progress %+v after %v %%", s, last)
			}
			last = s.Percent
			seen[s.Percent] = true
			if _, err := e.Submit(&scheduler.Request{}); !errors.Is(err, scheduler.ErrNotReady) {
				t.Fatalf("a request while loading is answered %v", err)
			}
			if err := e.Live(); err != nil {
				t.Fatalf("not live while loading: %v", err)
			}
		}
		time.Sleep(time.Millisecond)
		select {
		case err := <-done:
			t.Fatalf("Run: %v", err)
		default:
		}
	}
	if len(seen) < 5 {
		t.Errorf("only %d different percentages were seen", len(seen))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A drain that comes while the model loads stays a drain.
func TestDrainWhileLoading(t *testing.T) {
	e := newEngine(t, Config{LoadRate: 60 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	eventually(t, "it does not load", func() bool { return e.Progress().BytesDone > 0 })
	over, stop := context.WithCancel(context.Background())
	stop()
	_ = e.Drain(over) // begin, do not wait
	eventually(t, "the load does not end", func() bool { return e.Info().Device != "" })
	for range 20 {
		if p := e.Progress(); p.Phase != telemetry.PhaseDraining || e.Ready() == nil {
			t.Fatalf("in phase %s, ready: %v", p.Phase, e.Ready())
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A stop while loading ends the loading.
func TestStopWhileLoading(t *testing.T) {
	e := newEngine(t, Config{LoadRate: 1 << 20})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := e.Run(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v to stop", took)
	}
}

// The steady step allocates nothing beyond what its events carry.
func BenchmarkDecode(b *testing.B) {
	for _, algorithm := range []string{AlgorithmNone, AlgorithmEagle3} {
		b.Run(algorithm, func(b *testing.B) {
			e := start(b, Config{Algorithm: algorithm})
			g := golden(b)[0]
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
