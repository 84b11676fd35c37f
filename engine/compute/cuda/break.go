//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/fault"
)

// Break implements compute.Breaker.
func (d *Device) Break(reason fault.Reason) bool {
	switch {
	case reason == fault.DeviceFault:
		defer d.enter()()
		launch(d, d.fn.noise, driver.Dim{X: 1, Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
			p     driver.Ptr
			n     uint64
			seed  uint32
			scale float32
		}{p: 16, n: 1}) // no memory is there
	case reason == fault.CollectiveFailed && d.group != nil:
		d.absent = true
	default:
		return false
	}
	return true
}
