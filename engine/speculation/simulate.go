package speculation

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Simulated has a drafter's proposals accepted as often as told, for tests and
// benchmarks. The drafter does all its work, so costs are real; then the tokens
// that it proposed are replaced. Of a text that was computed before, the next
// token is known: the proposal is that one with the wanted probability, by a
// draw that depends on the request and the position alone, and otherwise a wrong
// one. Where the text is not known yet the drafter's own proposal stands. The
// output is the target's in any case.
type Simulated struct {
	Drafter
	rates []float64 // by position of the draft; the last one for all beyond
	vocab int32
	memo  []memo // by hash; a newer text takes the place of an older one
}

// memo is what comes after a text.
type memo struct {
	hash  uint64 // of the text and its request's key
	token int32
}

// text is how far a request's text is hashed.
type text struct {
	hash uint64
	n    int // tokens
}

// memoSize bounds what is remembered, in tokens: 16 MiB.
const memoSize = 1 << 20

// NewSimulated wraps a drafter over a vocabulary of vocab tokens; rates are those
// of ParseAcceptance.
func NewSimulated(d Drafter, rates []float64, vocab int) *Simulated {
	return &Simulated{Drafter: d, rates: rates, vocab: int32(vocab), memo: make([]memo, memoSize)}
}

// ParseAcceptance reads how often draft tokens shall be accepted: a number of 1
// or more is the mean accept length of drafts of steps tokens (the target's own
// token included); one below 1, or a list with commas, are the rates by
// position, each given those before, the last one for all beyond.
func ParseAcceptance(s string, steps int) ([]float64, error) {
	parts := strings.Split(s, ",")
	rates := make([]float64, len(parts))
	for i, part := range parts {
		v, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		single := len(parts) == 1
		if most := float64(1 + steps); err != nil || !(v >= 0) || v > 1 && !single || v > most {
			return nil, fmt.Errorf("%q: allowed is a mean accept length, 1 to %d, or rates by position, 0 to 1, with commas", s, 1+steps)
		}
		if v >= 1 && single {
			v = rateOf(v, steps)
		}
		rates[i] = v
	}
	return rates, nil
}

// rateOf is the p with 1 + p + p² + … + p^steps = length.
func rateOf(length float64, steps int) float64 {
	lo, hi := 0.0, 1.0
	for range 60 {
		p, sum := (lo+hi)/2, 1.0
		for k := range steps {
			sum += math.Pow(p, float64(k+1))
		}
		if sum < length {
			lo = p
		} else {
			hi = p
		}
	}
	return hi
}

// Draft implements Drafter.
func (d *Simulated) Draft(seqs []Sequence, plain bool) error {
	if err := d.Drafter.Draft(seqs, plain); err != nil {
		return err
	}
	for i := range seqs {
		d.Learn(&seqs[i])
		d.replace(&seqs[i])
	}
	return nil
}

// Learn remembers the tokens of s that are new. Draft does so too: this is for a
// request that has ended.
func (d *Simulated) Learn(s *Sequence) {
	t := &s.State.text
	begun := t.n > 0
	if !begun {
		t.hash = mix(s.Key + 1)
	}
	for ; t.n < len(s.Tokens); t.n++ {
		id := s.Tokens[t.n]
		if begun { // what is there at first sight is the prompt
			*d.at(t.hash) = memo{t.hash, id}
		}
		t.hash = after(t.hash, id)
	}
}

// replace puts tokens of the wanted acceptance into a draft.
func (d *Simulated) replace(s *Sequence) {
	hash, at := s.State.text.hash, none
	for level := 0; ; level++ {
		m := d.at(hash)
		if m.hash != hash {
			return
		}
		rate := d.rates[min(level, len(d.rates)-1)]
		right := float64(mix(hash)>>11)/(1<<53) < rate
		// Of the nodes after this one the first gets the token that is wanted, and
		// no other has the right one.
		wrong, next := (m.token+1)%d.vocab, none
		for k := at + 1; k < len(s.Draft); k++ {
			switch first := next == none; {
			case s.parent(k) != at:
				continue
			case first && right:
				s.Draft[k] = m.token
			case first || s.Draft[k] == m.token:
				s.Draft[k] = wrong
			}
			if next == none {
				next = k
			}
		}
		if !right || next == none {
			return // nothing after a wrong token counts
		}
		hash, at = after(hash, m.token), next
	}
}

func (d *Simulated) at(hash uint64) *memo { return &d.memo[hash%memoSize] }

func after(hash uint64, token int32) uint64 { return mix(hash ^ uint64(uint32(token))) }

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
