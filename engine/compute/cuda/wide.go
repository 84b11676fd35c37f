//go:build linux

package cuda

import (
	"fmt"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// wideKind names a variant of the products of wide.cuh.
type wideKind struct {
	dtype  compute.DType
	rows   int // at most
	groups int // of scales that 128 columns lie in
	halves int // of a step's columns, each with its warps
}

const (
	// leastWide and mostWide are the fewest and the most rows that they take at a time. Of
	// fewer, kernels of few rows are faster (seen on an H200).
	leastWide, mostWide = fewRows + 1, 64
	// wideRows is the rows from which on a quantised weight is decoded for a product, as
	// manyRows is where they do not take it.
	wideRows = 2*mostWide + 1
	// wideThreads is THREADS of the kernels, and wideBringers BRINGERS.
	wideThreads, wideBringers = 256, 256
)

// wideGroups are the types of weights that they take, and the groups of scales that 128
// columns may lie in.
var wideGroups = map[compute.DType][]int{compute.I4: {1, 2, 4}, compute.I8: {1}, compute.F8E4M3: {1}}

// wideKinds are all variants.
func wideKinds() []wideKind {
	var all []wideKind
	for dtype, groups := range wideGroups {
		for _, g := range groups {
			for _, rows := range []int{mostWide / 2, mostWide} {
				all = append(all, wideKind{dtype, rows, g, 1}, wideKind{dtype, rows, g, 2})
			}
		}
	}
	return all
}

func (k wideKind) name() string {
	return fmt.Sprintf("wide_%s_%d_%d_%d", quantNames[k.dtype], k.rows, k.groups, k.halves)
}

// columns are those of a step, and outputs those of a tile.
func (k wideKind) columns() int { return 128 * k.halves }
func (k wideKind) outputs() int { return 256 / k.halves }

// tiles are those of a matrix with out rows.
func (k wideKind) tiles(out int) int { return (out + k.outputs() - 1) / k.outputs() }

// shared is the bytes of shared memory of a block, with what brings it to a multiple
// of 1,024.
func (k wideKind) shared() int {
	loads, stages := 2, []int{0, 4, 3}[k.halves] // LOADS and STAGES of the kernels
	if k.dtype == compute.I4 {
		loads, stages = 1, []int{0, 6, 4}[k.halves]
	}
	return 1024 + stages*(k.rows*k.columns()*2+256*loads*tileBytes+k.groups*4*256)
}

// partial is the bytes of the sums of a tile of outputs.
func (k wideKind) partial() int { return 4 * k.rows * k.outputs() }

// wideGroupsOf is how many groups of scales 128 columns of a weight lie in, if the
// products take it; otherwise 0.
func wideGroupsOf(w *weight) int {
	switch w.dtype {
	case compute.I4:
		return w.perTile
	case compute.I8, compute.F8E4M3:
		if w.perTile == 1 && w.shift > 0 {
			return 1
		}
	}
	return 0
}

// takesWide tells whether they take a product that fits.
func (d *Device) takesWide(w *weight, rows int) bool {
	return rows >= leastWide && rows < wideRows && len(d.fn.wide) > 0 && wideGroupsOf(w) > 0
}

// wideLinear reads the weights once for each mostWide rows, or fewer if they do not come
// out even.
func (d *Device) wideLinear(y, x *tensor, w *weight, rows int, o output) {
	times := (rows + mostWide - 1) / mostWide
	for i := range times {
		from := rows * i / times
		p := w.quant()
		p.x, p.rows, p.o = x.rowsFrom(from), int32(rows*(i+1)/times-from), o.from(y, from)
		k := wideKind{w.dtype, mostWide / 2, wideGroupsOf(w), 0}
		if int(p.rows) > k.rows {
			k.rows = mostWide
		}
		k, parts := planWide(k, w.out, w.in, d.context.Info.Processors)
		blocks := min(k.tiles(w.out)*parts, d.context.Info.Processors)
		launchShared(d, d.fn.wide[k], driver.Dim{X: uint32(blocks), Y: 1, Z: 1}, driver.Dim{X: wideThreads + wideBringers, Y: 1, Z: 1}, k.shared(), &struct {
			q                quant
			partial, arrived driver.Ptr
			parts, _         int32
		}{q: p, partial: d.scratch.partial, arrived: d.scratch.arrived, parts: int32(parts)})
	}
}

// planWide chooses the halves of a product's tiles, and into how many parts its columns
// are shared among blocks, for the least time. That is reckoned in nanoseconds, as seen on
// an H200: a step takes a block so long, more with more rows, and one block adds up the
// sums of all parts, 45 bytes in one.
func planWide(k wideKind, out, in, processors int) (wideKind, int) {
	step, sums := 800+9*k.rows, 45
	if k.dtype == compute.I4 {
		step = 700 + 6*k.rows
	}
	best, bestParts, least := k, 1, 0
	for halves := 1; halves <= 2; halves++ {
		k.halves = halves
		steps, tiles := (in+k.columns()-1)/k.columns(), k.tiles(out)
		for parts := 1; parts <= min(8, steps); parts++ {
			if parts > 1 && tiles*parts > processors {
				break
			}
			time := (tiles*parts + processors - 1) / processors * ((steps + parts - 1) / parts) * step
			if parts > 1 {
				time += parts * k.partial() / sums
			}
			if least == 0 || time < least {
				best, bestParts, least = k, parts, time
			}
		}
	}
	return best, bestParts
}
