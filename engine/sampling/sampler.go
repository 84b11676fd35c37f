package sampling

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// ErrNotFinite is the error of logits with a NaN, or with no finite value.
var ErrNotFinite = errors.New("the model computed logits that are not numbers: the request is ended; check the weights, and the memory of the device")

// Sampler draws tokens. It keeps scratch memory, so one is used by one
// goroutine at a time; what it draws does not depend on earlier draws.
type Sampler struct {
	weights []float64   // of the tokens, unnormalised
	order   []candidate // the tokens that may be kept, best first
	changed []float32   // logits after penalties and biases
	masked  []float32   // logits of the tokens that are allowed
	counts  []int32     // by token: times in the text; all zero between calls
}

// Text is what a draw may depend on beside the logits.
type Text struct {
	Prompt, Answer []int32 // tokens before the position
	Banned         []int32 // tokens that are never drawn unless all are banned

	// Where the text has a form, Allowed are the tokens that may go on with it;
	// nil is any. Whether the tokens of Ends may be drawn is MayEnd's to say.
	Allowed Mask
	Ends    []int32
	MayEnd  bool
}

// Free tells whether every token may be drawn.
func (t *Text) Free() bool { return len(t.Banned) == 0 && t.Allowed == nil }

// Mask is a set of tokens.
type Mask interface {
	// Keep copies the values of the set's tokens from one slice to the other, and
	// puts other in the place of all others.
	Keep(to, from []float32, other float32)
}

// ErrDeadEnd is the error of a text that no token may go on with.
var ErrDeadEnd = errors.New("no token may come next: the form that the text must have, and what is banned or biased besides, leave none of the model's tokens")

type candidate struct {
	id     int32
	weight float64
}

// Sample draws the token at a position of the sequence from logits, which it
// leaves unchanged.
func (s *Sampler) Sample(logits []float32, p *Params, position int, text Text) (int32, error) {
	banned := text.Banned
	if !p.plain() {
		logits = s.penalize(logits, p, text)
	}
	free := logits
	if text.Allowed != nil {
		logits = s.mask(logits, &text)
	}
	best, err := argmax(logits, banned)
	if err != nil && text.Allowed != nil {
		if _, wrong := argmax(free, nil); wrong == nil {
			err = ErrDeadEnd
		}
	}
	if err != nil || p.Temperature == 0 || p.TopK == 1 {
		return best, err
	}
	s.softmax(logits, best, p.Temperature)
	for _, id := range banned {
		if id >= 0 && int(id) < len(s.weights) && id != best {
			s.weights[id] = 0
		}
	}
	s.truncate(p, best)
	return s.draw(uniform(p.Seed, position), best), nil
}

// mask is a copy of logits in which tokens that are not allowed have none.
func (s *Sampler) mask(logits []float32, text *Text) []float32 {
	none := float32(math.Inf(-1))
	if cap(s.masked) < len(logits) {
		s.masked = make([]float32, len(logits))
	}
	out := s.masked[:len(logits)]
	text.Allowed.Keep(out, logits, none)
	for _, id := range text.Ends {
		if id < 0 || int(id) >= len(out) {
			continue
		}
		out[id] = none
		if text.MayEnd {
			out[id] = logits[id]
		}
	}
	return out
}

// penalize is a copy of logits with the biases and penalties of p.
func (s *Sampler) penalize(logits []float32, p *Params, text Text) []float32 {
	s.changed = append(s.changed[:0], logits...)
	if len(s.counts) < len(logits) {
		s.counts = make([]int32, len(logits))
	}
	out := s.changed
	for _, b := range p.Bias {
		if b.ID >= 0 && int(b.ID) < len(out) {
			out[b.ID] += float32(b.Value)
		}
	}
	if r := float32(p.Repetition); r != 0 && r != 1 {
		repeat := func(id int32) {
			if s.counts[id] > 0 {
				return
			}
			s.counts[id] = 1
			if out[id] > 0 {
				out[id] /= r
			} else {
				out[id] *= r
			}
		}
		each(text.Prompt, len(out), repeat)
		each(text.Answer, len(out), repeat)
		s.forget(text)
	}
	if p.Presence != 0 || p.Frequency != 0 {
		each(text.Answer, len(out), func(id int32) { s.counts[id]++ })
		each(text.Answer, len(out), func(id int32) {
			if n := s.counts[id]; n > 0 {
				out[id] -= float32(p.Presence + p.Frequency*float64(n))
				s.counts[id] = 0
			}
		})
	}
	return out
}

// each calls f for the tokens of the vocabulary.
func each(ids []int32, vocab int, f func(id int32)) {
	for _, id := range ids {
		if id >= 0 && int(id) < vocab {
			f(id)
		}
	}
}

// forget zeroes the counts of the text's tokens.
func (s *Sampler) forget(text Text) {
	zero := func(id int32) { s.counts[id] = 0 }
	each(text.Prompt, len(s.counts), zero)
	each(text.Answer, len(s.counts), zero)
}

// argmax is the first of the highest logits among the tokens that are not banned.
func argmax(logits []float32, banned []int32) (int32, error) {
	best, top := int32(-1), float32(math.Inf(-1))
	for i, v := range logits {
		if v != v {
			return 0, ErrNotFinite
		}
		if v > top && (len(banned) == 0 || !slices.Contains(banned, int32(i))) {
			best, top = int32(i), v
		}
	}
	if best < 0 {
		if len(banned) > 0 {
			return argmax(logits, nil)
		}
		return 0, ErrNotFinite
	}
	if math.IsInf(float64(top), 1) {
		return 0, ErrNotFinite
	}
	return best, nil
}

// softmax sets the weights exp((logit − top) / temperature).
func (s *Sampler) softmax(logits []float32, best int32, temperature float64) {
	if cap(s.weights) < len(logits) {
		s.weights = make([]float64, len(logits))
	}
	s.weights = s.weights[:len(logits)]
	top := float64(logits[best])
	for i, v := range logits {
		// A token above best is banned; it is zeroed next.
		s.weights[i] = math.Exp(min(0, float64(v)-top) / temperature)
	}
}

// truncate zeroes the weights that min-p, top-k and top-p leave out, in this
// order. Ties go to the lower token id.
func (s *Sampler) truncate(p *Params, best int32) {
	if p.MinP > 0 {
		least := p.MinP * s.weights[best]
		for i, w := range s.weights {
			if w < least {
				s.weights[i] = 0
			}
		}
	}
	k := p.TopK
	if k <= 0 || k > len(s.weights) {
		k = len(s.weights)
	}
	if k == len(s.weights) && p.TopP >= 1 {
		return
	}
	var total float64
	for _, w := range s.weights {
		total += w
	}
	// All tokens lighter than this together weigh less than 1 − TopP, so none
	// of them is needed to reach TopP: only the others are sorted.
	floor := 0.0
	if k == len(s.weights) {
		floor = (1 - p.TopP) * total / float64(len(s.weights))
	}
	s.order = s.order[:0]
	for i, w := range s.weights {
		if w > 0 && w >= floor {
			s.order = append(s.order, candidate{int32(i), w})
		}
	}
	slices.SortFunc(s.order, func(a, b candidate) int {
		if c := cmp.Compare(b.weight, a.weight); c != 0 {
			return c
		}
		return cmp.Compare(a.id, b.id)
	})
	if k < len(s.order) {
		s.order = s.order[:k]
		total = 0
		for _, c := range s.order {
			total += c.weight
		}
	}
	kept, mass := 0, 0.0
	for kept < len(s.order) && (kept == 0 || mass < p.TopP*total) {
		mass += s.order[kept].weight
		kept++
	}
	clear(s.weights)
	for _, c := range s.order[:kept] {
		s.weights[c.id] = c.weight
	}
}

// draw is the token at which the running sum of weights, in order of token
// ids, passes u of the whole.
func (s *Sampler) draw(u float64, best int32) int32 {
	var total float64
	for _, w := range s.weights {
		total += w
	}
	u *= total
	var sum float64
	for i, w := range s.weights {
		if sum += w; w > 0 && sum > u {
			return int32(i)
		}
	}
	return best // u·total rounded up to the whole sum
}

// Logprob is the log probability of token id and the n most likely tokens with
// theirs, under softmax(logits): the distribution before any setting.
func Logprob(logits []float32, id int32, n int) (float32, []TokenProb) {
	top := slices.Max(logits)
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v - top))
	}
	norm := float64(top) + math.Log(sum)
	best := make([]TokenProb, 0, n+1)
	for i, v := range logits {
		if n == 0 || len(best) == n && v <= best[n-1].Logprob {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(e TokenProb, v float32) int {
			if e.Logprob >= v { // equal ones stay in order of ids
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, TokenProb{int32(i), v})
		best = best[:min(len(best), n)]
	}
	for i := range best {
		best[i].Logprob = float32(float64(best[i].Logprob) - norm)
	}
	return float32(float64(logits[id]) - norm), best
}

// TokenProb is a token and its log probability (natural logarithm).
type TokenProb struct {
	ID      int32
	Logprob float32
}
