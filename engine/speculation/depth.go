package speculation

import (
	"math"
	"slices"
)

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
// share of the time, and of which each that changes nothing makes those of its arm
// rarer. It is a pure function of what it is told, without a clock.
type Chooser struct {
	costs *Costs
	rates *Acceptance

	depth    int     // in force
	chosen   int     // in mode auto, probes left out
	cycles   int     // since it changed
	wanted   int     // cycles on end in which drafts would have been better than plain decoding
	rested   int     // cycles since the last probe
	rest     []int   // the same by depth; cycles of the depth in force are none
	gap      []int   // cycles between probes of a depth
	probing  int     // cycles left of a probe
	length   int     // of the probe
	back     int     // depth to go back to after it
	even     even    // load, evened out
	seenAt   Load    // load under which the gaps grew
	worth    float64 // tokens of the deepest draft then
	probes   int     // so far
	switches int     // between plain decoding and speculation, by choice, probes left out
	mode     Mode    // of the last choice
	catchUp  float64 // seconds for each sequence that the head's catching up takes; 0 before it was seen
	budget   float64 // seconds that probes may cost now
	reason   string
	tokens   []float64 // of a cycle and sequence, by depth
	age      int       // cycles since it was asked whether the draft helps
	useless  bool

	tried, right int // sequences of the probe's whole cycles, and draft tokens accepted
}

const (
	enterMargin = 0.01  // gain that entering speculation needs
	moveMargin  = 0.008 // gain that another depth needs
	followLoad  = 1. / 32
	settle      = 16   // cycles that a depth is kept at least
	enterAfter  = 32   // cycles that drafts are better for, before plain decoding ends: a load that is light for a moment is not worth catching up
	entryCycles = 120  // cycles over which the cost of catching up is spread, and that an arm is kept at least
	muchBetter  = 1.15 // unless another one is better by as much

	firstEntry  = 4   // plain cycles that the first catching up is taken for at most,
	mostEntry   = 4   // and times the estimate that a later one is
	followEntry = 0.2 // share of the difference that the estimate follows by when it rises,
	forgetEntry = 0.5 // and when it falls

	firstCycles = 4     // length of a probe of what was hardly measured
	probeCycles = 12    // of another one
	mostCycles  = 48    // the same, where the way there costs much and the arm is near
	firstRest   = 12    // cycles between probes at least
	firstGap    = 60    // cycles between probes of an arm, at first
	mostGap     = 2048  // and after probes that changed nothing
	curiosity   = 2     // doubts that what is to be tried gets the benefit of
	probeShare  = 0.004 // share of the time that probes may cost
	probeFloor  = 0.02  // share of a probe's time that it is taken to cost at least
	firstBudget = 30    // plain cycles that probes may cost right after the start
	mostBudget  = 100   // the same, saved up
	mostDebt    = 8     // the same, owed for first probes, which do not ask what they cost
	hardlySeen  = 2 * probeCycles

	// The load or the worth of drafts has changed when they differ by as much:
	// what was found out before may not hold.
	loadChange  = 2
	worthChange = 1.1

	// A draft does not help when a cycle settles fewer tokens than helpLength at
	// any depth, and as many as helpDrafts were verified. It does again when it is
	// right twice as often.
	helpDrafts = 60
	helpLength = 1.1
	helpCycles = 50 // between two looks
)

// Reasons of a choice.
const (
	reasonGoodput = "goodput"
	ReasonProbe   = "probe" // it is tried for some cycles
	reasonUseless = "draft does not help"
)

// NewChooser starts with plain decoding, and moves to what pays by the estimates.
func NewChooser(costs *Costs, rates *Acceptance) *Chooser {
	c := &Chooser{costs: costs, rates: rates, reason: "start", cycles: entryCycles, rested: firstRest,
		rest: make([]int, costs.MaxDepth()+1), gap: make([]int, costs.MaxDepth()+1)}
	c.renew()
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
	plain := c.costs.Seconds(l, 0) // cycles of this load: those of another one may have been far longer
	c.budget = min(max(c.budget+seconds*probeShare, -mostDebt*plain), mostBudget*plain)
}

// CaughtUp takes in a cycle that came from plain decoding and in which the head
// caught up with the text. A single one says little: what a device does for the
// first time can take it hundreds of cycles' time.
func (c *Chooser) CaughtUp(l Load, seconds float64) {
	if l.Batch == 0 || !(seconds > 0) {
		return
	}
	plain := c.costs.Seconds(l, 0)
	each := max(0, seconds-plain) / float64(l.Batch)
	if c.catchUp == 0 {
		c.catchUp = min(each, firstEntry*plain/float64(l.Batch))
		return
	}
	follow := followEntry
	if each < c.catchUp {
		follow = forgetEntry
	}
	c.catchUp += follow * (min(each, mostEntry*c.catchUp) - c.catchUp)
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
// decoding, by the estimates of the last choice. It is at most the tokens of a
// cycle: one that drafts takes no less time than a plain one, though what was
// measured on a machine that others disturb may say so.
func (c *Chooser) Gain(l Load) float64 {
	return min(c.goodput(l, c.depth)/c.goodput(l, 0), c.tokens[c.depth])
}

// goodput is tokens in a second and sequence at a depth.
func (c *Chooser) goodput(l Load, depth int) float64 {
	return c.tokens[depth] / c.costs.Seconds(l, depth)
}

// Choose is the depth of the next cycle.
func (c *Chooser) Choose(l Load, b Bounds) int {
	most := min(b.Max, c.costs.MaxDepth())
	if b.Mode != c.mode { // another mode interrupts the choice, which goes on as it was
		c.mode, c.probing = b.Mode, 0
		if b.Mode == ModeAuto {
			c.depth = c.chosen
		}
	}
	if l.Batch == 0 {
		return c.depth
	}
	l = c.even.of(l)
	c.tokens = c.rates.Tokens(c.tokens)
	c.judge()
	switch {
	case b.Mode == ModeOff || most == 0:
		c.depth, c.reason = 0, "off"
		return c.depth
	case b.Mode == ModeFixed:
		c.depth, c.reason = most, "fixed"
		return c.depth
	}
	least := min(b.Min, most)
	if c.probing > 0 {
		if c.probing--; c.probing > 0 && c.depth >= least && c.depth <= most { // bounds that change end it
			return c.depth
		}
		return c.endProbe(l, least, most)
	}
	c.rests(l, most)
	now := min(max(c.depth, least), most)
	if now != c.depth {
		return c.set(now, "bounds")
	}
	if c.useless && least == 0 && now > 0 {
		return c.set(0, reasonUseless)
	}
	best := c.best(l, least, most, now)
	if c.wanted++; now > 0 || best == 0 {
		c.wanted = 0
	}
	if best != now && c.settled(l, best, now) && (now > 0 || c.wanted >= enterAfter) {
		return c.set(best, reasonGoodput)
	}
	c.reason = c.steady(now)
	if d, cycles := c.probe(l, least, most, now); cycles > 0 {
		c.costs.Flush()
		c.back, c.depth, c.length, c.probing, c.reason = now, d, cycles, cycles, ReasonProbe
		c.tried, c.right = 0, 0
		c.probes++
		return d
	}
	return now
}

// even is a load evened out over some cycles: a request that has ended is often
// followed by another one at once, and what runs in between is no other load.
type even struct {
	batch, context float64 // logarithms
	begun          bool
}

// of is the load after a cycle more, of l.
func (e *even) of(l Load) Load {
	batch, context := math.Log(float64(l.Batch)), math.Log1p(float64(l.Context))
	if !e.begun {
		e.batch, e.context, e.begun = batch, context, true
	}
	e.batch += followLoad * (batch - e.batch)
	e.context += followLoad * (context - e.context)
	return Load{Batch: int(math.Round(math.Exp(e.batch))), Context: int(math.Round(math.Expm1(e.context)))}
}

// rests counts a cycle without a probe. What was found out under another load, or
// while drafts were worth more or less, is to be found out again.
func (c *Chooser) rests(l Load, most int) {
	c.cycles++
	c.rested++
	for d := range c.rest {
		c.rest[d]++
	}
	if apart(float64(l.Batch), float64(c.seenAt.Batch), loadChange) || apart(c.tokens[most], c.worth, worthChange) {
		c.seenAt, c.worth = l, c.tokens[most]
		c.cycles = max(c.cycles, entryCycles) // what was settled was so for another load
		c.renew()
	}
}

// apart tells whether two numbers differ by a factor at least.
func apart(a, b, factor float64) bool { return a >= factor*b || b >= factor*a }

// renew has each arm be tried soon.
func (c *Chooser) renew() {
	for d := range c.gap {
		c.gap[d] = firstGap
	}
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
		c.rest[c.depth] = 0
		c.cycles, c.probing = 0, 0
		c.renew()
	}
	c.depth, c.chosen, c.reason = depth, depth, reason
	return depth
}

// best is the arm to take when now is in force.
func (c *Chooser) best(l Load, least, most, now int) int {
	best, top := now, c.goodput(l, now)
	if c.useless {
		most = least
	}
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

// probe is an arm to try and for how many cycles, 0 for none: the one that would
// be best if it were as good as it may be, of those whose time has come and whose
// cost the budget has. What was never measured under such a load is tried at
// once, if shortly: its estimate may be far off. Of plain decoding nothing is
// believed unseen, since no cycle takes less time.
func (c *Chooser) probe(l Load, least, most, now int) (depth, cycles int) {
	if c.cycles < settle || c.rested < firstRest {
		return 0, 0
	}
	top := 0.0
	for d := least; d <= most; d++ {
		seen := c.costs.Seen(l, d)
		if d == now || c.useless && now == 0 && d > max(least, 1) { // one tells whether it helps again
			continue
		}
		n := c.probeLength(l, d, now)
		if c.loss(l, d, now, n) > c.budget {
			n = firstCycles // few cycles too show an estimate that is far too high
		}
		switch {
		case seen < hardlySeen && c.gap[d] == firstGap && (d == 0 || c.hope(l, d) > c.goodput(l, now)):
			if n = firstCycles; seen >= 1 && c.budget < 0 {
				continue
			}
		case c.rest[d] < c.gap[d] || c.loss(l, d, now, n) > c.budget:
			continue
		}
		if g := c.hope(l, d); g > top {
			depth, cycles, top = d, n, g
		}
	}
	return depth, cycles
}

// hope is the goodput of a depth if it is as good as it may be. Its cycles take no
// less time than those of less depth, of which some may have been measured.
func (c *Chooser) hope(l Load, d int) float64 {
	g := c.goodput(l, d) * (1 + curiosity*c.costs.Doubt(l, d))
	for k := range d {
		if c.costs.Seen(l, k) >= firstCycles {
			g = min(g, c.tokens[d]/c.costs.Seconds(l, k)*(1+curiosity*c.costs.Doubt(l, k)))
		}
	}
	return g
}

// probeLength is how long a depth is tried: where it is hardly worse, so long that
// the way there is a small part.
func (c *Chooser) probeLength(l Load, d, now int) int {
	if now > 0 || c.goodput(l, d) < 0.9*c.goodput(l, now) {
		return probeCycles
	}
	return int(min(max(4*c.entry(l)/c.costs.Seconds(l, d), probeCycles), mostCycles))
}

// loss is what a probe of depth d costs by the estimates, in seconds, while now
// is the better arm.
func (c *Chooser) loss(l Load, d, now, cycles int) float64 {
	each := c.costs.Seconds(l, d) * max(probeFloor, 1-c.goodput(l, d)/c.goodput(l, now))
	loss := float64(cycles) * each
	if now == 0 { // the first cycle also brings the head up to date
		loss += c.entry(l)
	}
	return loss
}

// endProbe takes the arm that looks best now. A probe of an arm that is worse for
// certain makes the next ones of it rarer.
func (c *Chooser) endProbe(l Load, least, most int) int {
	c.costs.Flush()
	probed, back := c.depth, min(max(c.back, least), most)
	c.budget -= c.loss(l, probed, back, c.length)
	c.depth, c.rested, c.rest[probed] = back, 0, 0
	if c.useless && float64(c.right) > 2*(helpLength-1)*float64(c.tried) { // the estimates would take long to see it
		c.useless, c.age = false, 0
		c.budget = max(c.budget, firstBudget*c.costs.Seconds(l, 0))
		c.renew()
	}
	if best := c.best(l, least, most, back); best != back && c.settled(l, best, back) {
		return c.set(best, reasonGoodput)
	}
	switch {
	case c.tried == 0: // there were prompts all along: the next may see no more
		c.gap[probed] = min(2*c.gap[probed], mostGap)
	case c.rates.trials[0] < helpDrafts: // too little was seen to say anything
	case c.costs.Questioned(l, probed):
		c.gap[probed] = firstGap // the next probe tells which of the two was right
	case c.useless || c.hope(l, probed) < c.goodput(l, back):
		c.gap[probed] = min(2*c.gap[probed], mostGap)
	default:
		c.gap[probed] = firstGap
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
