// Package tick keeps points in time in an integer that goroutines can share, by the
// clock that nobody sets: when the machine's time is put right, nothing has taken long.
package tick

import "time"

// longAgo is before any tick, so that 0 is none of them, and never recent.
var longAgo = time.Now().Add(-time.Hour)

// Of is t as a tick, in nanoseconds; t has a reading of the monotonic clock, as
// time.Now gives it.
func Of(t time.Time) int64 { return int64(t.Sub(longAgo)) }

// Since is the time since a tick.
func Since(tick int64) time.Duration { return time.Since(longAgo) - time.Duration(tick) }
