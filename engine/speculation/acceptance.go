package speculation

import "math"

// Acceptance estimates how likely a draft token is accepted, by its position in
// the draft and together with all before it, from recent drafts.
type Acceptance struct {
	trials, hits []float64 // by position, decayed
}

const (
	// halfLife is the number of verified drafts after which one counts half.
	halfLife = 300
	// Before anything was seen: priorWeight drafts whose tokens are accepted
	// with priorRate, each given those before.
	priorRate, priorWeight = 0.6, 2
)

var decay = math.Exp2(-1.0 / halfLife)

// NewAcceptance makes estimates for drafts of up to depth tokens.
func NewAcceptance(depth int) *Acceptance {
	a := &Acceptance{make([]float64, depth), make([]float64, depth)}
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

// Rates are the estimates by position, each lowered by its standard error, so
// that what was seen little is not trusted much. A position that was seen much
// less than the one before it, since drafts were shorter, is extrapolated: it is
// accepted, given those before, as often as the last one that was seen well.
func (a *Acceptance) Rates(dst []float64) []float64 {
	dst = dst[:0]
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
		margin := math.Sqrt(before*(1-before)/seen + 0.25/(seen*seen))
		dst = append(dst, max(0, before-margin))
	}
	return dst
}
