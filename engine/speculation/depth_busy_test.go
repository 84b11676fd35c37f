package speculation

import (
	"math/rand/v2"
	"testing"
)

// A machine that others slow down now and then, and requests that are followed by
// others only after some cycles, are neither what an arm costs nor another load:
// near a tie of plain decoding and drafts of one, the choice has most of what the
// best arm has, and seldom changes.
func TestOthersOnTheMachine(t *testing.T) {
	for _, c := range []struct {
		name         string
		bursts, dips bool
		share        float64 // of the best arm, mean of all cells, at least
		switches     float64 // in 5,000 cycles, mean of all cells, at most
	}{
		{"quiet", false, false, 0.99, 0.2},
		{"bursts", true, false, 0.989, 0.5},
		{"gaps between requests", false, true, 0.993, 2.4},
		{"both", true, true, 0.985, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var share, switches, cells float64
			for _, seconds := range worlds {
				for _, tie := range []float64{-0.15, -0.06, 0, 0.06, 0.15} {
					for _, batch := range []int{1, 3, 32} {
						for seed := range uint64(2) {
							w := &busy{bursts: c.bursts, dips: c.dips, batch: batch}
							w.machine = &machine{rng: rand.New(rand.NewPCG(uint64(batch), seed)), rate: 0.6, noise: 0.15, spikes: 0.05, uneven: true}
							w.tie(seconds, tie)
							got, n := w.run()
							share += got
							switches += float64(n)
							cells++
						}
					}
				}
			}
			if share, switches = share/cells, switches/cells; share < c.share || switches > c.switches {
				t.Errorf("%.4f of the best arm and %.2f switches; want %v at least and %v at most", share, switches, c.share, c.switches)
			}
		})
	}
}

// busy is a load of a batch on a machine that is slower in bursts, or in which
// requests are missing for some cycles now and then.
type busy struct {
	*machine
	bursts, dips bool
	batch        int

	burst, dip   int        // cycles left
	time, tokens [4]float64 // of each depth, had it been in force all the time
}

// tie scales what drafts cost so that those of one have 1 + by times the tokens in a
// second of plain decoding.
func (w *busy) tie(seconds func(Load, int) float64, by float64) {
	w.seconds = seconds
	l := w.load()
	plain, _ := w.expect(l, 0)
	one, tokens := w.expect(l, 1)
	scale := tokens / float64(w.batch) * plain / one / (1 + by)
	w.seconds = func(l Load, depth int) float64 {
		if depth == 0 {
			return seconds(l, 0)
		}
		return scale * seconds(l, depth)
	}
}

func (w *busy) load() Load { return Load{w.batch, 300 * w.batch} }

// next is the load of the next cycle.
func (w *busy) next(int) Load {
	if w.burst--; w.bursts && w.burst <= 0 {
		w.burst, w.slow = 20+w.rng.IntN(200), 1
		if w.rng.IntN(3) == 0 {
			w.slow = 1.2 + 0.6*w.rng.Float64()
		}
	}
	if w.dip--; w.dips && w.dip < -40-w.rng.IntN(40) {
		w.dip = w.rng.IntN(25)
	}
	l := w.load()
	if n := max(1, w.batch/4); w.dip > 0 && w.batch > 1 {
		l = Load{w.batch - n, 300 * (w.batch - n)}
	}
	for d := range w.time {
		time, tokens := w.expect(l, d)
		w.time[d], w.tokens[d] = w.time[d]+time, w.tokens[d]+tokens
	}
	return l
}

// run is the share of the best depth that choosing has once it has settled, and how
// often it changed between plain decoding and drafts.
func (w *busy) run() (share float64, switches int) {
	c := NewChooser(wrongProfile(w.machine, 3, 0.2), NewAcceptance(3))
	run(w.machine, c, w.next, 500)
	w.time, w.tokens = [4]float64{}, [4]float64{}
	rate, switches := run(w.machine, c, w.next, 5000)
	best := 0.0
	for d := range w.time {
		best = max(best, w.tokens[d]/w.time[d])
	}
	return rate / best, switches
}

// Where prompts are computed all the time no cycle of a probe says anything. Then
// probes become rare, though nothing is known of the arms, and do not begin anew
// again and again.
func TestProbesThatSeeNothing(t *testing.T) {
	m := &machine{rng: rand.New(rand.NewPCG(5, 9)), seconds: memoryBound(16), rate: 0.6, noise: 0.05}
	c := NewChooser(profile(m, 3), NewAcceptance(3))
	l := Load{48, 14400}
	tries := 0 // cycles of probes
	const cycles = 4000
	for range cycles {
		d := c.Choose(l, Bounds{Mode: ModeAuto, Max: 3})
		if c.probing > 0 {
			tries++
			continue
		}
		seconds, accepted := m.cycle(l, d, c.Verified)
		c.Observe(l, d, seconds, accepted)
	}
	if tries == 0 || tries > cycles/40 {
		t.Errorf("%d of %d cycles were probes that saw nothing: want some, and one in forty at most", tries, cycles)
	}
}
