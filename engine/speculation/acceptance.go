package speculation

import "math"

// Acceptance estimates how many tokens a cycle settles, by depth, from recent
// cycles: from those of the same depth, and where these are few from how often
// draft tokens are accepted by their position. Of a text that is easy in parts
// the two differ: deeper drafts skip what is easy, and begin more often where it
// is hard.
type Acceptance struct {
	trials, hits []float64 // by position, decayed: drafts, and those accepted up to there

	sequences, accepted []float64 // by depth, decayed: sequences of cycles, and the draft tokens accepted
	cycles              []float64 // the same, cycles

	// Of the last cycles, decayed: their sequences, by how many draft tokens more
	// were accepted than expected, and the variance of that.
	recent, excess, variance float64
}

const (
	// halfLife is the number of verified drafts after which one counts half, and
	// halfCycles that of cycles, if it is more.
	halfLife   = 2000
	halfCycles = 500
	// staleCycles is the number of cycles of other depths after which what was
	// seen of a depth counts half.
	staleCycles = 10000
	// What was seen before is forgotten when the accepted tokens of recent cycles,
	// of some hundred sequences or some cycles, are surprising: off by changed standard errors,
	// which the parts of a text make clumped times larger, and by changedBy a cycle.
	recentHalf   = 60
	recentCycles = 8 // if it is more
	changed      = 3.5
	clumped      = 1.5
	changedBy    = 0.1
	// keptOf is the number of drafts that what was seen counts for then.
	keptOf = 20
	// positionsWorth is the number of drafts that the estimate from positions counts for.
	positionsWorth = 100
	// draftDoubt is by how many tokens a draft of one differs from the mean.
	draftDoubt = 0.5
	// cycleWorth is the number of drafts that a cycle tells as much as at most: those
	// of many sequences in few cycles come after the same catching up, at one place of
	// each text.
	cycleWorth = 8
	// Before anything was seen: priorWeight drafts whose tokens are accepted
	// with priorRate, each given those before.
	priorRate, priorWeight = 0.6, 2
)

var (
	decay = math.Exp2(-1.0 / halfLife)
	stale = math.Exp2(-1.0 / staleCycles)
)

// NewAcceptance makes estimates for drafts of up to depth tokens.
func NewAcceptance(depth int) *Acceptance {
	a := &Acceptance{trials: make([]float64, depth), hits: make([]float64, depth), sequences: make([]float64, depth+1), accepted: make([]float64, depth+1), cycles: make([]float64, depth+1)}
	for k := range depth {
		a.trials[k] = priorWeight
		a.hits[k] = priorWeight * math.Pow(priorRate, float64(k+1))
	}
	return a
}

// Observe takes in a verified draft.
func (a *Acceptance) Observe(drafted, accepted int) {
	for k := range min(drafted, len(a.trials)) {
		a.trials[k] = a.trials[k]*decay + 1
		a.hits[k] *= decay
		if k < accepted {
			a.hits[k]++
		}
	}
}

// Cycle takes in a whole cycle at a depth: sequences that decoded, and the draft
// tokens accepted of all of them.
func (a *Acceptance) Cycle(depth, sequences, accepted int) {
	for d := range a.sequences {
		a.sequences[d] *= stale
		a.accepted[d] *= stale
		a.cycles[d] *= stale
	}
	if depth == 0 || depth >= len(a.sequences) {
		return
	}
	n := float64(sequences)
	a.surprise(depth, n, float64(accepted))
	keep := math.Exp2(-n / max(halfLife, halfCycles*n))
	a.sequences[depth] = a.sequences[depth]*keep + n
	a.accepted[depth] = a.accepted[depth]*keep + float64(accepted)
	a.cycles[depth] = a.cycles[depth]*keep + 1
}

// surprise finds out whether acceptance has changed.
func (a *Acceptance) surprise(depth int, sequences, accepted float64) {
	mean, square := 0.0, 0.0 // of a draft's accepted tokens
	k := 0
	a.rates(func(rate, _ float64) {
		if k++; k <= depth {
			mean += rate
			square += float64(2*k-1) * rate
		}
	})
	variance := max(square-mean*mean, 0.05)
	mean = (a.accepted[depth] + positionsWorth*mean) / (a.sequences[depth] + positionsWorth)
	keep := math.Exp2(-sequences / max(recentHalf, recentCycles*sequences))
	a.recent = a.recent*keep + sequences
	a.excess = a.excess*keep + accepted - sequences*mean
	a.variance = a.variance*keep + sequences*variance
	off := math.Abs(a.excess)
	if off < changed*clumped*math.Sqrt(a.variance) || off < changedBy*a.recent {
		return
	}
	a.recent, a.excess, a.variance = 0, 0, 0
	for k, n := range a.trials {
		part := min(1, keptOf/n)
		a.trials[k] *= part
		a.hits[k] *= part
	}
	for d, n := range a.sequences {
		if n > keptOf {
			a.sequences[d] = keptOf
			a.accepted[d] *= keptOf / n
			a.cycles[d] *= keptOf / n
		}
	}
}

// Tokens are the tokens that a cycle settles for each sequence, by depth from 0
// on, each lowered by half its standard error, so that what was seen little is
// not trusted much.
func (a *Acceptance) Tokens(dst []float64) []float64 {
	dst = append(dst[:0], 1)
	sum := 0.0
	a.rates(func(rate, seen float64) {
		sum += rate
		d := len(dst)
		n := a.sequences[d] + positionsWorth
		mean := (a.accepted[d] + positionsWorth*sum) / n
		dst = append(dst, 1+max(0, mean-0.25*math.Sqrt(float64(d)/(1+a.sequences[d]+seen))))
	})
	return dst
}

// rates calls f with the estimate of each position, how often its token is
// accepted together with all before it, and the drafts that it rests on. A position that was
// seen much less than the one before it, since drafts were shorter, is
// extrapolated: it is accepted, given those before, as often as the last one that
// was seen well.
func (a *Acceptance) rates(f func(rate, seen float64)) {
	before, given, seen := 1.0, priorRate, 0.0
	for k, n := range a.trials {
		p := a.hits[k] / n
		if k > 0 && n < seen/4 {
			p = before * given
		} else {
			if before > 0 {
				given = min(1, p/before)
			}
			seen = n
		}
		before = min(p, before)
		f(before, seen)
	}
}

// Doubt is by how many tokens the estimate of a depth may be off.
func (a *Acceptance) Doubt(depth int) float64 {
	return draftDoubt * math.Sqrt(float64(depth)/a.drafts(depth))
}

// Learns is the part of that which so many drafts more would take away.
func (a *Acceptance) Learns(depth int, drafts float64) float64 {
	return a.Doubt(depth) * math.Sqrt(drafts/(drafts+a.drafts(depth)))
}

// drafts are as many as the estimate of a depth's tokens is worth.
func (a *Acceptance) drafts(depth int) float64 {
	if depth == 0 {
		return 1
	}
	cycles := 0.0
	for _, n := range a.cycles[depth:] {
		cycles += n
	}
	positions := min(a.trials[depth-1], priorWeight+cycleWorth*cycles)
	own := max(1, min(a.sequences[depth], cycleWorth*a.cycles[depth]))
	part := positionsWorth / (a.sequences[depth] + positionsWorth)
	return 1 / (part*part/positions + (1-part)*(1-part)/own)
}
