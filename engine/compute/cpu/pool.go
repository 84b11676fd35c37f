package cpu

import (
	"runtime"
	"sync/atomic"
)

// A task is work that splits into parts which may run at once. The parts
// write disjoint results, so their number does not change the outcome.
type task interface{ run(part, parts int) }

// pool runs tasks on a rank's threads: the caller's goroutine and persistent
// workers, since starting goroutines costs as much as a small layer.
type pool struct {
	workers []*worker
	pause   func()
	task    task
	epoch   atomic.Uint64 // tasks posted so far
	pending atomic.Int64  // workers that have not finished the last one
	closed  atomic.Bool
}

type worker struct {
	parked atomic.Bool
	wake   chan struct{} // one token when parked is taken back by the poster
}

// spinLimit is how long a worker looks for work before it sleeps, in rounds of
// pause: some tens of microseconds, longer than the gaps within a pass.
const spinLimit = 1000

func newPool(threads int, pause func()) *pool {
	p := &pool{pause: pause}
	for i := 1; i < threads; i++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		go p.loop(w, i)
	}
	return p
}

func (p *pool) threads() int { return len(p.workers) + 1 }

// do runs every part of t and returns when all are done.
func (p *pool) do(t task) {
	if len(p.workers) == 0 {
		t.run(0, 1)
		return
	}
	p.task = t
	p.pending.Store(int64(len(p.workers)))
	p.post()
	t.run(0, p.threads())
	for i := 0; p.pending.Load() != 0; i++ {
		p.spin(i)
	}
	p.task = nil
}

// post announces a new epoch and wakes the workers that sleep.
func (p *pool) post() {
	p.epoch.Add(1)
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

func (p *pool) loop(w *worker, part int) {
	var seen uint64
	for {
		for i := 0; p.epoch.Load() == seen; i++ {
			if i < spinLimit {
				p.spin(i)
				continue
			}
			w.parked.Store(true)
			// Work posted before parked was set woke nobody: look once more.
			if p.epoch.Load() == seen || !w.parked.CompareAndSwap(true, false) {
				<-w.wake
			}
		}
		seen++
		if p.closed.Load() {
			return
		}
		p.task.run(part, p.threads())
		p.pending.Add(-1)
	}
}

// close ends the workers; the pool must be idle.
func (p *pool) close() {
	p.closed.Store(true)
	p.post()
}

// split is part's share [from, to) of n units.
func split(n, part, parts int) (from, to int) {
	return n * part / parts, n * (part + 1) / parts
}
