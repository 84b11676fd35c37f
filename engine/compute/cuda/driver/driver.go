// Package driver is the part of the CUDA driver's API that the device needs,
// called without cgo. A handle belongs to the context that made it; a context
// must be current on the calling thread (see Context.Enter).
package driver

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Code is a CUresult.
type Code int32

// The codes that are told apart.
const (
	success     Code = 0
	OutOfMemory Code = 2
	notReady    Code = 600
	peerEnabled Code = 704
)

// Error is a call of the driver that failed.
type Error struct {
	Call string // the function
	Code Code
	Text string // the driver's name and words for the code
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s failed with CUresult %d", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code)
}

// The driver's functions.
var fn struct {
	cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceGetAttribute, cuDeviceTotalMem,
	cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease, cuCtxSetCurrent, cuMemGetInfo,
	cuGetErrorName, cuGetErrorString,
	cuMemAlloc, cuMemFree, cuMemHostAlloc, cuMemFreeHost, cuMemHostGetDevicePointer,
	cuMemcpyHtoDAsync, cuMemcpyDtoHAsync, cuMemcpyDtoDAsync, cuMemsetD8Async, cuMemsetD32Async,
	cuStreamCreate, cuStreamDestroy, cuStreamSynchronize, cuStreamBeginCapture, cuStreamEndCapture,
	cuEventCreate, cuEventDestroy, cuEventRecord, cuEventSynchronize, cuEventElapsedTime,
	cuModuleLoadData, cuModuleUnload, cuModuleGetFunction, cuFuncSetAttribute, cuLaunchKernelEx,
	cuGraphInstantiateWithFlags, cuGraphDestroy, cuGraphExecDestroy, cuGraphLaunch, cuGraphUpload,
	cuStreamQuery, cuEventQuery, cuDeviceCanAccessPeer, cuCtxEnablePeerAccess, cuProfilerStart, cuProfilerStop,
	cuMemGetAllocationGranularity, cuMemAddressReserve, cuMemAddressFree, cuMemCreate, cuMemRelease, cuMemMap, cuMemUnmap, cuMemSetAccess,
	cuDeviceGetPCIBusId uintptr
}

var open = sync.OnceValue(func() error {
	lib, err := dl.Open("the NVIDIA driver", "libcuda.so.1")
	if err != nil {
		return err
	}
	// The suffixes are of the functions' second and third forms, which the
	// header of the toolkit has as their names.
	if err := lib.Symbols(map[string]*uintptr{
		"cuInit": &fn.cuInit, "cuDriverGetVersion": &fn.cuDriverGetVersion, "cuDeviceGetCount": &fn.cuDeviceGetCount,
		"cuDeviceGet": &fn.cuDeviceGet, "cuDeviceGetName": &fn.cuDeviceGetName, "cuDeviceGetAttribute": &fn.cuDeviceGetAttribute,
		"cuDeviceTotalMem_v2": &fn.cuDeviceTotalMem, "cuDevicePrimaryCtxRetain": &fn.cuDevicePrimaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2": &fn.cuDevicePrimaryCtxRelease, "cuCtxSetCurrent": &fn.cuCtxSetCurrent,
		"cuMemGetInfo_v2": &fn.cuMemGetInfo, "cuGetErrorName": &fn.cuGetErrorName, "cuGetErrorString": &fn.cuGetErrorString,
		"cuMemAlloc_v2": &fn.cuMemAlloc, "cuMemFree_v2": &fn.cuMemFree, "cuMemHostAlloc": &fn.cuMemHostAlloc,
		"cuMemFreeHost": &fn.cuMemFreeHost, "cuMemHostGetDevicePointer_v2": &fn.cuMemHostGetDevicePointer,
		"cuMemcpyHtoDAsync_v2": &fn.cuMemcpyHtoDAsync, "cuMemcpyDtoHAsync_v2": &fn.cuMemcpyDtoHAsync,
		"cuMemcpyDtoDAsync_v2": &fn.cuMemcpyDtoDAsync, "cuMemsetD8Async": &fn.cuMemsetD8Async, "cuMemsetD32Async": &fn.cuMemsetD32Async,
		"cuStreamCreate": &fn.cuStreamCreate, "cuStreamDestroy_v2": &fn.cuStreamDestroy, "cuStreamSynchronize": &fn.cuStreamSynchronize,
		"cuStreamBeginCapture_v2": &fn.cuStreamBeginCapture, "cuStreamEndCapture": &fn.cuStreamEndCapture,
		"cuEventCreate": &fn.cuEventCreate, "cuEventDestroy_v2": &fn.cuEventDestroy, "cuEventRecord": &fn.cuEventRecord,
		"cuEventSynchronize": &fn.cuEventSynchronize, "cuEventElapsedTime": &fn.cuEventElapsedTime,
		"cuModuleLoadData": &fn.cuModuleLoadData, "cuModuleUnload": &fn.cuModuleUnload, "cuModuleGetFunction": &fn.cuModuleGetFunction,
		"cuFuncSetAttribute": &fn.cuFuncSetAttribute, "cuLaunchKernelEx": &fn.cuLaunchKernelEx,
		"cuGraphInstantiateWithFlags": &fn.cuGraphInstantiateWithFlags, "cuGraphDestroy": &fn.cuGraphDestroy,
		"cuGraphExecDestroy": &fn.cuGraphExecDestroy, "cuGraphLaunch": &fn.cuGraphLaunch, "cuGraphUpload": &fn.cuGraphUpload,
		"cuStreamQuery": &fn.cuStreamQuery, "cuEventQuery": &fn.cuEventQuery,
		"cuDeviceCanAccessPeer": &fn.cuDeviceCanAccessPeer, "cuCtxEnablePeerAccess": &fn.cuCtxEnablePeerAccess,
		"cuProfilerStart": &fn.cuProfilerStart, "cuProfilerStop": &fn.cuProfilerStop,
		"cuMemGetAllocationGranularity": &fn.cuMemGetAllocationGranularity, "cuMemAddressReserve": &fn.cuMemAddressReserve, "cuMemAddressFree": &fn.cuMemAddressFree,
		"cuMemCreate": &fn.cuMemCreate, "cuMemRelease": &fn.cuMemRelease, "cuMemMap": &fn.cuMemMap, "cuMemUnmap": &fn.cuMemUnmap, "cuMemSetAccess": &fn.cuMemSetAccess, "cuDeviceGetPCIBusId": &fn.cuDeviceGetPCIBusId,
	}); err != nil {
		return fmt.Errorf("%w: install NVIDIA driver 525 or newer", err)
	}
	return explain(check("cuInit", dl.Call(fn.cuInit, 0)), "/dev", openFile)
})

// Open loads the driver and starts it, once in a process.
func Open() error { return open() }

// check makes an error of a status.
func check(call string, status int32) error {
	code := Code(status)
	if code == success {
		return nil
	}
	text := func(f uintptr) string {
		var p uintptr
		if f == 0 || dl.Call(f, uintptr(status), uintptr(unsafe.Pointer(&p))) != 0 {
			return ""
		}
		return dl.GoString(p)
	}
	e := &Error{Call: call, Code: code, Text: text(fn.cuGetErrorName)}
	if words := text(fn.cuGetErrorString); words != "" {
		e.Text += ": " + words
	}
	return e
}

// Version is the newest CUDA version that the driver serves: 13000 is 13.0.
func Version() (int, error) {
	var v int32
	err := check("cuDriverGetVersion", dl.Call(fn.cuDriverGetVersion, uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

// Count is the number of devices; it is an error if there is none.
func Count() (int, error) {
	var n int32
	err := check("cuDeviceGetCount", dl.Call(fn.cuDeviceGetCount, uintptr(unsafe.Pointer(&n))))
	if err == nil && n == 0 {
		err = explain(&Error{Call: "cuDeviceGetCount", Code: noDevice, Text: "0 devices"}, "/dev", openFile)
	}
	return int(n), err
}
