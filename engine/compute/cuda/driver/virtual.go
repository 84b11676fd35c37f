package driver

import (
	"errors"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Range is a range of a device's addresses, parts of which have memory.
type Range struct {
	at    Ptr
	size  int    // bytes
	parts []part // that have memory
}

type part struct{ at, n uintptr }

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind, handles    int32
	locationKind, id int32
	_                uintptr
	flags            uint64
}

// accessDesc is CUmemAccessDesc.
type accessDesc struct{ locationKind, id, flags int32 }

const (
	pinned        = 1   // CU_MEM_ALLOCATION_TYPE_PINNED
	onDevice      = 1   // CU_MEM_LOCATION_TYPE_DEVICE
	readAndWrite  = 3   // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	minimum       = 0   // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	virtualMemory = 102 // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
)

func (c *Context) memoryProp() *allocationProp {
	return &allocationProp{kind: pinned, locationKind: onDevice, id: c.device}
}

// Granularity is what parts of a Range are multiples of, in bytes; 0 if the device
// cannot have one.
func (c *Context) Granularity() (int, error) {
	var can int32
	if err := check("cuDeviceGetAttribute", dl.Call(fn.cuDeviceGetAttribute, uintptr(unsafe.Pointer(&can)), virtualMemory, uintptr(c.device))); err != nil || can == 0 {
		return 0, err
	}
	var n uint64
	err := check("cuMemGetAllocationGranularity", dl.Call(fn.cuMemGetAllocationGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(c.memoryProp())), minimum))
	return int(n), err
}

// Reserve takes addresses for n bytes, a multiple of the granularity, without memory.
func (c *Context) Reserve(n int) (*Range, error) {
	r := &Range{size: n}
	err := check("cuMemAddressReserve", dl.Call(fn.cuMemAddressReserve, uintptr(unsafe.Pointer(&r.at)), uintptr(n), 0, 0, 0))
	return r, err
}

// At is where the range begins.
func (r *Range) At() Ptr { return r.at }

// Back gives bytes [from, to) memory; both are multiples of the granularity.
func (c *Context) Back(r *Range, from, to int) error {
	if from >= to {
		return nil
	}
	var handle uint64
	n := uintptr(to - from)
	if err := check("cuMemCreate", dl.Call(fn.cuMemCreate, uintptr(unsafe.Pointer(&handle)), n, uintptr(unsafe.Pointer(c.memoryProp())), 0)); err != nil {
		return err
	}
	at := uintptr(r.at) + uintptr(from)
	if err := check("cuMemMap", dl.Call(fn.cuMemMap, at, n, 0, uintptr(handle), 0)); err != nil {
		return errors.Join(err, check("cuMemRelease", dl.Call(fn.cuMemRelease, uintptr(handle))))
	}
	// The mapping keeps the memory: without the handle it goes when that does.
	r.parts = append(r.parts, part{at, n})
	if err := check("cuMemRelease", dl.Call(fn.cuMemRelease, uintptr(handle))); err != nil {
		return err
	}
	access := &accessDesc{onDevice, c.device, readAndWrite}
	return check("cuMemSetAccess", dl.Call(fn.cuMemSetAccess, at, n, uintptr(unsafe.Pointer(access)), 1))
}

// Close frees the range and its memory.
func (r *Range) Close() error {
	var errs []error
	for _, p := range r.parts {
		errs = append(errs, check("cuMemUnmap", dl.Call(fn.cuMemUnmap, p.at, p.n)))
	}
	r.parts = nil
	return errors.Join(append(errs, check("cuMemAddressFree", dl.Call(fn.cuMemAddressFree, uintptr(r.at), uintptr(r.size))))...)
}
