package scheduler

import (
	"sync"
	"testing"
	"time"
)

// A client that fills the longest queue and goes away holds the step loop up
// for no longer than it takes to tell everyone.
func TestLongQueueGivenUpAtOnce(t *testing.T) {
	const requests = 200_000
	w := newWorld(t, Config{MaxRunning: 1, MaxQueued: requests, ChunkSize: 4, ContextLength: 8, Vocab: 26}, 8, 1)
	streams := make([]*Stream, requests)
	begin := time.Now()
	for i := range streams {
		streams[i] = w.submit(longest(uint64(i), 1, 8))
	}
	submitting := time.Since(begin) // what this machine needs for as many requests, busy as it is
	w.step()
	kept := streams[requests/2]
	for _, s := range streams {
		if s != kept {
			s.Close()
		}
	}
	begin = time.Now()
	w.step()
	if took := time.Since(begin); took > submitting { // a tenth of it is usual; one by one it is seven times as long
		t.Errorf("a pass took %s, and submitting them %s", took, submitting)
	}
	if w.over != requests-1 || w.s.Pending() > 1 {
		t.Errorf("%d requests were dropped and %d wait", w.over, w.s.Pending())
	}
	for w.step() {
	}
	if got := read(t, kept); got.Finish != FinishLength {
		t.Errorf("the request that nobody gave up ended with %+v", got)
	}
	w.done()
}

// Whenever a request is given up, be it while it is taken in, it ends.
func TestGivenUpAtAnyTime(t *testing.T) {
	w := newWorld(t, Config{MaxRunning: 2, ChunkSize: 4, ContextLength: 50, Vocab: 26}, 100, 1)
	for range 200 {
		var clients sync.WaitGroup
		for i := range 4 {
			clients.Go(func() {
				s, err := w.s.Submit(longest(uint64(i), 1, 50))
				if err != nil {
					t.Error(err)
					return
				}
				s.Close()
			})
		}
		for range 3 {
			w.step()
		}
		clients.Wait()
		w.step() // the one after the last cancellation
		if n := w.s.Pending() + len(w.s.Running()); n > 0 {
			t.Fatalf("%d requests live on that were given up", n)
		}
	}
	w.done()
}
