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
}

const (
	// halfLife is the number of verified drafts after which one counts half, and
	// halfCycles that of cycles, if it is more.
	halfLife   = 600
	halfCycles = 150
	// staleCycles is the number of cycles of other depths after which what was
	// seen of a depth counts half.
	staleCycles = 2000
	// positionsWorth is the number of drafts that the estimate from positions counts for.
	positionsWorth = 30
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
	a := &Acceptance{make([]float64, depth), make([]float64, depth), make([]float64, depth+1), make([]float64, depth+1)}
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
	}
	if depth == 0 || depth >= len(a.sequences) {
		return
	}
	n := float64(sequences)
	keep := math.Exp2(-n / max(halfLife, halfCycles*n))
	a.sequences[depth] = a.sequences[depth]*keep + n
	a.accepted[depth] = a.accepted[depth]*keep + float64(accepted)
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
