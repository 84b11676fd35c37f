package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// crossover is a load that rises and falls through the number of streams from
// which on speculation does not pay.
type crossover struct {
	Model    string   `json:"model"`
	Accept   string   `json:"accept"`
	Seconds  float64  `json:"seconds"`
	Windows  []window `json:"windows"`
	Worst    float64  `json:"worst_of_worse"`  // the least that auto had of the worse arm in a window
	Overall  float64  `json:"auto_of_better"`  // auto over the better arm of each window, geometric mean
	Switches int      `json:"switches"`        // between plain decoding and speculation
	Most     int      `json:"most_streams"`    // of the load
	Period   float64  `json:"period_seconds"`  // of its rise and fall
	Share    float64  `json:"auto_time_share"` // of a window; the other arms share the rest
}

// window is five seconds of one load.
type window struct {
	Streams  int     `json:"streams"` // at its middle
	Off      float64 `json:"off_tokens_per_second"`
	Fixed    float64 `json:"fixed_tokens_per_second"`
	Auto     float64 `json:"auto_tokens_per_second"`
	Switches int     `json:"switches"` // in auto's turns

	depths map[string][]telemetry.DepthTime // by arm
}

const (
	windowLength = 5 * time.Second
	// windowTurns is how often the arms of a window have their turns: so often that
	// what else a machine does for a second is not one arm's alone.
	windowTurns = 4
	period      = time.Minute // of the load
)

// crossovers runs the load. In each window plain decoding and fixed have a fifth of
// the time each, and auto the rest, on one engine whose choice learns nothing from
// the turns of the others.
func (r *results) crossovers(cfg engine.Config) {
	most := slices.Max(numbers(*streams))
	cfg.LearnInAuto = true
	r.each(cfg, func(s *server, accept string) {
		c := crossover{Model: *model, Accept: accept, Most: most, Period: period.Seconds(), Share: 0.6, Worst: math.Inf(1)}
		s.set(arms(*steps)[*steps])
		s.learn(most, 16)
		l := newLoad(s, 16, *answer)
		defer l.stop()
		logSum := 0.0
		for begin := time.Now(); c.Seconds < 60**minutes; c.Seconds = time.Since(begin).Seconds() {
			w := s.window(l, streamsAt(time.Since(begin)+windowLength/2, most))
			better, worse := max(w.Off, w.Fixed), min(w.Off, w.Fixed)
			c.Worst = min(c.Worst, w.Auto/worse)
			logSum += math.Log(w.Auto / better)
			c.Windows = append(c.Windows, w)
			c.Switches += w.Switches
		}
		c.Overall = math.Exp(logSum / float64(len(c.Windows)))
		c.print()
		r.Crossover = append(r.Crossover, c)
		r.save()
	})
}

// streamsAt is the load after some time: from 1 to most and back, evenly in its
// logarithm's sine.
func streamsAt(t time.Duration, most int) int {
	phase := 0.5 - 0.5*math.Cos(2*math.Pi*t.Seconds()/period.Seconds())
	return int(math.Round(math.Exp2(phase * math.Log2(float64(most)))))
}

// window lets the arms take turns under n streams. It begins when all of them
// decode: their prompts are no arm's doing. The load stands still, so that the
// arms compare.
func (s *server) window(l *load, n int) window {
	off, fixed, auto := arms(*steps)[0], arm{name: "fixed", mode: speculation.ModeFixed, depth: *steps}, auto(*steps)
	s.set(auto)
	l.resize(n)
	l.decodes()
	w := window{Streams: n}
	sums := map[string][]telemetry.DepthTime{}
	turns := []arm{auto, off, auto, fixed, auto}
	for range windowTurns {
		for _, i := range shuffled(len(turns)) { // what comes before an arm is that before another, in turn
			before, a := s.Speculation().Switches, turns[i]
			sums[a.name] = plusAll(sums[a.name], s.take(a, windowLength/time.Duration(windowTurns*len(turns))))
			if a.name == auto.name {
				w.Switches += s.Speculation().Switches - before
			}
		}
	}
	all := slices.Clone(sums[off.name])
	all = plusAll(plusAll(all, sums[fixed.name]), sums[auto.name])
	crowd := crowded(all)
	w.Off, w.Fixed, w.Auto, w.depths = rate(sums[off.name], crowd), rate(sums[fixed.name], crowd), rate(sums[auto.name], crowd), sums
	return w
}

func (c *crossover) print() {
	fmt.Printf("Crossover: %s, acceptance %s, 1 to %d streams and back in %.0f s, for %.0f s\n%8s %8s %8s %8s %8s %8s %8s\n", c.Model, c.Accept, c.Most, c.Period, c.Seconds,
		"streams", "off", "fixed", "auto", "/better", "/worse", "switches")
	for _, w := range c.Windows {
		fmt.Printf("%8d %8.0f %8.0f %8.0f %8.3f %8.3f %8d\n", w.Streams, w.Off, w.Fixed, w.Auto, w.Auto/max(w.Off, w.Fixed), w.Auto/min(w.Off, w.Fixed), w.Switches)
		if *verbose {
			for _, name := range []string{"off", "fixed", "auto"} {
				printDepths(name, w.depths[name])
			}
		}
	}
	fmt.Printf("%s\nauto: %.3f of the better arm overall, at least %.3f of the worse one; %d switches\n", strings.Repeat("-", 62), c.Overall, c.Worst, c.Switches)
}
