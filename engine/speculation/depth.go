package speculation

// Mode says who decides how deep the drafts are.
type Mode string

const (
	ModeAuto  Mode = "auto"  // the engine, by what it measures
	ModeFixed Mode = "fixed" // always the most that is allowed
	ModeOff   Mode = "off"   // plain decoding
)

// Bounds are what the depth is kept within; they may change at any time.
type Bounds struct {
	Mode     Mode
	Min, Max int // draft tokens, of ModeAuto; Min 0 allows plain decoding
}

// Chooser chooses the depth for the next cycle: that with the most tokens in a
// second,
//
//	batch · (1 + Σ_{k≤depth} rate_k) / seconds(batch, depth, context).
//
// Plain decoding is one of the arms. Entering speculation needs a margin and
// pays for the head's catching up; leaving needs none. The estimates of arms
// that are not taken are kept alive by short probes, which may cost a small
// share of the time. It is a pure function of what it is told, without a clock.
type Chooser struct {
	costs *Costs
	rates *Acceptance

	depth   int     // in force
	cycles  int     // since it changed
	probing int     // cycles left of a probe
	back    int     // depth to go back to after it
	probes  int     // so far
	mode    Mode    // of the last choice
	budget  float64 // seconds that probes may cost now
	backoff float64 // by how much probes are rarer, after probes that found nothing
	reason  string
	scratch []float64

	switches int // between plain decoding and speculation, probes left out
}

const (
	enterMargin = 0.04 // gain that entering speculation needs
	moveMargin  = 0.01 // gain that another depth needs
	settle      = 8    // cycles that a depth is kept at least
	entryCycles = 40   // cycles over which the cost of catching up is spread

	probeCycles = 6     // length of a probe
	probeShare  = 0.005 // share of the time that probes may cost
	maxBackoff  = 16
	firstBudget = 30 // plain cycles that probes may cost right after the start
)

// NewChooser starts at the deepest that pays by the estimates.
func NewChooser(costs *Costs, rates *Acceptance) *Chooser {
	c := &Chooser{costs: costs, rates: rates, backoff: 1, reason: "start", cycles: settle}
	c.budget = firstBudget * costs.Seconds(Load{Batch: 1}, 0)
	return c
}

// Depth is the depth in force and why.
func (c *Chooser) Depth() (int, string) { return c.depth, c.reason }

// Observe takes in a cycle: how long it took at the depth in force then, 0
// seconds if it did other work too and says nothing.
func (c *Chooser) Observe(l Load, depth int, seconds float64) {
	if seconds <= 0 || depth > c.costs.MaxDepth() {
		return
	}
	c.costs.Observe(l, depth, seconds)
	c.budget = min(c.budget+seconds*probeShare/c.backoff, 1)
}

// Verified takes in a verified draft.
func (c *Chooser) Verified(drafted, accepted int) { c.rates.Observe(drafted, accepted) }

// Gain is the estimated goodput of the depth in force over that of plain decoding.
func (c *Chooser) Gain(l Load) float64 {
	c.scratch = c.rates.Rates(c.scratch)
	return c.goodput(l, c.depth, c.scratch) / c.goodput(l, 0, c.scratch)
}

// goodput is tokens in a second and sequence at a depth.
func (c *Chooser) goodput(l Load, depth int, rates []float64) float64 {
	tokens := 1.0
	for _, r := range rates[:depth] {
		tokens += r
	}
	return tokens / c.costs.Seconds(l, depth)
}

// Choose is the depth of the next cycle.
func (c *Chooser) Choose(l Load, b Bounds) int {
	most := min(b.Max, c.costs.MaxDepth())
	if b.Mode != c.mode { // what another mode had in force need not settle
		c.mode, c.cycles, c.probing = b.Mode, settle, 0
	}
	switch {
	case b.Mode == ModeOff || most == 0:
		return c.set(0, "off")
	case b.Mode == ModeFixed:
		return c.set(most, "fixed")
	case l.Batch == 0:
		return c.depth
	}
	least := min(b.Min, most)
	c.scratch = c.rates.Rates(c.scratch)
	rates := c.scratch
	if c.probing > 0 {
		if c.probing--; c.probing > 0 {
			return c.depth
		}
		return c.endProbe(l, least, most, rates)
	}
	c.cycles++
	now := min(max(c.depth, least), most)
	if now != c.depth {
		return c.set(now, "bounds")
	}
	if best := c.best(l, least, most, now, rates); best != now && c.cycles >= settle {
		return c.set(best, "goodput")
	}
	if d, ok := c.probe(l, least, most, now, rates); ok {
		c.back, c.depth, c.probing, c.reason = now, d, probeCycles, "probe"
		return d
	}
	return now
}

func (c *Chooser) set(depth int, reason string) int {
	if depth != c.depth {
		c.depth, c.cycles, c.probing = depth, 0, 0
		c.backoff = 1
	}
	c.reason = reason
	return depth
}

// best is the arm to take when now is in force.
func (c *Chooser) best(l Load, least, most, now int, rates []float64) int {
	best, top := now, c.goodput(l, now, rates)
	here := top
	for d := least; d <= most; d++ {
		g := c.goodput(l, d, rates)
		switch {
		case d == now:
			continue
		case now == 0: // entering: a margin, and the catching up
			g /= 1 + enterMargin + 1.0/entryCycles
		case d > 0: // another depth
			g = min(g, max(here, g/(1+moveMargin)))
		}
		if g > top {
			best, top = d, g
		}
	}
	return best
}

// probe is an arm to try for a few cycles, if the budget pays for what it may
// cost: the one that would be best if its time were as short as it may be, or
// one deeper than now, whose rate is only extrapolated.
func (c *Chooser) probe(l Load, least, most, now int, rates []float64) (int, bool) {
	if c.cycles < settle {
		return 0, false
	}
	try, top := -1, c.goodput(l, now, rates)
	for d := least; d <= most; d++ {
		if g := c.goodput(l, d, rates) * (1 + c.costs.Doubt(l, d)); d != now && g > top {
			try, top = d, g
		}
	}
	plain := now > 0 && least == 0
	switch {
	case plain && c.costs.Seen(l, 0) < probeCycles-1:
		try = 0 // what plain decoding takes must be measured: all else is compared with it
	case try >= 0:
	case plain && c.probes%2 == 1:
		try = 0
	case now < most:
		try = now + 1
	case plain:
		try = 0
	default:
		return 0, false
	}
	if c.loss(l, try, now, rates) > c.budget {
		return 0, false
	}
	c.probes++
	return try, true
}

// loss is what a probe of depth d costs by the estimates, in seconds, while now
// is the better arm.
func (c *Chooser) loss(l Load, d, now int, rates []float64) float64 {
	each := c.costs.Seconds(l, d) * (1 - c.goodput(l, d, rates)/c.goodput(l, now, rates))
	loss := probeCycles * max(each, 0)
	if now == 0 { // the first cycle also brings the head up to date
		loss += c.costs.Seconds(l, 0)
	}
	return loss
}

// endProbe takes the arm that looks best now. A probe of an arm that is far from
// it makes the next ones rarer.
func (c *Chooser) endProbe(l Load, least, most int, rates []float64) int {
	probed, back := c.depth, min(max(c.back, least), most)
	c.budget -= c.loss(l, probed, back, rates)
	c.depth = back
	if best := c.best(l, least, most, back, rates); best != back {
		return c.set(best, "goodput")
	}
	if c.goodput(l, probed, rates) < 0.95*c.goodput(l, back, rates) { // not even near
		c.backoff = min(2*c.backoff, maxBackoff)
	}
	c.cycles, c.reason = 0, "goodput"
	return back
}
