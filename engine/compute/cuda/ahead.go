//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// mark is what Mark keeps: draws, which the next ones are not written over, and a
// copy of the best tokens.
type mark struct {
	best []uint64 // page-locked
	made driver.Event
	turn int // of the draws
}

// Mark implements compute.Ahead.
func (d *Device) Mark(x compute.Tensor, rows int) {
	defer d.enter()()
	t, m := x.(*tensor), &d.mark
	if !t.best.prepare(d, t.rows) {
		return
	}
	if n := len(t.best.host); n > len(m.best) {
		host := d.allocHost(8 * n)
		if host == nil {
			return
		}
		m.best = unsafe.Slice((*uint64)(unsafe.Pointer(&host[0])), n)
	}
	if m.made == 0 {
		e, err := driver.NewEvent()
		if d.check(err); err != nil {
			return
		}
		m.made = e
	}
	m.turn = d.drawing.turn
	d.check(d.stream.Download(unsafe.Slice((*byte)(unsafe.Pointer(&m.best[0])), 8*rows), t.best.found))
	d.check(d.stream.Record(m.made))
	d.passEnds()
}

// Await implements compute.Ahead.
func (d *Device) Await() {
	if d.ok() && d.mark.made != 0 {
		defer d.enter()()
		d.waitFor(d.mark.made)
	}
}

// Marked implements compute.Ahead.
func (d *Device) Marked(i int) (int32, bool) {
	if !d.ok() || i >= len(d.mark.best) {
		return 0, false
	}
	return columnOf(d.mark.best[i])
}

// MarkedDrawn implements compute.Ahead.
func (d *Device) MarkedDrawn(i int) (compute.Drawn, bool) {
	if !d.ok() {
		return compute.Drawn{}, false
	}
	return d.drawing.turns[d.mark.turn].drawn(i)
}

// Take implements compute.Ahead.
func (d *Device) Take(x compute.Tensor, from []int32) {
	defer d.enter()()
	t := x.(*tensor)
	if len(from) == 0 || !t.best.prepare(d, t.rows) || !d.drawing.prepare(d, t.stride) {
		return
	}
	n := len(from)
	launch(d, d.fn.take, driver.Dim{X: uint32((n + 255) / 256), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		found, drawn, from, tokens driver.Ptr
		n, _                       int32
	}{t.best.found, d.drawing.tokens, d.index(from), d.pass.tokens, int32(min(n, d.pass.rows)), 0})
}

func (m *mark) close() {
	if m.made != 0 {
		_ = m.made.Close()
	}
}
