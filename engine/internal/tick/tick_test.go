package tick

import (
	"testing"
	"time"
)

func TestTicks(t *testing.T) {
	now := time.Now()
	if Of(now) <= 0 {
		t.Errorf("now is tick %d, want one above 0", Of(now))
	}
	if d := Of(now.Add(time.Second)) - Of(now); d != int64(time.Second) {
		t.Errorf("a second is %d ticks", d)
	}
	if got, most := Since(Of(now.Add(-time.Minute))), time.Minute+time.Since(now); got < time.Minute || got > most+time.Second {
		t.Errorf("a minute ago was %s ago", got)
	}
	if Since(0) < 59*time.Minute {
		t.Errorf("tick 0 was %s ago: recent", Since(0))
	}
}
