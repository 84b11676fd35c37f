package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// server is an engine under measurement.
type server struct {
	*engine.Engine
	metrics *telemetry.Metrics
	stop    func()

	known map[int]int // number of prompts whose answers were computed, by length
}

// serve runs an engine and waits until it is ready.
func serve(cfg engine.Config) *server {
	m := telemetry.NewMetrics(prometheus.NewRegistry(), "bench", time.Now)
	e, err := engine.New(cfg, slog.New(slog.DiscardHandler), m, telemetry.NewProgress(max(1, cfg.TPSize), time.Now))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()
	for e.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return &server{e, m, func() { cancel(); <-ended }, map[int]int{}}
}

func (s *server) set(a arm) {
	if err := s.SetSpeculation(a.mode, a.least, a.depth); err != nil {
		log.Fatal(err)
	}
}

// count is what an engine has done so far.
type count struct {
	at                         time.Time
	tokens, verifies, accepted float64
}

func value(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		log.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func (s *server) count() count {
	c := count{at: time.Now(), tokens: value(s.metrics.GenerationTokens), verifies: value(s.metrics.SpecVerifies)}
	for k := range telemetry.MaxPositions {
		c.accepted += value(s.metrics.Accepted(k))
	}
	return c
}

// turn lets the engine go on for d; the answer is tokens in a second and the
// accept length.
func (s *server) turn(d time.Duration) (rate, accept float64) {
	before := s.count()
	time.Sleep(d)
	after := s.count()
	accept = 1
	if n := after.verifies - before.verifies; n > 0 {
		accept += (after.accepted - before.accepted) / n
	}
	return (after.tokens - before.tokens) / after.at.Sub(before.at).Seconds(), accept
}

// load is a number of clients that always have a request running.
type load struct {
	s       *server
	context int
	answer  int

	mu      sync.Mutex
	cancels []context.CancelFunc // by client
	wg      sync.WaitGroup
	done    []*atomic.Int64 // requests that ended, by client
	begun   atomic.Int64    // clients with a first token
}

// fewestPrompts is the number of prompts that the clients take turns with, if
// they are not more: the luck of a single text would say little.
const fewestPrompts = 4

func newLoad(s *server, context, answer int) *load {
	return &load{s: s, context: context, answer: answer}
}

// resize starts or stops clients until there are n.
func (l *load) resize(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.cancels) < n {
		ctx, cancel := context.WithCancel(context.Background())
		i := len(l.cancels)
		l.cancels = append(l.cancels, cancel)
		if i == len(l.done) {
			l.done = append(l.done, new(atomic.Int64))
		}
		prompts := make([][]int32, max(1, fewestPrompts/n))
		for k := range prompts {
			prompts[k] = prompt(l.s, i+k*n, l.context)
		}
		answer := l.answer * (i + 1) / n // so that they do not end all at once
		l.wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				l.request(ctx, prompts[k%len(prompts)], max(2, answer), k == 0)
				answer = l.answer
				l.done[i].Add(1)
			}
		})
	}
	for len(l.cancels) > n {
		last := len(l.cancels) - 1
		l.cancels[last]()
		l.cancels = l.cancels[:last]
	}
}

// decodes waits until every client's first request has its first token.
func (l *load) decodes() {
	for int(l.begun.Load()) < len(l.cancels) {
		time.Sleep(time.Millisecond)
	}
}

// warm waits until every client has had a whole answer: its text is known then.
func (l *load) warm() {
	for i := range l.cancels {
		for l.done[i].Load() < 2 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (l *load) stop() {
	l.resize(0)
	l.wg.Wait()
}

func (l *load) request(ctx context.Context, prompt []int32, answer int, first bool) {
	stream, err := l.s.Submit(&scheduler.Request{
		PromptIDs: prompt, MaxTokens: answer, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	for {
		ev, err := stream.Next(ctx)
		switch {
		case err != nil || ev.Finish != "":
			return
		case ev.Err != nil:
			log.Fatal(ev.Err)
		case first:
			first = false
			l.begun.Add(1)
		}
	}
}

// source is Go code for the prompts: the bundled model's own kind.
const source = "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n)\n\n// Reconcile brings the cluster state closer to the desired state.\n" +
	"func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {\n\tlog := log.FromContext(ctx)\n\tif err := r.Get(ctx, req.NamespacedName, &obj); err != nil {\n\t\treturn ctrl.Result{}, err\n\t}\n"

// prompt is a prompt of length tokens, another one for each client.
func prompt(s *server, i, length int) []int32 {
	if tok := s.Tokenizer(); tok != nil {
		ids := tok.Encode(strings.Repeat(fmt.Sprintf("// stream %d\n%s", i, source), 1+length/40), true)
		return ids[:min(length, len(ids))]
	}
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	ids := make([]int32, length)
	for k := range ids {
		ids[k] = rng.Int32N(int32(s.Info().VocabSize))
	}
	return ids
}

// arm is a way to decode.
type arm struct {
	name  string
	mode  speculation.Mode
	least int // of mode auto
	depth int
}

// arms are plain decoding and each fixed depth.
func arms(steps int) []arm {
	all := []arm{{name: "off", mode: speculation.ModeOff}}
	for d := 1; d <= steps; d++ {
		all = append(all, arm{name: fmt.Sprintf("fixed %d", d), mode: speculation.ModeFixed, depth: d})
	}
	return all
}

// auto is the arm that chooses.
func auto(steps int) arm { return arm{name: "auto", mode: speculation.ModeAuto, depth: steps} }
