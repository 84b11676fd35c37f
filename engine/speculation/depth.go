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
// pays for the head's catching up; leaving needs a smaller one. Arms that are not
// taken are tried shortly: while so much is in doubt that what may be found out is
// worth it, and then rarely. All of that together costs probeShare of the time,
// by the estimates, and mostDebt plain cycles of each load. It is a pure function of what
// it is told, without a clock.
type Chooser struct {
	costs *Costs
	rates *Acceptance

	depth    int     // in force
	chosen   int     // in mode auto, probes left out
	cycles   int     // since it changed
	wanted   int     // cycles on end in which drafts would have been better than plain decoding
	rested   int     // cycles since the last probe
	rest     []int   // the same by depth; cycles of the depth in force are none
	gap      []int   // cycles between probes of a depth that is worse for certain
	blind    []int   // its probes on end in which there were prompts all the time
	probing  int     // cycles left of a probe
	length   int     // of the probe
	charged  float64 // seconds that it was expected to cost; paid at its beginning, since it may be interrupted
	back     int     // depth to go back to after it
	even     even    // load, evened out
	seenAt   Load    // load under which the gaps grew
	lasted   int     // cycles since it came
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
	mostEntry   = 2   // and times the estimate that a later one is
	followEntry = 0.1 // share of the difference that the estimate follows by when it rises,
	forgetEntry = 0.5 // and when it falls

	// A depth is tried where what may be found out is worth more than the trial
	// costs, for as many cycles as most is had for a second of that.
	firstCycles = 4
	probeCycles = 12
	mostCycles  = 48
	firstRest   = 12    // cycles between probes at least,
	restAfter   = 2     // and for each cycle of the last one
	horizon     = 2000  // cycles that what is found out is of use in, at least: a load is taken to last as long again as it has,
	mostHorizon = 20000 // and at most
	surely      = 2     // times what it costs, that a probe beyond the budget is worth more than that
	curiosity   = 2     // doubts that the time of what is to be tried gets the benefit of
	firstGap    = 512   // cycles between probes of an arm that is worse for certain, at first
	mostGap     = 4096  // and after probes that changed nothing
	mostBlind   = 5     // probes without a cycle that said something, each of which has the next one wait twice as long
	probeShare  = 0.004 // share of the time that probes may cost
	probeFloor  = 0.02  // share of a probe's time that it is taken to cost at least
	firstBudget = 4     // plain cycles that probes may cost right after the start
	mostBudget  = 100   // the same, saved up
	mostDebt    = 20    // the same, owed for what is surely worth it

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
		rest: make([]int, costs.MaxDepth()+1), gap: make([]int, costs.MaxDepth()+1), blind: make([]int, costs.MaxDepth()+1)}
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
// too says nothing, but see Mixed.
func (c *Chooser) Observe(l Load, depth int, seconds float64, accepted int) {
	if !(seconds > 0) || depth > c.costs.MaxDepth() {
		return
	}
	c.costs.Observe(l, depth, seconds, c.probing > 0)
	c.cycle(l, depth, seconds, accepted, true)
}

// Mixed is Observe for a cycle that computed some rows of prompts too, beside the l.Batch
// sequences that decoded: no more than these had.
func (c *Chooser) Mixed(l Load, depth int, seconds float64, accepted, rows int) {
	if !(seconds > 0) || depth > c.costs.MaxDepth() || rows > l.Batch*(1+depth) {
		return
	}
	told := c.costs.Mixed(l, depth, seconds, rows, c.probing > 0)
	c.cycle(l, depth, seconds, accepted, told)
}

// cycle takes in what a cycle had of drafts, and that it earned trials; told is whether
// it said what its depth takes.
func (c *Chooser) cycle(l Load, depth int, seconds float64, accepted int, told bool) {
	c.rates.Cycle(depth, l.Batch, accepted)
	if c.probing > 0 && told {
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
	return c.tokens[depth] / c.seconds(l, depth)
}

// seconds is the time of a cycle. That of a depth which was never measured lies
// between those of less and of more depth that were.
func (c *Chooser) seconds(l Load, depth int) float64 {
	s := c.costs.Seconds(l, depth)
	if c.costs.Seen(l, depth) >= 1 {
		return s
	}
	for d := range c.tokens {
		switch measured := c.costs.Seen(l, d) >= firstCycles; {
		case measured && d < depth:
			s = max(s, c.costs.Seconds(l, d))
		case measured && d > depth:
			s = min(s, c.costs.Seconds(l, d))
		}
	}
	return s
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
	if l.Batch > 0 {
		l = c.even.of(l)
		c.tokens = c.rates.Tokens(c.tokens)
		c.judge()
	}
	switch {
	case b.Mode == ModeOff || most == 0:
		c.depth, c.reason, c.probing = 0, "off", 0
		return c.depth
	case b.Mode == ModeFixed:
		c.depth, c.reason = most, "fixed"
		return c.depth
	}
	least := min(b.Min, most)
	if l.Batch == 0 { // nothing is to be found out
		return min(max(c.depth, least), most)
	}
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
		c.rested, c.rest[d], c.tried, c.right = 0, 0, 0, 0
		c.charged = c.loss(l, d, now, cycles)
		c.budget -= c.charged
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
	c.lasted++
	c.rested++
	for d := range c.rest {
		c.rest[d]++
	}
	if apart(float64(l.Batch), float64(c.seenAt.Batch), loadChange) || apart(c.tokens[most], c.worth, worthChange) {
		c.seenAt, c.worth, c.lasted = l, c.tokens[most], 0
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

// probe is an arm to try and for how many cycles, 0 for none: the one of which
// most can be expected, of those whose cost the budget has, or may owe where that
// is surely less than what is expected.
func (c *Chooser) probe(l Load, least, most, now int) (depth, cycles int) {
	if c.cycles < settle || c.rested < max(firstRest, restAfter*c.length) {
		return 0, 0
	}
	var worse, worseCycles int
	top, hope := 0.0, 0.0
	for d := least; d <= most; d++ {
		if d == now || c.useless && now == 0 && d > max(least, 1) { // one tells whether it helps again
			continue
		}
		n, gain := c.worthTrying(l, d, now)
		loss := c.loss(l, d, now, n)
		if gain > top && (loss <= c.budget || gain > surely*loss && c.budget-loss > -mostDebt*c.costs.Seconds(l, 0)) {
			depth, cycles, top = d, n, gain
		}
		if n, ok := c.again(l, d, now); ok && gain <= 0 && c.hope(l, d) > hope {
			worse, worseCycles, hope = d, n, c.hope(l, d)
		}
	}
	if cycles == 0 {
		return worse, worseCycles
	}
	return depth, cycles
}

// again is for how many cycles to try depth d though it is worse for certain, unless
// something has changed; not ok if it was tried not long ago, or the budget lacks that.
func (c *Chooser) again(l Load, d, now int) (cycles int, ok bool) {
	cycles = probeCycles
	if short, long := c.loss(l, d, now, firstCycles), c.loss(l, d, now, cycles); long > c.budget && 2*short < long {
		cycles = firstCycles // unless it is the way there that costs
	}
	return cycles, c.rest[d] >= max(c.gap[d], c.blindFor(d)) && c.loss(l, d, now, cycles) <= c.budget
}

// blindFor is for how many cycles depth d is not tried, after trials of it that told
// nothing.
func (c *Chooser) blindFor(d int) int {
	if c.blind[d] == 0 {
		return 0
	}
	return firstGap << c.blind[d]
}

// worthTrying is for how many cycles to try depth d while now is in force, and the
// seconds that this is expected to gain beyond what it costs; 0 if it costs more.
// Where d looks worse by the share behind, and so many cycles would move that by
// learns, one standard deviation, the mean of what it comes out better by is the
// knowledge gradient of Frazier, Powell and Dayanik, "A knowledge-gradient policy
// for sequential information collection" (2008).
func (c *Chooser) worthTrying(l Load, d, now int) (cycles int, gain float64) {
	if c.rest[d] < c.blindFor(d) || c.hope(l, d) <= c.goodput(l, now) {
		return 0, 0
	}
	behind := max(0, 1-c.goodput(l, d)/c.goodput(l, now))
	lasts := float64(min(max(c.lasted, horizon), mostHorizon)) * c.costs.Seconds(l, now)
	most := 1.0
	for _, n := range [...]int{firstCycles, probeCycles, mostCycles} {
		learns := math.Hypot(c.costs.Learns(l, d, float64(n-1)), c.rates.Learns(d, float64((n-1)*min(l.Batch, cycleWorth)))/c.tokens[d])
		z := behind / learns
		better := learns * (math.Exp(-z*z/2)/math.Sqrt(2*math.Pi) - z*math.Erfc(z/math.Sqrt2)/2)
		value, loss := lasts*better, c.loss(l, d, now, n)
		if value > most*loss {
			cycles, gain, most = n, value-loss, value/loss
		}
	}
	return cycles, gain
}

// hope is the goodput of a depth if its cycles are as short as they may be. They
// take no less time than those of less depth, of which some may have been measured.
func (c *Chooser) hope(l Load, d int) float64 {
	seconds := c.seconds(l, d) / (1 + curiosity*c.costs.Doubt(l, d))
	for k := range d {
		if c.costs.Seen(l, k) >= firstCycles {
			seconds = max(seconds, c.costs.Seconds(l, k)/(1+curiosity*c.costs.Doubt(l, k)))
		}
	}
	return c.tokens[d] / seconds
}

// loss is what a probe of depth d costs by the estimates, in seconds, while now is
// the better arm.
func (c *Chooser) loss(l Load, d, now, cycles int) float64 {
	each := c.seconds(l, d) * max(probeFloor, 1-c.goodput(l, d)/c.goodput(l, now))
	loss := float64(cycles) * each
	if now == 0 || d == 0 { // its first cycle also brings the head up to date, or that after it
		loss += c.entry(l)
	}
	return loss
}

// endProbe takes the arm that looks best now. A probe that changes nothing makes
// those of its arm rarer that are not worth it by the estimates.
func (c *Chooser) endProbe(l Load, least, most int) int {
	c.costs.Flush()
	c.probing = 0 // also if bounds ended it
	probed, back := c.depth, min(max(c.back, least), most)
	c.budget += c.charged - c.loss(l, probed, back, c.length) // by what is known now
	c.depth = back
	if c.useless && float64(c.right) > 2*(helpLength-1)*float64(c.tried) { // the estimates would take long to see it
		c.useless, c.age = false, 0
		c.budget = max(c.budget, firstBudget*c.costs.Seconds(l, 0))
		c.renew()
	}
	if best := c.best(l, least, most, back); best != back && c.settled(l, best, back) {
		return c.set(best, reasonGoodput)
	}
	if c.blind[probed] = min(c.blind[probed]+1, mostBlind); c.tried > 0 {
		c.blind[probed] = 0
	}
	if !c.costs.Questioned(l, probed) && c.rates.trials[0] >= helpDrafts {
		c.gap[probed] = min(2*c.gap[probed], mostGap)
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
