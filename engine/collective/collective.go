// Package collective joins the ranks of a tensor-parallel group: sums and
// concatenations of their activations.
package collective

import (
	"errors"
	"runtime"
	"sync"
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
	size    int           // ranks in all processes
	first   int           // this process's first rank
	local   int           // and how many it has
	bufs    [][]float32   // by rank: what it brought to the call in progress
	sums    [2][]float32  // results, by turns: one is read while the next is written
	arrived atomic.Int64  // arrivals at barriers since the start
	aborted atomic.Uint32 // 1 after an abort
	err     atomic.Pointer[error]

	nodes *Nodes      // the other processes; nil: there are none
	in    [][]float32 // by rank of theirs: room for what it brought
	// Ranks that wait for the network sleep: goroutines that are always ready keep
	// the runtime from looking at it.
	mu    sync.Mutex
	awake sync.Cond // over mu
	met   int64     // calls whose parts of other processes are here
}

// rank is the Communicator of one goroutine.
type rank struct {
	*group
	id      int
	barrier int64 // barriers passed
	calls   int64 // of several processes
	turn    int
}

// NewLocal makes the communicators of size ranks of this process, whose
// largest AllReduce has at most max elements.
func NewLocal(size, max int) []Communicator {
	_, ranks := newGroup(size, 0, size, max)
	return ranks
}

// newGroup makes local of the size ranks, from first on.
func newGroup(size, first, local, max int) (*group, []Communicator) {
	g := &group{size: size, first: first, local: local, bufs: make([][]float32, size)}
	g.awake.L = &g.mu
	for i := range g.sums {
		g.sums[i] = make([]float32, max)
	}
	ranks := make([]Communicator, local)
	for i := range ranks {
		ranks[i] = &rank{group: g, id: first + i}
	}
	return g, ranks
}

func (r *rank) Rank() int { return r.id }
func (r *rank) Size() int { return r.size }

func (g *group) Abort(err error) {
	if err = withReason(err); g.nodes != nil {
		g.nodes.fail(err, true)
		return
	}
	g.release(err)
}

// withReason is err, or what stands in for none, with a reason.
func withReason(err error) error {
	if err == nil {
		err = errAborted
	}
	if !errors.As(err, new(*fault.Error)) {
		err = &fault.Error{Reason: fault.CollectiveFailed, Err: err}
	}
	return err
}

// release ends the waiting of this process's ranks.
func (g *group) release(err error) {
	g.err.CompareAndSwap(nil, &err)
	g.aborted.Store(1)
	g.mu.Lock() // not between a waiter's look and its sleep
	defer g.mu.Unlock()
	g.awake.Broadcast()
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

// wait passes when every rank of the process has arrived; false after an abort.
func (r *rank) wait() bool {
	r.barrier++
	r.arrived.Add(1)
	want := r.barrier * int64(r.local)
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

// gather passes when every rank's x is in bufs, also those of other processes;
// false after an abort.
func (r *rank) gather(kind exchangeKind, x []float32) bool {
	r.bufs[r.id] = x
	if !r.wait() {
		return false
	}
	if r.nodes == nil {
		return true
	}
	r.calls++
	if r.id == r.first {
		r.meet(kind, len(x))
		r.mu.Lock()
		r.met = r.calls
		r.mu.Unlock()
		r.awake.Broadcast()
	} else {
		r.mu.Lock()
		for r.met < r.calls && r.aborted.Load() == 0 {
			r.awake.Wait()
		}
		r.mu.Unlock()
	}
	return r.aborted.Load() == 0
}

func (r *rank) AllReduce(x []float32) {
	if r.size == 1 {
		return
	}
	if !r.gather(exchangeSum, x) {
		return
	}
	// Each rank sums its part for its process; the other result buffer may still be read.
	sum := r.sums[r.turn][:len(x)]
	r.turn = 1 - r.turn
	at := r.id - r.first
	from, to := len(x)*at/r.local, len(x)*(at+1)/r.local
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
	if !r.gather(exchangeGather, x[:rows*cols]) {
		return
	}
	for i := range rows {
		for k, b := range r.bufs {
			copy(dst[(i*r.size+k)*cols:], b[i*cols:(i+1)*cols])
		}
	}
	r.wait() // x may change only when all have read it
}
