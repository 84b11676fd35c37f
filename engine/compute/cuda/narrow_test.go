//go:build linux

package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// withRoom runs f with mostSums of n bytes.
func withRoom(n int, f func()) {
	most := mostSums
	mostSums = n
	defer func() { mostSums = most }()
	f()
}

// Of float16 no product of more rows than the kernel for few rows takes leaves the tensor
// cores, for bfloat16 and for float32, in one part and in several.
func TestFloat16StaysOnTensorCores(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	d.fn.linearAny = 0 // a launch of it is a fault
	for _, c := range []struct{ out, in int }{{64, 64}, {96, 200}, {33, 40}, {40, 4104}} {
		w, values := plain(t, d, compute.F16, c.out, c.in, normals(rng, c.out*c.in))
		for _, rows := range []int{9, 16, 17, 63, 64, 130, 256, 300} {
			for _, wide := range []bool{false, true} {
				for _, room := range []int{mostSums, 1} {
					x, y := d.newTensor(rows, c.in, false), d.newTensor(rows, c.out, wide)
					xs := put(d, x, normals(rng, rows*c.in))
					poison(d, y)
					withRoom(room, func() { d.Linear(y, x, w, rows) })
					compare(t, fmt.Sprintf("%d × %d × %d, wide %t, room %d", rows, c.out, c.in, wide, room), d, y, rows, product(xs, values, rows, c.out, c.in), tolerance(y))
				}
			}
		}
	}
}

// A product is in parts for what it needs beside its result: a wide one takes no room for
// sums, however wide it is.
func TestPartsOfFloat16(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const rows, out, in = 300, 640, 64
	w, _ := plain(t, d, compute.F16, out, in, normals(rng, out*in))
	for _, c := range []struct{ room, wide, narrow int }{ // rows that are converted at once
		{2 * 256 * in, 256, 128},
		{4 * 256 * out, 300, 256},
	} {
		for wide, want := range map[bool]int{true: c.wide, false: c.narrow} {
			x, y := d.newTensor(rows, in, false), d.newTensor(rows, out, wide)
			put(d, x, normals(rng, rows*in))
			d.scratch.capacity[scratchInput] = 0
			withRoom(c.room, func() { d.Linear(y, x, w, rows) })
			if bytes := 2 * want * in; d.scratch.capacity[scratchInput] != bytes+bytes/4 {
				t.Errorf("room %d, wide %t: memory for %d bytes of input, want %d", c.room, wide, d.scratch.capacity[scratchInput], bytes+bytes/4)
			}
		}
	}
}

// What a product and its bias are is rounded once: each number is the nearest to the sum, or
// as good as that, also where the bias takes most of the product away.
func TestLinearBiasRoundsOnce(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.F32, compute.I4, compute.F8E4M3} {
		for _, c := range []struct{ out, in int }{{64, 64}, {96, 256}, {33, 40}, {6, 100}} {
			w, values := anyWeight(t, d, rng, dtype, c.out, c.in)
			for _, rows := range []int{1, 2, 8, 9, 17, 40, 70, 130, 300} {
				if dtype.Quantised() && rows >= manyRows {
					continue // the weight was rounded
				}
				for _, wide := range []bool{false, true} {
					x, y := d.newTensor(rows, c.in, false), d.newTensor(rows, c.out, wide)
					xs := put(d, x, normals(rng, rows*c.in))
					want := product(xs, values, rows, c.out, c.in)
					size := magnitude(want) / math.Sqrt(float64(len(want)))
					bias := make([]float32, c.out)
					for j := range bias {
						bias[j] = -float32(want[j]) * (1 + float32(rng.NormFloat64())/64)
					}
					b, held := plain(t, d, compute.F32, 1, c.out, bias)
					poison(d, y)
					withRoom([]int{1, mostSums}[rows%2], func() { d.LinearBias(y, x, w, b, rows) })
					what := fmt.Sprintf("%s, %d × %d × %d, wide %t", dtype, rows, c.out, c.in, wide)
					for i := range rows {
						for j, got := range d.Floats(y, i) {
							sum := want[i*c.out+j] + float64(held[j])
							_, e := math.Frexp(sum)
							if allowed := math.Ldexp(1, e-9) + 2e-5*size; !(math.Abs(float64(got)-sum) <= allowed) {
								t.Fatalf("%s: row %d, column %d is %v, want %v within %.2g", what, i, j, got, sum, allowed)
							}
						}
					}
				}
			}
		}
	}
}
