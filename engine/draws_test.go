package engine

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/drawtest"
)

// drawer is a device that draws, by the definition, and takes passes ahead of their
// tokens. Some draws it leaves to the host.
type drawer struct {
	compute.Device
	rng   *rand.Rand
	rows  *compute.Rows // of the pass in progress
	last  found
	mark  found
	tops  map[compute.Tensor][]compute.Tops
	taken *atomic.Int64 // passes ahead of their tokens
}

// found is what a pass gave.
type found struct {
	best  []int32
	drawn []compute.Drawn
	ok    []bool // of best, then of drawn
}

func newDrawer(d compute.Device) *drawer {
	return &drawer{Device: d, rng: rand.New(rand.NewPCG(5, 5)), tops: map[compute.Tensor][]compute.Tops{}, taken: &atomic.Int64{}}
}

func (d *drawer) Run(p compute.Pass, body func(r *compute.Rows, lists [2][]int32)) {
	d.rows = p.Rows
	body(p.Rows, p.Lists)
}

func (d *drawer) Wait() {}

func (d *drawer) ArgMax(x compute.Tensor, cols, rows int) {
	d.last.best, d.last.ok = d.last.best[:0], d.last.ok[:0]
	for i := range rows {
		logits := d.Floats(x, i)[:cols]
		d.last.best = append(d.last.best, int32(slices.Index(logits, slices.Max(logits))))
		d.last.ok = append(d.last.ok, d.rng.IntN(10) > 0)
	}
}

func (d *drawer) Best(_ compute.Tensor, i int) (int32, bool) { return d.last.best[i], d.last.ok[i] }

func (d *drawer) Draw(x compute.Tensor, cols int, all []compute.Draw) {
	d.last.drawn = d.last.drawn[:0]
	for i := range all {
		drawn, ok := drawtest.By(d.Floats(x, all[i].Row)[:cols], &all[i])
		d.last.drawn = append(d.last.drawn, drawn)
		d.last.ok = append(d.last.ok, ok && d.rng.IntN(10) > 0)
	}
}

func (f *found) draw(i int) (compute.Drawn, bool) { return f.drawn[i], f.ok[len(f.best)+i] }

func (d *drawer) Drawn(i int) (compute.Drawn, bool) { return d.last.draw(i) }

func (d *drawer) FindTops(x compute.Tensor, cols, rows, n int) {
	d.tops[x] = d.tops[x][:0]
	for i := range rows {
		d.tops[x] = append(d.tops[x], drawtest.TopsOf(d.Floats(x, i)[:cols], n))
	}
}

func (d *drawer) TopsOf(x compute.Tensor, i int) (compute.Tops, bool) {
	return d.tops[x][i], d.rng.IntN(10) > 0
}

func (d *drawer) Mark(compute.Tensor, int) {
	d.mark = found{slices.Clone(d.last.best), slices.Clone(d.last.drawn), slices.Clone(d.last.ok)}
}

func (d *drawer) Await() {}

func (d *drawer) Marked(i int) (int32, bool) { return d.mark.best[i], d.mark.ok[i] }

func (d *drawer) MarkedDrawn(i int) (compute.Drawn, bool) { return d.mark.draw(i) }

// Take has a wrong token where the host must find it.
func (d *drawer) Take(_ compute.Tensor, from []int32) {
	d.taken.Add(1)
	for i, k := range from {
		token, ok := int32(0), false
		if k >= 0 {
			var drawn compute.Drawn
			drawn, ok = d.mark.draw(int(k))
			token = drawn.Token
		} else {
			token, ok = d.mark.best[-1-k], d.mark.ok[-1-k]
		}
		if !ok {
			token = 7
		}
		d.rows.Tokens[i] = token
	}
}

// Close implements what the devices of ranks have.
func (d *drawer) Close() {
	if c, ok := d.Device.(interface{ Close() }); ok {
		c.Close()
	}
}
