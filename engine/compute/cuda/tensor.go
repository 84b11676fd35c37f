//go:build linux

package cuda

import (
	"fmt"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// tensor is rows of activations in device memory. Narrow ones are bfloat16,
// which the tensor cores multiply; wide ones float32.
type tensor struct {
	ptr          driver.Ptr
	rows, cols   int
	stride, from int // in elements
	wide         bool
	divisors     divisors // what the rows are still to be divided by, by the product that LinearNorm left it to

	host []byte // page-locked, for Floats; made when first asked for
	f32  []float32
	best best
	tops tops
}

func (t *tensor) MaxRows() int { return t.rows }
func (t *tensor) Cols() int    { return t.cols }

// size is the bytes of an element.
func (t *tensor) size() int {
	if t.wide {
		return 4
	}
	return 2
}

// at is the address of row i.
func (t *tensor) at(i int) driver.Ptr {
	return t.ptr + driver.Ptr((i*t.stride+t.from)*t.size())
}

// view is View of the kernels.
type view struct {
	data   driver.Ptr
	stride int32
	wide   int32
}

func (t *tensor) view() view {
	v := view{data: t.at(0), stride: int32(t.stride)}
	if t.wide {
		v.wide = 1
	}
	return v
}

// mustBeWhole is for whatever reads t and does not divide its rows.
func (t *tensor) mustBeWhole() {
	if t.divisors.any() {
		panic("cuda: the result of LinearNorm is read by another product than it was made for") // a mistake in a model, not in its input
	}
}

// by tells whether columns and rows lie on multiples of n elements and of 16 bytes.
func (t *tensor) by(n int) bool {
	return t.cols%n == 0 && t.stride%n == 0 && t.at(0)%16 == 0 && t.stride*t.size()%16 == 0
}

// alignment is where rows of a tensor's memory begin: on multiples of so many elements.
const alignment = 8

// NewTensor implements compute.Device.
func (d *Device) NewTensor(rows, cols int) compute.Tensor { return d.newTensor(rows, cols, false) }

// NewSums implements compute.Device.
func (d *Device) NewSums(rows, cols int) compute.Tensor { return d.newTensor(rows, cols, true) }

func (d *Device) newTensor(rows, cols int, wide bool) *tensor {
	t := &tensor{rows: rows, cols: cols, stride: (cols + alignment - 1) / alignment * alignment, wide: wide || d.options.Exact}
	// Recorded passes have their rows filled up.
	t.ptr = d.alloc(fillUp(rows)*t.stride*t.size(), "activations")
	return t
}

// Columns implements compute.Device.
func (d *Device) Columns(t compute.Tensor, from, n int) compute.Tensor {
	p := t.(*tensor)
	if from < 0 || n < 1 || from+n > p.cols {
		panic(fmt.Sprintf("cuda: columns %d to %d of %d", from, from+n, p.cols))
	}
	return &tensor{ptr: p.ptr, rows: p.rows, cols: n, stride: p.stride, from: p.from + from, wide: p.wide}
}

// Floats implements compute.Device.
func (d *Device) Floats(t compute.Tensor, i int) []float32 {
	p := t.(*tensor)
	defer d.enter()()
	if p.host == nil {
		p.host = d.allocHost(p.rows * p.cols * p.size())
		if p.host == nil {
			return make([]float32, p.cols) // the fault is in Err
		}
		p.f32 = make([]float32, p.rows*p.cols)
	}
	n := p.cols * p.size()
	row, out := p.host[i*n:(i+1)*n], p.f32[i*p.cols:(i+1)*p.cols]
	if d.ok() {
		d.check(d.stream.Download(row, p.at(i)))
		d.wait()
	}
	if p.wide {
		copy(out, unsafe.Slice((*float32)(unsafe.Pointer(&row[0])), p.cols))
		return out
	}
	widen(out, unsafe.Slice((*uint16)(unsafe.Pointer(&row[0])), p.cols))
	return out
}

// widen converts bfloat16 numbers.
func widen(dst []float32, src []uint16) {
	for i, h := range src {
		bits := uint32(h) << 16
		dst[i] = *(*float32)(unsafe.Pointer(&bits))
	}
}
