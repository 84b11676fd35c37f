package sampling

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
)

// ErrNotFinite is the error of logits with a NaN, or with no finite value.
var ErrNotFinite = errors.New("the model computed logits that are not numbers: the request is ended; check the weights, and the memory of the device")

// Sampler draws tokens. It keeps scratch memory, so one is used by one
// goroutine at a time; what it draws does not depend on earlier draws.
type Sampler struct {
	weights []uint64    // of the tokens: compute.Mass
	bins    []uint16    // of the tokens: see bin
	order   []candidate // the tokens of a bin, best first
	changed []float32   // logits after penalties and biases
	masked  []float32   // logits of the tokens that are allowed
	counts  []int32     // by token: times in the text; all zero between calls
	place   []int32     // of Plan, by token: its edit, from 1 on; all zero between calls
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
	// Mark sets the bits of the set's tokens, as far as there are bits for them.
	Mark(bits []uint64)
}

// ErrDeadEnd is the error of a text that no token may go on with.
var ErrDeadEnd = errors.New("no token may come next: the form that the text must have, and what is banned or biased besides, leave none of the model's tokens")

type candidate struct {
	key    uint64 // orders logits, the lower token first of equal ones
	weight uint64
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
	s.weigh(logits, best, compute.NewDecay(p.Temperature))
	for _, id := range banned {
		if id >= 0 && int(id) < len(s.weights) && id != best {
			s.weights[id] = 0
		}
	}
	s.truncate(logits, least(p.MinP), p.TopK, share(p.TopP))
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
		s.counts, s.place = make([]int32, len(logits)), make([]int32, len(logits))
	}
	out := s.changed
	for _, b := range p.Bias {
		if b.ID >= 0 && int(b.ID) < len(out) {
			out[b.ID] = float32(out[b.ID] + float32(b.Value))
		}
	}
	if r := float32(p.Repetition); r != 0 && r != 1 {
		repeat := func(id int32) {
			if s.counts[id] > 0 {
				return
			}
			s.counts[id] = 1
			if out[id] > 0 {
				out[id] = float32(out[id] / r)
			} else {
				out[id] = float32(out[id] * r)
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
				out[id] = float32(out[id] - p.minus(n))
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

// weigh sets the tokens' weights and bins.
func (s *Sampler) weigh(logits []float32, best int32, decay compute.Decay) {
	if cap(s.weights) < len(logits) {
		s.weights, s.bins = make([]uint64, len(logits)), make([]uint16, len(logits))
	}
	s.weights, s.bins = s.weights[:len(logits)], s.bins[:len(logits)]
	top := logits[best]
	for i, v := range logits {
		// A token above best is banned; it is zeroed next.
		y := decay.At(max(0, top-v))
		s.weights[i], s.bins[i] = compute.Mass(y), uint16(min(y>>binBits, bins-1))
	}
}

// Tokens are sorted into bins by how far they lie below the best, 32 an octave:
// only those of one bin need be brought in order to find out which are kept.
const (
	binBits = 27
	bins    = compute.Octaves << (32 - binBits)
)

// least is the smallest weight that min-p keeps.
func least(minP float64) uint64 { return uint64(math.Ceil(math.Ldexp(minP, compute.MassBits))) }

// share is a share for compute.Needed.
func share(p float64) uint64 { return uint64(math.Ldexp(min(p, 1), compute.ShareBits)) }

// truncate zeroes the weights that min-p, top-k and top-p leave out, in this
// order; see compute.Draw.
func (s *Sampler) truncate(logits []float32, least uint64, topK int, topP uint64) {
	if least > 1 {
		for i, w := range s.weights {
			if w < least {
				s.weights[i] = 0
			}
		}
	}
	if topK > 0 && topK < len(s.weights) {
		s.cut(logits, func(count int, _, _ uint64) bool { return count < topK })
	}
	if topP < 1<<compute.ShareBits {
		s.cut(logits, func(_ int, before, total uint64) bool { return before < compute.Needed(topP, total) })
	}
}

// cut zeroes the weights of the tokens that are not kept: of how many tokens are
// better, how much they weigh, and the weight of all, keeps says whether one is.
// Where one is not, those after it are not.
func (s *Sampler) cut(logits []float32, keeps func(count int, mass, total uint64) bool) {
	var counts [bins]int
	var masses [bins]uint64
	var total uint64
	for i, w := range s.weights {
		if w > 0 {
			counts[s.bins[i]]++
			masses[s.bins[i]] += w
			total += w
		}
	}
	count, mass, last := 0, uint64(0), 0 // the last bin of which some are kept
	for ; last < bins && keeps(count+counts[last], mass+masses[last], total); last++ {
		count, mass = count+counts[last], mass+masses[last]
	}
	if last == bins {
		return
	}
	s.order = s.order[:0]
	for i, w := range s.weights {
		if w == 0 || int(s.bins[i]) < last {
			continue
		}
		if int(s.bins[i]) == last {
			s.order = append(s.order, candidate{key(logits[i], int32(i)), w})
		}
		s.weights[i] = 0
	}
	slices.SortFunc(s.order, func(a, b candidate) int { return cmp.Compare(b.key, a.key) })
	for _, c := range s.order {
		if !keeps(count, mass, total) {
			return
		}
		s.weights[^uint32(c.key)] = c.weight
		count, mass = count+1, mass+c.weight
	}
}

// key orders tokens: by their logits, and where these are equal the lower token
// is above.
func key(logit float32, id int32) uint64 {
	bits := math.Float32bits(logit + 0) // no negative zero
	if bits&(1<<31) != 0 {
		bits = ^bits
	} else {
		bits |= 1 << 31
	}
	return uint64(bits)<<32 | uint64(^uint32(id))
}

// draw is the token at which the running sum of weights, in order of token
// ids, passes u of the whole.
func (s *Sampler) draw(u uint64, best int32) int32 {
	var total uint64
	for _, w := range s.weights {
		total += w
	}
	at := compute.Part(u, total)
	for i, w := range s.weights {
		if w > at {
			return int32(i)
		}
		at -= w
	}
	return best // not reached: u is below 1
}

// Logprob is the log probability of token id and the n most likely tokens with
// theirs, under softmax(logits): the distribution before any setting.
func Logprob(logits []float32, id int32, n int) (float32, []TokenProb) {
	decay := compute.NewDecay(1)
	tops := compute.Tops{IDs: make([]int32, 0, n+1), Logits: make([]float32, 0, n+1), Highest: slices.Max(logits)}
	for i, v := range logits {
		tops.Mass += compute.Mass(decay.At(tops.Highest - v))
		if n == 0 || len(tops.IDs) == n && v <= tops.Logits[n-1] {
			continue
		}
		at, _ := slices.BinarySearchFunc(tops.Logits, v, func(e, v float32) int {
			if e >= v { // equal ones stay in order of ids
				return -1
			}
			return 1
		})
		tops.IDs, tops.Logits = slices.Insert(tops.IDs, at, int32(i)), slices.Insert(tops.Logits, at, v)
		tops.IDs, tops.Logits = tops.IDs[:min(len(tops.IDs), n)], tops.Logits[:min(len(tops.Logits), n)]
	}
	return LogprobOf(logits[id], tops)
}

// LogprobOf is Logprob of a token's logit and of what a device found.
func LogprobOf(logit float32, tops compute.Tops) (float32, []TokenProb) {
	norm := tops.Norm()
	best := make([]TokenProb, len(tops.IDs))
	for i, id := range tops.IDs {
		best[i] = TokenProb{id, float32(float64(tops.Logits[i]) - norm)}
	}
	return float32(float64(logit) - norm), best
}

// TokenProb is a token and its log probability (natural logarithm).
type TokenProb struct {
	ID      int32
	Logprob float32
}
