package collective

import (
	"sync/atomic"
	"time"
)

// Timed measures the time that a rank spends in collectives.
type Timed struct {
	Communicator
	// Did, if set, hears of each call.
	Did func(name string, start, end time.Time)

	spent atomic.Int64
}

// NewTimed measures c.
func NewTimed(c Communicator) *Timed { return &Timed{Communicator: c} }

// Spent is the time in collectives so far.
func (t *Timed) Spent() time.Duration { return time.Duration(t.spent.Load()) }

// AllReduce implements Communicator.
func (t *Timed) AllReduce(x []float32) {
	if t.Size() == 1 {
		return // there is nothing to wait for
	}
	start := time.Now()
	t.Communicator.AllReduce(x)
	t.done("all_reduce", start)
}

// AllGather implements Communicator.
func (t *Timed) AllGather(dst, x []float32, rows, cols int) {
	start := time.Now()
	t.Communicator.AllGather(dst, x, rows, cols)
	if t.Size() > 1 {
		t.done("all_gather", start)
	}
}

func (t *Timed) done(name string, start time.Time) {
	end := time.Now()
	t.spent.Add(int64(end.Sub(start)))
	if t.Did != nil {
		t.Did(name, start, end)
	}
}
