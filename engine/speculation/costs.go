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
// speed is common to all cells and follows quickly, so that a machine that is
// slower for a while does not make the depths look better that were not tried
// meanwhile; base follows slowly once it was measured a few times.
type Costs struct {
	batches []int // of the grid, rising
	base    [][]float64
	seen    [][]float64 // cycles that a base was corrected by
	slope   []float64   // seconds for each cached position, by depth
	speed   float64
}

// How fast estimates follow: the share of a deviation's logarithm that one
// cycle moves them by. A single deviation counts up to maxDeviation.
const (
	followSpeed  = 0.03
	followBase   = 0.02
	maxDeviation = 1.5
	// profileWorth is the number of cycles that a profiled base counts for.
	profileWorth = 2
)

// NewCosts makes estimates from a profile: seconds[i][d] is the time of a cycle
// of batches[i] sequences at depth d with empty caches, slope[d] the time for
// each cached position.
func NewCosts(batches []int, seconds [][]float64, slope []float64) *Costs {
	c := &Costs{batches: slices.Clone(batches), slope: slices.Clone(slope), speed: 1}
	for _, row := range seconds {
		c.base = append(c.base, slices.Clone(row))
		c.seen = append(c.seen, make([]float64, len(row)))
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

// Observe takes in what a cycle took.
func (c *Costs) Observe(l Load, depth int, seconds float64) {
	expected := c.Seconds(l, depth)
	if !(seconds > 0) || !(expected > 0) {
		return
	}
	r := math.Log(min(max(seconds/expected, 1/maxDeviation), maxDeviation))
	c.speed *= math.Exp(followSpeed * r)
	lo, hi, w := c.between(l.Batch)
	c.follow(lo, depth, r, 1-w)
	c.follow(hi, depth, r, w)
}

// follow moves a base by its part of a deviation.
func (c *Costs) follow(i, depth int, r, weight float64) {
	if weight == 0 {
		return
	}
	n := &c.seen[i][depth]
	c.base[i][depth] *= math.Exp(max(followBase, 1/(*n+1+profileWorth)) * r * weight)
	*n += weight
}

// Seen is how many cycles corrected an estimate.
func (c *Costs) Seen(l Load, depth int) float64 {
	lo, hi, w := c.between(l.Batch)
	return c.seen[lo][depth]*(1-w) + c.seen[hi][depth]*w
}

// Doubt is by how much an estimate may be off, as a share of it: less the more
// often it was measured.
func (c *Costs) Doubt(l Load, depth int) float64 { return 0.2 / math.Sqrt(1+c.Seen(l, depth)) }
