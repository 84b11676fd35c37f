// Package blas multiplies large matrices with cuBLASLt.
package blas

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/internal/dl"
)

var fn struct {
	create, destroy, matmul, heuristic                   uintptr
	descCreate, descDestroy, descSet                     uintptr
	layoutCreate, layoutDestroy, prefCreate, prefDestroy uintptr
	prefSet, cuda                                        uintptr
}

const install = "cuBLAS (package libcublas-12 or -13, or the pip package nvidia-cublas)"

var open = sync.OnceValue(func() error {
	lib, err := dl.Open(install, "libcublasLt.so.13", "libcublasLt.so.12")
	if err != nil {
		return err
	}
	if err := lib.Symbols(map[string]*uintptr{
		"cublasLtCreate": &fn.create, "cublasLtDestroy": &fn.destroy, "cublasLtMatmul": &fn.matmul,
		"cublasLtMatmulAlgoGetHeuristic": &fn.heuristic,
		"cublasLtMatmulDescCreate":       &fn.descCreate, "cublasLtMatmulDescDestroy": &fn.descDestroy, "cublasLtMatmulDescSetAttribute": &fn.descSet,
		"cublasLtMatrixLayoutCreate": &fn.layoutCreate, "cublasLtMatrixLayoutDestroy": &fn.layoutDestroy,
		"cublasLtMatmulPreferenceCreate": &fn.prefCreate, "cublasLtMatmulPreferenceDestroy": &fn.prefDestroy,
		"cublasLtMatmulPreferenceSetAttribute": &fn.prefSet, "cublasLtGetCudartVersion": &fn.cuda,
	}); err != nil {
		return fmt.Errorf("%w: install %s", err, install)
	}
	return nil
})

// Open loads the library, once in a process.
func Open() error { return open() }

// Major is the version of CUDA that the library is of: the driver must serve it.
func Major() int { return int(dl.Call(fn.cuda)) / 1000 }

// Type is the type of a matrix's elements, as cuBLAS numbers them.
type Type int32

// The types that are multiplied.
const (
	F32  Type = 0
	F16  Type = 2
	BF16 Type = 14
)

// Numbers from cublasLt.h.
const (
	compute32F      = 68
	transposeA      = 3
	operationT      = 1
	prefMaxWorkArea = 1
)

// Workspace is the bytes of device memory that products may use.
const Workspace = 32 << 20

// Product is the shape of y = x · wᵀ: x is [Rows, In], w [Out, In], y [Rows,
// Out], all with rows one after the other. Strides count elements.
type Product struct {
	Rows, Out, In    int
	XStride, YStride int
	Input, Output    Type // of x and w; of y
}

// Error is a call of cuBLASLt that failed.
type Error struct {
	Call   string
	Status int32 // cublasStatus_t
	P      Product
}

// allocFailed is CUBLAS_STATUS_ALLOC_FAILED.
const allocFailed = 3

// statuses are names of cublasStatus_t, of which the library's own words need cuBLAS.
var statuses = map[int32]string{
	1: "CUBLAS_STATUS_NOT_INITIALIZED", allocFailed: "CUBLAS_STATUS_ALLOC_FAILED", 7: "CUBLAS_STATUS_INVALID_VALUE", 8: "CUBLAS_STATUS_ARCH_MISMATCH",
	11: "CUBLAS_STATUS_MAPPING_ERROR", 13: "CUBLAS_STATUS_EXECUTION_FAILED", 14: "CUBLAS_STATUS_INTERNAL_ERROR", 15: "CUBLAS_STATUS_NOT_SUPPORTED",
}

// OutOfMemory tells whether the call found no memory.
func (e *Error) OutOfMemory() bool { return e.Status == allocFailed }

func (e *Error) Error() string {
	if e.P == (Product{}) {
		return fmt.Sprintf("%s: %s (%d)", e.Call, cmp.Or(statuses[e.Status], "cublasStatus_t"), e.Status)
	}
	return fmt.Sprintf("%s failed with cublasStatus_t %d for %d × %d × %d", e.Call, e.Status, e.P.Rows, e.P.Out, e.P.In)
}

// heuristicResult is cublasLtMatmulHeuristicResult_t.
type heuristicResult struct {
	algorithm [8]uint64
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// plan is a product that is ready to run.
type plan struct {
	desc, w, x, y uintptr
	algorithm     [8]uint64
	usable, timed bool // timed: its ways were, if there are several
	uses          int
}

func (p *plan) close() {
	dl.Call(fn.descDestroy, p.desc)
	for _, l := range []uintptr{p.w, p.x, p.y} {
		dl.Call(fn.layoutDestroy, l)
	}
}

// maxPlans bounds what is kept: prompts come in all lengths. (A variable for tests.)
var maxPlans = 4096

// Handle multiplies on one stream. It is for one goroutine.
type Handle struct {
	handle    uintptr
	stream    driver.Stream
	workspace driver.Ptr
	plans     map[Product]*plan
	one, zero *float32
	// Of the call in progress: on the heap, since the library is given its address.
	algorithm *[8]uint64
}

// New opens cuBLASLt for products on s that may use workspace, Workspace bytes.
func New(s driver.Stream, workspace driver.Ptr) (*Handle, error) {
	if err := open(); err != nil {
		return nil, err
	}
	h := &Handle{stream: s, workspace: workspace, plans: map[Product]*plan{}, one: new(float32), zero: new(float32), algorithm: new([8]uint64)}
	*h.one = 1
	if st := dl.Call(fn.create, uintptr(unsafe.Pointer(&h.handle))); st != 0 {
		return nil, &Error{Call: "cublasLtCreate", Status: st}
	}
	return h, nil
}

// Multiply queues a product. It is false if cuBLASLt has no way to compute it,
// as for rows that begin at odd addresses. One that is often to come, or came often,
// has its ways timed first, which takes milliseconds, where it may wait; another one
// goes the likely fastest.
func (h *Handle) Multiply(p Product, y, x, w driver.Ptr, often, wait bool) (bool, error) {
	pl, ok := h.plans[p]
	often = wait && p.Rows <= timedRows && (often || ok && pl.uses >= manyUses)
	if !ok || often && !pl.timed {
		next, ways, err := h.plan(p, often)
		if err != nil {
			return false, err
		}
		if len(ways) > 1 {
			if err := h.fastest(next, ways, y, x, w); err != nil {
				next.close()
				return false, err
			}
		}
		if ok {
			pl.close()
			delete(h.plans, p)
		}
		pl = next
		if len(h.plans) >= maxPlans {
			for k, old := range h.plans {
				old.close()
				delete(h.plans, k)
			}
		}
		h.plans[p] = pl
	}
	pl.uses++
	if !pl.usable {
		return false, nil
	}
	if st := h.run(pl, y, x, w); st != 0 {
		return false, &Error{Call: "cublasLtMatmul", Status: st, P: p}
	}
	return true, nil
}

// run queues a product. Its matrices have columns one after the other, so it
// computes yᵀ = w · xᵀ.
func (h *Handle) run(pl *plan, y, x, w driver.Ptr) int32 {
	*h.algorithm = pl.algorithm
	return dl.Call(fn.matmul, h.handle, pl.desc, uintptr(unsafe.Pointer(h.one)), uintptr(w), pl.w, uintptr(x), pl.x,
		uintptr(unsafe.Pointer(h.zero)), uintptr(y), pl.y, uintptr(y), pl.y, uintptr(unsafe.Pointer(h.algorithm)),
		uintptr(h.workspace), Workspace, uintptr(h.stream))
}

// plan prepares a product, with the ways to compute it, the likely fastest first: only
// that one, unless it comes often.
func (h *Handle) plan(p Product, often bool) (*plan, []heuristicResult, error) {
	pl := &plan{timed: often}
	fail := func(call string, st int32) error {
		pl.close()
		return &Error{Call: call, Status: st, P: p}
	}
	if st := dl.Call(fn.descCreate, uintptr(unsafe.Pointer(&pl.desc)), compute32F, uintptr(F32)); st != 0 {
		return nil, nil, fail("cublasLtMatmulDescCreate", st)
	}
	op := int32(operationT)
	if st := dl.Call(fn.descSet, pl.desc, transposeA, uintptr(unsafe.Pointer(&op)), unsafe.Sizeof(op)); st != 0 {
		return nil, nil, fail("cublasLtMatmulDescSetAttribute", st)
	}
	for _, m := range []struct {
		to         *uintptr
		t          Type
		rows, cols int
		stride     int
	}{{&pl.w, p.Input, p.In, p.Out, p.In}, {&pl.x, p.Input, p.In, p.Rows, p.XStride}, {&pl.y, p.Output, p.Out, p.Rows, p.YStride}} {
		if st := dl.Call(fn.layoutCreate, uintptr(unsafe.Pointer(m.to)), uintptr(m.t), uintptr(m.rows), uintptr(m.cols), uintptr(m.stride)); st != 0 {
			return nil, nil, fail("cublasLtMatrixLayoutCreate", st)
		}
	}
	var pref uintptr
	if st := dl.Call(fn.prefCreate, uintptr(unsafe.Pointer(&pref))); st != 0 {
		return nil, nil, fail("cublasLtMatmulPreferenceCreate", st)
	}
	defer dl.Call(fn.prefDestroy, pref)
	most := uint64(Workspace)
	if st := dl.Call(fn.prefSet, pref, prefMaxWorkArea, uintptr(unsafe.Pointer(&most)), unsafe.Sizeof(most)); st != 0 {
		return nil, nil, fail("cublasLtMatmulPreferenceSetAttribute", st)
	}
	var found int32
	ways := make([]heuristicResult, 1)
	if often {
		ways = make([]heuristicResult, timedWays)
	}
	st := dl.Call(fn.heuristic, h.handle, pl.desc, pl.w, pl.x, pl.y, pl.y, pref, uintptr(len(ways)), uintptr(unsafe.Pointer(&ways[0])), uintptr(unsafe.Pointer(&found)))
	const notSupported = 15
	if st != 0 && st != notSupported {
		return nil, nil, fail("cublasLtMatmulAlgoGetHeuristic", st)
	}
	ways = slices.DeleteFunc(ways[:max(0, min(int(found), len(ways)))], func(r heuristicResult) bool { return r.state != 0 })
	if pl.usable = st == 0 && len(ways) > 0; pl.usable {
		pl.algorithm = ways[0].algorithm
	}
	return pl, ways, nil
}

const (
	// timedRows is the most rows of a product whose ways are timed: those of decoding.
	timedRows = 256
	timedWays = 8
	timedRuns = 3
	// manyUses is how often a product comes before its ways are timed, if it was not
	// expected to: full chunks of prompts do, in each layer.
	manyUses = 500
	// flushed is more than a card's second-level cache, which would else hold
	// the weights from one run to the next.
	flushed = 160 << 20
)

// fastest times the ways of a product and keeps the best. It waits, so it is for
// a product that comes often.
func (h *Handle) fastest(pl *plan, ways []heuristicResult, y, x, w driver.Ptr) error {
	area, err := driver.Alloc(flushed)
	var failed *driver.Error
	if errors.As(err, &failed) && failed.Code == driver.OutOfMemory {
		return nil // no room to try: the first way will do
	}
	if err != nil {
		return err
	}
	var marks [2]driver.Event
	for i := range marks {
		if marks[i], err = driver.NewEvent(); err != nil {
			break
		}
	}
	best, least := pl.algorithm, float32(math.MaxFloat32)
	for _, way := range ways {
		pl.algorithm = way.algorithm
		took := float32(math.MaxFloat32)
		for run := 0; run < timedRuns && err == nil; run++ {
			if err = h.stream.Fill(area, byte(run), flushed); err != nil {
				break
			}
			if err = h.stream.Record(marks[0]); err != nil {
				break
			}
			if st := h.run(pl, y, x, w); st != 0 {
				took = math.MaxFloat32 // not a way after all
				break
			}
			if err = errors.Join(h.stream.Record(marks[1]), marks[1].Wait()); err != nil {
				break
			}
			var ms float32
			ms, err = marks[1].Since(marks[0])
			took = min(took, ms)
		}
		if took < least {
			best, least = way.algorithm, took
		}
	}
	pl.algorithm = best
	for _, e := range marks {
		if e != 0 {
			err = errors.Join(err, e.Close())
		}
	}
	return errors.Join(err, driver.FreeMemory(area))
}

// Close frees the handle.
func (h *Handle) Close() {
	for _, p := range h.plans {
		p.close()
	}
	dl.Call(fn.destroy, h.handle)
}
