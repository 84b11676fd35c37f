package engine

import (
	"math/rand/v2"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/drawtest"
)

// drawer is a device that draws, by the definition. Some draws it leaves to the
// host.
type drawer struct {
	compute.Device
	rng   *rand.Rand
	drawn []compute.Drawn
	ok    []bool
	tops  map[compute.Tensor][]compute.Tops
}

func newDrawer(d compute.Device) compute.Device {
	return &drawer{Device: d, rng: rand.New(rand.NewPCG(5, 5)), tops: map[compute.Tensor][]compute.Tops{}}
}

func (d *drawer) Run(p compute.Pass, body func(r *compute.Rows, lists [2][]int32)) {
	body(p.Rows, p.Lists)
}

func (d *drawer) Wait() {}

func (d *drawer) ArgMax(compute.Tensor, int, int) {}

func (d *drawer) Best(compute.Tensor, int) (int32, bool) { return 0, false }

func (d *drawer) Draw(x compute.Tensor, cols int, all []compute.Draw) {
	d.drawn, d.ok = d.drawn[:0], d.ok[:0]
	for i := range all {
		drawn, ok := drawtest.By(d.Floats(x, all[i].Row)[:cols], &all[i])
		d.drawn, d.ok = append(d.drawn, drawn), append(d.ok, ok && d.rng.IntN(10) > 0)
	}
}

func (d *drawer) Drawn(i int) (compute.Drawn, bool) { return d.drawn[i], d.ok[i] }

func (d *drawer) FindTops(x compute.Tensor, cols, rows, n int) {
	d.tops[x] = d.tops[x][:0]
	for i := range rows {
		d.tops[x] = append(d.tops[x], drawtest.TopsOf(d.Floats(x, i)[:cols], n))
	}
}

func (d *drawer) TopsOf(x compute.Tensor, i int) (compute.Tops, bool) {
	return d.tops[x][i], d.rng.IntN(10) > 0
}

// Close implements what the devices of ranks have.
func (d *drawer) Close() {
	if c, ok := d.Device.(interface{ Close() }); ok {
		c.Close()
	}
}
