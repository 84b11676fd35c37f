package speculation

import (
	"math/rand/v2"
	"testing"
)

// What a device does for the first time takes it many cycles' time: a library
// picks its way, a pass is recorded. The first catching up of the head and the
// first cycles of a depth say nothing of later ones, and must not keep an arm
// from being taken.
func TestFirstTimes(t *testing.T) {
	for name, seconds := range worlds {
		for _, batch := range []int{1, 16} {
			for _, first := range []float64{20, 300} { // plain cycles
				m := &machine{rng: rand.New(rand.NewPCG(3, uint64(batch))), seconds: seconds, rate: 0.9, noise: 0.05, first: first}
				load := func(int) Load { return Load{batch, 16 * batch} }
				c := NewChooser(profile(m, 3), NewAcceptance(3))
				run(m, c, load, 2000)
				got, _ := run(m, c, load, 4000)
				best := max(fixed(m, 0, load, 1), fixed(m, 3, load, 1))
				if share := got / best; share < 0.98 {
					t.Errorf("%s, batch %d, first times of %.0f plain cycles: %.3f of the better, catching up taken for %.1f plain cycles",
						name, batch, first, share, c.catchUp*float64(batch)/seconds(load(0), 0))
				}
			}
		}
	}
}

// The head catches up with texts of all lengths, each of which may be the first one of
// its length: that it took long a dozen times must not keep the drafts from being tried
// when they become worth it.
func TestNewTexts(t *testing.T) {
	for name, seconds := range worlds {
		for seed := range uint64(5) {
			m := &machine{rng: rand.New(rand.NewPCG(seed, 41)), seconds: seconds, rate: 0.1, noise: 0.05, newTexts: 12}
			load := func(int) Load { return Load{1, 60} }
			c := NewChooser(profile(m, 3), NewAcceptance(3))
			run(m, c, load, 4000)
			m.rate = 0.9
			run(m, c, load, 14000)
			got, _ := run(m, c, load, 4000)
			best := max(fixed(m, 0, load, 1), fixed(m, 3, load, 1))
			if share := got / best; share < 0.97 {
				t.Errorf("%s, seed %d: %.3f of the better, catching up taken for %.1f plain cycles, %.1f plain cycles to spend", name, seed, share, c.catchUp/seconds(load(0), 0), c.budget/seconds(load(0), 0))
			}
		}
	}
}

// Two requests of which each is followed by another one, some cycles after it
// has ended: that is no change of load, which would have all arms be tried again
// and lift what keeps the choice from swinging.
func TestNextRequestIsNoOtherLoad(t *testing.T) {
	m := &machine{rng: rand.New(rand.NewPCG(9, 9)), seconds: memoryBound(2), rate: 0.75, noise: 0.1} // one alone would draft
	answer := func(i int) Load {                                                                     // 60 cycles long
		switch i % 60 {
		case 0: // both have ended at once
			return Load{}
		case 1, 2:
			return Load{1, 100}
		}
		return Load{2, 200}
	}
	c := NewChooser(profile(m, 3), NewAcceptance(3))
	run(m, c, answer, 5000)
	_, before := c.Counts()
	got, switches := run(m, c, answer, 20000)
	_, after := c.Counts()
	if switches > 20 || after-before > 60 {
		t.Errorf("%d switches and %d probes in 20,000 cycles: want few", switches, after-before)
	}
	if best := max(fixed(m, 0, answer, 60), fixed(m, 1, answer, 60), fixed(m, 3, answer, 60)); got < 0.98*best {
		t.Errorf("%.3f of the better arm", got/best)
	}
}

// What was tried first under a heavy load may have cost more than thousands of
// cycles of a light one earn: that debt must not keep the light load from trying
// an arm whose estimate is wrong.
func TestDebtOfAnotherLoad(t *testing.T) {
	m := &machine{rng: rand.New(rand.NewPCG(4, 9)), seconds: memoryBound(2), rate: 0.9, noise: 0.05}
	costs := profile(m, 3)
	c := NewChooser(costs, NewAcceptance(3))
	run(m, c, func(int) Load { return Load{64, 6400} }, 3000)
	c.budget = min(c.budget, -10)  // seconds, of cycles of 10 ms with one stream
	for i := range costs.base[0] { // one stream was hardly seen, on a machine that was busy just then
		if i > 0 {
			costs.base[0][i] *= 4
		}
		costs.seen[0][i] = hardlySeen
	}
	run(m, c, func(int) Load { return Load{1, 100} }, 8000)
	if d, reason := c.Depth(); d == 0 {
		t.Errorf("depth %d (%s) after 8,000 cycles with %.3f s to spend: want the drafts that pay", d, reason, c.budget)
	}
}
