//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// columnsOf are the blocks over the columns of a row: enough to fill the card
// with few rows.
func columnsOf(cols int) uint32 { return uint32(min(max((cols+1023)/1024, 1), 64)) }

// Prepare implements compute.Device.
func (d *Device) Prepare(r *compute.Rows, freqs []float32, scale float32) {
	defer d.enter()()
	if !d.record.prepared(r) {
		d.begin(measure(0, r, [2][]int32{}), r, [2][]int32{})
	}
	f, ok := d.freqs[&freqs[0]]
	if !ok {
		f = d.alloc(4*len(freqs), "rotary frequencies")
		d.upload(f, unsafe.Slice((*byte)(unsafe.Pointer(&freqs[0])), 4*len(freqs)))
		d.freqs[&freqs[0]] = f
	}
	n := d.pass.rows
	launch(d, d.fn.angles, driver.Dim{X: uint32((n*len(freqs) + 255) / 256), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		positions, freqs, cos, sin driver.Ptr
		scale                      float32
		half, rows                 int32
	}{d.pass.positions, f, d.pass.cos, d.pass.sin, scale, int32(len(freqs)), int32(n)})
}

// Embed implements compute.Device.
func (d *Device) Embed(dst compute.Tensor, table compute.Weight, first int, r *compute.Rows) {
	defer d.enter()()
	t, w := dst.(*tensor), table.(*weight)
	launch(d, d.fn.embed, driver.Dim{X: uint32(r.Len()), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		dst                     view
		table, tokens           driver.Ptr
		dtype, first, out, cols int32
	}{t.view(), w.ptr, d.pass.tokens, int32(w.dtype), int32(first), int32(w.out), int32(w.in)})
}

// RMSNorm implements compute.Device.
func (d *Device) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.norm(dst.(*tensor), residualStream{}, x.(*tensor), w, eps, rows)
}

// AddRMSNorm implements compute.Device.
func (d *Device) AddRMSNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.norm(dst.(*tensor), residualOf(to), x.(*tensor), w, eps, rows)
}

// residualStream is compute.Residual; sum is nil where there is none.
type residualStream struct{ sum, copy *tensor }

func residualOf(s compute.Residual) residualStream {
	to := residualStream{sum: s.Sum.(*tensor)}
	if s.Copy != nil {
		to.copy = s.Copy.(*tensor)
	}
	return to
}

// views are those of the stream for kernels; data is 0 where there is none.
func (s residualStream) views() (residual, feature view) {
	if s.sum != nil {
		residual = s.sum.view()
	}
	if s.copy != nil {
		feature = s.copy.view()
	}
	return residual, feature
}

// by is tensor.by of what there is.
func (s residualStream) by(n int) bool {
	return (s.sum == nil || s.sum.by(n)) && (s.copy == nil || s.copy.by(n))
}

func (d *Device) norm(dst *tensor, to residualStream, x *tensor, w compute.Weight, eps float32, rows int) {
	defer d.enter()()
	d.normBy(dst, to, x, vector(w), eps, rows)
}

func (d *Device) normBy(dst *tensor, to residualStream, x *tensor, w driver.Ptr, eps float32, rows int) {
	dst.divisors = divisors{}
	if rows == 0 {
		return
	}
	p := &struct {
		dst, residual, feature, x view
		w, clear                  driver.Ptr
		eps                       float32
		cols, add                 int32
		_                         int32
	}{dst: dst.view(), x: x.view(), w: w, clear: d.sums.begin(d), eps: eps, cols: int32(x.cols)}
	by4 := dst.by(4) && x.by(4) && to.by(4)
	if p.residual, p.feature = to.views(); to.sum != nil {
		p.add = 1
	}
	// A thread of norm4 has up to 16 columns.
	threads := min(max((x.cols/8+31)/32*32, 128), 1024)
	f := d.fn.norm
	if by4 && x.cols <= 16*threads {
		f = d.fn.norm4
	}
	launch(d, f, driver.Dim{X: uint32(rows), Y: 1, Z: 1}, driver.Dim{X: uint32(threads), Y: 1, Z: 1}, p)
}

// QKNorm implements compute.Device.
func (d *Device) QKNorm(qkv compute.Tensor, q, k compute.Weight, eps float32, shape compute.AttentionShape, rows int) {
	defer d.enter()()
	units := rows * (shape.Heads + shape.KVHeads)
	launch(d, d.fn.qkNorm, driver.Dim{X: uint32((units + 7) / 8), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		qkv                       view
		q, k                      driver.Ptr
		eps                       float32
		heads, kvHeads, dim, rows int32
		_                         int32
	}{qkv: qkv.(*tensor).view(), q: vector(q), k: vector(k), eps: eps,
		heads: int32(shape.Heads), kvHeads: int32(shape.KVHeads), dim: int32(shape.HeadDim), rows: int32(rows)})
}

// move is Move of the kernels.
type move struct {
	dst, x         view
	to, from, bias driver.Ptr
	cols, add      int32
}

func (d *Device) move(p move, rows int) {
	launch(d, d.fn.move, driver.Dim{X: uint32(rows), Y: columnsOf(int(p.cols)), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &p)
}

// AddBias implements compute.Device.
func (d *Device) AddBias(x compute.Tensor, b compute.Weight, rows int) {
	defer d.enter()()
	t := x.(*tensor)
	d.move(move{dst: t.view(), bias: vector(b), cols: int32(t.cols), add: 1}, rows)
}

// Add implements compute.Device.
func (d *Device) Add(dst, x compute.Tensor, rows int) {
	defer d.enter()()
	t, from := dst.(*tensor), x.(*tensor)
	d.move(move{dst: t.view(), x: from.view(), cols: int32(t.cols), add: 1}, rows)
}

// Copy implements compute.Device.
func (d *Device) Copy(dst, x compute.Tensor, rows int) {
	defer d.enter()()
	t, from := dst.(*tensor), x.(*tensor)
	d.move(move{dst: t.view(), x: from.view(), cols: int32(t.cols)}, rows)
}

// Gather implements compute.Device.
func (d *Device) Gather(dst, x compute.Tensor, index []int32) {
	if len(index) == 0 {
		return
	}
	defer d.enter()()
	t, from := dst.(*tensor), x.(*tensor)
	d.move(move{dst: t.view(), x: from.view(), from: d.index(index), cols: int32(t.cols)}, len(index))
}

// Scatter implements compute.Device.
func (d *Device) Scatter(dst, x compute.Tensor, to, from []int32) {
	if len(to) == 0 {
		return
	}
	defer d.enter()()
	t, src := dst.(*tensor), x.(*tensor)
	a, b := d.pair(to, from)
	d.move(move{dst: t.view(), x: src.view(), to: a, from: b, cols: int32(t.cols)}, len(to))
}

// Keep implements compute.Device.
func (d *Device) Keep(dst, x compute.Tensor, r *compute.Rows) {
	defer d.enter()()
	t, src := dst.(*tensor), x.(*tensor)
	d.move(move{dst: t.view(), x: src.view(), to: d.pass.kept, cols: int32(t.cols)}, r.Len())
}

// pair is index for two lists of the same length.
func (d *Device) pair(a, b []int32) (x, y driver.Ptr) {
	if d.pass.has(a) && d.pass.has(b) {
		return d.index(a), d.index(b)
	}
	both := append(append(make([]int32, 0, 2*len(a)), a...), b...)
	x = d.index(both)
	return x, x + driver.Ptr(4*len(a))
}

// SiluMul implements compute.Device.
func (d *Device) SiluMul(dst, gateUp compute.Tensor, rows int) {
	defer d.enter()()
	t, x := dst.(*tensor), gateUp.(*tensor)
	f, y := d.fn.siluMul, columnsOf(t.cols)
	if !t.wide && !x.wide && t.by(alignment) && x.by(alignment) {
		f, y = d.fn.siluMul8, uint32((t.cols+2047)/2048)
	}
	launch(d, f, driver.Dim{X: uint32(rows), Y: y, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		dst, gateUp view
		cols        int32
		_           int32
	}{dst: t.view(), gateUp: x.view(), cols: int32(t.cols)})
}

// convert sets dst, as float16 if half, to x.
func (d *Device) convert(dst, x view, cols, rows int, half bool) {
	p := &struct {
		dst, x     view
		cols, half int32
	}{dst: dst, x: x, cols: int32(cols)}
	if half {
		p.half = 1
	}
	launch(d, d.fn.convert, driver.Dim{X: uint32(rows), Y: columnsOf(cols), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, p)
}
