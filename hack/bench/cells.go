package main

import (
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// cell is one load and what the arms reach under it.
type cell struct {
	Model   string             `json:"model"`
	Accept  string             `json:"accept"` // simulated rate, or "real"
	Streams int                `json:"streams"`
	Context int                `json:"context"` // prompt tokens
	Plain   float64            `json:"plain_tokens_per_second"`
	Ratio   map[string]float64 `json:"ratio_to_plain"` // median over the rounds
	Length  map[string]float64 `json:"accept_length"`
	Auto    float64            `json:"auto_of_better"` // auto over the better of plain decoding and the deepest fixed
	Depths  map[int]float64    `json:"auto_depths"`    // share of the looks at which auto had a depth in force
	Reasons map[string]int     `json:"auto_reasons"`
}

// measure lets the arms take turns under one load. What counts is the median over
// the rounds of each arm's ratio to plain decoding in the same round.
func measure(s *server, accept string, streams, context int) cell {
	c := cell{Model: *model, Accept: accept, Streams: streams, Context: context, Ratio: map[string]float64{}, Length: map[string]float64{},
		Depths: map[int]float64{}, Reasons: map[string]int{}}
	l := newLoad(s, context, *answer)
	defer l.stop()
	s.set(arm{"off", "off", 0})
	l.resize(streams)
	l.warm()
	all := arms(*steps)
	ratios, plains := map[string][]float64{}, []float64(nil)
	looks := 0.0
	for round := range *rounds + 1 { // the first round warms up
		var plain float64
		for _, a := range all {
			s.set(a)
			time.Sleep(min(*duration/10, 50*time.Millisecond)) // the cycle under way
			var rate, length float64
			if a.name == "auto" {
				rate, length = s.watch(*duration, func(depth int, reason string) {
					c.Depths[depth]++
					c.Reasons[reason]++
					looks++
				})
			} else {
				rate, length = s.turn(*duration)
			}
			if a.name == "off" {
				plain = rate
			}
			if round > 0 {
				ratios[a.name] = append(ratios[a.name], rate/plain)
				c.Length[a.name] = length
				if a.name == "off" {
					plains = append(plains, rate)
				}
			}
		}
	}
	for name, r := range ratios {
		c.Ratio[name] = stats.Median(r)
	}
	for d := range c.Depths {
		c.Depths[d] /= looks
	}
	c.Plain = stats.Median(plains)
	c.Auto = c.Ratio["auto"] / max(1, c.Ratio[all[len(all)-2].name])
	return c
}

// watch is turn; look hears now and then what the engine has in force.
func (s *server) watch(d time.Duration, look func(depth int, reason string)) (rate, accept float64) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			now := s.Speculation()
			look(now.NumSteps, now.Reason)
		}
	}()
	rate, accept = s.turn(d)
	<-done
	return rate, accept
}

func printHeader() {
	fmt.Printf("%9s %6s %7s %7s %10s", "model", "accept", "streams", "context", "plain")
	for _, a := range arms(*steps)[1:] {
		fmt.Printf(" %8s", a.name)
	}
	fmt.Printf(" %11s  %s\n", "auto/better", "depths of auto")
}

func (c *cell) print() {
	fmt.Printf("%9s %6s %7d %7d %10.0f", c.Model, c.Accept, c.Streams, c.Context, c.Plain)
	for _, a := range arms(*steps)[1:] {
		fmt.Printf(" %8.2f", c.Ratio[a.name])
	}
	fmt.Printf(" %11.3f ", c.Auto)
	for d := range *steps + 1 {
		fmt.Printf(" %3.0f%%", 100*c.Depths[d])
	}
	fmt.Println()
}

// explain prints what the choice of the depth for n streams rests on, beside what
// cycles took in the turns.
func (s *server) explain(n int, c *cell) {
	p := s.Profile()
	fmt.Printf("    accept lengths %v\n", c.Length)
	for _, a := range p.Acceptance {
		fmt.Printf("    position %d: accepted %.3f ± %.3f, of %.0f drafts\n", a.Position, a.Rate, a.Deviation, a.Drafts)
	}
	for _, c := range p.Costs.Cells {
		if c.Batch == n {
			fmt.Printf("    %d streams, depth %d: %.0f µs (%.0f measured) × %.2f\n", n, c.Depth, 1e6*c.Seconds, c.Measured, p.Costs.Speed)
		}
	}
	for _, r := range p.Phases {
		fmt.Printf("    %-10s mean %6.0f µs, median %6.0f µs, 99 of 100 below %6.0f µs, share %.3f\n", r.Phase, 1e6*r.Mean, 1e6*r.P50, 1e6*r.P99, r.Share)
	}
	fmt.Printf("    %+v\n", p.Speculation)
}
