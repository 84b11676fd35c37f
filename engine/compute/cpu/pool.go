package cpu

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// A task is work that splits into parts which may run at once. The parts
// write disjoint results, so their number does not change the outcome.
type task interface{ run(part, parts int) }

// pool runs tasks on a rank's threads: the caller's goroutine and persistent
// workers, since starting goroutines costs as much as a small layer. Whoever is
// free takes the next part, so that a worker which the system has put aside
// holds nobody up but with a part that it had begun.
type pool struct {
	workers []*worker
	pause   func()
	parts   int
	task    task
	state   atomic.Uint64 // number of the task << partBits | parts taken
	pending atomic.Int64  // parts that are not finished
	failed  atomic.Pointer[any]
	closed  atomic.Bool
}

type worker struct {
	parked atomic.Bool
	wake   chan struct{} // one token when parked is taken back by the poster
}

const (
	partBits = 16
	// partsPerThread leaves something to take over from a thread that lags.
	partsPerThread = 2
	// spinLimit is how long a worker looks for work before it sleeps, in rounds of
	// pause: some tens of microseconds, longer than the gaps within a pass.
	spinLimit = 1000
)

func newPool(threads int, pause func()) *pool {
	p := &pool{pause: pause, parts: threads * partsPerThread}
	p.state.Store(uint64(p.parts)) // nothing to take
	for i := 1; i < threads; i++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		go p.loop(w)
	}
	return p
}

func (p *pool) threads() int { return len(p.workers) + 1 }

// do runs every part of t and returns when all are done. A panic in a part is
// the caller's.
func (p *pool) do(t task) {
	if len(p.workers) == 0 {
		t.run(0, 1)
		return
	}
	p.task = t
	p.pending.Store(int64(p.parts))
	p.state.Store((p.state.Load()>>partBits + 1) << partBits)
	p.wakeAll()
	for p.work() {
	}
	for i := 0; p.pending.Load() != 0; i++ {
		p.spin(i)
	}
	p.task = nil
	if v := p.failed.Swap(nil); v != nil {
		panic(*v)
	}
}

// work runs one part of the task at hand; false if all are taken.
func (p *pool) work() bool {
	for {
		s := p.state.Load()
		part := int(s & (1<<partBits - 1))
		if part >= p.parts {
			return false
		}
		if p.state.CompareAndSwap(s, s+1) { // now the task stays until this part is done
			p.run(part)
			return true
		}
	}
}

func (p *pool) run(part int) {
	defer func() {
		if v := recover(); v != nil {
			os.Stderr.Write(debug.Stack()) // of where it happened
			failed := any(fmt.Sprintf("part %d of a kernel: %v", part, v))
			p.failed.CompareAndSwap(nil, &failed)
		}
		p.pending.Add(-1)
	}()
	p.task.run(part, p.parts)
}

func (p *pool) wakeAll() {
	for _, w := range p.workers {
		if w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

// spin waits a moment; every so often it lets other goroutines run, which
// there must be room for when processors are few.
func (p *pool) spin(i int) {
	p.pause()
	if i%32 == 31 {
		runtime.Gosched()
	}
}

func (p *pool) loop(w *worker) {
	for i := 0; !p.closed.Load(); i++ {
		if p.work() {
			i = 0
			continue
		}
		if i < spinLimit {
			p.spin(i)
			continue
		}
		i = 0
		w.parked.Store(true)
		// Work posted before parked was set woke nobody: look once more.
		if p.idle() || !w.parked.CompareAndSwap(true, false) {
			<-w.wake
		}
	}
}

// idle tells whether there is nothing for a worker.
func (p *pool) idle() bool {
	return int(p.state.Load()&(1<<partBits-1)) >= p.parts && !p.closed.Load()
}

// close ends the workers; the pool must be idle.
func (p *pool) close() {
	p.closed.Store(true)
	p.wakeAll()
}

// split is part's share [from, to) of n units.
func split(n, part, parts int) (from, to int) {
	return n * part / parts, n * (part + 1) / parts
}
