//go:build linux

package cuda

import (
	"fmt"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// What was the fastest on an H200, of the halves and parts that were tried.
func TestPlanWide(t *testing.T) {
	for _, c := range []struct {
		what                 string
		dtype                compute.DType
		rows, out, in        int
		halves, parts, tiles int
	}{
		{"queries, keys and values", compute.I4, 64, 6144, 4096, 2, 2, 48},
		{"the same of 32 rows", compute.I4, 32, 6144, 4096, 2, 2, 48},
		{"attention's output", compute.I4, 64, 4096, 4096, 2, 4, 32},
		{"gate and up", compute.I4, 64, 28672, 4096, 1, 1, 112},
		{"gate and up of float8", compute.F8E4M3, 64, 28672, 4096, 1, 1, 112},
		{"down", compute.I4, 64, 4096, 14336, 2, 4, 32},
		{"down of float8", compute.F8E4M3, 64, 4096, 14336, 2, 4, 32},
		{"one step", compute.I4, 64, 128, 128, 1, 1, 1},
	} {
		k, parts := planWide(wideKind{c.dtype, c.rows, 1, 0}, c.out, c.in, 132)
		if k.halves != c.halves || parts != c.parts || k.tiles(c.out) != c.tiles {
			t.Errorf("%s: %d halves, %d parts of %d tiles; want %d, %d, %d", c.what, k.halves, parts, k.tiles(c.out), c.halves, c.parts, c.tiles)
		}
	}
}

// Every part has a step, parts of all tiles have blocks of their own, and their sums fit
// into the memory that there is for them, which kernels do not check.
func TestPlansOfWideProductsFit(t *testing.T) {
	rng := seed.Numbers(t)
	kinds := wideKinds()
	for range 20000 {
		k := kinds[rng.IntN(len(kinds))]
		out, in, processors := 1+rng.IntN(1<<rng.IntN(18)), 8*(1+rng.IntN(1<<rng.IntN(12))), 1+rng.IntN(200)
		what := fmt.Sprintf("%s, %d × %d, %d multiprocessors", k.name(), out, in, processors)
		k, parts := planWide(k, out, in, processors)
		steps := (in + k.columns() - 1) / k.columns()
		switch {
		case k.halves != 1 && k.halves != 2 || parts < 1 || parts > steps:
			t.Fatalf("%s: %d halves, %d parts of %d steps", what, k.halves, parts, steps)
		case parts > 1 && k.tiles(out)*parts > processors:
			t.Fatalf("%s: %d parts of %d tiles are more than blocks", what, parts, k.tiles(out))
		case parts > 1 && (k.tiles(out)*parts*k.partial() > manyPartial(processors) || k.tiles(out) > mostTiles):
			t.Fatalf("%s: %d parts of %d tiles leave more than fits", what, parts, k.tiles(out))
		case k.shared()+1024 > 227<<10: // barriers are beside it
			t.Fatalf("%s: %d bytes of shared memory", what, k.shared())
		}
	}
}

// wideGPU is gpu for a card with the instructions of four warps.
func wideGPU(t *testing.T) *Device {
	t.Helper()
	d := gpu(t, nil)
	if len(d.fn.wide) == 0 {
		t.Skip("NOT RUN: the card has no instructions of four warps")
	}
	return d
}

// Products whose tiles are computed in parts, with any number of rows, gated, and with
// rows of activations that lie in wider ones.
func TestWideLinearInParts(t *testing.T) {
	d, rng := wideGPU(t), seed.Numbers(t)
	for _, q := range []compute.Quant{{DType: compute.I4, Group: 32}, {DType: compute.I4, Group: 128}, {DType: compute.I8, Group: 256}, {DType: compute.F8E4M3, Group: 128}} {
		for _, c := range []struct{ cols, in int }{{128, 2048}, {72, 1160}, {24, 3000}} {
			for range 3 {
				rows := leastWide + rng.IntN(wideRows-leastWide)
				what := fmt.Sprintf("%s in groups of %d, %d × 2 · %d × %d", q.DType, q.Group, rows, c.cols, c.in)
				w, values := coded(t, d, rng, q, 2*c.cols, c.in)
				all := d.newTensor(rows, c.in+64, false)
				held := put(d, all, normals(rng, rows*(c.in+64)))
				x, xs := d.Columns(all, 64, c.in), columns(held, c.in+64, 64, c.in)
				y, products, gated := d.newTensor(rows, 2*c.cols, true), d.newTensor(rows, 2*c.cols, false), d.newTensor(rows, c.cols, false)
				poison(d, y)
				d.Linear(y, x, w, rows)
				want := product(xs, values, rows, 2*c.cols, c.in)
				compare(t, what, d, y, rows, want, wideTolerance)
				poison(d, gated)
				d.Gated(gated, products, x, w, rows)
				gates := gatesOf(want, rows, c.cols)
				compareBy(t, what+", gated", d, gated, rows, gates, max(magnitude(gates), magnitude(want)), 2*narrowTolerance)
			}
		}
	}
}

// More tiles than multiprocessors, so that a block computes several of them, one after the
// other. Some outputs are checked.
func TestWideLinearOfManyTiles(t *testing.T) {
	d, rng := wideGPU(t), seed.Numbers(t)
	for _, q := range []compute.Quant{{DType: compute.I4, Group: 128}, {DType: compute.F8E4M3, Group: 128}, {DType: compute.I8, Group: 1 << 20}} {
		for _, in := range []int{72, 648} {
			out := 256*(d.context.Info.Processors+3) + 40
			w, values := coded(t, d, rng, q, out, in)
			for _, rows := range []int{17, 47, 66, 127} {
				what := fmt.Sprintf("%s in groups of %d, %d × %d × %d", q.DType, q.Group, rows, out, in)
				x, y := d.newTensor(rows, in, false), d.newTensor(rows, out, true)
				xs := put(d, x, normals(rng, rows*in))
				poison(d, y)
				d.Linear(y, x, w, rows)
				compareSome(t, what, d, y, xs, values, rows, in, 8*sample)
			}
		}
	}
}

// QKV of more rows than other kernels of few take, in parts and of both halves.
func TestWideQKV(t *testing.T) {
	d, rng := wideGPU(t), seed.Numbers(t)
	quants := []compute.Quant{{DType: compute.I4, Group: 64}, {DType: compute.F8E4M3, Group: 128}, {DType: compute.I8, Group: 1 << 20}, {DType: compute.I4, Group: 128}}
	for _, s := range []compute.AttentionShape{{Heads: 4, KVHeads: 2, HeadDim: 128, Scale: 0.001}, {Heads: 18, KVHeads: 3, HeadDim: 64, Scale: 0.003}, {Heads: 3, KVHeads: 1, HeadDim: 80, Scale: 0.003}} {
		for _, hidden := range []int{1024, 392} {
			for i, rows := range []int{30, 64, 97, 126} {
				format := compute.CacheFormat{}
				if i%2 == 1 {
					format = float8(rng, s)
				}
				a := newAttendedAs(d, rng, s, 16, format)
				w, values := coded(t, d, rng, quants[i], s.QKVCols(), hidden)
				qkvEquals(t, fmt.Sprintf("%s, %+v, %d rows of %d, float8 %t", quants[i].DType, s, rows, hidden, format.Float8), a, w, values, rows, hidden)
			}
		}
	}
}
