package driver

import (
	"errors"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Reaches tells whether c's device can read and write the memory of other's.
func (c *Context) Reaches(other *Context) (bool, error) {
	var can int32
	err := check("cuDeviceCanAccessPeer", dl.Call(fn.cuDeviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(c.device), uintptr(other.device)))
	return can != 0, err
}

// Reach lets the current context, c, use addresses of other's memory.
func (c *Context) Reach(other *Context) error {
	err := check("cuCtxEnablePeerAccess", dl.Call(fn.cuCtxEnablePeerAccess, other.handle, 0))
	var call *Error
	if errors.As(err, &call) && call.Code == peerEnabled {
		return nil // another library of the process was first
	}
	return err
}

// done turns the status of a query into an answer.
func done(call string, status int32) (bool, error) {
	if Code(status) == notReady {
		return false, nil
	}
	err := check(call, status)
	return err == nil, err
}

// Done tells whether all work of the stream has ended. It reports faults of that work.
func (s Stream) Done() (bool, error) {
	return done("cuStreamQuery", dl.Call(fn.cuStreamQuery, uintptr(s)))
}

// Done tells whether the stream has passed the event.
func (e Event) Done() (bool, error) {
	return done("cuEventQuery", dl.Call(fn.cuEventQuery, uintptr(e)))
}

// UploadGraph brings the graph to the device, so that its first launch is like every other.
func (s Stream) UploadGraph(g Graph) error {
	return check("cuGraphUpload", dl.Call(fn.cuGraphUpload, uintptr(g), uintptr(s)))
}
