package speculation

import (
	"math/rand/v2"
	"testing"
)

// Whatever is tried when the bounds change, the next depth is within them.
func TestBoundsEndAProbe(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 6))
	m := &machine{rng: rng, seconds: memoryBound(16), rate: 0.6, noise: 0.1}
	c := NewChooser(wrongProfile(m, 4, 0.3), NewAcceptance(4))
	l, b, cut := Load{4, 1200}, Bounds{Mode: ModeAuto, Max: 4}, 0
	for range 60000 {
		if probing := c.probing > 1; probing && rng.IntN(8) == 0 || rng.IntN(300) == 0 {
			b.Max = rng.IntN(5)
			b.Min = rng.IntN(b.Max + 1)
			if probing && (c.depth < b.Min || c.depth > b.Max) {
				cut++
			}
		}
		before, cuts := c.budget, c.probing > 0 && (c.depth < b.Min || c.depth > b.Max)
		d := c.Choose(l, b)
		if cuts && c.reason != ReasonProbe && (c.probing > 0 || c.budget > before+c.charged) {
			t.Fatalf("%d cycles are left of a probe that bounds ended, which gave %.4f s back of %.4f", c.probing, c.budget-before, c.charged)
		}
		if d < b.Min || d > b.Max {
			t.Fatalf("depth %d (%s), bounds %+v", d, c.reason, b)
		}
		seconds, accepted := m.cycle(l, d, c.Verified)
		c.Observe(l, d, seconds, accepted)
	}
	if cut < 20 {
		t.Errorf("a probe was out of bounds %d times only", cut)
	}
}
