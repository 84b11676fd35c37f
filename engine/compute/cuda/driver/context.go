package driver

import (
	"bytes"
	"runtime"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Info is what a device is.
type Info struct {
	Name         string
	PCI          string // address, as "0000:1B:00.0"
	Major, Minor int    // compute capability
	Processors   int    // multiprocessors
	L2           int    // bytes
	Shared       int    // bytes of shared memory that a block can ask for
	Memory       int64
}

// Attributes of a device, as in cuda.h.
const (
	attributeProcessors = 16
	attributeL2         = 38
	attributeMajor      = 75
	attributeMinor      = 76
	attributeShared     = 97
)

// Context is the primary context of one device: what the runtime and other
// libraries of the process use too.
type Context struct {
	Info    Info
	device  int32
	handle  uintptr
	ordinal int
}

// Describe is what the device with that number is. It makes no context, which would
// take memory.
func Describe(ordinal int) (Info, error) {
	c, err := describe(ordinal)
	if err != nil {
		return Info{}, err
	}
	return c.Info, nil
}

// OpenDevice makes a context of the device with that number.
func OpenDevice(ordinal int) (*Context, error) {
	c, err := describe(ordinal)
	if err != nil {
		return nil, err
	}
	if err := check("cuDevicePrimaryCtxRetain", dl.Call(fn.cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c.handle)), uintptr(c.device))); err != nil {
		return nil, err
	}
	return c, nil
}

// describe is a Context that has none yet.
func describe(ordinal int) (*Context, error) {
	c := &Context{ordinal: ordinal}
	if err := check("cuDeviceGet", dl.Call(fn.cuDeviceGet, uintptr(unsafe.Pointer(&c.device)), uintptr(ordinal))); err != nil {
		return nil, err
	}
	for call, text := range map[string]struct {
		fn uintptr
		to *string
	}{"cuDeviceGetName": {fn.cuDeviceGetName, &c.Info.Name}, "cuDeviceGetPCIBusId": {fn.cuDeviceGetPCIBusId, &c.Info.PCI}} {
		b := make([]byte, 256)
		if err := check(call, dl.Call(text.fn, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(c.device))); err != nil {
			return nil, err
		}
		b, _, _ = bytes.Cut(b, []byte{0})
		*text.to = string(b)
	}
	for id, to := range map[int]*int{
		attributeProcessors: &c.Info.Processors, attributeL2: &c.Info.L2, attributeMajor: &c.Info.Major,
		attributeMinor: &c.Info.Minor, attributeShared: &c.Info.Shared,
	} {
		var v int32
		if err := check("cuDeviceGetAttribute", dl.Call(fn.cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(id), uintptr(c.device))); err != nil {
			return nil, err
		}
		*to = int(v)
	}
	var total uint64
	if err := check("cuDeviceTotalMem", dl.Call(fn.cuDeviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(c.device))); err != nil {
		return nil, err
	}
	c.Info.Memory = int64(total)
	return c, nil
}

// Enter makes the context current on the calling goroutine's thread and keeps
// the goroutine there until Leave. Calls may be nested.
func (c *Context) Enter() error {
	runtime.LockOSThread()
	return check("cuCtxSetCurrent", dl.Call(fn.cuCtxSetCurrent, c.handle))
}

// Leave ends what Enter began.
func (c *Context) Leave() { runtime.UnlockOSThread() }

// Free is the device's free memory and all of it, in bytes.
func (c *Context) Free() (free, total int64, err error) {
	var f, t uint64
	err = check("cuMemGetInfo", dl.Call(fn.cuMemGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t))))
	return int64(f), int64(t), err
}

// Profiled marks what f does for a profiler that waits to be told.
func (c *Context) Profiled(f func() error) error {
	if err := check("cuProfilerStart", dl.Call(fn.cuProfilerStart)); err != nil {
		return err
	}
	err := f()
	if stop := check("cuProfilerStop", dl.Call(fn.cuProfilerStop)); err == nil {
		err = stop
	}
	return err
}

// Close gives the context back.
func (c *Context) Close() error {
	return check("cuDevicePrimaryCtxRelease", dl.Call(fn.cuDevicePrimaryCtxRelease, uintptr(c.device)))
}
