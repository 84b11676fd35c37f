package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/fetch"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// idle waits until the engine holds nothing any more.
func (in *instance) idle(t testing.TB) {
	t.Helper()
	waitFor(t, "the engine to be idle", func() bool {
		info := in.Info()
		return testutil.ToFloat64(in.metrics.Running) == 0 && testutil.ToFloat64(in.metrics.Waiting) == 0 && info.KVPagesFree == info.KVPagesTotal
	})
}

// TestCancel: a client that goes away frees what its request held.
func TestCancel(t *testing.T) {
	in := newInstance(t, engine.Config{}, nil)
	for _, stream := range []bool{true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		body := fields{"prompt": []string{"func ", "type "}, "max_tokens": 1000, "ignore_eos": true, "stream": stream}.reader(t)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.public.URL+"/v1/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}()
		waitFor(t, "both prompts to run", func() bool { return testutil.ToFloat64(in.metrics.Running) == 2 })
		cancel()
		<-ended
		in.idle(t)
	}
	if n := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeAbort)); n != 4 {
		t.Errorf("%v aborts counted, want 4", n)
	}
}

// TestManyClients: 32 clients at once, some of which give up; every request
// ends, equal requests get equal answers, the counters equal the sum of usage,
// and nothing is left behind.
func TestManyClients(t *testing.T) {
	in := newInstance(t, engine.Config{MaxRunningRequests: 8}, nil)
	g := golden.Cases()
	before := runtime.NumGoroutine()
	var mu sync.Mutex
	var sum usage
	var wg sync.WaitGroup
	for client := range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(client), 1))
			for round := range 2 {
				want := g[r.IntN(len(g))]
				n := 1 + r.IntN(40)
				f := fields{"prompt": want.Text, "temperature": 0, "max_tokens": n, "return_token_ids": true}
				if client%4 == 3 {
					in.giveUp(t, f, r.IntN(3))
					continue
				}
				ask := in.post
				if round%2 == 1 {
					ask = in.streamed
				}
				got := ask(t, f)
				if text := got.Choices[0].Text; !strings.HasPrefix(want.OutputText, strings.TrimRight(text, "\uFFFD")) || got.Usage.CompletionTokens != n {
					t.Errorf("client %d: %d tokens, %q, want %d of %q", client, got.Usage.CompletionTokens, text, n, want.OutputText)
				}
				mu.Lock()
				sum.PromptTokens += got.Usage.PromptTokens
				sum.CompletionTokens += got.Usage.CompletionTokens
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	in.idle(t)
	// What the clients that gave up got is counted too, but their usage is unknown.
	if got := testutil.ToFloat64(in.metrics.GenerationTokens); got < float64(sum.CompletionTokens) {
		t.Errorf("%v generated tokens counted, clients got %d", got, sum.CompletionTokens)
	}
	ends := 0.0
	for _, o := range []telemetry.Outcome{telemetry.OutcomeLength, telemetry.OutcomeStop, telemetry.OutcomeAbort} {
		ends += testutil.ToFloat64(in.metrics.Outcome(o))
	}
	if ends != 64 {
		t.Errorf("%v requests ended, want 64", ends)
	}
	http.DefaultClient.CloseIdleConnections()
	waitFor(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// giveUp reads a few chunks of a stream and leaves.
func (in *instance) giveUp(t testing.TB, f fields, after int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.public.URL+"/v1/completions", f.with(fields{"stream": true, "max_tokens": 500}).reader(t))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); after > 0 && lines.Scan(); after-- {
	}
}

func TestCountersEqualUsage(t *testing.T) {
	in := newInstance(t, engine.Config{}, nil)
	var sum usage
	var spec speculation
	add := func(r reply) {
		sum.PromptTokens += r.Usage.PromptTokens
		sum.CompletionTokens += r.Usage.CompletionTokens
		spec.Verifies += r.Speculation.Verifies
		spec.Drafted += r.Speculation.Drafted
		spec.Accepted += r.Speculation.Accepted
	}
	for i, g := range golden.Cases() {
		add(in.post(t, fields{"prompt": []string{g.Text, "x"}, "max_tokens": 10 + i}))
		add(in.streamed(t, fields{"prompt": g.Text, "stop": "\n", "max_tokens": 64}))
		in.getHealth(t, "/health_generate")
	}
	in.idle(t)
	m := in.metrics
	accepted := 0.0
	for i := range telemetry.MaxPositions {
		accepted += testutil.ToFloat64(m.Accepted(i))
	}
	// lengths is the sum over a histogram's observations.
	lengths := func(o prometheus.Observer) float64 {
		var h dto.Metric
		if err := o.(prometheus.Histogram).Write(&h); err != nil {
			t.Fatal(err)
		}
		return h.GetHistogram().GetSampleSum()
	}
	for name, v := range map[string][2]float64{
		"lengths of prompts": {lengths(m.RequestPrompt), float64(sum.PromptTokens)},
		"lengths of answers": {lengths(m.RequestGeneration), float64(sum.CompletionTokens)},
		"prompt tokens":      {testutil.ToFloat64(m.PromptTokens), float64(sum.PromptTokens)},
		"generation tokens":  {testutil.ToFloat64(m.GenerationTokens), float64(sum.CompletionTokens)},
		"verifies":           {testutil.ToFloat64(m.SpecVerifies), float64(spec.Verifies)},
		"draft tokens":       {testutil.ToFloat64(m.SpecDraftTokens), float64(spec.Drafted)},
		"accepted tokens":    {accepted, float64(spec.Accepted)},
	} {
		if v[0] != v[1] {
			t.Errorf("%s: %v counted, %v in the answers", name, v[0], v[1])
		}
	}
}

// TestWithoutTokenizer: a folder without tokenizer.json serves token ids.
func TestWithoutTokenizer(t *testing.T) {
	source, err := fetch.Open(t.Context(), "builtin:gocode-7m", fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "model")
	if err := os.CopyFS(folder, source.Files); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	in := newInstance(t, engine.Config{Model: folder}, nil)
	g := golden.Cases()[0]
	both(t, in, func(t *testing.T, ask func(testing.TB, fields) reply) {
		r := ask(t, fields{"prompt": g.Prompt, "temperature": 0, "max_tokens": 20, "return_token_ids": true, "logprobs": 1})
		c := r.Choices[0]
		if c.Text != "" || len(c.TokenIDs) != 20 || c.TokenIDs[19] != g.Output[19] || c.Logprobs.Tokens[0] != "token_id:202" {
			t.Errorf("%+v %+v", c, c.Logprobs)
		}
		if s := r.Speculation; s.Verifies != 0 || s.Drafted != 0 {
			t.Errorf("speculation %+v without a draft head", s)
		}
	})
	for param, f := range map[string]fields{"prompt": {"prompt": "package"}, "stop": {"prompt": g.Prompt, "stop": "x"}} {
		resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", f.reader(t))
		if e := apiErrorIn(t, b); resp.StatusCode != http.StatusBadRequest || value(e.Param) != param || !strings.Contains(e.Message, "no tokenizer") {
			t.Errorf("%d %s", resp.StatusCode, b)
		}
	}
}

// failing is a backend whose requests fail after a few tokens. It is a real
// scheduler without a model.
type failing struct {
	Backend
	mu sync.Mutex // held by the goroutine that is the step loop
	s  *scheduler.Scheduler
}

func newFailing(t testing.TB, b Backend) *failing {
	t.Helper()
	return &failing{Backend: b, s: scheduler.New(scheduler.Config{MaxRunning: 4, MaxQueued: 4, ChunkSize: 64, ContextLength: 64, Vocab: 4096, Now: time.Now}, kvcache.NewPool(64, 16))}
}

func (f *failing) Submit(r *scheduler.Request) (*scheduler.Stream, error) {
	stream, err := f.s.Submit(r)
	if err != nil {
		return nil, err
	}
	go func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		batch := f.s.Plan(func(*scheduler.Sequence) {})
		if batch == nil { // another request's step had this one too
			return
		}
		for _, s := range batch.Sequences {
			if _, err := s.Verify(constant(5)); err == nil {
				s.Emit()
			}
			s.Fail(errors.New("the logits are not numbers"))
			s.Emit()
		}
		f.s.Reap()
	}()
	return stream, nil
}

// constant samples one token always.
type constant int32

func (c constant) Sample(*scheduler.Sequence, int) (int32, error) { return int32(c), nil }

// TestFailure: a request that fails on the way is an error, never a short
// answer that looks whole.
func TestFailure(t *testing.T) {
	base := sharedInstance(t)
	in := &instance{Engine: base.Engine, metrics: base.metrics, registry: base.registry}
	b := newFailing(t, base.Engine)
	s, stubIn := stubbed(t)
	s.set(func(s *stub) { s.submit = b.Submit })
	in.public = stubIn.public
	f := fields{"prompt": []int{1, 2}, "max_tokens": 8, "return_token_ids": true}
	resp, body := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", f.reader(t))
	if e := apiErrorIn(t, body); resp.StatusCode != http.StatusInternalServerError || e.Type != typeServer || !strings.Contains(e.Message, "not numbers") {
		t.Errorf("whole: %d %s", resp.StatusCode, body)
	}
	_, body = do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", f.with(fields{"stream": true}).reader(t))
	all := chunks(t, body)
	if len(all) < 2 || all[len(all)-1] != "[DONE]" {
		t.Fatalf("streamed: %q", all)
	}
	apiErrorIn(t, []byte(all[len(all)-2]))
	for _, chunk := range all[:len(all)-2] {
		var r reply
		if err := json.Unmarshal([]byte(chunk), &r); err != nil || r.Choices[0].FinishReason != nil {
			t.Errorf("streamed: %s: %v", chunk, err)
		}
	}
}
