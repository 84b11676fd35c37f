//go:build linux

package cuda

import (
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
)

// The clock adds up to the time of the passes that it has read, issued and recorded
// ones, and of the waits between them: no more than passed by the host's clock.
func TestClock(t *testing.T) {
	d := gpu(t, nil)
	if busy, idle := d.Clock(); busy != 0 || idle != 0 {
		t.Errorf("a clock that was not started says %s and %s", busy, idle)
	}
	x, y := d.newTensor(8, 4096, true), d.newTensor(8, 4096, true)
	run := func(kind, passes, copies int) {
		for range passes {
			d.Run(compute.Pass{Kind: kind, Rows: tokens(1, 2, 3)}, func(r *compute.Rows, _ [2][]int32) {
				for range copies {
					d.Copy(y, x, r.Len())
				}
			})
		}
		d.Wait()
	}
	run(100, 3, 2)
	if busy, _ := d.Clock(); busy != 0 {
		t.Errorf("a clock that was not started says %s", busy)
	}
	d.StartClock()
	start := time.Now()
	run(100, 3*mostMarked, 2)
	busy, idle := d.Clock()
	took := time.Since(start)
	if busy <= 0 || idle < 0 || busy+idle > took {
		t.Errorf("%s in passes and %s between them, in %s", busy, idle, took)
	}
}
