package speculation

import "slices"

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
//	batch · tokens(depth) / seconds(batch, depth, context).
//
// Plain decoding is one of the arms. Entering speculation needs a margin and
// pays for the head's catching up; leaving needs a smaller one. The estimates of arms
// that are not taken are kept alive by short probes, which may cost a small
// share of the time. It is a pure function of what it is told, without a clock.
type Chooser struct {
	costs *Costs
	rates *Acceptance

	depth    int     // in force
	cycles   int     // since it changed
	rested   int     // cycles since the last probe
	probing  int     // cycles left of a probe
	back     int     // depth to go back to after it
	probes   int     // so far
	switches int     // between plain decoding and speculation, probes left out
	mode     Mode    // of the last choice
	catchUp  float64 // seconds for each sequence that the head's catching up takes; 0 before it was seen
	budget   float64 // seconds that probes may cost now
	backoff  float64 // by how much probes are rarer, after probes that found nothing
	reason   string
	tokens   []float64 // of a cycle and sequence, by depth
	age      int       // cycles since it was asked whether the draft helps
	useless  bool

	tried, right int // sequences of the probe's cycles, and draft tokens accepted
}

const (
	enterMargin = 0.02  // gain that entering speculation needs
	moveMargin  = 0.015 // gain that another depth needs
	settle      = 16    // cycles that a depth is kept at least
	entryCycles = 120   // cycles over which the cost of catching up is spread, and that an arm is kept at least
	muchBetter  = 1.15  // unless another one is better by as much

	probeCycles   = 12    // length of a probe
	probeRest     = 60    // cycles between probes at least, of what may be better
	firstRest     = 12    // the same, of what was hardly measured
	keepAliveRest = 120   // the same, of what is most likely worse
	curiosity     = 3     // doubts that what is to be tried gets the benefit of
	probeShare    = 0.008 // share of the time that probes may cost
	probeFloor    = 0.05  // share of a probe's time that it is taken to cost at least
	maxBackoff    = 16    // of the backoff
	rareBackoff   = 64    // the same, of a draft that does not help
	firstBudget   = 60    // plain cycles that probes may cost right after the start
	mostBudget    = 200   // the same, saved up
	hardlySeen    = 4 * probeCycles

	// A draft does not help when a cycle settles fewer tokens than helpLength at
	// any depth, and as many as helpDrafts were verified. It does again when it is
	// right twice as often.
	helpDrafts = 60
	helpLength = 1.1
	helpCycles = 100 // between two looks
)

// Reasons of a choice.
const (
	reasonGoodput = "goodput"
	reasonProbe   = "probe"
	reasonUseless = "draft does not help"
)

// NewChooser starts with plain decoding, and moves to what pays by the estimates.
func NewChooser(costs *Costs, rates *Acceptance) *Chooser {
	c := &Chooser{costs: costs, rates: rates, backoff: 1, reason: "start", cycles: entryCycles, rested: probeRest}
	c.budget = firstBudget * costs.Seconds(Load{Batch: 1}, 0)
	c.tokens = rates.Tokens(nil)
	return c
}

// Depth is the depth in force and why.
func (c *Chooser) Depth() (int, string) { return c.depth, c.reason }

// Helps is false for a draft that is hardly ever right.
func (c *Chooser) Helps() bool { return !c.useless }

// Observe takes in a whole cycle at one depth: how long it took, and how many
// draft tokens of all its sequences were accepted. A cycle that did other work
// too says nothing.
func (c *Chooser) Observe(l Load, depth int, seconds float64, accepted int) {
	if !(seconds > 0) || depth > c.costs.MaxDepth() {
		return
	}
	c.costs.Observe(l, depth, seconds, c.probing > 0)
	c.rates.Cycle(depth, l.Batch, accepted)
	if c.probing > 0 {
		c.tried, c.right = c.tried+l.Batch, c.right+accepted
	}
	c.budget = min(c.budget+seconds*probeShare/c.backoff, mostBudget*c.costs.Seconds(l, 0))
}

// CaughtUp takes in a cycle that came from plain decoding and in which the head
// caught up with the text.
func (c *Chooser) CaughtUp(l Load, seconds float64) {
	if l.Batch == 0 || !(seconds > 0) {
		return
	}
	each := max(0, seconds-c.costs.Seconds(l, 0)) / float64(l.Batch)
	if c.catchUp == 0 {
		c.catchUp = each
	}
	c.catchUp += 0.2 * (each - c.catchUp)
}

// entry is what the catching up would cost now, in seconds.
func (c *Chooser) entry(l Load) float64 {
	if c.catchUp == 0 {
		return c.costs.Seconds(l, 0)
	}
	return c.catchUp * float64(l.Batch)
}

// Verified takes in a verified draft.
func (c *Chooser) Verified(drafted, accepted int) { c.rates.Observe(drafted, accepted) }

// Gain is the estimated goodput of the depth in force over that of plain
// decoding, by the estimates of the last choice.
func (c *Chooser) Gain(l Load) float64 { return c.goodput(l, c.depth) / c.goodput(l, 0) }

// goodput is tokens in a second and sequence at a depth.
func (c *Chooser) goodput(l Load, depth int) float64 {
	return c.tokens[depth] / c.costs.Seconds(l, depth)
}

// Choose is the depth of the next cycle.
func (c *Chooser) Choose(l Load, b Bounds) int {
	most := min(b.Max, c.costs.MaxDepth())
	if b.Mode != c.mode { // what another mode had in force need not settle
		c.mode, c.cycles, c.probing = b.Mode, entryCycles, 0
	}
	if l.Batch == 0 {
		return c.depth
	}
	c.tokens = c.rates.Tokens(c.tokens)
	c.judge()
	switch {
	case b.Mode == ModeOff || most == 0:
		return c.set(0, "off")
	case b.Mode == ModeFixed:
		return c.set(most, "fixed")
	}
	least := min(b.Min, most)
	if c.probing > 0 {
		if c.probing--; c.probing > 0 {
			return c.depth
		}
		return c.endProbe(l, least, most)
	}
	c.cycles++
	c.rested++
	now := min(max(c.depth, least), most)
	if now != c.depth {
		return c.set(now, "bounds")
	}
	if best := c.best(l, least, most, now); best != now && c.settled(l, best, now) {
		return c.set(best, reasonGoodput)
	}
	c.reason = c.steady(now)
	if d, ok := c.probe(l, least, most, now); ok {
		c.costs.Flush()
		c.back, c.depth, c.probing, c.reason = now, d, probeCycles, reasonProbe
		c.tried, c.right = 0, 0
		return d
	}
	return now
}

// settled tells whether the depth in force was kept long enough to leave it for
// another. Between plain decoding and speculation it is kept longer, since coming
// back costs something, unless much would be lost by that.
func (c *Chooser) settled(l Load, best, now int) bool {
	if (best == 0) != (now == 0) && c.goodput(l, best) < muchBetter*c.goodput(l, now) {
		return c.cycles >= entryCycles
	}
	return c.cycles >= settle
}

// steady is why a depth stays as it is.
func (c *Chooser) steady(depth int) string {
	if depth == 0 && c.useless {
		return reasonUseless
	}
	return reasonGoodput
}

func (c *Chooser) set(depth int, reason string) int {
	if depth != c.depth {
		if (depth == 0) != (c.depth == 0) {
			c.switches++
		}
		c.depth, c.cycles, c.probing = depth, 0, 0
		c.backoff = 1
	}
	c.reason = reason
	return depth
}

// best is the arm to take when now is in force.
func (c *Chooser) best(l Load, least, most, now int) int {
	best, top := now, c.goodput(l, now)
	for d := least; d <= most; d++ {
		g := c.goodput(l, d)
		switch {
		case d == now:
			continue
		case now == 0: // entering: a margin, and the catching up
			g /= 1 + enterMargin + c.entry(l)/(entryCycles*c.costs.Seconds(l, d))
		default: // leaving, or another depth
			g /= 1 + moveMargin
		}
		g /= 1 + c.costs.Doubt(l, d)/2 // what looks best of several was often lucky
		if g > top {
			best, top = d, g
		}
	}
	return best
}

// probe is an arm to try for a few cycles, if it is time and the budget pays for
// what it may cost: the one that would be best if it were as good as it may be.
// What was not tried for long may be better than its estimate, so every arm has
// its turn, and those that are far from the best one seldom.
func (c *Chooser) probe(l Load, least, most, now int) (int, bool) {
	if c.cycles < settle || c.rested < firstRest {
		return 0, false
	}
	try, top, here := -1, 0.0, c.goodput(l, now)
	for d := least; d <= most; d++ {
		if d == now || c.loss(l, d, now) > c.budget {
			continue
		}
		if g := c.goodput(l, d) * (1 + curiosity*c.costs.Doubt(l, d)); g > top {
			try, top = d, g
		}
	}
	if try < 0 {
		return 0, false
	}
	rest := keepAliveRest
	switch doubt := c.costs.Doubt(l, try); {
	case c.costs.Seen(l, try) < hardlySeen:
		rest = firstRest
	case c.goodput(l, try)*(1+doubt) > here: // it may be better
		rest = probeRest
	}
	if c.rested < rest {
		return 0, false
	}
	c.probes++
	c.rested = 0
	return try, true
}

// loss is what a probe of depth d costs by the estimates, in seconds, while now
// is the better arm.
func (c *Chooser) loss(l Load, d, now int) float64 {
	each := c.costs.Seconds(l, d) * max(probeFloor, 1-c.goodput(l, d)/c.goodput(l, now))
	loss := probeCycles * each
	if now == 0 { // the first cycle also brings the head up to date
		loss += c.entry(l)
	}
	return loss
}

// endProbe takes the arm that looks best now. A probe of an arm that is far from
// it makes the next ones rarer.
func (c *Chooser) endProbe(l Load, least, most int) int {
	c.costs.Flush()
	probed, back := c.depth, min(max(c.back, least), most)
	c.budget -= c.loss(l, probed, back)
	c.depth, c.rested = back, 0
	if c.useless && float64(c.right) > 2*(helpLength-1)*float64(c.tried) { // the estimates would take long to see it
		c.useless, c.age, c.backoff = false, 0, 1
		c.budget = max(c.budget, firstBudget*c.costs.Seconds(l, 0))
	}
	if best := c.best(l, least, most, back); best != back && c.settled(l, best, back) {
		return c.set(best, reasonGoodput)
	}
	if c.goodput(l, probed) < 0.95*c.goodput(l, back) { // not even near
		limit := float64(maxBackoff)
		switch {
		case c.useless:
			limit = rareBackoff
		case c.rates.trials[0] < helpDrafts: // too little was seen to say that it does not help
			limit = 1
		}
		c.backoff = min(2*c.backoff, limit)
	}
	c.reason = c.steady(back)
	return back
}

// judge finds out, now and then, whether the draft is ever right.
func (c *Chooser) judge() {
	if c.age++; c.age < helpCycles || c.rates.trials[0] < helpDrafts {
		return
	}
	c.age = 0
	length := slices.Max(c.tokens)
	if c.useless {
		c.useless = length < 2*helpLength-1
	} else {
		c.useless = length < helpLength
	}
}
