package engine

import (
	"testing"
	"time"
)

// However many requests there may be at once, the profile of the start measures
// only what its budget pays for; the rest is extrapolated.
func TestProfileKeepsItsBudget(t *testing.T) {
	e := start(t, Config{})
	batches := []int{1, 8, 4096}
	seconds, measured, err := e.profileGrid(batches, time.Now().Add(-profileBudget))
	if err != nil || measured != 1 || len(seconds) != len(batches) {
		t.Fatalf("%d of %d batches measured, %d rows, %v; want the first alone", measured, len(batches), len(seconds), err)
	}
	for d, s := range seconds[0] {
		if !(s > 0) || seconds[1][d] != 8*s || seconds[2][d] != 512*seconds[1][d] {
			t.Errorf("depth %d: %v, %v, %v: want times that grow with the batch", d, s, seconds[1][d], seconds[2][d])
		}
	}
	for _, c := range []struct {
		row  []float64
		more float64
		ok   bool
	}{{[]float64{0.1, 0.2}, 1, true}, {[]float64{0.1, 0.2}, 100, false}, {[]float64{3, 3}, 1, false}, {nil, 1, true}} {
		if got := affordable(time.Now(), c.row, c.more); got != c.ok {
			t.Errorf("%v × %v: %v", c.row, c.more, got)
		}
	}
}
