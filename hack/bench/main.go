// Command bench measures the engine in this process: tokens in a second with
// plain decoding, with fixed draft depths and with the depth that the engine
// chooses, by number of streams and by context. All figures of a cell come from
// the same engine in turns, so that their ratios hold on a machine that is
// faster or slower for a while.
//
//	go run ./hack/bench -streams 1,4,16 -json bench.json
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// arm is a way to decode.
type arm struct {
	Name string
	Mode speculation.Mode
	Max  int
}

// cell is one load and what the arms reach under it.
type cell struct {
	Streams int                `json:"streams"`
	Context int                `json:"context"` // prompt tokens
	Tokens  map[string]float64 `json:"tokens_per_second"`
	Accept  map[string]float64 `json:"accept_length"`
	Auto    float64            `json:"auto_of_better"` // auto over the better of off and the deepest fixed
}

var (
	model    = flag.String("model", "builtin:gocode-7m", "model to measure")
	tp       = flag.Int("tp-size", 1, "ranks")
	steps    = flag.Int("steps", 3, "deepest draft")
	streams  = flag.String("streams", "1,2,4,8,16,32", "numbers of streams")
	contexts = flag.String("contexts", "16,600", "prompt lengths in tokens")
	rounds   = flag.Int("rounds", 5, "turns of each arm; the median counts")
	duration = flag.Duration("duration", time.Second, "length of a turn")
	output   = flag.String("json", "", "file for the figures")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	most := slices.Max(numbers(*streams))
	e := start(most)
	arms := []arm{{"off", speculation.ModeOff, 0}}
	for d := 1; d <= *steps; d++ {
		arms = append(arms, arm{fmt.Sprintf("fixed %d", d), speculation.ModeFixed, d})
	}
	arms = append(arms, arm{"auto", speculation.ModeAuto, *steps})
	fmt.Printf("%s on %s, %d ranks; tokens/s, and the ratio to plain decoding\n", *model, e.Info().Device, *tp)
	fmt.Printf("%7s %7s", "streams", "context")
	for _, a := range arms {
		fmt.Printf(" %15s", a.Name)
	}
	fmt.Printf(" %15s\n", "auto/better")
	var cells []cell
	for _, context := range numbers(*contexts) {
		for _, n := range numbers(*streams) {
			c := measure(e, arms, n, context)
			cells = append(cells, c)
			fmt.Printf("%7d %7d", n, context)
			for _, a := range arms {
				fmt.Printf(" %8.0f (%.2f)", c.Tokens[a.Name], c.Tokens[a.Name]/c.Tokens["off"])
			}
			fmt.Printf(" %15.3f\n", c.Auto)
		}
	}
	if *output != "" {
		b, err := json.MarshalIndent(cells, "", " ")
		if err == nil {
			err = os.WriteFile(*output, append(b, '\n'), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

func numbers(list string) (ns []int) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			log.Fatalf("%q is no list of whole numbers from 1 on", list)
		}
		ns = append(ns, n)
	}
	return ns
}

// start runs an engine for as many streams and waits until it is ready.
func start(most int) *engine.Engine {
	m := telemetry.NewMetrics(prometheus.NewRegistry(), "bench", time.Now)
	cfg := engine.Config{Model: *model, TPSize: *tp, NumSteps: *steps, Mode: speculation.ModeAuto, MaxRunningRequests: most}
	e, err := engine.New(cfg, slog.New(slog.DiscardHandler), m, telemetry.NewProgress(*tp, time.Now))
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := e.Run(context.Background()); err != nil {
			log.Fatal(err)
		}
	}()
	for e.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return e
}

// measure lets the arms take turns under one load.
func measure(e *engine.Engine, arms []arm, streams, context int) cell {
	c := cell{Streams: streams, Context: context, Tokens: map[string]float64{}, Accept: map[string]float64{}}
	load := startLoad(e, streams, context)
	defer load.stop()
	rates := map[string][]float64{}
	for round := range *rounds + 1 { // the first round warms up: auto settles in it
		for _, a := range arms {
			if err := e.SetSpeculation(a.Mode, 0, a.Max); err != nil {
				log.Fatal(err)
			}
			time.Sleep(*duration / 10) // the cycle under way
			before, begin := load.tokens.Load(), time.Now()
			drafts, accepted := load.verifies.Load(), load.accepted.Load()
			time.Sleep(*duration)
			rate := float64(load.tokens.Load()-before) / time.Since(begin).Seconds()
			if round > 0 {
				rates[a.Name] = append(rates[a.Name], rate)
			}
			if n := load.verifies.Load() - drafts; n > 0 {
				c.Accept[a.Name] = 1 + float64(load.accepted.Load()-accepted)/float64(n)
			}
		}
	}
	for name, r := range rates {
		slices.Sort(r)
		c.Tokens[name] = r[len(r)/2]
	}
	c.Auto = c.Tokens["auto"] / max(c.Tokens["off"], c.Tokens[arms[len(arms)-2].Name])
	return c
}

// load is a number of clients that always have a request running.
type load struct {
	tokens, verifies, accepted atomic.Int64
	cancel                     context.CancelFunc
	wg                         sync.WaitGroup
}

const answer = 128 // tokens of an answer

func startLoad(e *engine.Engine, streams, length int) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	for i := range streams {
		prompt := prompts(e, i, length)
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.request(ctx, e, prompt)
			}
		})
	}
	return l
}

// text is Go source for the prompts: this program's own kind.
const text = "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n)\n\n// Reconcile brings the cluster state closer to the desired state.\n" +
	"func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {\n\tlog := log.FromContext(ctx)\n\tif err := r.Get(ctx, req.NamespacedName, &obj); err != nil {\n\t\treturn ctrl.Result{}, err\n\t}\n"

// prompts is a prompt of length tokens, another one for each stream.
func prompts(e *engine.Engine, i, length int) []int32 {
	if e.Tokenizer() == nil {
		log.Fatal("the model has no tokenizer")
	}
	ids := e.Tokenizer().Encode(strings.Repeat(fmt.Sprintf("// stream %d\n%s", i, text), 1+length/40), true)
	return ids[:min(length, len(ids))]
}

// request sends one request and counts its tokens as they come.
func (l *load) request(ctx context.Context, e *engine.Engine, prompt []int32) {
	stream, err := e.Submit(&scheduler.Request{
		PromptIDs: prompt, MaxTokens: answer, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: scheduler.NoLogprobs,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	var before scheduler.Usage
	for {
		ev, err := stream.Next(ctx)
		if err != nil {
			return
		}
		l.tokens.Add(int64(len(ev.TokenIDs)))
		l.verifies.Add(int64(ev.Usage.Verifies - before.Verifies))
		l.accepted.Add(int64(ev.Usage.Accepted - before.Accepted))
		before = ev.Usage
		if ev.Err != nil {
			log.Fatal(ev.Err)
		}
		if ev.Finish != "" {
			return
		}
	}
}

func (l *load) stop() {
	l.cancel()
	l.wg.Wait()
}
