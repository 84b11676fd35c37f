package cpu

import (
	"math"
	"os"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

// A tileFunc computes out[k][r] = Σ_{i<n} w[r][i]·x[k][i] for a fixed number of
// weight rows r and activation rows k. Strides are in bytes; n is a positive
// multiple of the kernel set's lanes.
type tileFunc func(w *byte, wstride uintptr, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)

// A floatTileFunc computes out[k][r] = Σ_{i<n} w[r][i]·scales[i/group][r]·x[k][i]
// for the 4 rows of a panel of float8 and a fixed number of activation rows k; see
// panels. Strides are in bytes; n is a positive multiple of the panel's block
// width, and group too unless it is n or more.
type floatTileFunc func(w *byte, scales *float32, group int, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)

// An intTileFunc computes out[k][r] = Σ_s scales[s][r]·x[k].scale[s]·(Σ_i w[r][i]·x[k][i] + x[k].sum[s])
// for the rows of a panel of integer codes, as many as the set has lanes, and a
// fixed number of activation rows k, over the spans s of blocks; see panels and
// words, for what lies at x. Strides are in bytes. The inner sums are exact, and
// the outer one is in the order of the spans, each step of it a fused multiply-add
// of the inner sum, rounded to float32, and the product of the scales, rounded too:
// every set's outputs are the same bits.
type intTileFunc func(w *byte, scales *float32, x *int16, xstride uintptr, blocks, span int, out *float32, ostride uintptr)

// tiles are the tileFuncs of one weight type.
type tiles struct {
	rows4 []tileFunc // by number of activation rows, less one
	row1  []tileFunc
}

// kernels is a set of hot loops for one instruction set.
type kernels struct {
	name  string
	lanes int   // n of every kernel is a multiple of it
	bf16  tiles // bfloat16 weights
	f16   tiles // float16 weights
	f32   tiles // float32 weights, and keys
	// Quantised weights, by number of activation rows, less one. The plain set has
	// none of float8: see plainPanels.
	i4, i8 []intTileFunc
	f8     []floatTileFunc
	// spanMax is the greatest of the bits of |x[i]|, i < n.
	spanMax func(x *float32, n int) uint32
	// spanWords sets dst[i] = min(x[i]·factor, 32767), rounded to even, and returns
	// their sum; no product is below −32768.
	spanWords func(x *float32, n int, factor float32, dst *int16) int32
	weighted  func(p *float32, v *float32, vstride uintptr, count int, out *float32, n int)
	pause     func() // spins for some tens of cycles
}

// KernelsEnv forces a kernel set by name, for tests and for finding faults.
const KernelsEnv = "OUTRIDER_CPU_KERNELS"

// chooseKernels is the fastest set that this processor can run.
func chooseKernels() (*kernels, error) {
	sets := supportedKernels()
	want := os.Getenv(KernelsEnv)
	if want == "" {
		return sets[0], nil
	}
	names := ""
	for _, s := range sets {
		if s.name == want {
			return s, nil
		}
		names += " " + s.name
	}
	return nil, fault.Errorf(fault.InvalidConfig, "%s is %q: this processor can run%s", KernelsEnv, want, names)
}

// genericKernels is plain Go for processors without a set of their own.
var genericKernels = &kernels{
	name: "generic", lanes: 1,
	bf16:    tiles{[]tileFunc{genericTile(4, genericDotBF16)}, []tileFunc{genericTile(1, genericDotBF16)}},
	f16:     tiles{[]tileFunc{genericTile(4, genericDotF16)}, []tileFunc{genericTile(1, genericDotF16)}},
	f32:     tiles{[]tileFunc{genericTile(4, genericDotF32)}, []tileFunc{genericTile(1, genericDotF32)}},
	i4:      []intTileFunc{genericIntI4},
	i8:      []intTileFunc{genericIntI8},
	spanMax: genericSpanMax, spanWords: genericSpanWords,
	weighted: genericWeighted,
	pause:    func() {},
}

// genericTile is a tile of rows weight rows and one activation row.
func genericTile(rows int, dot func(w *byte, x []float32) float32) tileFunc {
	return func(w *byte, wstride uintptr, x *float32, _ uintptr, n int, out *float32, _ uintptr) {
		xs, sums := unsafe.Slice(x, n), unsafe.Slice(out, rows)
		for r := range sums {
			sums[r] = dot(advance(w, uintptr(r)*wstride), xs)
		}
	}
}

// The dot products keep four sums, since with one each addition waits for the last.

func genericDotBF16(w *byte, x []float32) float32 {
	ws := unsafe.Slice((*uint16)(unsafe.Pointer(w)), len(x))
	wide := func(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += wide(ws[i]) * x[i]
		b += wide(ws[i+1]) * x[i+1]
		c += wide(ws[i+2]) * x[i+2]
		d += wide(ws[i+3]) * x[i+3]
	}
	for ; i < len(x); i++ {
		a += wide(ws[i]) * x[i]
	}
	return (a + c) + (b + d)
}

func genericDotF16(w *byte, x []float32) float32 {
	ws := unsafe.Slice((*uint16)(unsafe.Pointer(w)), len(x))
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += compute.Half(ws[i]) * x[i]
		b += compute.Half(ws[i+1]) * x[i+1]
		c += compute.Half(ws[i+2]) * x[i+2]
		d += compute.Half(ws[i+3]) * x[i+3]
	}
	for ; i < len(x); i++ {
		a += compute.Half(ws[i]) * x[i]
	}
	return (a + c) + (b + d)
}

func genericDotF32(w *byte, x []float32) float32 {
	ws := unsafe.Slice((*float32)(unsafe.Pointer(w)), len(x))
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += ws[i] * x[i]
		b += ws[i+1] * x[i+1]
		c += ws[i+2] * x[i+2]
		d += ws[i+3] * x[i+3]
	}
	for ; i < len(x); i++ {
		a += ws[i] * x[i]
	}
	return (a + c) + (b + d)
}

func genericWeighted(p *float32, v *float32, vstride uintptr, count int, out *float32, n int) {
	ps, o := unsafe.Slice(p, count), unsafe.Slice(out, n)
	for i, w := range ps {
		row := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(v), uintptr(i)*vstride)), n)
		for j, x := range row {
			o[j] += w * x
		}
	}
}

func advance(p *byte, n uintptr) *byte { return (*byte)(unsafe.Add(unsafe.Pointer(p), n)) }
