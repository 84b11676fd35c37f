package engine

import (
	"context"
	"time"
)

// throttle slows the reading of weights, so that tests can watch a load.
type throttle struct {
	ctx   context.Context
	rate  int64 // bytes in a second; 0 is no limit
	start time.Time
	read  []int64 // by rank
}

func newThrottle(ctx context.Context, rate int64, ranks int) *throttle {
	return &throttle{ctx: ctx, rate: rate, start: time.Now(), read: make([]int64, ranks)}
}

// wait holds a rank back until its bytes so far are due.
func (t *throttle) wait(rank int, bytes int64) {
	if t.rate <= 0 {
		return
	}
	t.read[rank] += bytes
	due := t.start.Add(time.Duration(float64(t.read[rank]) / float64(t.rate) * float64(time.Second)))
	select {
	case <-time.After(time.Until(due)):
	case <-t.ctx.Done():
	}
}
