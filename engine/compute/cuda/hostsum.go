//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// hostAllReduce is AllReduce through the host's memory.
func (d *Device) hostAllReduce(t *tensor, rows int) {
	stage := d.scratch.get(d, scratchStage, 4*rows*t.cols)
	v := view{data: stage, stride: int32(t.cols), wide: 1}
	d.convert(v, t.view(), t.cols, rows, false)
	sum := d.fetch(stage, rows*t.cols)
	d.comm.AllReduce(sum) // after a fault too: the others must not wait
	if d.ok() && d.comm.Err() == nil {
		d.check(d.stream.Upload(stage, floatBytes(sum)))
		d.convert(t.view(), v, t.cols, rows, false)
	}
}

// hostAllGather is AllGather through the host's memory.
func (d *Device) hostAllGather(to, t *tensor, rows int) {
	stage := d.scratch.get(d, scratchStage, 4*rows*t.cols)
	d.convert(view{data: stage, stride: int32(t.cols), wide: 1}, t.view(), t.cols, rows, false)
	part := d.fetch(stage, rows*t.cols)
	whole := make([]float32, rows*to.cols)
	d.comm.AllGather(whole, part, rows, t.cols)
	if d.ok() && d.comm.Err() == nil {
		others := d.scratch.get(d, scratchOthers, 4*len(whole))
		d.upload(others, floatBytes(whole))
		d.convert(to.view(), view{data: others, stride: int32(to.cols), wide: 1}, to.cols, rows, false)
	}
}

// fetch waits for n float32 values of the device. They are valid until the next
// fetch; after a fault they are anything.
func (d *Device) fetch(from driver.Ptr, n int) []float32 {
	b := d.scratch.hostBytes(d, 4*n)
	if b == nil || !d.ok() {
		return make([]float32, n)
	}
	d.check(d.stream.Download(b, from))
	d.wait()
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n)
}

func floatBytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}
