package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

var quantTypes = []compute.DType{compute.I4, compute.I8, compute.F8E4M3}

// value is what a code means, by the definitions of the types.
func value(dtype compute.DType, code byte) float64 {
	switch dtype {
	case compute.I4:
		return float64(code) - 8
	case compute.I8:
		return float64(int8(code))
	}
	sign, exp, frac := 1.0, int(code>>3&15), float64(code&7)
	if code&0x80 != 0 {
		sign = -1
	}
	if exp == 0 {
		return sign * frac * math.Pow(2, -9)
	}
	return sign * (1 + frac/8) * math.Pow(2, float64(exp-7))
}

// coded makes a quantised weight of random codes and scales, and its values.
func coded(t testing.TB, d *Device, rng *rand.Rand, q compute.Quant, out, in int) (compute.Weight, []float64) {
	t.Helper()
	codes, scales := make([]byte, out*in), make([]float32, out*q.Groups(in))
	for i := range codes {
		codes[i] = byte(rng.Uint32())
		switch {
		case q.DType == compute.I4:
			codes[i] &= 15
		case q.DType == compute.F8E4M3 && codes[i]&0x7f == 0x7f:
			codes[i] = 0
		}
	}
	for i := range scales {
		scales[i] = float32(rng.NormFloat64()) / 64
	}
	values := make([]float64, out*in)
	for i, code := range codes {
		values[i] = value(q.DType, code) * float64(scales[i/in*q.Groups(in)+i%in/q.Group])
	}
	w, err := d.NewQuantized(q, out, in, func(row, rows int, dst []byte) error {
		if len(dst) != rows*q.DType.RowBytes(in) {
			t.Fatalf("%d bytes for %d rows", len(dst), rows)
		}
		if q.DType != compute.I4 {
			copy(dst, codes[row*in:(row+rows)*in])
			return nil
		}
		clear(dst)
		for r := range rows {
			for j := range in {
				dst[r*q.DType.RowBytes(in)+j/2] |= codes[(row+r)*in+j] << (4 * (j % 2))
			}
		}
		return nil
	}, func(row, rows int, dst []float32) error {
		if copy(dst, scales[row*q.Groups(in):]) != rows*q.Groups(in) {
			t.Fatalf("%d scales for %d rows", len(dst), rows)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, values
}

func TestQuantizedLinearEqualsTheSum(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(11, 12))
		for _, dtype := range quantTypes {
			for _, c := range []struct{ rows, in, out, group int }{
				{1, 256, 512, 32}, {2, 256, 9, 64}, {3, 128, 7, 128}, {4, 96, 4, 32}, {5, 96, 6, 64}, {7, 100, 3, 32},
				{70, 48, 33, 16}, {9, 5, 1, 2}, {1, 1, 1, 1}, {3, 33, 5, 33}, {2, 200, 10, 1000}, {6, 72, 11, 8}, {130, 384, 256, 128}, {4, 50, 13, 7}, {2, 16, 3, 16},
			} {
				d := device(t, k, 2)
				w, values := coded(t, d, rng, compute.Quant{DType: dtype, Group: c.group}, c.out, c.in)
				x, y := d.NewTensor(c.rows, c.in), d.NewTensor(c.rows, c.out)
				xs := random(rng, c.rows*c.in)
				fill(x, xs)
				d.Linear(y, x, w, c.rows)
				for i := range c.rows {
					for r, got := range d.Floats(y, i) {
						var want, size float64
						for j := range c.in {
							p := values[r*c.in+j] * float64(xs[i*c.in+j])
							want += p
							size += math.Abs(p)
						}
						bound := 1e-6*size + 1e-30 + rounding(w.(*weight).panels, values[r*c.in:(r+1)*c.in], xs[i*c.in:(i+1)*c.in])
						if !(math.Abs(float64(got)-want) <= bound) {
							t.Fatalf("%v %+v: output (%d, %d) is %v, want %v within %v", dtype, c, i, r, got, want, bound)
						}
					}
				}
			}
		}
	})
}

// rounding is the most that an output may be off because activations were made
// words.
func rounding(p *panels, w []float64, x []float32) float64 {
	if p.dtype == compute.F8E4M3 || !p.even() {
		return 0
	}
	var off float64
	for from := 0; from < len(x); from += p.group {
		var top, sum float64
		for j := from; j < min(from+p.group, len(x)); j++ {
			top = max(top, math.Abs(float64(x[j])))
			sum += math.Abs(w[j])
		}
		off += math.Ldexp(top, -15) * sum
	}
	return off
}

// Every code is multiplied by 1 in turn, so that each of its values is seen exactly.
func TestEveryCode(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for _, dtype := range quantTypes {
			d := device(t, k, 1)
			n := 1 << (8 * dtype.RowBytes(2) / 2)
			w, err := d.NewQuantized(compute.Quant{DType: dtype, Group: 32}, n, 32, func(row, rows int, dst []byte) error {
				for i := range dst {
					code := row + i*rows/len(dst)
					if dtype == compute.I4 {
						code |= code << 4
					}
					dst[i] = byte(code)
				}
				return nil
			}, func(_, _ int, dst []float32) error {
				for i := range dst {
					dst[i] = 0.375
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			x, y := d.NewTensor(1, 32), d.NewTensor(1, n)
			for j := range 32 {
				clear(d.Floats(x, 0))
				d.Floats(x, 0)[j] = 1
				d.Linear(y, x, w, 1)
				for code, got := range d.Floats(y, 0) {
					want := float32(value(dtype, byte(code)) * 0.375)
					if dtype == compute.F8E4M3 && code&0x7f == 0x7f {
						continue // NaN, which the loader refuses
					}
					if got != want {
						t.Fatalf("%v: code %#x in column %d is %v, want %v", dtype, code, j, got, want)
					}
				}
			}
		}
	})
}

func TestQuantizedLinearDoesNotDependOnBatchOrThreads(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for _, dtype := range append(quantTypes, compute.F16) {
			for _, c := range []struct{ in, group int }{{256, 128}, {256, 32}, {100, 64}, {24, 8}, {7, 7}} {
				const rows, out = 11, 530
				one, three := device(t, k, 1), device(t, k, 3)
				make := func(d *Device) compute.Weight {
					if dtype == compute.F16 {
						return halves(t, d, rand.New(rand.NewPCG(3, 4)), out, c.in)
					}
					w, _ := coded(t, d, rand.New(rand.NewPCG(3, 4)), compute.Quant{DType: dtype, Group: c.group}, out, c.in)
					return w
				}
				w1, w3 := make(one), make(three)
				xs := random(rand.New(rand.NewPCG(5, 6)), rows*c.in)
				x, y := three.NewTensor(rows, c.in), three.NewTensor(rows, out)
				fill(x, xs)
				three.Linear(y, x, w3, rows) // chooses the kernels
				three.pool.do(&three.linear) // by several threads, however small
				for i := range rows {
					xi, yi := one.NewTensor(1, c.in), one.NewTensor(1, out)
					fill(xi, xs[i*c.in:(i+1)*c.in])
					one.Linear(yi, xi, w1, 1)
					if !slices.Equal(one.Floats(yi, 0), three.Floats(y, i)) {
						t.Fatalf("%v %+v: row %d differs alone and in a batch", dtype, c, i)
					}
				}
			}
		}
	})
}

// halves makes a float16 weight of random finite bits.
func halves(t testing.TB, d *Device, rng *rand.Rand, out, in int) compute.Weight {
	t.Helper()
	w, err := d.NewWeight(compute.F16, out, in, func(_, _ int, dst []byte) error {
		for i := range dst {
			dst[i] = byte(rng.Uint32())
			if i%2 == 1 && dst[i]&0x7c == 0x7c {
				dst[i] &^= 0x40
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestFloat16EqualsTheSum(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		rng := rand.New(rand.NewPCG(7, 8))
		for _, c := range []struct{ rows, in, out int }{{1, 256, 64}, {4, 100, 9}, {5, 24, 7}, {3, 5, 1}, {70, 96, 12}} {
			d := device(t, k, 2)
			w := halves(t, d, rng, c.out, c.in)
			x, y := d.NewTensor(c.rows, c.in), d.NewTensor(c.rows, c.out)
			xs := random(rng, c.rows*c.in)
			fill(x, xs)
			d.Linear(y, x, w, c.rows)
			for i := range c.rows {
				for r, got := range d.Floats(y, i) {
					var want, size float64
					for j, h := range w.(*weight).words(r) {
						v := math.Ldexp(float64(h&0x3ff), -24)
						if e := int(h >> 10 & 31); e > 0 {
							v = math.Ldexp(float64(h&0x3ff|0x400), e-25)
						}
						if h&0x8000 != 0 {
							v = -v
						}
						want += v * float64(xs[i*c.in+j])
						size += math.Abs(v * float64(xs[i*c.in+j]))
					}
					if !(math.Abs(float64(got)-want) <= 1e-6*size) {
						t.Fatalf("%+v: output (%d, %d) is %v, want %v", c, i, r, got, want)
					}
				}
			}
			var r compute.Rows
			r.Add(r.AddSequence([]int32{0}, 0), int32(c.out-1), 0, 1)
			row := d.NewTensor(1, c.in)
			d.Embed(row, w, 0, &r)
			for j, got := range d.Floats(row, 0) {
				if want := w.(*weight).at(c.out-1, j); got != want {
					t.Fatalf("embedded value %d is %v, want %v", j, got, want)
				}
			}
		}
	})
}

func TestQuantizedWeightsAreChecked(t *testing.T) {
	d := device(t, genericKernels, 1)
	none := func(_, _ int, _ []byte) error { return nil }
	for _, scale := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		_, err := d.NewQuantized(compute.Quant{DType: compute.I8, Group: 4}, 3, 8, none, func(_, _ int, dst []float32) error {
			dst[3] = scale
			return nil
		})
		if fault.ReasonOf(err) != fault.WeightsMismatch {
			t.Errorf("a scale of %v gives %v", scale, err)
		}
	}
	if _, err := d.NewWeight(compute.I4, 1, 32, none); err == nil {
		t.Error("int4 without scales is taken")
	}
	if _, err := d.NewQuantized(compute.Quant{DType: compute.BF16, Group: 4}, 1, 32, none, nil); err == nil {
		t.Error("bfloat16 with scales is taken")
	}
}

func TestQuantizedLinearAllocatesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for _, dtype := range quantTypes {
			for _, group := range []int{32, 8} {
				d := device(t, k, 2)
				w, _ := coded(t, d, rand.New(rand.NewPCG(1, 1)), compute.Quant{DType: dtype, Group: group}, 255, 160)
				x, y := d.NewTensor(5, 160), d.NewTensor(5, 255)
				if n := testing.AllocsPerRun(20, func() { d.Linear(y, x, w, 5) }); n != 0 {
					t.Errorf("%v: %v allocations", dtype, n)
				}
			}
		}
	})
}
