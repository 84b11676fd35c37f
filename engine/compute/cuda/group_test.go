//go:build linux

package cuda

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/tick"
)

// hosts are the host's side of a group's devices, without GPUs.
func hosts(n int, o GroupOptions) (*Group, []*Device) {
	g := NewGroup(n, o)
	var all []*Device
	for i, c := range collective.NewLocal(n, 1) {
		d := &Device{comm: c, group: g, member: g.members[i], options: Options{Ordinal: i}}
		g.members[i].device = d
		all = append(all, d)
	}
	return g, all
}

func TestRanksMeet(t *testing.T) {
	const rounds = 2000
	_, all := hosts(4, GroupOptions{})
	var mu sync.Mutex
	var wg sync.WaitGroup
	arrived := make([]int, rounds)
	for _, d := range all {
		wg.Go(func() {
			for k := range rounds {
				mu.Lock()
				arrived[k]++
				mu.Unlock()
				d.meet()
				mu.Lock()
				if arrived[k] != len(all) {
					t.Errorf("round %d: gone on with %d of %d", k, arrived[k], len(all))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestAFaultEndsMeetings(t *testing.T) {
	g, all := hosts(3, GroupOptions{})
	var wg sync.WaitGroup
	for _, d := range all[:2] {
		wg.Go(d.meet)
	}
	cause := errors.New("GPU 2 fell off the bus")
	all[2].comm.Abort(fault.OnRank(2, &fault.Error{Reason: fault.DeviceFault, Err: cause}))
	wg.Wait()
	all[0].meet() // returns at once
	for _, d := range all {
		if err := d.Err(); !errors.Is(err, cause) || fault.ReasonOf(err) != fault.DeviceFault {
			t.Errorf("rank %d: %v", d.comm.Rank(), err)
		}
	}
	if !g.aborted.Load() || all[0].ok() {
		t.Error("the group goes on")
	}
}

func TestAWaitEndsWithTheGroup(t *testing.T) {
	_, all := hosts(2, GroupOptions{})
	asked := 0
	all[0].await(func() (bool, error) {
		if asked++; asked == 10 {
			all[1].comm.Abort(nil)
		}
		return false, nil
	})
	if err := all[0].Err(); fault.ReasonOf(err) != fault.CollectiveFailed || asked < 10 {
		t.Errorf("after %d questions: %v", asked, err)
	}
}

// The rank that is named is the one that the others wait for.
func TestStalledRankIsNamed(t *testing.T) {
	now := time.Now()
	long, short := tick.Of(now.Add(-time.Minute)), tick.Of(now.Add(-time.Second))
	for _, c := range []struct {
		name    string
		waiting []int64
		passes  []int64
		rank    int // -1: no fault
		want    string
	}{
		{"nobody waits", []int64{0, 0, 0}, []int64{5, 5, 4}, -1, ""},
		{"for a short time", []int64{short, short, 0}, []int64{5, 5, 4}, -1, ""},
		{"for a rank that is a pass behind", []int64{long, long, 0}, []int64{5, 5, 4}, 2, "waited for rank 2 longer than 10s, which is --collective-timeout: rank 1 is in pass 5, rank 2 in pass 4"},
		{"for a rank within the pass", []int64{long, 0, long}, []int64{5, 5, 5}, 1, "waited for rank 1"},
		{"all of them", []int64{long, long, long}, []int64{5, 5, 5}, 2, "have not ended pass 5 in 10s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, _ := hosts(len(c.waiting), GroupOptions{Timeout: 10 * time.Second})
			for i, m := range g.members {
				m.waiting.Store(c.waiting[i])
				m.passes.Store(c.passes[i])
			}
			err := g.stalled(now)
			if c.rank < 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var f *fault.Error
			if !errors.As(err, &f) || f.Reason != fault.CollectiveFailed || f.Rank != c.rank || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: want rank %d and %q", err, c.rank, c.want)
			}
		})
	}
}
