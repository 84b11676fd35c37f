package sampling

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Plan says how a device draws what Sample would, from logits of vocab tokens.
// All of draw but its Row and Tops is set; its memory is used again.
func (s *Sampler) Plan(draw *compute.Draw, p *Params, position int, text Text, vocab int) {
	draw.Greedy = p.Temperature == 0 || p.TopK == 1
	if !draw.Greedy {
		draw.Decay, draw.Least, draw.TopK, draw.TopP = compute.NewDecay(p.Temperature), least(p.MinP), max(p.TopK, 0), share(p.TopP)
		draw.Uniform = uniform(p.Seed, position)
	}
	draw.Repetition = float32(p.Repetition)
	s.edit(draw, p, &text, vocab)
	draw.Allowed = allowed(draw.Allowed, &text, vocab)
}

// edit lists what becomes of single tokens' logits: the biases and penalties, as
// penalize has them, and what is banned.
func (s *Sampler) edit(draw *compute.Draw, p *Params, text *Text, vocab int) {
	draw.Edits = draw.Edits[:0]
	if p.plain() && len(text.Banned) == 0 {
		return
	}
	if len(s.place) < vocab {
		s.place, s.counts = make([]int32, vocab), make([]int32, vocab)
	}
	at := func(id int32) *compute.Edit {
		if s.place[id] == 0 {
			draw.Edits = append(draw.Edits, compute.Edit{ID: id})
			s.place[id] = int32(len(draw.Edits))
		}
		return &draw.Edits[s.place[id]-1]
	}
	for _, b := range p.Bias {
		if b.ID >= 0 && int(b.ID) < vocab {
			at(b.ID).Add = float32(b.Value)
		}
	}
	if p.Repetition != 0 && p.Repetition != 1 {
		repeat := func(id int32) { at(id).Repeats = true }
		each(text.Prompt, vocab, repeat)
		each(text.Answer, vocab, repeat)
	}
	if p.Presence != 0 || p.Frequency != 0 {
		each(text.Answer, vocab, func(id int32) { s.counts[id]++ })
		each(text.Answer, vocab, func(id int32) {
			if n := s.counts[id]; n > 0 {
				at(id).Minus = p.minus(n)
				s.counts[id] = 0
			}
		})
	}
	each(text.Banned, vocab, func(id int32) { at(id).Never = true })
	for _, e := range draw.Edits {
		s.place[e.ID] = 0
	}
}

// allowed are the bits of the tokens that the form of the text lets through; nil
// if it has none.
func allowed(bits []uint64, text *Text, vocab int) []uint64 {
	if text.Allowed == nil {
		return nil
	}
	n := (vocab + 63) / 64
	bits = slices.Grow(bits[:0], n)[:n]
	clear(bits)
	text.Allowed.Mark(bits)
	each(text.Ends, vocab, func(id int32) {
		bits[id>>6] &^= 1 << (id & 63)
		if text.MayEnd {
			bits[id>>6] |= 1 << (id & 63)
		}
	})
	return bits
}
