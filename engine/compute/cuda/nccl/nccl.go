// Package nccl sums and gathers over GPUs with NVIDIA's collective library. A
// group is made for the GPUs of one process at once; then each of its
// communicators is for one goroutine, apart from AsyncError and Abort.
package nccl

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/internal/dl"
)

var fn struct {
	version, errorString, lastError                   uintptr
	commInitAll, commDestroy, commAbort, commAsyncErr uintptr
	allReduce, allGather, broadcast                   uintptr
}

const install = "NCCL 2.18 or newer (package libnccl2, or the pip package nvidia-nccl-cu12 or -cu13)"

// leastVersion is the oldest that is taken, as ncclGetVersion has it: 2.18.0.
const leastVersion = 21800

var open = sync.OnceValue(func() error {
	lib, err := dl.Open(install, "libnccl.so.2")
	if err != nil {
		return err
	}
	if err := lib.Symbols(map[string]*uintptr{
		"ncclGetVersion": &fn.version, "ncclGetErrorString": &fn.errorString, "ncclGetLastError": &fn.lastError,
		"ncclCommInitAll": &fn.commInitAll, "ncclCommDestroy": &fn.commDestroy, "ncclCommAbort": &fn.commAbort,
		"ncclCommGetAsyncError": &fn.commAsyncErr, "ncclAllReduce": &fn.allReduce, "ncclAllGather": &fn.allGather,
		"ncclBroadcast": &fn.broadcast,
	}); err != nil {
		return fmt.Errorf("%w: install %s", err, install)
	}
	v, err := number()
	if err == nil && v < leastVersion {
		err = fmt.Errorf("%s is NCCL %s: install %s", lib.Name, text(v), install)
	}
	return err
})

// Open loads the library, once in a process.
func Open() error { return open() }

func number() (int, error) {
	var v int32
	err := check("ncclGetVersion", 0, dl.Call(fn.version, uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

// text is a version number in words: 22705 is 2.27.5.
func text(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// Version is the library's: "2.27.5".
func Version() (string, error) {
	v, err := number()
	return text(v), err
}

// Results that are told apart, of ncclResult_t.
const (
	success    = 0
	inProgress = 7
)

// Error is a call of NCCL that failed.
type Error struct {
	Call string
	Code int32  // ncclResult_t
	Text string // NCCL's words for it
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// check makes an error of a result. c may be 0.
func check(call string, c Comm, result int32) error {
	if result == success {
		return nil
	}
	said := dl.GoString(dl.Pointer(fn.errorString, uintptr(result)))
	if last := strings.TrimSpace(dl.GoString(dl.Pointer(fn.lastError, uintptr(c)))); last != "" {
		said += ": " + strings.ReplaceAll(last, "\n", "; ")
	}
	return &Error{Call: call, Code: result, Text: said}
}

// Comm is one GPU's end of a group.
type Comm uintptr

// InitAll makes the communicators of a group of the devices, in their order.
// It may change the calling thread's current context. Each communicator's work
// must be on one stream, and none may be queued outside of a graph while one that
// has work of it is under way.
func InitAll(devices []int) ([]Comm, error) {
	if err := Open(); err != nil {
		return nil, err
	}
	version, err := number()
	if err == nil {
		err = prepare(version)
	}
	if err != nil {
		return nil, err
	}
	comms, list := make([]Comm, len(devices)), make([]int32, len(devices))
	for i, d := range devices {
		list[i] = int32(d)
	}
	err = check("ncclCommInitAll", 0, dl.Call(fn.commInitAll, uintptr(unsafe.Pointer(&comms[0])), uintptr(len(list)), uintptr(unsafe.Pointer(&list[0]))))
	return comms, err
}

// Type is the type of elements, as NCCL numbers them.
type Type int32

// The types that are summed.
const (
	F32  Type = 7
	BF16 Type = 9
)

const sum = 0 // ncclSum

// AllReduce queues on s: recv becomes the sum of all ranks' send, n elements.
func (c Comm) AllReduce(recv, send driver.Ptr, n int, t Type, s driver.Stream) error {
	return check("ncclAllReduce", c, dl.Call(fn.allReduce, uintptr(send), uintptr(recv), uintptr(n), uintptr(t), sum, uintptr(c), uintptr(s)))
}

// AllGather queues on s: recv becomes the ranks' send, n elements each, one
// after the other.
func (c Comm) AllGather(recv, send driver.Ptr, n int, t Type, s driver.Stream) error {
	return check("ncclAllGather", c, dl.Call(fn.allGather, uintptr(send), uintptr(recv), uintptr(n), uintptr(t), uintptr(c), uintptr(s)))
}

// Broadcast queues on s: recv becomes rank root's send, n elements.
func (c Comm) Broadcast(recv, send driver.Ptr, n int, t Type, root int, s driver.Stream) error {
	return check("ncclBroadcast", c, dl.Call(fn.broadcast, uintptr(send), uintptr(recv), uintptr(n), uintptr(t), uintptr(root), uintptr(c), uintptr(s)))
}

// AsyncError is a fault that NCCL met since it took a call, or nil.
func (c Comm) AsyncError() error {
	var result int32
	if err := check("ncclCommGetAsyncError", c, dl.Call(fn.commAsyncErr, uintptr(c), uintptr(unsafe.Pointer(&result)))); err != nil {
		return err
	}
	if result == inProgress {
		return nil
	}
	return check("a collective of NCCL", c, result)
}

// Abort has the work of the communicator end without result, and frees it. No
// other call on it may be under way.
func (c Comm) Abort() error { return check("ncclCommAbort", 0, dl.Call(fn.commAbort, uintptr(c))) }

// Close frees the communicator; its work must have ended.
func (c Comm) Close() error { return check("ncclCommDestroy", 0, dl.Call(fn.commDestroy, uintptr(c))) }
