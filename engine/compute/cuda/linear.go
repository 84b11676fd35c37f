//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

const (
	// fewRows is the most rows that a kernel of few rows takes.
	fewRows = 16
	// manyRows is the rows from which on a quantised weight is decoded for a
	// product, instead of being read once for each fewRows rows.
	manyRows = 64
)

// Linear implements compute.Device.
func (d *Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	defer d.enter()()
	if rows == 0 {
		return
	}
	y, from, m := dst.(*tensor), x.(*tensor), w.(*weight)
	switch {
	case m.dtype.Quantised():
		d.quantLinear(y, from, m, rows)
	case !fits(from, m) || m.dtype == compute.F32:
		d.anyLinear(y, from, m, rows)
	case rows <= fewRows:
		d.fewLinear(y, from, m, rows)
	case !d.manyLinear(y, from, m, rows):
		d.anyLinear(y, from, m, rows)
	}
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

// fewLinear reads the weights once, for up to fewRows rows.
func (d *Device) fewLinear(y, x *tensor, w *weight, rows int) {
	variant := skinny{half: w.dtype == compute.F16, rows: 8}
	if rows > 8 {
		variant.rows = fewRows
	}
	launch(d, d.fn.skinny[variant], driver.Dim{X: uint32((w.out + 15) / 16), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		w                    driver.Ptr
		x, y                 view
		out, in, rows, gated int32
	}{w.ptr, x.view(), y.view(), int32(w.out), int32(w.in), int32(rows), 0})
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
	codes, scales                                 driver.Ptr
	x, y                                          view
	out, in, rows, dtype, group, groups, tiles, _ int32
}

func (w *weight) quant() quant {
	return quant{codes: w.ptr, scales: w.scales, out: int32(w.out), in: int32(w.in), dtype: int32(w.dtype),
		group: int32(w.group), groups: int32(w.groups), tiles: int32(w.tiles)}
}

var quantNames = map[compute.DType]string{compute.I4: "i4", compute.I8: "i8", compute.F8E4M3: "f8"}

func (d *Device) quantLinear(y, x *tensor, w *weight, rows int) {
	p := w.quant()
	if !fits(x, w) {
		p.x, p.y, p.rows = x.view(), y.view(), int32(rows)
		launch(d, d.fn.quantAny, driver.Dim{X: uint32((w.out + 7) / 8), Y: uint32((rows + 7) / 8), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
		return
	}
	if rows >= manyRows {
		plain := d.scratch.get(d, scratchWeight, 2*w.out*w.in)
		p.y = view{data: plain, stride: int32(w.in)}
		launch(d, d.fn.dequantise, driver.Dim{X: uint32(w.out), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
		decoded := &weight{dtype: compute.BF16, out: w.out, in: w.in, ptr: plain}
		if !d.manyLinear(y, x, decoded, rows) {
			d.anyLinear(y, x, decoded, rows)
		}
		return
	}
	for i := 0; i < rows; i += fewRows {
		n := min(fewRows, rows-i)
		p.x, p.y, p.rows = x.rowsFrom(i), y.rowsFrom(i), int32(n)
		if w.perTile == 0 {
			launch(d, d.fn.quantAny, driver.Dim{X: uint32((w.out + 7) / 8), Y: uint32((n + 7) / 8), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
			continue
		}
		variant := quantSkinny{quantNames[w.dtype], 8, w.perTile}
		if n > 8 {
			variant.rows = fewRows
		}
		launch(d, d.fn.quantSkinny[variant], driver.Dim{X: uint32((w.out + 15) / 16), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
	}
}
