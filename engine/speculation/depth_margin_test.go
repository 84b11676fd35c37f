package speculation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// certain is a choice among plain decoding and drafts of one and two tokens whose
// cycles all take a second, for certain: goodput is tokens.
func certain(tokens ...float64) *Chooser {
	c := NewChooser(NewCosts([]int{1}, [][]float64{{1, 1, 1}}, make([]float64, 3)), NewAcceptance(2))
	for d := range c.costs.seen[0] {
		c.costs.seen[0][d] = 1e12
	}
	c.tokens = tokens
	return c
}

// Entering speculation takes a gain that also pays for the head's catching up;
// leaving it, or another depth, takes less and pays nothing.
func TestMargins(t *testing.T) {
	const cheap, dear = 1e-6, 12 // seconds of catching up, over 120 cycles of one
	for _, c := range []struct {
		now     int
		one     float64 // tokens of drafts of one
		catchUp float64
		useless bool
		want    int
	}{
		{now: 0, one: 1.005, catchUp: cheap, want: 0},
		{now: 0, one: 1.02, catchUp: cheap, want: 1},
		{now: 0, one: 1.1, catchUp: dear, want: 0},
		{now: 0, one: 1.12, catchUp: dear, want: 1},
		{now: 0, one: 1.12, catchUp: 0, want: 1}, // never seen: a plain cycle
		{now: 0, one: 1.5, catchUp: cheap, useless: true, want: 0},
		{now: 1, one: 0.995, catchUp: cheap, want: 1},
		{now: 1, one: 0.98, catchUp: dear, want: 0},
		{now: 2, one: 1.305, catchUp: cheap, want: 2},
		{now: 2, one: 1.32, catchUp: dear, want: 1},
	} {
		two := 0.5
		if c.now == 2 {
			two = 1.3
		}
		ch := certain(1, c.one, two)
		ch.catchUp, ch.useless = c.catchUp, c.useless
		if got := ch.best(Load{Batch: 1}, 0, 2, c.now); got != c.want {
			t.Errorf("%+v: best is %d", c, got)
		}
	}
}

// The gain is of tokens and time, and never more than the tokens, whatever a
// disturbed machine has measured.
func TestGain(t *testing.T) {
	for _, tt := range []struct {
		depth   int
		seconds []float64 // of a cycle, by depth
		want    float64
	}{
		{0, []float64{1, 1, 1}, 1},
		{1, []float64{1, 1.25, 1.5}, 1.2},
		{2, []float64{1, 1.25, 4}, 0.5},
		{2, []float64{1, 1.25, 0.01}, 2},
	} {
		c := NewChooser(NewCosts([]int{1}, [][]float64{tt.seconds}, make([]float64, 3)), NewAcceptance(2))
		c.tokens, c.depth = []float64{1, 1.5, 2}, tt.depth
		if got := c.Gain(Load{Batch: 1}); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("depth %d of cycles of %v s: gain %v, want %v", tt.depth, tt.seconds, got, tt.want)
		}
	}
}

// Between plain decoding and speculation a depth is kept for entryCycles, unless
// the other is much better; any depth is kept for settle.
func TestDepthsAreKept(t *testing.T) {
	for _, c := range []struct {
		now, best int
		one       float64
		least     int
	}{
		{0, 1, 1.1, entryCycles},
		{1, 0, 0.95, entryCycles},
		{0, 1, 1.2, settle},
		{1, 0, 0.8, settle},
		{1, 2, 1.2, settle},
	} {
		t.Run(fmt.Sprintf("%d to %d at %v", c.now, c.best, c.one), func(t *testing.T) {
			ch := certain(1, c.one, 1.3)
			for cycles := range 2 * entryCycles {
				ch.cycles = cycles
				if got, want := ch.settled(Load{Batch: 1}, c.best, c.now), cycles >= c.least; got != want {
					t.Fatalf("after %d cycles %v, want %v", cycles, got, want)
				}
			}
		})
	}
}

// An estimate that was measured often moves little with one probe, however far off
// that is: the machine may have been slow just then. A second one that says the same
// shows that it is wrong, and one that does not shows that it is not.
func TestWrongEstimatesAreFoundOut(t *testing.T) {
	for _, s := range []struct {
		probes      []float64 // seconds of a cycle, in turn
		least, most float64   // of the estimate, which was 1
		questioned  bool
	}{
		{[]float64{1.2, 1.2, 1.2}, 1, 1.04, false},
		{[]float64{2.5}, 1, 1.1, true},
		{[]float64{2.5, 1}, 0.95, 1.1, false},
		{[]float64{2.5, 0.4, 2.5}, 0.9, 1.1, true},
		{[]float64{2.5, 2.5}, 2.2, 2.5, false},
		{[]float64{0.4, 0.4}, 0.4, 0.45, false},
	} {
		c := NewCosts([]int{1}, [][]float64{{1, 1}}, make([]float64, 2))
		c.seen[0][1] = mostSeen
		for _, seconds := range s.probes {
			for range probeCycles {
				c.Observe(Load{Batch: 1}, 1, seconds, true)
			}
			c.Flush()
		}
		got := c.Seconds(Load{Batch: 1}, 1)
		if asked := c.Questioned(Load{Batch: 1}, 1); got < s.least || got > s.most || asked != s.questioned {
			t.Errorf("after probes of %v s the estimate is %.3f, questioned: %v; want %v to %v, %v", s.probes, got, asked, s.least, s.most, s.questioned)
		}
	}
}

// Another mode interrupts the choice and takes nothing from what it found out: its
// depth, how long that is kept, and how rare its probes have become.
func TestOtherModesInterruptTheChoice(t *testing.T) {
	m := &machine{rng: rand.New(rand.NewPCG(7, 9)), seconds: memoryBound(64), rate: 0.8, noise: 0.05}
	c := NewChooser(profile(m, 3), NewAcceptance(3))
	load := Load{2, 600}
	run(m, c, func(int) Load { return load }, 6000)
	for c.probing > 0 {
		c.Choose(load, Bounds{Mode: ModeAuto, Max: 3})
	}
	depth, _ := c.Depth()
	cycles, gap := c.cycles, slices.Clone(c.gap)
	switches, probes := c.Counts()
	for _, b := range []Bounds{{Mode: ModeOff}, {Mode: ModeFixed, Max: 3}, {Mode: ModeFixed, Max: 1}, {Mode: ModeOff}} {
		for range 50 {
			c.Choose(load, b)
		}
	}
	if depth == 0 || slices.Max(gap) <= firstGap {
		t.Fatalf("depth %d, gaps %v: want drafts, and an arm that is tried rarely", depth, gap)
	}
	if c.cycles != cycles || !slices.Equal(c.gap, gap) {
		t.Errorf("%d cycles and gaps %v after other modes: want %d and %v", c.cycles, c.gap, cycles, gap)
	}
	if got := c.Choose(load, Bounds{Mode: ModeAuto, Max: 3}); got != depth && c.probing == 0 {
		t.Errorf("depth %d (%s) after other modes, want %d", got, c.reason, depth)
	}
	if s, p := c.Counts(); s != switches || p > probes+1 {
		t.Errorf("%d switches and %d probes were chosen meanwhile: want none", s-switches, p-probes)
	}
}
