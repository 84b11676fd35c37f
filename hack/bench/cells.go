package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// cell is one load and what the arms reach under it.
type cell struct {
	Model    string                `json:"model"`
	Accept   string                `json:"accept"` // simulated rate, or "real"
	Streams  int                   `json:"streams"`
	Context  int                   `json:"context"` // prompt tokens
	Crowded  bool                  `json:"crowded"` // most cycles have prompts: rates are of all of them
	Plain    float64               `json:"plain_tokens_per_second"`
	Ratio    map[string]estimate   `json:"ratio_to_plain"`   // of each arm, within the rounds
	PerCycle map[string]float64    `json:"tokens_per_cycle"` // and stream
	Better   string                `json:"better"`           // plain decoding or the deepest fixed, whichever had more
	Auto     estimate              `json:"auto_of_better"`   // within the rounds
	First    float64               `json:"first_second"`     // the same of auto's first second under this load
	Loss     loss                  `json:"loss"`
	Rates    map[string][]float64  `json:"tokens_per_second"` // by round
	Held     []float64             `json:"held_at_best"`      // by turn: mode auto held at the best depth, over the best arm
	Depths   []telemetry.DepthTime `json:"auto_depths"`       // of auto's turns
}

// loss is where auto's tokens are lost, as shares of those of the best arm.
type loss struct {
	Best  string   `json:"best"`  // of plain decoding and all fixed depths, by the first round
	Noise estimate `json:"noise"` // the best arm again, over itself: what the ratios are worth
	Same  estimate `json:"same"`  // mode auto held at the best depth, over the best arm: what choosing costs

	// Of auto's decode cycles: the share of their time that the choice itself
	// took another depth, that probes took, and that the way from one depth to
	// another took; and what was lost by each, against the same time of the best
	// arm's cycles. The last is what cycles at the best depth had less.
	Others     float64 `json:"others_time"`
	Probes     float64 `json:"probes_time"`
	Moving     float64 `json:"moving_time"`
	LostOthers float64 `json:"others_lost"`
	LostProbes float64 `json:"probes_lost"`
	LostMoving float64 `json:"moving_lost"`
	LostAtBest float64 `json:"best_lost"`
}

// learn computes the answers of the prompts for n streams once, so that the
// prefix cache has the prompts, and a simulation knows the texts.
func (s *server) learn(n, context int) {
	n = max(n, fewestPrompts)
	if s.known[context] >= n {
		return
	}
	s.known[context] = n
	l := newLoad(s, context, *answer)
	defer l.stop()
	l.resize(n)
	l.warm()
}

// take is a turn of an arm: what its cycles did, by depth. The first cycles are
// left out, in which the depth changes: that under way, and that which verifies
// the drafts of the arm before, however long they take.
func (s *server) take(a arm, d time.Duration) []telemetry.DepthTime {
	before := total(s.Profile().Depths).Count
	s.set(a)
	time.Sleep(max(d/8, 30*time.Millisecond))
	mustWait(time.Millisecond, func() bool { return total(s.Profile().Depths).Count >= before+2 })
	return s.cycles(d)
}

// cycles is what the cycles of the next d did, by depth, or of longer where none of
// them had a token.
func (s *server) cycles(d time.Duration) (depths []telemetry.DepthTime) {
	before := s.Profile().Depths
	mustWait(d, func() bool {
		depths = added(nil, s.Profile().Depths, before)
		return total(depths).Tokens > 0
	})
	return depths
}

// total is what all cycles did.
func total(depths []telemetry.DepthTime) (c telemetry.Cycles) {
	for _, d := range depths {
		c = plus(plus(plus(plus(c, d.Steady), d.Probe), d.Moving), d.Mixed)
	}
	return c
}

// crowded tells whether most cycles computed rows of prompts too.
func crowded(depths []telemetry.DepthTime) bool {
	mixed := 0
	for _, d := range depths {
		mixed += d.Mixed.Count
	}
	return 2*mixed > total(depths).Count
}

// rate is tokens in a second of the engine's time. Cycles that computed rows of
// prompts too count as those of their depth that did not: how many of them a turn
// has is the luck of when requests end, and no arm's doing. Not so in a crowd: there
// the others are few, and not what the requests have, since prompts can add
// far more at one depth than at another.
func rate(depths []telemetry.DepthTime, crowd bool) float64 {
	if crowd {
		t := total(depths)
		return float64(t.Tokens) / t.Seconds
	}
	var tokens, seconds float64
	for _, d := range depths {
		alone, weight := plus(d.Steady, d.Probe), 1.0
		if alone.Count > 0 {
			weight += float64(d.Mixed.Count) / float64(alone.Count)
		} else {
			alone = d.Mixed
		}
		tokens += weight*float64(alone.Tokens) + float64(d.Moving.Tokens)
		seconds += weight*alone.Seconds + d.Moving.Seconds
	}
	return tokens / seconds
}

// measure lets the arms take turns under one load, on one engine, whose choice
// learns nothing by the turns of the others. What counts is the median over the
// rounds of the arms' ratios in the same round.
func (s *server) measure(accept string, streams, context int) cell {
	c := cell{Model: *model, Accept: accept, Streams: streams, Context: context, Ratio: map[string]estimate{}, Rates: map[string][]float64{}, PerCycle: map[string]float64{}}
	chosen, all := auto(*steps), arms(*steps)
	deepest := all[len(all)-1]
	s.set(deepest)
	s.learn(streams, context)
	l := newLoad(s, context, *answer)
	defer l.stop()
	s.set(chosen)
	l.resize(streams)
	l.decodes()
	first := s.cycles(time.Second)
	time.Sleep(*warm)
	var begun []telemetry.DepthTime
	turns := make([][]telemetry.DepthTime, len(all))
	for i, a := range all {
		turns[i] = s.take(a, 2**duration)
		begun = plusAll(begun, slices.Clone(turns[i]))
	}
	c.Crowded = crowded(begun)
	best, top := all[0], 0.0
	for i, a := range all {
		if r := rate(turns[i], c.Crowded); r > top {
			best, top = a, r
		}
	}
	c.Loss.Best = best.name
	again := arm{"again", best.mode, 0, best.depth}
	all = append(all, again, chosen)
	if *brief {
		all = []arm{all[0], deepest, again, chosen}
		if best.name != all[0].name && best.name != deepest.name {
			all = append(all, best)
		}
	}
	sums := map[string][]telemetry.DepthTime{}
	for end := time.Now().Add(*cellTime); len(c.Rates["auto"]) < *rounds || time.Now().Before(end); {
		for _, i := range shuffled(len(all)) {
			name, depths := all[i].name, s.take(all[i], *duration)
			c.Rates[name] = append(c.Rates[name], rate(depths, c.Crowded))
			sums[name] = plusAll(sums[name], depths)
		}
	}
	// After all others, since the choice goes on from there.
	same := arm{"same", speculation.ModeAuto, best.depth, best.depth}
	for range *rounds {
		c.Held = append(c.Held, rate(s.take(same, *duration), c.Crowded)/rate(s.take(again, *duration), c.Crowded))
	}
	c.sum(sums, deepest, best, rate(first, c.Crowded))
	if *verbose {
		s.explain(&c, sums)
	}
	return c
}

// sum is the figures of the rounds.
func (c *cell) sum(sums map[string][]telemetry.DepthTime, deepest, best arm, first float64) {
	for name, r := range c.Rates {
		c.Ratio[name] = estimateOf(over(r, c.Rates["off"]))
		t := total(sums[name])
		c.PerCycle[name] = float64(t.Tokens) / float64(max(t.Count, 1)*c.Streams)
	}
	c.Plain = stats.Median(c.Rates["off"])
	if c.Better = "off"; c.Ratio[deepest.name].Median > 1 {
		c.Better = deepest.name
	}
	c.Auto = estimateOf(over(c.Rates["auto"], c.Rates[c.Better]))
	c.First = first / stats.Median(c.Rates[c.Better])
	c.Depths = sums["auto"]
	c.Loss.Noise = estimateOf(over(c.Rates["again"], c.Rates[best.name]))
	c.Loss.Same = estimateOf(c.Held)
	depths, held := c.Depths, sums[best.name][best.depth]
	if c.Crowded {
		depths = slices.Clone(depths)
		for i := range depths {
			depths[i].Steady = plus(depths[i].Steady, depths[i].Mixed)
		}
		held.Steady = plus(held.Steady, held.Mixed)
	}
	c.Loss.split(depths, best.depth, held.Steady)
}

// split finds where the time of auto's cycles went, and what it was worth; nothing
// where turns were so short that no cycle tells.
func (l *loss) split(depths []telemetry.DepthTime, best int, steady telemetry.Cycles) {
	total := 0.0
	for _, d := range depths {
		total += d.Steady.Seconds + d.Probe.Seconds + d.Moving.Seconds
	}
	if total == 0 || steady.Tokens == 0 {
		return
	}
	rate := float64(steady.Tokens) / steady.Seconds
	part := func(time, lost *float64, c telemetry.Cycles) {
		*time += c.Seconds / total
		*lost += (c.Seconds - float64(c.Tokens)/rate) / total
	}
	var atBest float64
	for i, d := range depths {
		if i == best {
			part(&atBest, &l.LostAtBest, d.Steady)
		} else {
			part(&l.Others, &l.LostOthers, d.Steady)
		}
		part(&l.Probes, &l.LostProbes, d.Probe)
		part(&l.Moving, &l.LostMoving, d.Moving)
	}
}

func minus(a, b telemetry.Cycles) telemetry.Cycles {
	return telemetry.Cycles{Count: a.Count - b.Count, Seconds: a.Seconds - b.Seconds, Tokens: a.Tokens - b.Tokens}
}

func plus(a, b telemetry.Cycles) telemetry.Cycles {
	return telemetry.Cycles{Count: a.Count + b.Count, Seconds: a.Seconds + b.Seconds, Tokens: a.Tokens + b.Tokens}
}

// each calls f with the parts of what cycles of a depth did.
func each(a, b *telemetry.DepthTime, f func(a *telemetry.Cycles, b telemetry.Cycles)) {
	f(&a.Steady, b.Steady)
	f(&a.Probe, b.Probe)
	f(&a.Moving, b.Moving)
	f(&a.Mixed, b.Mixed)
}

// added is sum and what came between two looks.
func added(sum, after, before []telemetry.DepthTime) []telemetry.DepthTime {
	between := slices.Clone(after)
	for i := range between {
		each(&between[i], &before[i], func(a *telemetry.Cycles, b telemetry.Cycles) { *a = minus(*a, b) })
	}
	return plusAll(sum, between)
}

func plusAll(a, b []telemetry.DepthTime) []telemetry.DepthTime {
	if a == nil {
		return b
	}
	for i := range a {
		each(&a[i], &b[i], func(a *telemetry.Cycles, b telemetry.Cycles) { *a = plus(*a, b) })
	}
	return a
}

func printHeader() {
	fmt.Printf("%9s %6s %7s %7s %8s", "model", "accept", "streams", "context", "plain")
	for _, a := range arms(*steps)[1:] {
		fmt.Printf(" %7s", a.name)
	}
	fmt.Printf(" %6s %20s %6s | %8s %20s %20s | lost by other depths, probes, moving, at the best\n", "auto", "auto/better", "first", "best", "again/best", "same/best")
}

func (c *cell) print() {
	fmt.Printf("%9s %6s %7d %7d %8.0f", c.Model, c.Accept, c.Streams, c.Context, c.Plain)
	for _, a := range arms(*steps)[1:] {
		fmt.Printf(" %7.3f", c.Ratio[a.name].Median)
	}
	l := &c.Loss
	fmt.Printf(" %6.3f %20v %6.2f | %8s %20v %20v |", c.Ratio["auto"].Median, c.Auto, c.First, l.Best, l.Noise, l.Same)
	for _, part := range [][2]float64{{l.LostOthers, l.Others}, {l.LostProbes, l.Probes}, {l.LostMoving, l.Moving}} {
		fmt.Printf(" %.4f of %.3f,", part[0], part[1])
	}
	fmt.Printf(" %.4f\n", l.LostAtBest)
}

// printDepths prints what the cycles of an arm did, by depth.
func printDepths(name string, depths []telemetry.DepthTime) {
	mean := func(c telemetry.Cycles) string {
		if c.Count == 0 {
			return "none"
		}
		return fmt.Sprintf("%d of %.0f µs, %.3f tokens", c.Count, 1e6*c.Seconds/float64(c.Count), float64(c.Tokens)/float64(c.Count))
	}
	for _, d := range depths {
		if total([]telemetry.DepthTime{d}).Count > 0 {
			fmt.Printf("    %s, depth %d: steady %s; probes %s; moving %s; mixed %s\n", name, d.Depth, mean(d.Steady), mean(d.Probe), mean(d.Moving), mean(d.Mixed))
		}
	}
}

// explain prints what the choice of the depth rests on, beside what cycles took
// in the turns of each arm.
func (s *server) explain(c *cell, sums map[string][]telemetry.DepthTime) {
	p := s.Profile()
	fmt.Printf("    tokens of a cycle and stream %v, expected %.3f\n", c.PerCycle, p.Tokens)
	for _, a := range p.Acceptance {
		fmt.Printf("    position %d: accepted %.3f ± %.3f, of %.0f drafts\n", a.Position, a.Rate, a.Deviation, a.Drafts)
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		printDepths(name, sums[name])
	}
	for _, cost := range p.Costs.Cells {
		if cost.Batch == c.Streams {
			fmt.Printf("    %d streams, depth %d: %.0f µs (%.0f measured) × %.2f\n", cost.Batch, cost.Depth, 1e6*cost.Seconds, cost.Measured, p.Costs.Speed)
		}
	}
	for _, r := range p.Phases {
		fmt.Printf("    %-10s mean %6.0f µs, median %6.0f µs, 99 of 100 below %6.0f µs, share %.3f\n", r.Phase, 1e6*r.Mean, 1e6*r.P50, 1e6*r.P99, r.Share)
	}
	fmt.Println(strings.Repeat(" ", 3), fmt.Sprintf("%+v", p.Speculation))
}
