//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// best is where the highest values of a tensor's rows are kept.
type best struct {
	dev  driver.Ptr
	host []uint64 // page-locked
}

// ArgMax implements compute.Chooser.
func (d *Device) ArgMax(x compute.Tensor, cols, rows int) {
	defer d.enter()()
	t := x.(*tensor)
	if t.best.host == nil {
		n := fillUp(t.rows)
		t.best.dev = d.alloc(8*n, "workspaces")
		b := d.allocHost(8 * n)
		if b == nil {
			return
		}
		t.best.host = unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), n)
	}
	if !d.ok() || rows == 0 {
		return
	}
	d.check(d.stream.Fill(t.best.dev, 0, 8*rows))
	launch(d, d.fn.argmax, driver.Dim{X: uint32(rows), Y: uint32(min((cols+2047)/2048, 64)), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		x    view
		best driver.Ptr
		cols int32
		_    int32
	}{x: t.view(), best: t.best.dev, cols: int32(cols)})
	d.check(d.stream.Download(unsafe.Slice((*byte)(unsafe.Pointer(&t.best.host[0])), 8*rows), t.best.dev))
}

// Best implements compute.Chooser.
func (d *Device) Best(x compute.Tensor, i int) (int32, bool) {
	t := x.(*tensor)
	if !d.idle {
		d.Wait()
	}
	if !d.ok() || t.best.host == nil {
		return 0, false
	}
	key := t.best.host[i]
	const minusInfinity = 0x007fffff // as the order of a value
	return int32(^uint32(key)), key != ^uint64(0) && key>>32 > minusInfinity
}
