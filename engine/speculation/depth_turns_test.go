package speculation

import (
	"math"
	"math/rand/v2"
	"testing"
)

// turns is a load of one stream in which the choice has turns, in between others
// from which it learns nothing, as hack/bench measures it: 400 ms each, cycles of
// some 16 ms, and an answer of 128 tokens followed by the next one.
type turns struct {
	*machine
	c    *Chooser
	best int // depth

	at       float64 // seconds
	verified int     // depth of the drafts that the next pass verifies
	text     int     // tokens of the answer so far

	time, tokens, lost, probes float64 // of auto's cycles; what its probes and the way to them lost; time of these
}

const (
	turnSeconds = 0.4
	turnAnswer  = 128
)

// cycle runs one in the mode.
func (w *turns) cycle(mode Mode, counts bool) {
	auto := mode == ModeAuto
	l := Load{1, 16 + w.text}
	before := w.verified
	d := w.c.Choose(l, Bounds{Mode: mode, Max: 3})
	took, accepted := w.machine.cycle(l, before, func(drafted, accepted int) {
		if auto {
			w.c.Verified(drafted, accepted)
		}
	})
	seconds, tokens := w.expect(l, before)
	enters := before == 0 && d > 0
	if enters {
		took, seconds = took+w.seconds(l, 0), seconds+w.seconds(l, 0)
	}
	w.at, w.verified, w.text = w.at+took, d, w.text+1+accepted
	if w.text >= turnAnswer { // with the next prompt, which says nothing
		w.text = 0
		return
	}
	switch {
	case !auto:
		return
	case enters:
		w.c.CaughtUp(l, took)
	case before == d:
		w.c.Observe(l, d, took, accepted)
	}
	if !counts {
		return
	}
	w.time, w.tokens = w.time+seconds, w.tokens+tokens
	bestSeconds, bestTokens := w.expect(l, w.best)
	if _, reason := w.c.Depth(); reason == ReasonProbe || before != d {
		w.probes += seconds
		w.lost += seconds - tokens*bestSeconds/bestTokens
	}
}

// turn is one of the mode, whose first cycles do not count.
func (w *turns) turn(mode Mode) {
	begin := w.at
	for w.at < begin+turnSeconds {
		w.cycle(mode, w.at > begin+turnSeconds/8)
	}
}

// run is auto's share of the tokens of the better one of plain decoding and three
// steps, in 25 rounds of turns.
func (w *turns) run() (share float64) {
	for w.at < 8 {
		w.cycle(ModeAuto, false)
	}
	modes := []Mode{ModeOff, ModeFixed, ModeFixed, ModeAuto}
	for range 25 {
		for _, i := range w.rng.Perm(len(modes)) {
			w.turn(modes[i])
		}
	}
	rate := func(d int) float64 { s, t := w.expect(Load{1, 16}, d); return t / s }
	return w.tokens / w.time / max(rate(0), rate(3))
}

// Under a load that stays as it is, what is tried costs next to nothing, though
// others' turns interrupt it, and the better arm is found: with the cycles of a
// second or ten, too.
func TestTryingCostsLittle(t *testing.T) {
	for _, c := range []struct {
		name  string
		times [4]float64 // of a cycle, in plain ones
		best  int
	}{
		{"three is best, two is near", [4]float64{1, 1.2, 1.5, 1.65}, 3},
		{"two is best, three is near", [4]float64{1, 1.2, 1.42, 1.65}, 2},
		{"three is best by far", [4]float64{1, 1.22, 1.57, 1.62}, 3},
		{"drafts are cheap", [4]float64{1, 1.1, 1.2, 1.3}, 3},
	} {
		for _, noise := range []float64{0.05, 0.15} {
			var share, lost, probes, most float64
			const seeds = 20
			for seed := range uint64(seeds) {
				w := &turns{machine: &machine{rng: rand.New(rand.NewPCG(seed, 77)), rate: 0.7, noise: noise, spikes: (noise - 0.05) / 2}, best: c.best}
				w.seconds = func(l Load, d int) float64 { return 9.7e-3 * c.times[d] * (1 + 0.3*float64(l.Batch-1)) }
				w.c = NewChooser(profile(w.machine, 3), NewAcceptance(3))
				share += w.run() / seeds
				lost += w.lost / w.time / seeds
				most = max(most, w.lost/w.time)
				probes += w.probes / w.time / seeds
			}
			t.Logf("%s, noise %v: share %.4f, lost %.4f, at most %.4f; probes %.3f of the time", c.name, noise, share, lost, most, probes)
			if share < 0.985 || lost > 0.005 || most > 0.015 || probes > 0.08 {
				t.Errorf("%s, noise %v: %.4f of the better arm; probes are %.3f of the time and lost %.4f, in one run %.4f; want 0.985 at least, and 0.08, 0.005 and 0.015 at most",
					c.name, noise, share, probes, lost, most)
			}
		}
	}
}

// A probe that another mode interrupts is paid for, and not begun again as soon as
// the choice goes on.
func TestInterruptedProbe(t *testing.T) {
	m := &machine{rng: rand.New(rand.NewPCG(4, 7)), seconds: memoryBound(64), rate: 0.8, noise: 0.05}
	c := NewChooser(profile(m, 3), NewAcceptance(3))
	l := Load{1, 300}
	auto := Bounds{Mode: ModeAuto, Max: 3}
	before := c.budget
	for c.Choose(l, auto); c.probing == 0; c.Choose(l, auto) {
		s, n := m.cycle(l, c.depth, c.Verified)
		c.Observe(l, c.depth, s, n)
		before = c.budget
	}
	budget, probed := c.budget, c.depth
	if math.Abs(before-budget-c.charged) > 1e-12 {
		t.Errorf("a probe of %.4f s takes the budget from %.4f to %.4f s", c.charged, before, budget)
	}
	c.Choose(l, Bounds{Mode: ModeOff})
	for range firstRest - 1 {
		if c.Choose(l, auto); c.probing > 0 {
			t.Fatalf("a probe of %d right after one of %d was interrupted", c.depth, probed)
		}
	}
	if !(c.charged > 0) || c.budget != budget {
		t.Errorf("the budget is %.4f s after a probe of %.4f s was interrupted, and was %.4f with it", c.budget, c.charged, budget)
	}
}

// How much single cycles vary is learned: where they hardly do, few of them are
// enough. And the mean of a probe says the less, the more the machine's speed
// changes, however long it is.
func TestNoiseIsLearned(t *testing.T) {
	doubt := func(noise, swings float64) float64 {
		rng := rand.New(rand.NewPCG(1, 9))
		c := NewCosts([]int{1}, [][]float64{{1, 1}}, make([]float64, 2))
		for i := range 1600 {
			speed := 1 + swings*float64(i/40%2)
			c.Observe(Load{Batch: 1}, 0, speed*(1+noise*rng.NormFloat64()), false)
		}
		for range probeCycles {
			c.Observe(Load{Batch: 1}, 1, 1, true)
		}
		c.Flush()
		return c.Doubt(Load{Batch: 1}, 1)
	}
	even, busy, swinging := doubt(0.05, 0), doubt(0.3, 0), doubt(0.05, 0.4)
	if !(even < 0.04) || !(busy > 1.5*even) || !(swinging > 1.5*even) {
		t.Errorf("doubt after a probe: %.3f where cycles are even, %.3f where they vary by a third, %.3f where the speed changes: want less than 0.04, and half as much again at least", even, busy, swinging)
	}
}

// A profile that is right where it was compared is doubted less elsewhere, too, and
// one that is wrong is not; what plain decoding takes is always measured.
func TestProfileIsJudged(t *testing.T) {
	doubt := func(off float64, depth int) float64 {
		batches := []int{1, 2, 4, 8, 16}
		var seconds [][]float64
		for range batches {
			seconds = append(seconds, []float64{1, 1, 1})
		}
		c := NewCosts(batches, seconds, make([]float64, 3))
		for i, b := range batches[:4] {
			for d := range 3 {
				for range probeCycles {
					c.Observe(Load{Batch: b}, d, math.Exp(off*float64(2*((i+d)%2)-1)), true)
				}
				c.Flush()
			}
		}
		return c.Doubt(Load{Batch: 16}, depth)
	}
	if right, wrong := doubt(0.05, 2), doubt(0.4, 2); right > 0.2 || wrong < 0.35 {
		t.Errorf("a depth that was not measured is in doubt by %.3f where the profile was right, by %.3f where it was wrong: want 0.2 at most, and 0.35 at least", right, wrong)
	}
	if got := doubt(0, 0); got < profileDoubt {
		t.Errorf("plain decoding that was not measured is in doubt by %.3f, want %.3f", got, profileDoubt)
	}
}

// Many sequences in few cycles say less of a depth's tokens than as many drafts of
// one sequence.
func TestFewCyclesOfManySequences(t *testing.T) {
	doubt := func(cycles, sequences int) float64 {
		a := NewAcceptance(3)
		i := 0
		for range cycles {
			sum := 0
			for range sequences {
				a.Observe(3, i%4)
				sum += i % 4
				i++
			}
			a.Cycle(3, sequences, sum)
		}
		return a.Doubt(3)
	}
	if few, many := doubt(6, 36), doubt(216, 1); few < 1.5*many {
		t.Errorf("6 cycles of 36 sequences leave a doubt of %.3f tokens, 216 of one %.3f: want half as much again", few, many)
	}
}
