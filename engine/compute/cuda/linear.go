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
	// manyRows is the rows from which on a quantised weight is decoded for a
	// product, instead of being read once for each fewRows rows.
	manyRows = 192
)

// output is Output of the kernels: what becomes of a product's outputs.
type output struct {
	y                             view
	out, mode                     int32
	cos, sin, slots, keys, values driver.Ptr
	scales                        driver.Ptr // of a float8 cache; otherwise 0
	heads, kvHeads, dim, pageSize int32
}

// The modes of output.
const (
	plainOutput = iota
	gatedOutput
	rotaryOutput
)

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

// residentBlocks is how many blocks of a product with codes a multiprocessor holds.
const residentBlocks = 2

// turns is how often a block of a product with codes takes 16 outputs: as often
// as lets all blocks be on the card at once.
func turns(out, processors int) int {
	tiles, at := (out+15)/16, residentBlocks*processors
	return (tiles + at - 1) / at
}

// Linear implements compute.Device.
func (d *Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	defer d.enter()()
	if rows == 0 {
		return
	}
	y, from, m := dst.(*tensor), x.(*tensor), w.(*weight)
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

// few tells whether a kernel for few rows takes the product.
func (d *Device) few(x *tensor, w *weight, rows int) bool {
	switch {
	case rows == 0 || !fits(x, w) || w.dtype == compute.F32:
		return false
	case w.dtype.Quantised():
		return w.perTile > 0 && rows < manyRows
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

// fewLinear reads the weights once for each fewRows rows.
func (d *Device) fewLinear(y, x *tensor, w *weight, rows int, o output) {
	for i := 0; i < rows; i += fewRows {
		n := min(fewRows, rows-i)
		most := 8
		if n > most {
			most = fewRows
		}
		if w.dtype.Quantised() {
			p := w.quant()
			p.x, p.rows, p.o = x.rowsFrom(i), int32(n), o.from(y, i)
			p.turns = int32(turns(w.out, d.context.Info.Processors))
			launch(d, d.fn.quantSkinny[quantSkinny{quantNames[w.dtype], most, w.perTile}], blocks(w.out, int(p.turns)), driver.Dim{X: 256, Y: 1, Z: 1}, &p)
			continue
		}
		f := d.fn.linearBF16
		if w.dtype == compute.F16 {
			f = d.fn.linearF16
		}
		launch(d, f, blocks(w.out, 1), driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
			w        driver.Ptr
			x        view
			in, rows int32
			o        output
		}{w.ptr, x.rowsFrom(i), int32(w.in), int32(n), o.from(y, i)})
	}
}

// manyLinear multiplies with cuBLASLt; false if that cannot.
func (d *Device) manyLinear(y, x *tensor, w *weight, rows int) bool {
	p := blas.Product{Rows: rows, Out: w.out, In: w.in, XStride: x.stride, YStride: y.stride, Input: blas.BF16, Output: blas.BF16}
	if y.wide {
		p.Output = blas.F32
	}
	in := x.at(0)
	if w.dtype == compute.F16 {
		if !y.wide {
			return false // it has no product of float16 that gives bfloat16
		}
		p.Input, p.XStride = blas.F16, w.in
		in = d.scratch.get(d, scratchInput, 2*rows*w.in)
		d.convert(view{data: in, stride: int32(w.in)}, x.view(), w.in, rows, true)
	}
	return d.multiply(p, y.at(0), in, w.ptr)
}

func (d *Device) multiply(p blas.Product, y, x, w driver.Ptr) bool {
	if !d.ok() {
		return true
	}
	done, err := d.blas.Multiply(p, y, x, w)
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

// quant is Quant of the kernels.
type quant struct {
	codes, scales                         driver.Ptr
	x                                     view
	in, rows, dtype, group, groups, tiles int32
	shift, turns                          int32
	o                                     output
}

func (w *weight) quant() quant {
	return quant{codes: w.ptr, scales: w.scales, in: int32(w.in), dtype: int32(w.dtype),
		group: int32(w.group), groups: int32(w.groups), tiles: int32(w.tiles), shift: int32(w.shift), o: output{out: int32(w.out)}}
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
	launch(d, d.fn.dequantise, driver.Dim{X: uint32(w.out), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
	if !d.manyLinear(y, x, decoded, rows) {
		d.anyLinear(y, x, decoded, rows)
	}
}
