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

// patience is how long an engine may go on without a token.
var patience = 5 * time.Minute

// wait waits for d, and again as long as there is no token: a rate of nothing is no
// figure. The error is that there was none for too long.
func wait(d time.Duration, token func() bool) error {
	for begin := time.Now(); ; {
		time.Sleep(d)
		if token() {
			return nil
		}
		if took := time.Since(begin); took >= patience {
			return fmt.Errorf("no request had a token for %s: either the engine is stuck, or its clients have ended, or a step takes longer", took.Round(time.Second))
		}
	}
}

// mustWait is wait, without which there is nothing to print.
func mustWait(d time.Duration, token func() bool) {
	if err := wait(d, token); err != nil {
		log.Fatal(err)
	}
}

// turn lets the engine go on for d, or until there is a token; the answer is tokens
// in a second and the accept length.
func (s *server) turn(d time.Duration) (rate, accept float64) {
	before := s.count()
	after := before
	mustWait(d, func() bool {
		after = s.count()
		return after.tokens > before.tokens
	})
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
	clients []*client
	prompts [][]int32
	wg      sync.WaitGroup
}

// client has requests one after the other.
type client struct {
	cancel context.CancelFunc
	begun  sync.WaitGroup // until its first token
	done   atomic.Int64   // requests that ended
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
	for n > 0 && len(l.prompts) < max(n, fewestPrompts) {
		l.prompts = append(l.prompts, prompt(l.s, len(l.prompts), l.context))
	}
	for len(l.clients) < n {
		ctx, cancel := context.WithCancel(context.Background())
		c, i := &client{cancel: cancel}, len(l.clients)
		l.clients = append(l.clients, c)
		c.begun.Add(1)
		answer := l.answer * (i + 1) / n // so that they do not end all at once
		l.wg.Go(func() {
			begun := sync.OnceFunc(c.begun.Done)
			defer begun()
			for k := 0; ctx.Err() == nil; k++ {
				l.request(ctx, l.next(i, k), max(2, answer), begun)
				answer = l.answer
				c.done.Add(1)
			}
		})
	}
	for len(l.clients) > n {
		last := len(l.clients) - 1
		l.clients[last].cancel()
		l.clients = l.clients[:last]
	}
}

// next is client i's prompt k: the clients that there are take turns with at least
// fewestPrompts.
func (l *load) next(i, k int) []int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.clients)
	return l.prompts[(i+k*n)%max(n, fewestPrompts, i+1)]
}

// decodes waits until every client's first request has its first token.
func (l *load) decodes() {
	for _, c := range l.clients {
		c.begun.Wait()
	}
}

// warm waits until every client has had a whole answer: its text is known then.
func (l *load) warm() {
	for _, c := range l.clients {
		for c.done.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (l *load) stop() {
	l.resize(0)
	l.wg.Wait()
}

// request runs one request to its end; begun hears of each of its events.
func (l *load) request(ctx context.Context, prompt []int32, answer int, begun func()) {
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
		}
		begun()
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
