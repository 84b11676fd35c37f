package speculation

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Where each cycle has prompts a depth that is tried is compared with the one in force by
// what these take longer there: once that is known, for as many rows, and unless it
// varies too much to tell.
func TestMixedCyclesTellDepthsApart(t *testing.T) {
	const profiled, more = 2, 0.5 // seconds of a cycle at depth 1 by the profile, and what prompts add
	l := Load{Batch: 64}
	for _, c := range []struct {
		name          string
		rows, before  int     // of the trial, and cycles of 40 rows in force before it
		wrong, varies float64 // seconds that the profile of the depth in force is off by; what prompts add varies by this share
		told          bool
		want, near    float64
	}{
		{"as it was", 40, 100, 0, 0, true, 1.2, 0.07},
		{"of nearly as many rows", 60, 100, 0, 0, true, 1.2, 0.07},
		{"of more rows", 70, 100, 0, 0, false, profiled, 0},
		{"of a size hardly seen", 40, firstMixed - 1, 0, 0, false, profiled, 0},
		{"the depth in force is dearer than thought", 40, 100, 0.3, 0, true, 0.9, 0.2},
		{"prompts vary", 40, 400, 0, 0.3, true, 1.3, 0.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(3, 8))
			costs := NewCosts([]int{64}, [][]float64{{1, profiled}}, make([]float64, 2))
			adds := func() float64 { return more * (1 + c.varies*rng.NormFloat64()) }
			for range c.before {
				if costs.Mixed(l, 0, 1+c.wrong+adds(), 40, false) {
					t.Fatal("a cycle of the depth in force told something of it")
				}
			}
			told := 0
			for range probeCycles {
				if costs.Mixed(l, 1, 1.2+adds(), c.rows, true) {
					told++
				}
			}
			costs.Flush()
			if got := costs.Seconds(l, 1); (told == probeCycles) != c.told || told%probeCycles != 0 || math.Abs(got-c.want) > c.near {
				t.Errorf("%d of %d cycles told something, and the estimate is %.3f: want %v, %.2f", told, probeCycles, got, c.told, c.want)
			}
			if got := costs.Seconds(l, 0); got != 1 {
				t.Errorf("the estimate of the depth in force is %.3f", got)
			}
		})
	}
}

// Cycles with prompts that are all alike tell as much as others of their depth, from the first
// ones on, and one that was interrupted is left out with what it counted for.
func TestMixedCyclesThatAreAlike(t *testing.T) {
	l := Load{Batch: 64}
	costs := NewCosts([]int{64}, [][]float64{{1, 1}}, make([]float64, 2))
	for range firstMixed {
		costs.Mixed(l, 1, 1+0.9, 40, false)
	}
	if m := costs.mixed[1][6]; m.square > 1e-12 || math.Abs(m.seconds-0.9) > 1e-9 {
		t.Errorf("prompts add %.3f s and differ by %.2g: want 0.9 and nothing", m.seconds, m.square)
	}
	for _, weight := range []float64{1, 0.7, 0.4} {
		costs := NewCosts([]int{64}, [][]float64{{1, 1}}, make([]float64, 2))
		for i := range probeCycles {
			times := 1.0
			if i == 3 {
				times = 2.9
			}
			costs.add(l, 1, times, weight, true)
		}
		costs.Flush()
		if got := costs.Seconds(l, 1); math.Abs(got-1) > 1e-9 {
			t.Errorf("cycles that count for %.1f, one of them interrupted: the estimate is %.4f, want 1", weight, got)
		}
	}
}

// The less cycles with prompts are alike, and the more these add to those of another depth,
// the less a trial by them takes from the doubt.
func TestMixedCyclesAreDoubted(t *testing.T) {
	doubt := func(adds, varies float64) float64 {
		rng := rand.New(rand.NewPCG(3, 9))
		c := NewCosts([]int{64}, [][]float64{{1, 1}}, make([]float64, 2))
		for range 300 {
			c.Mixed(Load{Batch: 64}, 0, 1+adds+varies*rng.NormFloat64(), 8, false)
		}
		for range probeCycles {
			c.Mixed(Load{Batch: 64}, 1, 1+adds, 8, true)
		}
		c.Flush()
		return c.Doubt(Load{Batch: 64}, 1)
	}
	few, unlike, much := doubt(0.05, 0.02), doubt(0.05, 0.4), doubt(0.5, 0.02)
	if few > 0.07 || unlike < 1.3*few || much < 2*few {
		t.Errorf("doubt %.3f where they are alike, %.3f where they vary, %.3f where prompts add much: want 0.07 at most, a third more, and twice as much", few, unlike, much)
	}
}

// What prompts add at a depth is known from when that was in force, however much they
// add at the one that is now.
func TestMixedCyclesOfAKnownDepth(t *testing.T) {
	l := Load{Batch: 64}
	c := NewCosts([]int{64}, [][]float64{{1, 2}}, make([]float64, 2))
	for range 100 {
		c.Mixed(l, 1, 2.1, 8, false)
	}
	for range 100 {
		c.Mixed(l, 0, 1.8, 8, false)
	}
	for range probeCycles {
		c.Mixed(l, 1, 2.1, 8, true)
	}
	c.Flush()
	if got := c.Seconds(l, 1); math.Abs(got-2) > 0.01 {
		t.Errorf("the estimate is %.3f, want 2 as before", got)
	}
}

// Cycles of batches that differ by a request or two count together, as one block.
func TestBlocksOfManyRequests(t *testing.T) {
	for _, tt := range []struct {
		batch, other int
		together     bool
	}{{128, 124, true}, {128, 136, true}, {128, 119, false}, {16, 17, true}, {16, 18, false}, {4, 5, false}, {1, 1, true}} {
		c := NewCosts([]int{1, 256}, [][]float64{{1, 1}, {1, 1}}, make([]float64, 2))
		for i := range 4 {
			c.Observe(Load{Batch: []int{tt.batch, tt.other}[i%2]}, 1, 1, true)
		}
		if together := c.block.cycles == 4; together != tt.together {
			t.Errorf("batches %d and %d: the block has %v of 4 cycles", tt.batch, tt.other, c.block.cycles)
		}
	}
}

// More rows of prompts than those of the drafts say nothing of a depth.
func TestManyRowsOfPromptsSayNothing(t *testing.T) {
	l := Load{Batch: 4}
	for _, tt := range []struct {
		depth, rows int
		told        bool
	}{{0, 4, true}, {0, 5, false}, {2, 12, true}, {2, 13, false}} {
		c := NewChooser(NewCosts([]int{4}, [][]float64{{1, 1, 1}}, make([]float64, 3)), NewAcceptance(2))
		c.Mixed(l, tt.depth, 2, 0, tt.rows)
		told := 0.0
		for _, m := range c.costs.mixed[tt.depth] {
			told += m.cycles
		}
		if (told == 1) != tt.told || (c.rates.cycles[2] > 0) != (tt.told && tt.depth > 0) {
			t.Errorf("%d rows beside those of 4 drafts of %d: %v cycles were taken in, want %v", tt.rows, tt.depth, told, tt.told)
		}
	}
}
