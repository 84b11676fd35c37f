//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// mostSums is the most bytes that a product of many rows takes for what it needs beside
// its result: more rows go one part after the other. (A variable for tests.)
var mostSums = 64 << 20

// inParts calls f for rows from i on, n at a time, for which bytes a row are needed: as
// many as mostSums has room for, in whole tiles of cuBLASLt's.
func inParts(rows, bytes int, f func(i, n int) bool) bool {
	const tile = 128
	most := max(mostSums/bytes/tile, 1) * tile
	for i := 0; i < rows; i += most {
		if !f(i, min(most, rows-i)) {
			return false
		}
	}
	return true
}

// part is n rows of t, from the i'th on.
func (t *tensor) part(i, n int) *tensor {
	p := *t
	p.ptr, p.rows = t.ptr+driver.Ptr(i*t.stride*t.size()), n
	return &p
}

// unrounded is room for n rows of float32 in which a product of y's columns comes before it
// is rounded.
func (d *Device) unrounded(y *tensor, n int) *tensor {
	s := &tensor{rows: n, cols: y.cols, stride: (y.cols + alignment - 1) / alignment * alignment, wide: true}
	s.ptr = d.scratch.get(d, scratchSums, 4*n*s.stride)
	return s
}

// narrow sets y to sums, with a bias added to each row unless that is 0.
func (d *Device) narrow(y, sums *tensor, bias driver.Ptr, rows int) {
	if !y.by(4) || !sums.by(4) {
		if bias != 0 {
			d.move(move{dst: sums.view(), bias: bias, cols: int32(sums.cols), add: 1}, rows)
		}
		d.convert(y.view(), sums.view(), y.cols, rows, false)
		return
	}
	launch(d, d.fn.narrow, driver.Dim{X: uint32(rows), Y: columnsOf(y.cols), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		dst, x view
		bias   driver.Ptr
		cols   int32
		_      int32
	}{dst: y.view(), x: sums.view(), bias: bias, cols: int32(y.cols)})
}

// LinearBias implements compute.Device. Where a bias is far from zero, as those of keys
// are in some models, a product that is rounded before costs more than all else that is.
func (d *Device) LinearBias(dst, x compute.Tensor, w, b compute.Weight, rows int) {
	y, from := dst.(*tensor), x.(*tensor)
	if y.wide {
		d.Linear(y, x, w, rows)
		d.AddBias(y, b, rows)
		return
	}
	defer d.enter()()
	inParts(rows, 4*y.stride, func(i, n int) bool {
		sums := d.unrounded(y, n)
		d.Linear(sums, from.part(i, n), w, n)
		d.narrow(y.part(i, n), sums, vector(b), n)
		return true
	})
}

// halfLinear is manyLinear with a weight of float16, with which cuBLASLt multiplies float16
// alone, and gives float16 or float32. The former ends where bfloat16 has far to go.
func (d *Device) halfLinear(y, x *tensor, w *weight, rows int) bool {
	bytes := 2 * w.in
	if !y.wide { // a wide one is where the sums come
		bytes = max(bytes, 4*y.stride)
	}
	return inParts(rows, bytes, func(i, n int) bool {
		in := d.scratch.get(d, scratchInput, 2*n*w.in)
		d.convert(view{data: in, stride: int32(w.in)}, x.part(i, n).view(), w.in, n, true)
		to := y.part(i, n)
		if !y.wide {
			to = d.unrounded(y, n)
		}
		p := blas.Product{Rows: n, Out: w.out, In: w.in, XStride: w.in, YStride: to.stride, Input: blas.F16, Output: blas.F32}
		if !d.multiply(p, to.at(0), in, w.ptr) {
			return false
		}
		if !y.wide {
			d.narrow(y.part(i, n), to, 0, n)
		}
		return true
	})
}
