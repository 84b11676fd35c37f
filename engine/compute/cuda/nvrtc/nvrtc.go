// Package nvrtc compiles CUDA C++ at run time. It needs no device.
package nvrtc

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

var fn struct {
	version, create, destroy, compile, logSize, log, cubinSize, cubin, architectureCount, architectures uintptr
}

const install = "CUDA's run-time compiler (package cuda-nvrtc-12 or -13, or the pip package nvidia-cuda-nvrtc)"

var open = sync.OnceValue(func() error {
	lib, err := dl.Open(install, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
	if err != nil {
		return err
	}
	openBuiltins(lib.Name)
	if err := lib.Symbols(map[string]*uintptr{
		"nvrtcVersion": &fn.version, "nvrtcCreateProgram": &fn.create, "nvrtcDestroyProgram": &fn.destroy,
		"nvrtcCompileProgram": &fn.compile, "nvrtcGetProgramLogSize": &fn.logSize, "nvrtcGetProgramLog": &fn.log,
		"nvrtcGetCUBINSize": &fn.cubinSize, "nvrtcGetCUBIN": &fn.cubin,
		"nvrtcGetNumSupportedArchs": &fn.architectureCount, "nvrtcGetSupportedArchs": &fn.architectures,
	}); err != nil {
		return fmt.Errorf("%w: install %s", err, install)
	}
	return nil
})

// openBuiltins opens the table of built-in functions beside a compiler that was
// found by its folder: the compiler asks for it by name alone, and the loader
// does not look into that folder. That there is none is the compiler's to say.
func openBuiltins(compiler string) {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(compiler), "libnvrtc-builtins.so.*"))
	if err != nil || !filepath.IsAbs(compiler) {
		return
	}
	for _, path := range found {
		if _, err := dl.Open("", path); err == nil {
			return
		}
	}
}

// Open loads the compiler, once in a process.
func Open() error { return open() }

// Version is the compiler's: "13.0".
func Version() (string, error) {
	major, minor, err := version()
	return fmt.Sprintf("%d.%d", major, minor), err
}

// Major is the version of CUDA that the compiler is of: the driver must serve it.
func Major() (int, error) {
	major, _, err := version()
	return major, err
}

func version() (major, minor int, err error) {
	var v [2]int32
	err = check("nvrtcVersion", dl.Call(fn.version, uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1]))))
	return int(v[0]), int(v[1]), err
}

// Knows tells whether the compiler makes code for a compute capability.
func Knows(major, minor int) (bool, error) {
	var n int32
	if err := check("nvrtcGetNumSupportedArchs", dl.Call(fn.architectureCount, uintptr(unsafe.Pointer(&n)))); err != nil {
		return false, err
	}
	if n < 1 || n > 1<<10 {
		return false, fmt.Errorf("NVRTC says that it knows %d architectures", n)
	}
	all := make([]int32, n)
	err := check("nvrtcGetSupportedArchs", dl.Call(fn.architectures, uintptr(unsafe.Pointer(&all[0]))))
	return slices.Contains(all, int32(10*major+minor)), err
}

// compiled counts the sources of which code was made.
var compiled atomic.Int64

// Compiled is of how many sources this process has made code.
func Compiled() int64 { return compiled.Load() }

func check(call string, status int32) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("%s failed with nvrtcResult %d", call, status)
}

// CompileError is source that the compiler refused.
type CompileError struct {
	Name string // of the source
	Log  string // the compiler's words
}

func (e *CompileError) Error() string {
	first, _, _ := strings.Cut(strings.TrimSpace(e.Log), "\n")
	return fmt.Sprintf("kernel source %s does not compile: %s", e.Name, first)
}

// ArchitectureError is an architecture that the compiler makes no code for.
type ArchitectureError struct {
	Architecture, Version string // "sm_90"; the compiler's
	Log                   string // the compiler's words
}

func (e *ArchitectureError) Error() string {
	first, _, _ := strings.Cut(strings.TrimSpace(e.Log), "\n")
	return fmt.Sprintf("NVRTC %s makes no code for %s: take one that does, which may need a newer driver: %s", e.Version, e.Architecture, first)
}

// invalidOption is NVRTC_ERROR_INVALID_OPTION. Of the options only the architecture
// may be one that the compiler does not know.
const invalidOption = 5

// Compile makes machine code for one architecture ("sm_90") of source. name is
// for messages; the log has the compiler's remarks on source that it accepted.
func Compile(name, source, architecture string) (cubin []byte, log string, err error) {
	var program uintptr
	src, title := dl.CString(source), dl.CString(name)
	if err := check("nvrtcCreateProgram", dl.Call(fn.create, uintptr(unsafe.Pointer(&program)), uintptr(unsafe.Pointer(&src[0])), uintptr(unsafe.Pointer(&title[0])), 0, 0, 0)); err != nil {
		return nil, "", err
	}
	defer func() { dl.Call(fn.destroy, uintptr(unsafe.Pointer(&program))) }()
	var options [][]byte
	var pointers []*byte
	for _, o := range []string{"--gpu-architecture=" + architecture, "--std=c++17"} {
		options = append(options, dl.CString(o))
		pointers = append(pointers, &options[len(options)-1][0])
	}
	status := dl.Call(fn.compile, program, uintptr(len(pointers)), uintptr(unsafe.Pointer(&pointers[0])))
	log, logErr := text(program)
	if status == invalidOption {
		v, err := Version()
		if err != nil {
			return nil, log, err
		}
		return nil, log, &ArchitectureError{Architecture: architecture, Version: v, Log: log}
	}
	if status != 0 {
		return nil, log, &CompileError{Name: name, Log: log}
	}
	if logErr != nil {
		return nil, "", logErr
	}
	var size uint64
	if err := check("nvrtcGetCUBINSize", dl.Call(fn.cubinSize, program, uintptr(unsafe.Pointer(&size)))); err != nil {
		return nil, log, err
	}
	if size == 0 {
		return nil, log, fmt.Errorf("kernel source %s: the compiler made no machine code for %s", name, architecture)
	}
	cubin = make([]byte, size)
	err = check("nvrtcGetCUBIN", dl.Call(fn.cubin, program, uintptr(unsafe.Pointer(&cubin[0]))))
	compiled.Add(1)
	return cubin, log, err
}

// text is the compiler's log of a program.
func text(program uintptr) (string, error) {
	var size uint64
	if err := check("nvrtcGetProgramLogSize", dl.Call(fn.logSize, program, uintptr(unsafe.Pointer(&size)))); err != nil || size < 2 {
		return "", err
	}
	b := make([]byte, size)
	err := check("nvrtcGetProgramLog", dl.Call(fn.log, program, uintptr(unsafe.Pointer(&b[0]))))
	return strings.TrimRight(string(b), "\x00"), err
}
