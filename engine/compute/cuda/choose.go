//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// best is where the highest values of a tensor's rows are kept. Kernels write to
// page-locked memory too, so that no copy need be queued.
type best struct {
	work, arrived, found driver.Ptr // by row; work and arrived are zero between kernels
	host                 []uint64
}

// address is the device's address of page-locked memory, which is the host's.
func address[T any](x []T) driver.Ptr {
	return driver.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(x))))
}

// prepare makes the memory of a tensor's best values; false after a fault.
func (b *best) prepare(d *Device, rows int) bool {
	if b.host != nil || !d.ok() {
		return d.ok()
	}
	n := fillUp(rows)
	b.work, b.arrived, b.found = d.alloc(8*n, "workspaces"), d.alloc(4*n, "workspaces"), d.alloc(8*n, "workspaces")
	host := d.allocHost(8 * n)
	if host == nil || !d.ok() {
		return false
	}
	b.host = unsafe.Slice((*uint64)(unsafe.Pointer(&host[0])), n)
	d.check(d.stream.Fill(b.work, 0, 8*n))
	d.check(d.stream.Fill(b.arrived, 0, 4*n))
	d.check(d.stream.Fill(b.found, 0, 8*n))
	return d.ok()
}

// ArgMax implements compute.Chooser.
func (d *Device) ArgMax(x compute.Tensor, cols, rows int) {
	defer d.enter()()
	t := x.(*tensor)
	if !t.best.prepare(d, t.rows) || rows == 0 {
		return
	}
	launch(d, d.fn.argmax, driver.Dim{X: uint32(rows), Y: uint32(min((cols+2047)/2048, 64)), Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		x                          view
		best, arrived, found, host driver.Ptr
		cols                       int32
		_                          int32
	}{x: t.view(), best: t.best.work, arrived: t.best.arrived, found: t.best.found, host: address(t.best.host), cols: int32(cols)})
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
	return columnOf(t.best.host[i])
}

// columnOf is the column of a key that argmax made; not ok if there is none.
func columnOf(key uint64) (int32, bool) {
	const minusInfinity = 0x007fffff // as the order of a value
	return int32(^uint32(key)), key != ^uint64(0) && key>>32 > minusInfinity
}

// chain is what Follow needs of the device.
type chain struct {
	ids  driver.Ptr // what ids were given as
	of   *int32
	kept []int32 // page-locked
}

// Follow implements compute.Chainer.
func (d *Device) Follow(x compute.Tensor, ids []int32, keep, from []int32) {
	defer d.enter()()
	t, c := x.(*tensor), &d.chain
	if !t.best.prepare(d, t.rows) || len(from) == 0 {
		return
	}
	if c.of != &ids[0] {
		c.ids, c.of = d.alloc(4*len(ids), "weights"), &ids[0]
		d.upload(c.ids, bytesOf(ids))
	}
	if n := compute.MaxNodes * fillUp(t.rows); n > len(c.kept) {
		host := d.allocHost(4 * n)
		if host == nil {
			return
		}
		c.kept = unsafe.Slice((*int32)(unsafe.Pointer(&host[0])), n)
	}
	a, b := d.pair(keep, from)
	n := len(from)
	launch(d, d.fn.follow, driver.Dim{X: uint32((n + 255) / 256), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		found, ids, keep, from, tokens, kept driver.Ptr
		rows, n                              int32
	}{t.best.found, c.ids, a, b, d.pass.tokens, address(c.kept), int32(d.pass.rows), int32(n)})
}

// Followed implements compute.Chainer.
func (d *Device) Followed(i int) (int32, bool) {
	if !d.idle {
		d.Wait()
	}
	if !d.ok() || i >= len(d.chain.kept) {
		return 0, false
	}
	id := d.chain.kept[i]
	return id, id >= 0
}
