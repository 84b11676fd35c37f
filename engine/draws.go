package engine

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// draws are those that the device makes, for the requests that want more than the
// most likely token.
type draws struct {
	overlap model.Overlap
	all     []compute.Draw // of the pass listed last
	at      [2][]int32     // by pass and wanted row: its draw, from 1 on
	turn    int            // of at: that of the pass in progress
}

// overlapping is what the host does while the devices compute a pass; nil where
// they do not.
func (e *Engine) overlapping() *model.Overlap {
	o := &e.draws.overlap
	if o.Draws == nil && e.ranks.Overlaps() {
		o.Draws, o.Rest = e.planDraws, func() {}
		if e.cfg.AsyncScheduling && e.ranks.Aheads() {
			o.Rest = e.goAhead
		}
	}
	if o.Draws == nil {
		return nil
	}
	return o
}

// begin empties the list of draws, for a pass with so many wanted rows.
func (d *draws) begin(wanted int) {
	d.all = d.all[:0]
	at := &d.at[d.turn]
	*at = slices.Grow((*at)[:0], wanted)[:wanted]
	clear(*at)
}

// next is another draw, after a wanted row. It has the memory of an earlier one.
func (d *draws) next(row int) *compute.Draw {
	if len(d.all) < cap(d.all) {
		d.all = d.all[:len(d.all)+1]
	} else {
		d.all = append(d.all, compute.Draw{})
	}
	d.at[d.turn][row] = int32(len(d.all))
	draw := &d.all[len(d.all)-1]
	draw.Row = row
	return draw
}

// planDraws lists the draws of the pass under way.
func (e *Engine) planDraws() []compute.Draw {
	d := &e.draws
	d.begin(len(e.batch.Want))
	for _, s := range e.batch.Sequences {
		if s.Logit < 0 {
			continue
		}
		for i := range 1 + len(s.Draft) {
			if text, position, ok := s.After(i - 1); ok {
				e.planDraw(s, i, position, text)
			}
		}
	}
	return d.all
}

// planDraw adds the draw after wanted row i of s, unless the most likely token is
// all that it wants.
func (e *Engine) planDraw(s *scheduler.Sequence, i, position int, text sampling.Text) {
	if s.Sampling.Greedy() && s.Logprobs == scheduler.NoLogprobs && text.Free() {
		return
	}
	draw := e.draws.next(s.Logit + i)
	draw.Tops = s.Logprobs
	e.sampler.Plan(draw, &s.Sampling, position, text, e.info.VocabSize)
}

// drawOf is the draw after wanted row i of s, from 1 on, or 0.
func (e *Engine) drawOf(s *scheduler.Sequence, i int) int {
	at := e.draws.at[e.draws.turn]
	if row := s.Logit + i; row < len(at) {
		return int(at[row])
	}
	return 0
}

// drawn is the token that the device drew after wanted row i of s, if it did.
func (e *Engine) drawn(s *scheduler.Sequence, i int) (int32, bool) {
	at := e.drawOf(s, i)
	if at == 0 {
		return 0, false
	}
	d, ok := e.ranks.Drawn(at - 1)
	if ok && s.Logprobs != scheduler.NoLogprobs {
		logprob, top := sampling.LogprobOf(d.Logit, d.Tops)
		s.AddLogprob(d.Token, logprob, top)
	}
	return d.Token, ok
}
