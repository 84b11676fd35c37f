package speculation

import (
	"math"
	"math/rand/v2"
	"testing"
)

// h200 is what cycles of a model of 100 million parameters took on an H200, in µs, by
// streams and depth; those of depths that were not measured there lie between.
var h200 = map[int][4]float64{
	1: {207, 271, 347, 384}, 2: {213, 302, 362, 395}, 4: {243, 321, 553, 595}, 8: {260, 350, 590, 637},
	16: {427, 541, 640, 740}, 32: {446, 606, 690, 790}, 64: {463, 650, 775, 820}, 128: {585, 839, 1150, 1380},
}

// served is a load of streams whose answers are followed by the next one's prompt, in
// cycles so short that a second has thousands of them. With many streams nearly each
// one has prompts.
type served struct {
	*machine
	c      *Chooser
	depth  int // of the drafts that the next pass verifies
	left   []int
	joined int // streams whose prompts come with the next pass
	edge   int // rows of a pass with prompts beyond which it takes overEdge more; 0 for none

	time, tokens float64 // of what was measured, in the mean
	cycles, told int     // of these, and those without prompts
}

const (
	servedAnswer = 128
	servedPrompt = 16
	overEdge     = 300e-6 // seconds: of an H200's passes of more than 256 rows
	unrecorded   = 490e-6 // seconds of a pass that was not recorded, at least, since it is issued step by step
)

// profiled is a choice whose profile is off by 5 %, and has drafts cost less, or plain
// decoding more, than when requests are served, by favour.
func profiled(rng *rand.Rand, favour float64) *Chooser {
	var seconds [][]float64
	for _, b := range grid {
		var row []float64
		for d, s := range h200[b] {
			row = append(row, s*1e-6*math.Exp(0.05*rng.NormFloat64()+favour*float64(max(0, 1-d))))
		}
		seconds = append(seconds, row)
	}
	return NewChooser(NewCosts(grid, seconds, make([]float64, 4)), NewAcceptance(3))
}

func newServed(rng *rand.Rand, rate, favour float64) *served {
	w := &served{c: profiled(rng, favour)}
	w.machine = &machine{rng: rng, rate: rate, noise: 0.03, seconds: func(l Load, d int) float64 { return 1e-6 * h200[l.Batch][d] }}
	return w
}

// resize has so many streams, whose answers do not end all at once.
func (w *served) resize(streams int) {
	w.left = w.left[:0]
	for i := range streams {
		w.left = append(w.left, servedAnswer*(i+1)/streams)
	}
	w.joined = 0
}

// run goes on for so many seconds.
func (w *served) run(seconds float64) {
	all := Load{Batch: len(w.left), Context: 80 * len(w.left)}
	w.time, w.tokens, w.cycles, w.told = 0, 0, 0, 0
	for begin := 0.0; begin < seconds; {
		begin += w.one(all)
	}
}

// one runs a cycle. Streams that have joined in the one before only have their prompts.
func (w *served) one(all Load) (seconds float64) {
	verified, joined, accepted := w.depth, w.joined, 0
	w.joined = 0
	for i := range w.left {
		if i < joined {
			w.left[i] = servedAnswer
			continue
		}
		n := w.accept(0, verified)
		if verified > 0 {
			w.c.Verified(verified, n)
		}
		accepted += n
		if w.left[i] -= 1 + n; w.left[i] <= 0 {
			w.left[i], w.left[w.joined] = w.left[w.joined], 0
			w.joined++
		}
	}
	w.depth = w.c.Choose(all, Bounds{Mode: ModeAuto, Max: 3})
	mean, tokens := w.expect(all, verified)
	seconds = mean
	if joined > 0 {
		seconds += max(30e-6, unrecorded-mean)
		if rows := (all.Batch-joined)*(1+verified) + joined*servedPrompt; w.edge > 0 && rows > w.edge {
			seconds += overEdge
		}
	}
	if enters := verified == 0 && w.depth > 0; enters {
		seconds, mean = seconds+mean, 2*mean
	}
	seconds *= math.Exp(w.noise * w.rng.NormFloat64())
	w.time, w.tokens, w.cycles = w.time+mean, w.tokens+tokens, w.cycles+1
	l := Load{Batch: all.Batch - joined, Context: all.Context}
	switch {
	case l.Batch == 0:
	case verified == 0 && w.depth > 0:
		if joined == 0 {
			w.c.CaughtUp(l, seconds)
		}
	case verified != w.depth:
	case joined > 0:
		w.c.Mixed(l, w.depth, seconds, accepted, joined*servedPrompt)
	default:
		w.told++
		w.c.Observe(l, w.depth, seconds, accepted)
	}
	return seconds
}

// Of cycles as short as a GPU's, one engine that goes from 1 to 128 streams has nearly
// all of the better one of plain decoding and three steps after its first second under
// a load, and most of it in that second, whether a profile is as requests are served or
// has plain decoding cost more; also where nearly all cycles have prompts.
func TestServedByAGPU(t *testing.T) {
	for _, favour := range []float64{0, 0.1, 0.25} {
		for _, rate := range []float64{0.4, 0.9} {
			for seed := range uint64(4) {
				w := newServed(rand.New(rand.NewPCG(seed, 12)), rate, favour)
				for _, streams := range grid {
					w.resize(streams)
					share := func(seconds float64) float64 {
						w.run(seconds)
						got := w.tokens / w.time
						l := Load{Batch: streams}
						return got / max(fixed(w.machine, 0, func(int) Load { return l }, 1), fixed(w.machine, 3, func(int) Load { return l }, 1))
					}
					first := share(1)
					w.run(2)
					later := share(1)
					t.Logf("rate %v, favour %v, seed %d, %d streams: %.3f in the first second, %.3f later; depth %d, %d of %d cycles without prompts", rate, favour, seed, streams, first, later, w.depth, w.told, w.cycles)
					if first < 0.95 || later < 0.98 {
						t.Errorf("rate %v, favour %v, seed %d, %d streams: %.3f in the first second, %.3f later; want 0.95 and 0.98 at least", rate, favour, seed, streams, first, later)
					}
				}
			}
		}
	}
}

// Where prompts take longer at one depth than at another, since passes with them have
// more rows than a device is quick with, a depth that is tried by such cycles is not
// taken for so much cheaper or dearer: in nearly all runs the choice does not swing, nor
// is the machine taken for a slower one, by which depths that were not tried look too dear.
func TestPromptsThatCostMoreAtADepth(t *testing.T) {
	const seeds = 8
	shares := map[int]float64{}
	for seed := range uint64(seeds) {
		w := newServed(rand.New(rand.NewPCG(seed, 12)), 0.9, 0)
		w.edge = 256
		for d := 2; d <= 3; d++ { // dearer by a quarter than they are
			w.c.costs.base[len(grid)-1][d] *= 1.25
		}
		for _, streams := range grid[len(grid)-2:] {
			w.resize(streams)
			w.run(1)
			w.run(3)
			share := w.tokens / w.time / fixed(w.machine, 3, func(int) Load { return Load{Batch: streams} }, 1)
			shares[streams] += share / seeds
			if speed := w.c.costs.speed; math.Abs(math.Log(speed)) > 0.05 {
				t.Errorf("seed %d, %d streams: the machine is taken for one of speed %.3f, want 1", seed, streams, speed)
			}
		}
	}
	for streams, share := range shares {
		if share < 0.965 {
			t.Errorf("%d streams: %.3f of the best depth, want 0.965", streams, share)
		}
	}
}
