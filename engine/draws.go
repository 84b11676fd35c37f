package engine

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// draws are those that the device makes of the pass under way, for the requests
// that want more than the most likely token.
type draws struct {
	overlap model.Overlap
	all     []compute.Draw
	at      []int32 // by wanted row: its draw, from 1 on
}

// overlapping is what the host does while the devices compute a pass; nil where
// they do not.
func (e *Engine) overlapping() *model.Overlap {
	o := &e.draws.overlap
	if !e.ranks.Overlaps() {
		return nil
	}
	if o.Draws == nil {
		o.Draws, o.Rest = e.planDraws, func() {}
	}
	return o
}

// planDraws lists the draws of the pass under way.
func (e *Engine) planDraws() []compute.Draw {
	d := &e.draws
	d.all = d.all[:0]
	d.at = slices.Grow(d.at[:0], len(e.batch.Want))[:len(e.batch.Want)]
	clear(d.at)
	for _, s := range e.batch.Sequences {
		if s.Logit < 0 {
			continue
		}
		for i := range 1 + len(s.Draft) {
			e.planOne(s, i)
		}
	}
	return d.all
}

// planOne adds the draw after wanted row i of s, unless the most likely token is
// all that it wants.
func (e *Engine) planOne(s *scheduler.Sequence, i int) {
	text, position, ok := s.After(i - 1)
	if !ok || s.Sampling.Greedy() && s.Logprobs == scheduler.NoLogprobs && text.Free() {
		return
	}
	d := &e.draws
	if len(d.all) < cap(d.all) {
		d.all = d.all[:len(d.all)+1] // with the memory of an earlier one
	} else {
		d.all = append(d.all, compute.Draw{})
	}
	draw := &d.all[len(d.all)-1]
	draw.Row, draw.Tops = s.Logit+i, s.Logprobs
	e.sampler.Plan(draw, &s.Sampling, position, text, e.info.VocabSize)
	d.at[draw.Row] = int32(len(d.all))
}

// drawn is the token that the device drew after wanted row i of s, if it did.
func (e *Engine) drawn(s *scheduler.Sequence, i int) (int32, bool) {
	at := e.draws.at
	if row := s.Logit + i; row >= len(at) || at[row] == 0 {
		return 0, false
	}
	d, ok := e.ranks.Drawn(int(at[s.Logit+i]) - 1)
	if ok && s.Logprobs != scheduler.NoLogprobs {
		logprob, top := sampling.LogprobOf(d.Logit, d.Tops)
		s.AddLogprob(d.Token, logprob, top)
	}
	return d.Token, ok
}
