// Package collective joins the ranks of a tensor-parallel group: sums and
// concatenations of their activations.
package collective

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Communicator is one rank's end of a group. All ranks make the same calls in
// the same order, with the same lengths. After an abort the calls return at
// once and leave their results undefined; Err says why.
type Communicator interface {
	Rank() int
	Size() int
	// AllReduce replaces x by the sum of all ranks' x, added in rank order, so
	// that every rank has the same bits.
	AllReduce(x []float32)
	// AllGather sets dst, rows × Size()·cols, to the ranks' x, rows × cols, side by side.
	AllGather(dst, x []float32, rows, cols int)
	// Abort releases every rank that waits, now and later. An err without a
	// reason of its own gets CollectiveFailed.
	Abort(err error)
	// Err is the error of the first Abort, or nil.
	Err() error
}

// errAborted stands in when Abort was called without an error.
var errAborted = errors.New("the group was aborted")

// group is what the ranks of one process share.
type group struct {
	size    int
	bufs    [][]float32   // by rank: what it brought to the call in progress
	sums    [2][]float32  // results, by turns: one is read while the next is written
	arrived atomic.Int64  // arrivals at barriers since the start
	aborted atomic.Uint32 // 1 after an abort
	err     atomic.Pointer[error]
}

// rank is the Communicator of one goroutine.
type rank struct {
	*group
	id      int
	barrier int64 // barriers passed
	turn    int
}

// NewLocal makes the communicators of size ranks of this process, whose
// largest AllReduce has at most max elements.
func NewLocal(size, max int) []Communicator {
	g := &group{size: size, bufs: make([][]float32, size)}
	for i := range g.sums {
		g.sums[i] = make([]float32, max)
	}
	ranks := make([]Communicator, size)
	for i := range ranks {
		ranks[i] = &rank{group: g, id: i}
	}
	return ranks
}

func (r *rank) Rank() int { return r.id }
func (r *rank) Size() int { return r.size }

func (g *group) Abort(err error) {
	if err == nil {
		err = errAborted
	}
	if !errors.As(err, new(*fault.Error)) {
		err = &fault.Error{Reason: fault.CollectiveFailed, Err: err}
	}
	g.err.CompareAndSwap(nil, &err)
	g.aborted.Store(1)
}

func (g *group) Err() error {
	if e := g.err.Load(); e != nil {
		return *e
	}
	return nil
}

// spins before a waiting rank lets other goroutines run: ranks arrive within
// microseconds of each other unless there are fewer processors than ranks.
const spins = 200

// wait passes when every rank has arrived; false after an abort.
func (r *rank) wait() bool {
	r.barrier++
	r.arrived.Add(1)
	want := r.barrier * int64(r.size)
	for i := 0; r.arrived.Load() < want; i++ {
		if r.aborted.Load() != 0 {
			return false
		}
		if i >= spins {
			runtime.Gosched()
		}
	}
	return r.aborted.Load() == 0
}

func (r *rank) AllReduce(x []float32) {
	if r.size == 1 {
		return
	}
	r.bufs[r.id] = x
	if !r.wait() {
		return
	}
	// Each rank sums its part for all; the other result buffer may still be read.
	sum := r.sums[r.turn][:len(x)]
	r.turn = 1 - r.turn
	from, to := len(x)*r.id/r.size, len(x)*(r.id+1)/r.size
	part := sum[from:to]
	copy(part, r.bufs[0][from:to])
	for _, b := range r.bufs[1:] {
		for i, v := range b[from:to] {
			part[i] += v
		}
	}
	if !r.wait() {
		return
	}
	copy(x, sum)
}

func (r *rank) AllGather(dst, x []float32, rows, cols int) {
	if r.size == 1 {
		copy(dst, x[:rows*cols])
		return
	}
	r.bufs[r.id] = x
	if !r.wait() {
		return
	}
	for i := range rows {
		for k, b := range r.bufs {
			copy(dst[(i*r.size+k)*cols:], b[i*cols:(i+1)*cols])
		}
	}
	r.wait() // x may change only when all have read it
}
