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
				m := &machine{rng: rand.New(rand.NewPCG(3, uint64(batch))), rate: 0.9, noise: 0.05}
				done := map[int]int{}
				m.seconds = seconds
				load := func(int) Load { return Load{batch, 16 * batch} }
				c := NewChooser(profile(m, 3), NewAcceptance(3))
				var time, tokens float64
				last := -1
				const n = 6000
				for i := range n {
					l := load(i)
					d := c.Choose(l, Bounds{Mode: ModeAuto, Max: 3})
					s, accepted := m.cycle(l, d, c.Verified)
					es, et := m.expect(l, d)
					extra := 0.0
					if done[d]++; d > 0 && done[d] <= 2 { // the catching up, or the first drafts, and the first verify
						extra = first * seconds(l, 0)
					}
					switch {
					case last == 0 && d > 0:
						es += seconds(l, 0)
						c.CaughtUp(l, s+seconds(l, 0)+extra)
					case d == last:
						c.Observe(l, d, s+extra, accepted)
					}
					if last = d; i >= n/3 {
						time, tokens = time+es, tokens+et
					}
				}
				best := max(fixed(m, 0, load, 1), fixed(m, 3, load, 1))
				if share := tokens / time / best; share < 0.98 {
					t.Errorf("%s, batch %d, first times of %.0f plain cycles: %.3f of the better, catching up taken for %.1f plain cycles",
						name, batch, first, share, c.catchUp*float64(batch)/seconds(load(0), 0))
				}
			}
		}
	}
}
