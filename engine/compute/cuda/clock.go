//go:build linux

package cuda

import (
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// passClock tells by marks in the stream how long passes take, and how long the device
// waits between them. A pass's begin mark comes before its rows are copied, its end
// mark after its draws. A mark costs the host about a microsecond.
type passClock struct {
	marks   [mostMarked]passMarks // of pass n at n modulo their number
	begun   int                   // passes with a begin mark
	settled int                   // of these, those that were added up

	mu   sync.Mutex // of what other goroutines read
	on   bool
	busy time.Duration
	idle time.Duration
}

type passMarks struct{ begin, end driver.Event }

// mostMarked is how many passes have marks: more than are ever queued at once, so that
// nothing waits for their time.
const mostMarked = 64

// StartClock implements compute.Clock.
func (d *Device) StartClock() {
	d.times.mu.Lock()
	defer d.times.mu.Unlock()
	d.times.on = true
}

// Clock implements compute.Clock.
func (d *Device) Clock() (busy, idle time.Duration) {
	d.times.mu.Lock()
	defer d.times.mu.Unlock()
	return d.times.busy, d.times.idle
}

func (c *passClock) runs() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.on
}

// passBegins marks the beginning of a pass.
func (d *Device) passBegins() {
	c := &d.times
	if !c.runs() || !d.ok() {
		return
	}
	for c.settled+1 < c.begun && (c.begun-c.settled == mostMarked || d.hasBegun(c.settled+1)) {
		d.settle(c.settled)
		c.settled++
	}
	m := c.of(c.begun)
	for _, e := range []*driver.Event{&m.begin, &m.end} {
		if *e == 0 && d.ok() {
			var err error
			*e, err = driver.NewEvent()
			d.check(err)
		}
	}
	if d.ok() {
		c.begun++
		d.check(d.stream.Record(m.begin))
		d.check(d.stream.Record(m.end))
	}
}

// passEnds marks the end of the pass that began last; what is queued later can mark
// it anew.
func (d *Device) passEnds() {
	if c := &d.times; c.begun > 0 && d.ok() {
		d.check(d.stream.Record(c.of(c.begun - 1).end))
	}
}

func (c *passClock) of(pass int) *passMarks { return &c.marks[pass%len(c.marks)] }

// hasBegun tells whether the device has come to a pass.
func (d *Device) hasBegun(pass int) bool {
	done, err := d.times.of(pass).begin.Done()
	d.check(err)
	return done
}

// settle adds a pass and the wait before the next one, which have ended.
func (d *Device) settle(pass int) {
	m, next := d.times.of(pass), d.times.of(pass+1)
	d.waitFor(next.begin)
	if !d.ok() {
		return
	}
	between := func(from, to driver.Event) time.Duration {
		ms, err := to.Since(from)
		d.check(err)
		return time.Duration(float64(ms) * float64(time.Millisecond))
	}
	busy, idle := between(m.begin, m.end), between(m.end, next.begin)
	d.times.mu.Lock()
	defer d.times.mu.Unlock()
	d.times.busy += busy
	d.times.idle += idle
}

func (c *passClock) close() {
	for _, m := range c.marks {
		for _, e := range []driver.Event{m.begin, m.end} {
			if e != 0 {
				_ = e.Close()
			}
		}
	}
}
