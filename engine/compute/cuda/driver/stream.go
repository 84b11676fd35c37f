package driver

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Stream is a queue of work on a device.
type Stream uintptr

// NewStream makes a stream that does not wait for the default one.
func NewStream() (Stream, error) {
	var s Stream
	const nonBlocking = 1
	err := check("cuStreamCreate", dl.Call(fn.cuStreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking))
	return s, err
}

// Close ends the stream when its work is done.
func (s Stream) Close() error {
	return check("cuStreamDestroy", dl.Call(fn.cuStreamDestroy, uintptr(s)))
}

// Wait waits for all work of the stream. It reports faults of that work.
func (s Stream) Wait() error {
	return check("cuStreamSynchronize", dl.Call(fn.cuStreamSynchronize, uintptr(s)))
}

// Event is a mark in a stream.
type Event uintptr

// NewEvent makes an event that keeps the time.
func NewEvent() (Event, error) {
	var e Event
	err := check("cuEventCreate", dl.Call(fn.cuEventCreate, uintptr(unsafe.Pointer(&e)), 0))
	return e, err
}

// Close frees the event.
func (e Event) Close() error { return check("cuEventDestroy", dl.Call(fn.cuEventDestroy, uintptr(e))) }

// Record marks the present end of the stream.
func (s Stream) Record(e Event) error {
	return check("cuEventRecord", dl.Call(fn.cuEventRecord, uintptr(e), uintptr(s)))
}

// Wait waits until the stream has passed the event.
func (e Event) Wait() error {
	return check("cuEventSynchronize", dl.Call(fn.cuEventSynchronize, uintptr(e)))
}

// Since is the time between two events that have passed, in milliseconds.
func (e Event) Since(from Event) (float32, error) {
	var ms float32
	err := check("cuEventElapsedTime", dl.Call(fn.cuEventElapsedTime, uintptr(unsafe.Pointer(&ms)), uintptr(from), uintptr(e)))
	return ms, err
}

// Graph is work that was recorded, ready to be launched as often as wanted.
type Graph uintptr

// Capture has f queue work on s, and makes a graph of it instead of doing it. No
// call that waits may be among it.
func (s Stream) Capture(f func() error) (Graph, error) {
	const threadLocal = 1 // calls of other threads are no part of it
	if err := check("cuStreamBeginCapture", dl.Call(fn.cuStreamBeginCapture, uintptr(s), threadLocal)); err != nil {
		return 0, err
	}
	failed := f()
	var template uintptr
	err := check("cuStreamEndCapture", dl.Call(fn.cuStreamEndCapture, uintptr(s), uintptr(unsafe.Pointer(&template))))
	if template != 0 {
		defer dl.Call(fn.cuGraphDestroy, template)
	}
	if failed != nil {
		return 0, failed
	}
	if err != nil {
		return 0, err
	}
	var g Graph
	err = check("cuGraphInstantiate", dl.Call(fn.cuGraphInstantiateWithFlags, uintptr(unsafe.Pointer(&g)), template, 0))
	return g, err
}

// Launch queues the graph's work.
func (s Stream) Launch(g Graph) error {
	return check("cuGraphLaunch", dl.Call(fn.cuGraphLaunch, uintptr(g), uintptr(s)))
}

// Close frees the graph.
func (g Graph) Close() error {
	return check("cuGraphExecDestroy", dl.Call(fn.cuGraphExecDestroy, uintptr(g)))
}
