package driver

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Ptr is an address in a device's memory.
type Ptr uint64

// Alloc allocates n bytes of device memory.
func Alloc(n int) (Ptr, error) {
	var p Ptr
	err := check("cuMemAlloc", dl.Call(fn.cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n)))
	return p, err
}

// FreeMemory frees what Alloc gave.
func FreeMemory(p Ptr) error { return check("cuMemFree", dl.Call(fn.cuMemFree, uintptr(p))) }

// AllocHost allocates n bytes of page-locked host memory, which copies can
// read and write while the host goes on. It is not Go's: free it with FreeHost.
func AllocHost(n int) ([]byte, error) {
	var p *byte
	const portable = 1
	if err := check("cuMemHostAlloc", dl.Call(fn.cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), portable)); err != nil {
		return nil, err
	}
	return unsafe.Slice(p, n), nil
}

// FreeHost frees what AllocHost gave.
func FreeHost(b []byte) error {
	return check("cuMemFreeHost", dl.Call(fn.cuMemFreeHost, uintptr(unsafe.Pointer(unsafe.SliceData(b)))))
}

// Upload copies to the device, in the stream's order. The host goes on at once if
// src is page-locked; it must stay as it is until the copy is made.
func (s Stream) Upload(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return check("cuMemcpyHtoDAsync", dl.Call(fn.cuMemcpyHtoDAsync, uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)), uintptr(s)))
}

// Download copies device memory to page-locked memory, in the stream's order.
func (s Stream) Download(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	return check("cuMemcpyDtoHAsync", dl.Call(fn.cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)), uintptr(s)))
}

// Copy copies n bytes within the device, in the stream's order.
func (s Stream) Copy(dst, src Ptr, n int) error {
	return check("cuMemcpyDtoDAsync", dl.Call(fn.cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s)))
}

// Fill sets n bytes to b, in the stream's order.
func (s Stream) Fill(dst Ptr, b byte, n int) error {
	return check("cuMemsetD8Async", dl.Call(fn.cuMemsetD8Async, uintptr(dst), uintptr(b), uintptr(n), uintptr(s)))
}
