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
	first int     // rank
	read  []int64 // by rank, from first on
}

func newThrottle(ctx context.Context, rate int64, first, ranks int) *throttle {
	return &throttle{ctx: ctx, rate: rate, start: time.Now(), first: first, read: make([]int64, ranks)}
}

// wait holds a rank back until its bytes so far are due.
func (t *throttle) wait(rank int, bytes int64) {
	if t.rate <= 0 {
		return
	}
	read := &t.read[rank-t.first]
	*read += bytes
	due := t.start.Add(time.Duration(float64(*read) / float64(t.rate) * float64(time.Second)))
	select {
	case <-time.After(time.Until(due)):
	case <-t.ctx.Done():
	}
}
