//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// residentBlocks is how many blocks of a product of few rows with codes a
// multiprocessor holds.
const residentBlocks = 2

// turns is how often a block of a product of few rows with codes takes 16
// outputs: as often as lets all blocks be on the card at once.
func turns(out, processors int) int {
	tiles, at := (out+15)/16, residentBlocks*processors
	return (tiles + at - 1) / at
}

const (
	// manyOutputs is OUTPUTS of the kernels: the outputs of a tile of a product of
	// more than fewRows rows.
	manyOutputs = 128
	// manyThreads is the threads of its blocks.
	manyThreads = 256
	// mostMany is the most rows that it takes at a time.
	mostMany = 64
	// manyRows is the rows from which on a quantised weight is decoded for a product,
	// instead of being read once for each mostMany rows (seen on an H200).
	manyRows = 81
	// mostTiles is the most tiles of outputs that it has.
	mostTiles = 1 << 14
)

// manyPartial is the bytes of the sums that blocks leave to others.
func manyPartial(processors int) int { return 2 * processors * manyOutputs * mostMany * 4 }

// shared is the bytes of shared memory of a block with that many stages.
func (k quantKind) shared(stages int) int {
	stage := k.rows*(4*tileCols(k.dtype)+64) + manyThreads*tileBytes + k.scales*1024
	return stages*stage + manyOutputs*k.rows*4
}

// stages is how many stages of a block fit into shared bytes, at most 4; 0 if
// that is not two.
func (k quantKind) stages(shared int) int {
	const static = 2048
	for n := 4; n >= 2; n-- {
		if k.shared(n) <= shared-static {
			return n
		}
	}
	return 0
}

// quant is Quant of the kernels.
type quant struct {
	codes, scales                         driver.Ptr
	x                                     view
	in, rows, dtype, group, groups, tiles int32
	shift, turns                          int32
	d                                     divisors
	o                                     output
}

func (w *weight) quant() quant {
	return quant{codes: w.ptr, scales: w.scales, in: int32(w.in), dtype: int32(w.dtype),
		group: int32(w.group), groups: int32(w.groups), tiles: int32(w.tiles), shift: int32(w.shift), o: output{out: int32(w.out)}}
}

// codeLinear reads the weights once for each mostMany rows, or fewer where shared
// memory is small.
func (d *Device) codeLinear(y, x *tensor, w *weight, rows int, o output) {
	for i := 0; i < rows; {
		k := d.kindFor(w, rows-i)
		n := min(k.rows, rows-i)
		p := w.quant()
		p.x, p.rows, p.d, p.o = x.rowsFrom(i), int32(n), x.divisors, o.from(y, i)
		if k.rows <= fewRows {
			p.turns = int32(turns(w.out, d.context.Info.Processors))
			launch(d, d.fn.quant[k], blocks(w.out, int(p.turns)), driver.Dim{X: 256, Y: 1, Z: 1}, &p)
		} else {
			d.many(k, p)
		}
		i += n
	}
}

// kindFor is the kernel for so many rows, or for the first of them.
func (d *Device) kindFor(w *weight, rows int) quantKind {
	k := quantKind{w.dtype, 8, w.perTile}
	for k.rows < min(rows, mostMany) {
		next := k
		next.rows *= 2
		if next.rows > fewRows && next.stages(d.context.Info.Shared) == 0 {
			break
		}
		k = next
	}
	return k
}

// many queues a product of more than fewRows rows.
func (d *Device) many(k quantKind, p quant) {
	stages := k.stages(d.context.Info.Shared)
	steps := (int(p.o.out) + manyOutputs - 1) / manyOutputs * ((int(p.tiles) + 1) / 2)
	blocks := driver.Dim{X: uint32(min(steps, d.context.Info.Processors)), Y: 1, Z: 1}
	launchShared(d, d.fn.quant[k], blocks, driver.Dim{X: manyThreads, Y: 1, Z: 1}, k.shared(stages), &struct {
		q                quant
		partial, arrived driver.Ptr
		stages, _        int32
	}{q: p, partial: d.scratch.partial, arrived: d.scratch.arrived, stages: int32(stages)})
}

var quantNames = map[compute.DType]string{compute.I4: "i4", compute.I8: "i8", compute.F8E4M3: "f8"}

// quantLinear decodes the weight for a product of many rows, and takes every
// other shape as it is.
func (d *Device) quantLinear(y, x *tensor, w *weight, rows int) {
	p := w.quant()
	if !fits(x, w) || rows < manyRows {
		p.x, p.rows, p.o.y = x.view(), int32(rows), y.view()
		launch(d, d.fn.quantAny, driver.Dim{X: uint32((w.out + 7) / 8), Y: uint32((rows + 7) / 8), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
		return
	}
	decoded := &weight{dtype: compute.BF16, out: w.out, in: w.in, ptr: d.scratch.get(d, scratchWeight, 2*w.out*w.in)}
	p.o.y = view{data: decoded.ptr, stride: int32(w.in)}
	launch(d, d.fn.dequantise[w.dtype], driver.Dim{X: uint32((w.tiles + 7) / 8), Y: uint32(upTo8(w.out) / together), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
	if !d.manyLinear(y, x, decoded, rows) {
		d.anyLinear(y, x, decoded, rows)
	}
}
