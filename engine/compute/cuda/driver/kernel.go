package driver

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Module is compiled code that was loaded onto a device.
type Module uintptr

// Function is a kernel of a module.
type Function uintptr

// LoadModule loads a cubin.
func LoadModule(image []byte) (Module, error) {
	var m Module
	err := check("cuModuleLoadData", dl.Call(fn.cuModuleLoadData, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0]))))
	return m, err
}

// Function finds a kernel by its name.
func (m Module) Function(name string) (Function, error) {
	var f Function
	c := dl.CString(name)
	err := check("cuModuleGetFunction of "+name, dl.Call(fn.cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&c[0]))))
	return f, err
}

// Close unloads the module.
func (m Module) Close() error { return check("cuModuleUnload", dl.Call(fn.cuModuleUnload, uintptr(m))) }

// AllowShared lets f's blocks have n bytes of dynamic shared memory.
func (f Function) AllowShared(n int) error {
	const maxDynamicShared = 8
	return check("cuFuncSetAttribute", dl.Call(fn.cuFuncSetAttribute, uintptr(f), maxDynamicShared, uintptr(n)))
}

// Dim is the size of a grid or of a block.
type Dim struct{ X, Y, Z uint32 }

// launchConfig is CUlaunchConfig.
type launchConfig struct {
	grid, block Dim
	shared      uint32
	stream      Stream
	attributes  *launchAttribute
	count       uint32
}

// launchAttribute is CUlaunchAttribute.
type launchAttribute struct {
	id    int32
	_     int32
	value [64]byte
}

// maxParameters is the most bytes of a kernel's parameter.
const maxParameters = 512

// Launcher launches kernels on one stream. It is for one goroutine, and lies on
// the heap, since the driver is given its addresses.
type Launcher struct {
	config    launchConfig
	overlap   launchAttribute
	parameter [maxParameters]byte
	pointers  [1]unsafe.Pointer
}

// NewLauncher makes a launcher for s. With overlap a kernel may begin, up to
// the point where it waits for earlier work, before the one before it has ended
// (programmatic dependent launch: compute capability 9.0 and up).
func NewLauncher(s Stream, overlap bool) *Launcher {
	l := &Launcher{}
	l.config.stream = s
	l.pointers[0] = unsafe.Pointer(&l.parameter)
	if overlap {
		const programmaticStreamSerialization = 6
		l.overlap.id = programmaticStreamSerialization
		l.overlap.value[0] = 1
		l.config.attributes, l.config.count = &l.overlap, 1
	}
	return l
}

// Launch queues f with one parameter, a struct of size bytes laid out as C does.
func (l *Launcher) Launch(f Function, grid, block Dim, shared int, parameter unsafe.Pointer, size uintptr) error {
	copy(l.parameter[:], unsafe.Slice((*byte)(parameter), size))
	l.config.grid, l.config.block, l.config.shared = grid, block, uint32(shared)
	return check("cuLaunchKernelEx", dl.Call(fn.cuLaunchKernelEx, uintptr(unsafe.Pointer(&l.config)), uintptr(f), uintptr(unsafe.Pointer(&l.pointers[0])), 0))
}
