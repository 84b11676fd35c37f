//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

const (
	// fewRows is the most rows that a kernel of few rows takes at a time.
	fewRows = 16
	// plainRows is the most for which it is faster than cuBLASLt, with weights
	// that are not quantised (seen on an H200).
	plainRows = 8
)

// output is Output of the kernels: what becomes of a product's outputs.
type output struct {
	y                             view
	out, mode                     int32
	cos, sin, slots, keys, values driver.Ptr
	scales                        driver.Ptr // of a float8 cache; otherwise 0
	heads, kvHeads, dim, pageSize int32
	residual, feature             view
	norm, squares, sums, clear    driver.Ptr
}

// The modes of output.
const (
	plainOutput = iota
	gatedOutput
	rotaryOutput
	normOutput
)

// divisors is Divisors of the kernels: what rows of a tensor are still to be
// divided by, if squares or sums is not zero.
type divisors struct {
	squares, sums driver.Ptr
	parts         int32
	eps           float32
}

func (d divisors) any() bool { return d.squares != 0 || d.sums != 0 }

// sums are those of the squares of the residual stream's rows, to which products that
// LinearNorm makes add theirs where the next one has plain weights: its many short blocks
// would take long to add up parts. Two of them take turns: a product clears those that the
// product between it and the one before has read. A norm that is a kernel of its own clears
// the first, from which a pass so begins whatever ran before.
type sums struct {
	of    [2]driver.Ptr
	turn  int
	begun bool // those whose turn it is are zero
}

// sumsBytes are those of one of them: SLOTS times MOST_DIVIDED of the kernels, of 16 bytes.
const sumsBytes = 8 * fewRows * 16

// prepare makes the memory; false after a fault.
func (s *sums) prepare(d *Device) bool {
	for i := range s.of {
		if s.of[i] == 0 && d.ok() {
			s.of[i] = d.alloc(sumsBytes, "workspaces")
		}
	}
	return d.ok()
}

// begin is what a norm that is a kernel clears.
func (s *sums) begin(d *Device) driver.Ptr {
	s.prepare(d)
	s.turn, s.begun = 0, true
	return s.of[0]
}

// next is what the next product adds to, and what it clears.
func (s *sums) next(d *Device) (to, clear driver.Ptr) {
	if !s.prepare(d) {
		return 0, 0
	}
	if !s.begun {
		d.check(d.stream.Fill(s.begin(d), 0, sumsBytes))
	}
	to, clear = s.of[s.turn], s.of[1-s.turn]
	s.turn = 1 - s.turn
	return to, clear
}

// from is the output of the rows from i on.
func (o output) from(y *tensor, i int) output {
	o.y = y.rowsFrom(i)
	if o.mode == rotaryOutput {
		o.cos += driver.Ptr(4 * i * int(o.dim) / 2)
		o.sin += driver.Ptr(4 * i * int(o.dim) / 2)
		o.slots += driver.Ptr(4 * i)
	}
	return o
}

// blocks are those of a product for few rows, with turns times 16 outputs each.
func blocks(out, turns int) driver.Dim {
	return driver.Dim{X: uint32((out + 16*turns - 1) / (16 * turns)), Y: 1, Z: 1}
}

// Linear implements compute.Device.
func (d *Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	defer d.enter()()
	if rows == 0 {
		return
	}
	y, from, m := dst.(*tensor), x.(*tensor), w.(*weight)
	if !d.few(from, m, rows) {
		from.mustBeWhole()
	}
	switch {
	case d.few(from, m, rows):
		d.fewLinear(y, from, m, rows, output{out: int32(m.out)})
	case m.dtype.Quantised():
		d.quantLinear(y, from, m, rows)
	case m.dtype == compute.F32 || !fits(from, m) || !d.manyLinear(y, from, m, rows):
		d.anyLinear(y, from, m, rows)
	}
}

// Gated implements compute.Device.
func (d *Device) Gated(dst, products, x compute.Tensor, w compute.Weight, rows int) {
	y, from, m := dst.(*tensor), x.(*tensor), w.(*weight)
	if m.out%16 != 0 || !d.few(from, m, rows) {
		d.Linear(products, x, w, rows)
		d.SiluMul(dst, products, rows)
		return
	}
	defer d.enter()()
	d.fewLinear(y, from, m, rows, output{out: int32(m.out), mode: gatedOutput})
}

// QKV implements compute.Device.
func (d *Device) QKV(qkv, x compute.Tensor, w compute.Weight, kv compute.Cache, layer int, r *compute.Rows) {
	y, from, m, c := qkv.(*tensor), x.(*tensor), w.(*weight), kv.(*cache)
	s := c.shape
	if s.HeadDim%16 != 0 || c.kind() == cacheF32 || !d.few(from, m, r.Len()) {
		d.Linear(qkv, x, w, r.Len())
		d.RopeAndCache(qkv, kv, layer, r)
		return
	}
	defer d.enter()()
	d.fewLinear(y, from, m, r.Len(), output{out: int32(m.out), mode: rotaryOutput,
		cos: d.pass.cos, sin: d.pass.sin, slots: d.pass.slots, keys: c.layer(c.keys, layer), values: c.layer(c.values, layer), scales: c.layerScales(layer),
		heads: int32(s.Heads), kvHeads: int32(s.KVHeads), dim: int32(s.HeadDim), pageSize: int32(c.pageSize)})
}

// LinearNorm implements compute.Device. Where kernels for few rows take both this
// product and that with next, the norm costs no pass of its own: see NORM.
func (d *Device) LinearNorm(dst compute.Tensor, to compute.Residual, sum, x compute.Tensor, w, norm compute.Weight, eps float32, next compute.Weight, rows int) {
	y, s, from, m := dst.(*tensor), residualOf(to), x.(*tensor), w.(*weight)
	if !d.norms(y, s.sum, from, m, next.(*weight), rows) {
		d.Linear(sum, x, w, rows)
		d.AllReduceNorm(dst, to, sum, norm, eps, rows)
		return
	}
	defer d.enter()()
	parts := m.out / 16
	y.divisors = divisors{parts: int32(parts), eps: eps}
	var clear driver.Ptr
	if next.(*weight).dtype.Quantised() {
		y.divisors.squares = d.scratch.get(d, scratchSquares, 4*fewRows*parts)
	} else {
		y.divisors.sums, clear = d.sums.next(d)
	}
	residual, feature := s.views()
	d.fewLinear(y, from, m, rows, output{out: int32(m.out), mode: normOutput, residual: residual, feature: feature, norm: vector(norm), squares: y.divisors.squares, sums: y.divisors.sums, clear: clear})
}

// norms tells whether a product of few rows can be added to the residual stream r
// and leave the norm's division to the product with next, which reads y.
func (d *Device) norms(y, r, x *tensor, w, next *weight, rows int) bool {
	most := fewRows
	if !w.dtype.Quantised() || !next.dtype.Quantised() {
		most = plainRows
	}
	return d.comm.Size() == 1 && d.group == nil && rows <= most && w.out%16 == 0 && r.wide &&
		next.dtype != compute.F16 && d.few(x, w, rows) && d.few(y, next, rows)
}

// few tells whether a kernel for few rows takes the product.
func (d *Device) few(x *tensor, w *weight, rows int) bool {
	switch {
	case rows == 0 || !fits(x, w) || w.dtype == compute.F32:
		return false
	case d.takesWide(w, rows):
		return true
	case w.dtype.Quantised():
		return w.perTile > 0 && rows < manyRows && w.out <= manyOutputs*mostTiles
	}
	return rows <= plainRows && w.in%32 == 0
}

// fits tells whether tensor cores can take the rows as they lie: 8 neighbours at
// a time.
func fits(x *tensor, w *weight) bool {
	return !x.wide && w.in%alignment == 0 && x.stride%alignment == 0 && x.at(0)%16 == 0
}

// rowsFrom is the view of rows i and up.
func (t *tensor) rowsFrom(i int) view {
	v := t.view()
	v.data = t.at(i)
	return v
}

// fewLinear is the product of rows that few takes.
func (d *Device) fewLinear(y, x *tensor, w *weight, rows int, o output) {
	switch d.codes = w.dtype.Quantised(); {
	case d.takesWide(w, rows):
		d.wideLinear(y, x, w, rows, o)
		return
	case d.codes:
		d.codeLinear(y, x, w, rows, o)
		return
	}
	f := d.fn.linearBF16
	if w.dtype == compute.F16 {
		f = d.fn.linearF16
	}
	launch(d, f, blocks(w.out, 1), driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		w        driver.Ptr
		x        view
		in, rows int32
		d        divisors
		o        output
	}{w.ptr, x.rowsFrom(0), int32(w.in), int32(rows), x.divisors, o.from(y, 0)})
}

// manyLinear multiplies with cuBLASLt; false if that cannot.
func (d *Device) manyLinear(y, x *tensor, w *weight, rows int) bool {
	if w.dtype == compute.F16 {
		return d.halfLinear(y, x, w, rows)
	}
	p := blas.Product{Rows: rows, Out: w.out, In: w.in, XStride: x.stride, YStride: y.stride, Input: blas.BF16, Output: blas.BF16}
	if y.wide {
		p.Output = blas.F32
	}
	return d.multiply(p, y.at(0), x.at(0), w.ptr)
}

func (d *Device) multiply(p blas.Product, y, x, w driver.Ptr) bool {
	if !d.ok() {
		return true
	}
	done, err := d.blas.Multiply(p, y, x, w, d.often, !d.recording)
	d.check(err)
	return done || err != nil
}

// anyLinear takes every shape and every type that is not quantised.
func (d *Device) anyLinear(y, x *tensor, w *weight, rows int) {
	launch(d, d.fn.linearAny, driver.Dim{X: uint32((w.out + 7) / 8), Y: uint32((rows + 7) / 8), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		w                    driver.Ptr
		x, y                 view
		out, in, rows, dtype int32
	}{w.ptr, x.view(), y.view(), int32(w.out), int32(w.in), int32(rows), int32(w.dtype)})
}
