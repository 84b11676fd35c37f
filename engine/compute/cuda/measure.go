//go:build linux

package cuda

import (
	"math"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/fault"
)

// Rates are what the card does at best, measured: the floor of a step is its
// bytes or its operations over these.
type Rates struct {
	Read    float64 // bytes of device memory in a second
	Product float64 // floating-point operations in a second, of bfloat16 matrices
}

// Measure measures the rates. It takes 4 GiB of device memory for as long.
func (d *Device) Measure() (Rates, error) {
	if err := d.Build(); err != nil {
		return Rates{}, err
	}
	defer d.enter()()
	const size = 4 << 30
	area, err := driver.Alloc(size)
	if err != nil {
		return Rates{}, err
	}
	defer func() { d.check(driver.FreeMemory(area)) }()
	launch(d, d.fn.noise, driver.Dim{X: 2048, Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
		p     driver.Ptr
		n     uint64
		seed  uint32
		scale float32
	}{area, size / 2, 1, 1})
	reading := time.Duration(math.MaxInt64) // the best of some ways
	for _, f := range []driver.Function{d.fn.readAll4, d.fn.readAll8} {
		for _, blocks := range []int{4, 16, 64, 256} {
			reading = min(reading, d.timed(func() {
				launch(d, f, driver.Dim{X: uint32(blocks * d.context.Info.Processors), Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
					p   driver.Ptr
					n   uint64
					out driver.Ptr
				}{area, size / 16, d.scratch.arrived})
			}))
		}
	}
	const n = 8192
	p := blas.Product{Rows: n, Out: n, In: n, XStride: n, YStride: n, Input: blas.BF16, Output: blas.BF16}
	product := d.timed(func() {
		if !d.multiply(p, area, area+2*n*n, area+4*n*n) {
			d.fail(fault.Errorf(fault.Unsupported, "cuBLASLt has no product of %d × %d × %d", n, n, n))
		}
	})
	return Rates{Read: size / reading.Seconds(), Product: 2 * n * n * n / product.Seconds()}, d.err
}

// timed is the median of some runs of what f queues, by the device's clock.
func (d *Device) timed(f func()) time.Duration {
	var took []time.Duration
	for range 11 {
		took = append(took, d.Elapsed(f))
	}
	slices.Sort(took)
	return max(took[len(took)/2], 1)
}

// Elapsed is the time from the beginning of what f queues to its end, by the
// device's clock.
func (d *Device) Elapsed(f func()) time.Duration {
	defer d.enter()()
	var marks [2]driver.Event
	for i := range marks {
		e, err := driver.NewEvent()
		if err != nil {
			d.fail(err)
			return 0
		}
		defer func() { d.check(e.Close()) }()
		marks[i] = e
	}
	d.check(d.stream.Record(marks[0]))
	f()
	d.check(d.stream.Record(marks[1]))
	d.waitFor(marks[1])
	if !d.ok() {
		return 0
	}
	ms, err := marks[1].Since(marks[0])
	d.check(err)
	return time.Duration(float64(ms) * float64(time.Millisecond))
}

// Repeat runs the recording of the last pass n times more, and is the time of
// one; 0 if that was not recorded.
func (d *Device) Repeat(n int) time.Duration {
	g := d.record.last
	if g == 0 || n < 1 {
		return 0
	}
	return d.Elapsed(func() {
		for range n {
			d.check(d.stream.Launch(g))
		}
	}) / time.Duration(n)
}

// Profiled marks what f does for a profiler that waits to be told.
func (d *Device) Profiled(f func() error) error {
	defer d.enter()()
	return d.context.Profiled(f)
}
