package telemetry

import (
	"sync"
	"time"
)

// meterSlots is the number of slots of a Meter's window.
const meterSlots = 10

// Meter sums events over a sliding window. It may be used from several
// goroutines and allocates nothing.
type Meter struct {
	now  func() time.Time
	slot time.Duration

	mu    sync.Mutex
	sums  [meterSlots]float64
	first int64 // number of the oldest slot in the window
	begin time.Time
}

// NewMeter makes a meter of a window, at least 10 ns long. The window moves in
// tenths of itself, so what it sums is between nine tenths and all of it.
func NewMeter(window time.Duration, now func() time.Time) *Meter {
	m := &Meter{now: now, slot: max(window/meterSlots, 1), begin: now()}
	m.first = 1 - meterSlots
	return m
}

// advance drops the slots that are over and returns that of now.
func (m *Meter) advance() int64 {
	n := int64(m.now().Sub(m.begin) / m.slot)
	for m.first+meterSlots <= n {
		if m.first+2*meterSlots <= n { // idle for longer than a window
			m.sums = [meterSlots]float64{}
			m.first = n - meterSlots + 1
			break
		}
		m.sums[index(m.first)] = 0
		m.first++
	}
	return n
}

func index(slot int64) int { return int((slot%meterSlots + meterSlots) % meterSlots) }

// Add counts v now.
func (m *Meter) Add(v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sums[index(m.advance())] += v
}

// Sum is the sum over the window.
func (m *Meter) Sum() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	var sum float64
	for _, v := range m.sums {
		sum += v
	}
	return sum
}

// Rate is the sum over the window divided by its length, in 1/s.
func (m *Meter) Rate() float64 { return m.Sum() / (m.slot * meterSlots).Seconds() }
