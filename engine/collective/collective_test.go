package collective

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// patience is how long a test waits for what must come, however busy the machine is.
const patience = 3 * time.Minute

// each runs f on every rank of a group and waits for all.
func each(ranks []Communicator, f func(c Communicator)) {
	var wg sync.WaitGroup
	for _, c := range ranks {
		wg.Go(func() { f(c) })
	}
	wg.Wait()
}

func TestAllReduceIsTheSameSumOnEveryRank(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 8} {
		const rounds, n = 200, 97
		inputs := make([][][]float32, rounds)
		want := make([][]float32, rounds)
		rng := rand.New(rand.NewPCG(uint64(size), 1))
		for k := range inputs {
			inputs[k] = make([][]float32, size)
			want[k] = make([]float32, n)
			for r := range inputs[k] {
				inputs[k][r] = make([]float32, n)
				for i := range inputs[k][r] {
					inputs[k][r][i] = rng.Float32() - 0.5
					if r == 0 {
						want[k][i] = inputs[k][r][i]
					} else {
						want[k][i] += inputs[k][r][i]
					}
				}
			}
		}
		each(NewLocal(size, n), func(c Communicator) {
			for k := range inputs {
				m := n - k%5 // lengths change from call to call
				x := inputs[k][c.Rank()][:m]
				c.AllReduce(x)
				if !slices.Equal(x, want[k][:m]) {
					t.Errorf("size %d, round %d, rank %d: sums differ", size, k, c.Rank())
					return
				}
			}
		})
	}
}

func TestAllGatherPutsRanksSideBySide(t *testing.T) {
	const rows, cols, size = 3, 2, 3
	each(NewLocal(size, 1), func(c Communicator) {
		x := make([]float32, rows*cols)
		for i := range x {
			x[i] = float32(100*c.Rank() + i)
		}
		dst := make([]float32, rows*cols*size)
		c.AllGather(dst, x, rows, cols)
		want := []float32{
			0, 1, 100, 101, 200, 201,
			2, 3, 102, 103, 202, 203,
			4, 5, 104, 105, 204, 205,
		}
		if !slices.Equal(dst, want) {
			t.Errorf("rank %d: got %v, want %v", c.Rank(), dst, want)
		}
	})
}

func TestAbortReleasesWaitingRanks(t *testing.T) {
	ranks := NewLocal(3, 8)
	done := make(chan struct{})
	go func() {
		each(ranks[:2], func(c Communicator) { c.AllReduce(make([]float32, 8)) })
		close(done)
	}()
	cause := errors.New("rank 2 lost its device")
	ranks[2].Abort(cause)
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("ranks still wait after an abort")
	}
	err := ranks[0].Err()
	if !errors.Is(err, cause) || fault.ReasonOf(err) != fault.CollectiveFailed {
		t.Errorf("Err() = %v with reason %s", err, fault.ReasonOf(err))
	}
	ranks[1].AllReduce(make([]float32, 8)) // returns at once
}
