package cpu

import (
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
)

// An activation is at most 2⁻¹⁵ of the greatest in its span off, whatever their
// sizes are, and the correction is what the codes' offset adds.
func TestWordsAreTheActivations(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(1, 9))
		for range 2000 {
			q := compute.Quant{DType: quantTypes[rng.IntN(2)], Group: 8 << rng.IntN(9)}
			in := 1 + rng.IntN(900)
			p := newPanels(q, 1, in, k.lanes)
			x := random(rng, in)
			size := rng.IntN(240) - 120
			for i := range x {
				x[i] = float32(math.Ldexp(float64(x[i]), size))
				if rng.IntN(8) == 0 {
					x[i] = []float32{0, float32(math.Ldexp(1.99999988, size)), float32(math.Ldexp(-2, size)), float32(math.Ldexp(1, size-20))}[rng.IntN(4)]
				}
			}
			dst := make([]int16, p.wordStride())
			for i := range dst {
				dst[i] = -1
			}
			p.words(k, x, dst)
			for from := 0; from < in; from += p.span * p.step {
				n := min(p.span*p.step, p.blocks*p.step-from)
				var top, scale float64
				var sum int32
				scale = float64(*(*float32)(unsafe.Pointer(&dst[n+2])))
				for i, w := range dst[:n] {
					var v float64
					if from+i < in {
						v = float64(x[from+i])
					} else if w != 0 {
						t.Fatalf("%+v, width %d: a word beyond the row is %d", q, in, w)
					}
					top = max(top, math.Abs(v))
					sum += int32(w)
				}
				for i := range min(n, in-from) {
					if off := math.Abs(float64(dst[i])*scale - float64(x[from+i])); off > math.Ldexp(top, -15)+math.Ldexp(1, -127) {
						t.Fatalf("%+v, width %d: activation %d, %v, is %v off, the greatest is %v", q, in, from+i, x[from+i], off, top)
					}
				}
				if got := *(*int32)(unsafe.Pointer(&dst[n])); got != -p.offset()*sum {
					t.Fatalf("%+v, width %d: correction %d for a sum of %d", q, in, got, sum)
				}
				dst = dst[n+trailer:]
			}
			if len(dst) != 0 {
				t.Fatalf("%+v, width %d: %d words too many", q, in, len(dst))
			}
		}
	})
}

// With activations and scales that are small integers every step is exact, so the
// outputs must equal the sums.
func TestIntegersAreExact(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(2, 9))
		for _, dtype := range quantTypes[:2] {
			for _, c := range []struct{ rows, in, out, group int }{{1, 256, 33, 32}, {8, 4096, 17, 4096}, {5, 1000, 20, 1000}, {3, 1024, 4, 512}, {9, 90, 16, 24}} {
				d := device(t, k, 2)
				codes := make([]byte, c.out*c.in)
				for i := range codes {
					codes[i] = byte(rng.Uint32())
				}
				w, err := d.NewQuantized(compute.Quant{DType: dtype, Group: c.group}, c.out, c.in, func(row, rows int, dst []byte) error {
					copy(dst, codes[row*dtype.RowBytes(c.in):])
					return nil
				}, func(row, rows int, dst []float32) error {
					for i := range dst {
						dst[i] = float32(1 + (row+i)%3)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				x, y := d.NewTensor(c.rows, c.in), d.NewTensor(c.rows, c.out)
				for i := range c.rows {
					for j := range c.in {
						d.Floats(x, i)[j] = float32(rng.IntN(15) - 7)
					}
				}
				d.Linear(y, x, w, c.rows)
				for i := range c.rows {
					for r, got := range d.Floats(y, i) {
						var want float64
						for j := range c.in {
							want += float64(w.(*weight).at(r, j)) * float64(d.Floats(x, i)[j])
						}
						if float64(got) != want {
							t.Fatalf("%v %+v: output (%d, %d) is %v, want %v", dtype, c, i, r, got, want)
						}
					}
				}
			}
		}
	})
}

// What is not finite in a row makes that row's outputs NaN, and no other's.
func TestWordsOfWhatIsNotFinite(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for _, dtype := range quantTypes {
			for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
				d := device(t, k, 1)
				const rows, in, out = 3, 70, 5
				w, _ := coded(t, d, rand.New(rand.NewPCG(1, 1)), compute.Quant{DType: dtype, Group: in}, out, in)
				for _, at := range []int{0, 40, in - 1} {
					x, y := d.NewTensor(rows, in), d.NewTensor(rows, out)
					fill(x, random(rand.New(rand.NewPCG(1, 2)), rows*in))
					d.Floats(x, 1)[at] = bad
					d.Linear(y, x, w, rows)
					for i := range rows {
						for r, v := range d.Floats(y, i) {
							if finite := v-v == 0; finite == (i == 1) && w.(*weight).at(r, at) != 0 {
								t.Errorf("%v with %v in column %d of row 1: output (%d, %d) is %v", dtype, bad, at, i, r, v)
							}
						}
					}
				}
			}
		}
	})
}
