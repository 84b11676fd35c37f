//go:build linux

package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
)

// gpu opens the GPU, or reports the test as not run.
func gpu(t testing.TB, comm collective.Communicator) *Device {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	if comm == nil {
		comm = collective.NewLocal(1, 0)[0]
	}
	d, err := New(comm, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Err(); err != nil {
			t.Errorf("the device's fault: %v", err)
		}
		d.Close()
	})
	return d
}

func normals(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// bf16 rounds to the nearest bfloat16, ties to even.
func bf16(x float32) float32 {
	bits := math.Float32bits(x)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

// put writes values to t, rounded to its type, and returns what it holds.
func put(d *Device, t compute.Tensor, values []float32) []float32 {
	p := t.(*tensor)
	held := make([]float32, len(values))
	for i := range len(values) / p.cols {
		row := make([]byte, p.cols*p.size())
		for j, v := range values[i*p.cols : (i+1)*p.cols] {
			if p.wide {
				binary.LittleEndian.PutUint32(row[4*j:], math.Float32bits(v))
			} else {
				v = bf16(v)
				binary.LittleEndian.PutUint16(row[2*j:], uint16(math.Float32bits(v)>>16))
			}
			held[i*p.cols+j] = v
		}
		d.wait()
		d.upload(p.at(i), row)
	}
	return held
}

// poison makes every value of t, and of what fills up its rows, a NaN.
func poison(d *Device, t compute.Tensor) {
	p := t.(*tensor)
	defer d.enter()()
	d.check(d.stream.Fill(p.ptr, 0xff, fillUp(p.rows)*p.stride*p.size()))
}

// compare fails if x is not want, by the magnitude of the difference.
func compare(t *testing.T, what string, d *Device, x compute.Tensor, rows int, want []float64, tolerance float64) {
	t.Helper()
	compareBy(t, what, d, x, rows, want, magnitude(want), tolerance)
}

// compareBy is compare where size, not the magnitude of want, is what is allowed a
// tolerance: for numbers so few that they may all be small differences of large ones.
func compareBy(t *testing.T, what string, d *Device, x compute.Tensor, rows int, want []float64, size, tolerance float64) {
	t.Helper()
	cols := x.Cols()
	diff := make([]float64, rows*cols)
	for i := range rows {
		for j, v := range d.Floats(x, i) {
			if v != v {
				t.Fatalf("%s: row %d, column %d was not written, or is no number", what, i, j)
			}
			diff[i*cols+j] = float64(v) - want[i*cols+j]
		}
	}
	if err := d.Err(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if magnitude(diff) > tolerance*size+1e-30 {
		t.Errorf("%s: relative error %.2g, allowed %.2g", what, magnitude(diff)/size, tolerance)
	}
}

// magnitude is the root of the sum of squares.
func magnitude(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// The rounding of a result to bfloat16 alone gives about 1.7e-3.
const (
	narrowTolerance = 4e-3
	wideTolerance   = 2e-5
)

func tolerance(x compute.Tensor) float64 {
	if x.(*tensor).wide {
		return wideTolerance
	}
	return narrowTolerance
}

// plain makes a weight of the values, rounded to its type, and returns those.
func plain(t testing.TB, d *Device, dtype compute.DType, out, in int, values []float32) (compute.Weight, []float32) {
	t.Helper()
	held := make([]float32, len(values))
	w, err := d.NewWeight(dtype, out, in, func(row, rows int, dst []byte) error {
		for i, v := range values[row*in : (row+rows)*in] {
			switch dtype {
			case compute.F32:
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
			case compute.BF16:
				v = bf16(v)
				binary.LittleEndian.PutUint16(dst[2*i:], uint16(math.Float32bits(v)>>16))
			case compute.F16:
				h := toHalf(v)
				v = compute.Half(h)
				binary.LittleEndian.PutUint16(dst[2*i:], h)
			}
			held[row*in+i] = v
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, held
}

// toHalf cuts a number of moderate size to float16.
func toHalf(v float32) uint16 {
	bits := math.Float32bits(v)
	e := int(bits>>23&0xff) - 127 + 15
	if e <= 0 {
		return uint16(bits >> 16 & 0x8000)
	}
	return uint16(bits>>16&0x8000) | uint16(e)<<10 | uint16(bits>>13&0x3ff)
}

// coded makes a quantised weight of random codes and scales, and returns its values.
func coded(t testing.TB, d *Device, rng *rand.Rand, q compute.Quant, out, in int) (compute.Weight, []float32) {
	t.Helper()
	size, groups := q.DType.RowBytes(in), q.Groups(in)
	codes, scales, values := make([]byte, out*size), make([]float32, out*groups), make([]float32, out*in)
	for i := range codes {
		codes[i] = byte(rng.Uint32())
		if q.DType == compute.F8E4M3 && codes[i]&0x7f == 0x7f {
			codes[i] = 0x01 // a subnormal number instead of a NaN
		}
	}
	for i := range scales {
		scales[i] = float32(0.5+rng.Float64()) / 100
	}
	for r := range out {
		q.Decode(values[r*in:(r+1)*in], codes[r*size:(r+1)*size], scales[r*groups:(r+1)*groups])
	}
	w, err := d.NewQuantized(q, out, in, func(row, rows int, dst []byte) error {
		copy(dst, codes[row*size:(row+rows)*size])
		return nil
	}, func(row, rows int, dst []float32) error {
		copy(dst, scales[row*groups:(row+rows)*groups])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, values
}

// sumsSize is the magnitude that the products of product have if their terms are of any
// sign, whatever these make of them: by those of both factors.
func sumsSize(x, w []float32, in int) float64 {
	return magnitude(doubles(x)) * magnitude(doubles(w)) / math.Sqrt(float64(in))
}

// product is x · wᵀ.
func product(x, w []float32, rows, out, in int) []float64 {
	y := make([]float64, rows*out)
	for i := range rows {
		for r := range out {
			var sum float64
			for j := range in {
				sum += float64(x[i*in+j]) * float64(w[r*in+j])
			}
			y[i*out+r] = sum
		}
	}
	return y
}
