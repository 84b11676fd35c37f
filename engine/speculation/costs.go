package speculation

import (
	"math"
	"slices"
)

// Load is what a cycle's time depends on, beside the depth.
type Load struct {
	Batch   int // sequences that decode
	Context int // positions in the caches of all of them together
}

// Costs estimates the time of a decode cycle (verify, sample, draft) by batch,
// depth and context. It starts from a profile and follows what is measured:
//
//	seconds(batch, depth, context) = speed · (base[batch][depth] + context · slope[depth])
//
// speed is common to all cells: it follows the depth in force, quickly, so that a
// machine that is slower for a while does not make the depths look better that
// were not tried meanwhile. base follows a probe, whose time is compared with
// that of the depth in force just before; that of the depth in force takes what
// it is off by until it was measured a few times, and follows slowly then.
type Costs struct {
	batches []int // of the grid, rising
	base    [][]float64
	seen    [][]float64 // cycles that a base was corrected by, decayed
	wrong   [][]float64 // logarithm of what the last probe's time was off by, if that says that a base is wrong; or 0
	slope   []float64   // seconds for each cached position, by depth
	speed   float64
	// How much the speed changes: the mean product of what a block of a well-known
	// depth and the one before were off by, which that of single cycles has no part in.
	shift, off float64
	noise      float64 // variance of the logarithms of what the single cycles of a block are off by
	astray     float64 // the same of what the profile is off by, of cells that were measured since
	cells      float64 // number of these, and profileCells

	mixed  [][mixedSizes]mixed // by depth, and the binary logarithm of the rows of prompts
	forced int                 // the depth that was in force in the last cycle with prompts

	block block
}

// block is a number of cycles of one cell, a probe's all together, which count by
// their mean: single ones vary a lot on a busy machine, and upwards more than downwards.
type block struct {
	load   Load
	depth  int
	probe  bool
	cycles float64 // those with prompts count for less
	sum    float64 // of the logarithms of the measured times over the estimates
	square float64 // of these, squared
	most   float64 // the largest of these
	mosts  float64 // the cycles that it counts for
}

// How fast estimates follow: the share of a deviation's logarithm that one
// cycle moves them by.
const (
	followSpeed  = 0.02
	followBase   = 0.002 // of the depth in force
	followProbe  = 0.006
	blockCycles  = 8
	nearly       = 16       // part of a batch by which those of a block may differ
	maxDeviation = 3        // of a single cycle
	outlier      = math.Ln2 // over the mean of the others of its block
	// mostSeen and the staleness of what was seen long ago bound how sure an
	// estimate can be.
	mostSeen = 200
	// hardlySeen is the number of cycles below which a single probe that is far off
	// takes what was seen before for nothing.
	hardlySeen = 24
	// speedDoubt is by how much the machine's speed may have changed since the last
	// block, at least: what an estimate is off by is the speed's part, the surer the
	// estimate. By how much it changes is learned, by followShift a block, from depths
	// whose doubt is below wellKnown.
	speedDoubt  = 0.015
	followShift = 0.05
	wellKnown   = 0.04
	// wrongBase is the logarithm of a probe's deviation from which on its estimate
	// may be wrong, however often it was measured: it is, if the next probe says the
	// same. One alone may have been at a moment in which the machine was slow.
	wrongBase = 0.3
	// profileDoubt is by how much a profile may be off, before anything was measured: a
	// busy machine measures single cycles badly. It counts for as many measured cells as
	// profileCells, and of those the last mostCells count.
	profileDoubt = 0.4
	profileCells = 2
	mostCells    = 12
	// firstNoise is the noise before anything was measured, which then follows each
	// block by followNoise of the difference, within bounds.
	firstNoise  = 0.04
	leastNoise  = 0.01
	mostNoise   = 0.25
	followNoise = 0.05
)

// NewCosts makes estimates from a profile: seconds[i][d] is the time of a cycle
// of batches[i] sequences at depth d with empty caches, slope[d] the time for
// each cached position.
func NewCosts(batches []int, seconds [][]float64, slope []float64) *Costs {
	c := &Costs{batches: slices.Clone(batches), slope: slices.Clone(slope), speed: 1, noise: firstNoise, astray: profileDoubt * profileDoubt, cells: profileCells, mixed: make([][mixedSizes]mixed, len(slope))}
	for _, row := range seconds {
		c.base = append(c.base, slices.Clone(row))
		c.seen = append(c.seen, make([]float64, len(row)))
		c.wrong = append(c.wrong, make([]float64, len(row)))
	}
	return c
}

// MaxDepth is the largest depth that has an estimate.
func (c *Costs) MaxDepth() int { return len(c.slope) - 1 }

// between are the grid's batches around b, and the weight of the upper one.
func (c *Costs) between(b int) (lo, hi int, weight float64) {
	i, found := slices.BinarySearch(c.batches, b)
	switch {
	case found || i == 0:
		return i, i, 0
	case i == len(c.batches):
		return i - 1, i - 1, 0
	}
	return i - 1, i, float64(b-c.batches[i-1]) / float64(c.batches[i]-c.batches[i-1])
}

// estimate is the time without the common speed.
func (c *Costs) estimate(l Load, depth int) float64 {
	lo, hi, w := c.between(l.Batch)
	base := c.base[lo][depth]*(1-w) + c.base[hi][depth]*w
	if last := c.batches[len(c.batches)-1]; l.Batch > last { // beyond the grid time grows with the rows
		base *= float64(l.Batch) / float64(last)
	}
	return base + float64(l.Context)*c.slope[depth]
}

// Seconds estimates a cycle.
func (c *Costs) Seconds(l Load, depth int) float64 { return c.speed * c.estimate(l, depth) }

// Observe takes in what a cycle took, of a probe or of the depth in force.
func (c *Costs) Observe(l Load, depth int, seconds float64, probe bool) {
	expected := c.Seconds(l, depth)
	if !(seconds > 0) || !(expected > 0) {
		return
	}
	c.add(l, depth, seconds/expected, 1, probe)
}

// add has a cycle, whose time was so many times what was expected, count by weight.
func (c *Costs) add(l Load, depth int, times, weight float64, probe bool) {
	b := &c.block
	if b.cycles >= blockCycles && !b.probe || b.cycles > 0 && (!near(b.load.Batch, l.Batch) || b.depth != depth || b.probe != probe) {
		c.Flush()
	}
	deviation := math.Log(min(max(times, 1.0/maxDeviation), maxDeviation))
	if b.cycles == 0 || deviation > b.most {
		b.most, b.mosts = deviation, weight
	}
	b.load, b.depth, b.probe = l, depth, probe
	b.cycles += weight
	b.sum, b.square = b.sum+weight*deviation, b.square+weight*deviation*deviation
}

// near tells whether cycles of two batches say the same: of many requests some end in
// nearly every cycle, and others begin.
func near(a, b int) bool { return max(a, b)-min(a, b) <= min(a, b)/nearly }

// mean is the mean deviation, without a single cycle that took far longer than the
// others: it was interrupted, or did something for the first time.
func (b *block) mean() float64 {
	if n, sum := b.cycles-b.mosts, b.sum-b.mosts*b.most; n >= 2 && b.most > outlier+sum/n {
		return sum / n
	}
	return b.sum / b.cycles
}

// Flush has the cycles of the block count.
func (c *Costs) Flush() {
	b := c.block
	c.block = block{}
	if b.cycles == 0 {
		return
	}
	r := b.mean()
	own := c.telling(b.cycles)
	if !b.probe {
		if b.cycles >= blockCycles/2 {
			c.noise += followNoise * (min(max((b.square-b.sum*b.sum/b.cycles)/(b.cycles-1), leastNoise), mostNoise) - c.noise)
		}
		doubt := c.Doubt(b.load, b.depth)
		if doubt < wellKnown {
			off := min(max(r, -wrongBase), wrongBase)
			c.shift += followShift * (off*c.off - c.shift)
			c.off = off
		}
		own = doubt * doubt / (doubt*doubt + max(speedDoubt*speedDoubt, c.shift))
		c.speed *= math.Exp((1 - own) * (1 - math.Pow(1-followSpeed, b.cycles)) * r)
	}
	if b.cycles >= firstCycles-1 && c.Seen(b.load, b.depth) < 1 { // it was as the profile says, or not
		c.astray += (min(r*r, profileDoubt*profileDoubt) - c.astray) / min(c.cells+1, mostCells)
		c.cells++
	}
	lo, hi, w := c.between(b.load.Batch)
	c.follow(lo, &b, r, own, 1-w)
	c.follow(hi, &b, r, own, w)
	for i := range c.seen { // what was seen long ago says less
		for d := range c.seen[i] {
			c.seen[i][d] *= math.Pow(stale, b.cycles)
		}
	}
}

// telling is the share of the cycles of a probe that say something of its depth: the
// machine's speed has its part in their mean, however many they are.
func (c *Costs) telling(cycles float64) float64 {
	return c.noise / (c.noise + max(0, c.shift)*cycles)
}

// profiled is the number of cycles that a profiled base counts for.
func (c *Costs) profiled() float64 { return c.noise / c.astray }

// follow moves a base by its part of a block's deviation, of which the share own
// is not the machine's speed.
func (c *Costs) follow(i int, b *block, r, own, weight float64) {
	if weight == 0 {
		return
	}
	n, wrong := &c.seen[i][b.depth], &c.wrong[i][b.depth]
	if b.probe {
		switch off := math.Abs(r) > wrongBase; {
		case off && *wrong*r > 0:
			*n, *wrong = 0, 0 // what was seen before does not hold
		case off:
			*wrong = r
			if *n < hardlySeen {
				*n = min(*n, b.cycles)
			}
		default:
			*wrong = 0
		}
	}
	follow := followBase
	if b.probe {
		follow = followProbe
	}
	share := max(1-math.Pow(1-follow, b.cycles), own*b.cycles/(*n+own*b.cycles+c.profiled()))
	c.base[i][b.depth] *= math.Exp(share * r * weight)
	*n = min(*n+own*weight*b.cycles, mostSeen)
}

// Seen is how many cycles corrected an estimate, older ones counting less.
func (c *Costs) Seen(l Load, depth int) float64 {
	lo, hi, w := c.between(l.Batch)
	return c.seen[lo][depth]*(1-w) + c.seen[hi][depth]*w
}

// Questioned tells whether the last probe of a depth was so far off that the
// estimate may be wrong.
func (c *Costs) Questioned(l Load, depth int) bool {
	lo, hi, _ := c.between(l.Batch)
	return c.wrong[lo][depth] != 0 || c.wrong[hi][depth] != 0
}

// Doubt is by how much an estimate may be off, as a share of it: less the more
// often it was measured, and the less single cycles vary.
func (c *Costs) Doubt(l Load, depth int) float64 {
	seen := c.Seen(l, depth)
	if depth == 0 && seen < 1 { // what all is compared with is measured under each load
		return profileDoubt
	}
	return math.Sqrt(c.astray / (1 + seen/c.profiled()))
}

// Learns is the part of the doubt that a probe of so many cycles would take away.
func (c *Costs) Learns(l Load, depth int, cycles float64) float64 {
	cycles *= c.telling(cycles)
	return c.Doubt(l, depth) * math.Sqrt(cycles/(cycles+c.Seen(l, depth)+c.profiled()))
}
