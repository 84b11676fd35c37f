//go:build linux

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

func TestLinearEqualsTheSum(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.F32} {
		for _, c := range []struct{ out, in int }{{64, 64}, {96, 64}, {320, 64}, {33, 40}, {7, 100}, {5, 3}, {256, 1000}, {40, 4104}, {1, 8}} {
			for _, rows := range []int{1, 2, 7, 8, 9, 16, 17, 40, 130} {
				for _, wide := range []bool{false, true} {
					what := fmt.Sprintf("%s, %d × %d × %d, wide %t", dtype, rows, c.out, c.in, wide)
					ws := normals(rng, c.out*c.in)
					x, y := d.newTensor(rows, c.in, false), d.newTensor(rows, c.out, wide)
					xs := put(d, x, normals(rng, rows*c.in))
					if c.out*rows == 1 { // of the one sum, next to nothing is left
						ws[c.in-1] = -float32(product(xs, ws, 1, 1, c.in-1)[0]) / xs[c.in-1]
					}
					w, values := plain(t, d, dtype, c.out, c.in, ws)
					poison(d, y)
					d.Linear(y, x, w, rows)
					want := product(xs, values, rows, c.out, c.in)
					compareBy(t, what, d, y, rows, want, max(magnitude(want), sumsSize(xs, values, c.in)), tolerance(y))
				}
			}
		}
	}
}

// Columns of wider rows, as a draft head's input has them.
func TestLinearOfColumns(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, from := range []int{0, 64, 72, 3} {
		for _, rows := range []int{3, 20} {
			w, values := plain(t, d, compute.BF16, 48, 64, normals(rng, 48*64))
			all, y := d.newTensor(rows, 192, false), d.newTensor(rows, 96, true)
			xs := put(d, all, normals(rng, rows*192))
			poison(d, y)
			d.Linear(d.Columns(y, 48, 48), d.Columns(all, from, 64), w, rows)
			part := columns(xs, 192, from, 64)
			compare(t, fmt.Sprintf("columns from %d, %d rows", from, rows), d, d.Columns(y, 48, 48), rows, product(part, values, rows, 48, 64), wideTolerance)
		}
	}
}

func TestQuantisedLinearEqualsTheSum(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, dtype := range []compute.DType{compute.I4, compute.I8, compute.F8E4M3} {
		for _, group := range []int{32, 64, 128, 256, 1 << 20, 24, 5} {
			for _, c := range []struct{ out, in int }{{64, 256}, {33, 192}, {16, 1096}, {9, 104}, {5, 37}} {
				for _, rows := range []int{1, 3, 8, 12, 16, 17, 32, 37, 64, 80, 81, 128, 200} {
					what := fmt.Sprintf("%s in groups of %d, %d × %d × %d", dtype, group, rows, c.out, c.in)
					w, values := coded(t, d, rng, compute.Quant{DType: dtype, Group: group}, c.out, c.in)
					x, y := d.newTensor(rows, c.in, false), d.newTensor(rows, c.out, true)
					xs := put(d, x, normals(rng, rows*c.in))
					poison(d, y)
					d.Linear(y, x, w, rows)
					allowed := wideTolerance
					if rows >= manyRows {
						allowed = narrowTolerance // the weight was rounded
					}
					want := product(xs, values, rows, c.out, c.in)
					compare(t, what, d, y, rows, want, allowed)
					if rows >= leastWide && rows < wideRows && len(d.fn.wide) > 0 { // as on other cards
						withoutWide(d, func() {
							poison(d, y)
							d.Linear(y, x, w, rows)
						})
						compare(t, what+", without wide products", d, y, rows, want, allowed)
					}
				}
			}
		}
	}
}

// withoutWide runs f as on a card without the instructions of four warps.
func withoutWide(d *Device, f func()) {
	wide := d.fn.wide
	d.fn.wide = nil
	defer func() { d.fn.wide = wide }()
	f()
}

// Weights with so many outputs that a block of the product takes several times
// 16, and with columns that its warps share unevenly. Some outputs are checked.
func TestQuantisedLinearOfManyOutputs(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	many := 16*2*residentBlocks*d.context.Info.Processors + 16*37 + 5
	for _, c := range []struct {
		dtype  compute.DType
		groups []int
	}{{compute.I4, []int{32, 64, 128, 512, 1 << 20}}, {compute.I8, []int{32, 64, 256}}, {compute.F8E4M3, []int{32, 64, 128}}} {
		for _, group := range c.groups {
			for _, in := range []int{64, 640, 1800} {
				w, values := coded(t, d, rng, compute.Quant{DType: c.dtype, Group: group}, many, in)
				for _, rows := range []int{1, 7, 16, 24, 63} {
					x, y := d.newTensor(rows, in, false), d.newTensor(rows, many, true)
					xs := put(d, x, normals(rng, rows*in))
					poison(d, y)
					d.Linear(y, x, w, rows)
					compareSome(t, fmt.Sprintf("%s in groups of %d, %d × %d × %d", c.dtype, group, rows, many, in), d, y, xs, values, rows, in, sample)
				}
			}
		}
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}

// sample is how many outputs of a large product there are to one that is checked.
const sample = 11

// compareSome is compare for a product of so many outputs that one in every and the last one are
// checked; that all were written is.
func compareSome(t *testing.T, what string, d *Device, y compute.Tensor, xs, values []float32, rows, in, every int) {
	t.Helper()
	var diff, size float64
	for i := range rows {
		for r, v := range d.Floats(y, i) {
			if v != v {
				t.Fatalf("%s: row %d, output %d was not written, or is no number", what, i, r)
			}
			if (r+i)%every == 0 || r == y.Cols()-1 {
				want := product(xs[i*in:(i+1)*in], values[r*in:(r+1)*in], 1, 1, in)[0]
				diff, size = diff+(float64(v)-want)*(float64(v)-want), size+want*want
			}
		}
	}
	if !(math.Sqrt(diff) <= wideTolerance*math.Sqrt(size)) {
		t.Errorf("%s: relative error %.2g", what, math.Sqrt(diff/size))
	}
}

// columns are n of rows that are so wide, from the from'th on.
func columns(rows []float32, wide, from, n int) []float32 {
	var part []float32
	for i := 0; i < len(rows); i += wide {
		part = append(part, rows[i+from:i+from+n]...)
	}
	return part
}

// gatesOf are silu(first half) · second half of rows of products.
func gatesOf(products []float64, rows, cols int) []float64 {
	gates := make([]float64, rows*cols)
	for i := range gates {
		at := i/cols*2*cols + i%cols
		gates[i] = products[at] / (1 + math.Exp(-products[at])) * products[at+cols]
	}
	return gates
}

// anyWeight is a weight of a type, in groups of 64 if it is quantised.
func anyWeight(t *testing.T, d *Device, rng *rand.Rand, dtype compute.DType, out, in int) (compute.Weight, []float32) {
	if dtype.Quantised() {
		return coded(t, d, rng, compute.Quant{DType: dtype, Group: 64}, out, in)
	}
	return plain(t, d, dtype, out, in, normals(rng, out*in))
}

func TestGated(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.F32, compute.I4, compute.F8E4M3} {
		for _, c := range []struct{ cols, in int }{{64, 128}, {40, 192}, {96, 64}, {5, 24}} {
			for _, rows := range []int{1, 8, 13, 17, 70} {
				w, values := anyWeight(t, d, rng, dtype, 2*c.cols, c.in)
				x, products, y := d.newTensor(rows, c.in, false), d.newTensor(rows, 2*c.cols, false), d.newTensor(rows, c.cols, false)
				xs := put(d, x, normals(rng, rows*c.in))
				poison(d, y)
				d.Gated(y, products, x, w, rows)
				p, want, felt := product(xs, values, rows, 2*c.cols, c.in), make([]float64, rows*c.cols), make([]float64, rows*c.cols)
				for i := range want {
					at := i/c.cols*2*c.cols + i%c.cols
					g, u, s := p[at], p[at+c.cols], 1/(1+math.Exp(-p[at]))
					want[i] = g * s * u
					felt[i] = g * s * (1 + g*(1-s)) * u // of a relative change of g: far below zero it is more than want
				}
				compareBy(t, fmt.Sprintf("%s, %d × 2 · %d × %d", dtype, rows, c.cols, c.in), d, y, rows, want, max(magnitude(want), magnitude(felt)), 2*narrowTolerance)
			}
		}
	}
}

// LinearNorm leaves the norm's division to the product after it, where it can.
func TestLinearNorm(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const eps = 1e-5
	for _, types := range [][2]compute.DType{{compute.BF16, compute.BF16}, {compute.I4, compute.I4}, {compute.F8E4M3, compute.BF16}, {compute.BF16, compute.F8E4M3}, {compute.F16, compute.F16}, {compute.F32, compute.BF16}} {
		for _, c := range []struct{ hidden, in, out int }{{64, 128, 96}, {1040, 192, 48}, {72, 64, 32}} {
			for _, rows := range []int{1, 3, 8, 9, 16, 17, 40} {
				what := fmt.Sprintf("%s and %s, %d × %d × %d × %d", types[0], types[1], rows, c.hidden, c.in, c.out)
				w, ws := anyWeight(t, d, rng, types[0], c.hidden, c.in)
				next, nexts := anyWeight(t, d, rng, types[1], 2*c.out, c.hidden)
				norm, norms := plain(t, d, compute.F32, 1, c.hidden, normals(rng, c.hidden))
				x, sum, h := d.newTensor(rows, c.in, false), d.newTensor(rows, c.hidden, false), d.newTensor(rows, c.hidden, false)
				residual, y, products := d.newTensor(rows, c.hidden, true), d.newTensor(rows, 2*c.out, true), d.newTensor(rows, 2*c.out, false)
				gated := d.newTensor(rows, c.out, false)
				xs, rs := put(d, x, normals(rng, rows*c.in)), put(d, residual, normals(rng, rows*c.hidden))
				poison(d, h)
				poison(d, sum)
				copied := newCopied(d, rows, c.hidden)
				d.LinearNorm(h, compute.Residual{Sum: residual, Copy: copied.of}, sum, x, w, norm, eps, next, rows)
				poison(d, y)
				d.Linear(y, h, next, rows)
				poison(d, gated)
				d.Gated(gated, products, h, next, rows)
				bias, biases := plain(t, d, compute.F32, 1, 2*c.out, normals(rng, 2*c.out))
				poison(d, products)
				d.LinearBias(products, h, next, bias, rows)
				copied.check(t, what, d, residual, rows)

				stream := product(xs, ws, rows, c.hidden, c.in)
				normed := normOfStream(stream, rs, norms, eps)
				want := product(normed, nexts, rows, 2*c.out, c.hidden)
				compare(t, what+": residual stream", d, residual, rows, stream, narrowTolerance)
				compare(t, what+": Linear", d, y, rows, want, narrowTolerance)
				biased := slices.Clone(want)
				for i := range biased {
					biased[i] += float64(biases[i%len(biases)])
				}
				compare(t, what+": LinearBias", d, products, rows, biased, narrowTolerance)
				gates := gatesOf(want, rows, c.out)
				compare(t, what+": Gated", d, gated, rows, gates, 3*narrowTolerance)

				// The tensor holds whole rows again after another operation.
				d.RMSNorm(h, residual, norm, eps, rows)
				d.Linear(y, h, next, rows)
				compare(t, what+": Linear of a norm", d, y, rows, want, 2*narrowTolerance)
			}
		}
	}
}

// normOfStream adds a residual stream to sums, which become it, and returns its norm.
func normOfStream(sums []float64, stream, weights []float32, eps float64) []float32 {
	cols := len(weights)
	normed := make([]float32, len(sums))
	for from := 0; from < len(sums); from += cols {
		var squares float64
		for i := from; i < from+cols; i++ {
			sums[i] += float64(stream[i])
			squares += sums[i] * sums[i]
		}
		for i := from; i < from+cols; i++ {
			normed[i] = float32(sums[i] / math.Sqrt(squares/float64(cols)+eps) * float64(weights[i-from]))
		}
	}
	return normed
}

// Sums of squares take turns, and what one left is no other's: products before norms follow
// each other without a norm of its own, of 2 rows and of 8, and of streams whose squares are
// far beyond what the first of a sum's two numbers holds.
func TestLinearNormsFollowEachOther(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const eps, hidden, in, out = 1e-5, 224, 96, 48
	w, ws := anyWeight(t, d, rng, compute.BF16, hidden, in)
	next, nexts := anyWeight(t, d, rng, compute.BF16, out, hidden)
	norm, norms := plain(t, d, compute.F32, 1, hidden, normals(rng, hidden))
	for turn := range 9 {
		rows, size := []int{8, 2, 8}[turn%3], []float32{1, 3e4, 1e-3}[turn/3]
		x, sum, h := d.newTensor(rows, in, false), d.newTensor(rows, hidden, false), d.newTensor(rows, hidden, false)
		residual, y := d.newTensor(rows, hidden, true), d.newTensor(rows, out, true)
		values := normals(rng, rows*hidden)
		for i := range values {
			values[i] *= size
		}
		xs, rs := put(d, x, normals(rng, rows*in)), put(d, residual, values)
		if !d.norms(h, residual, x, w.(*weight), next.(*weight), rows) {
			t.Fatalf("%d rows have a norm of their own", rows)
		}
		d.LinearNorm(h, compute.Residual{Sum: residual}, sum, x, w, norm, eps, next, rows)
		poison(d, y)
		d.Linear(y, h, next, rows)
		normed := normOfStream(product(xs, ws, rows, hidden, in), rs, norms, eps)
		compare(t, fmt.Sprintf("turn %d, %d rows of size %g", turn, rows, size), d, y, rows, product(normed, nexts, rows, out, hidden), narrowTolerance)
	}
}

// pack without a device: each column's code is where the kernels look for it.
func TestPackedCodesAreFound(t *testing.T) {
	for i, in := range []int{1, 7, 31, 32, 64, 100, 128, 129, 300} {
		for _, dtype := range []compute.DType{compute.I4, compute.I8, compute.F8E4M3} {
			src := make([]byte, dtype.RowBytes(in))
			for i := range src {
				src[i] = byte(37*i + 11)
			}
			tiles := (in + tileCols(dtype) - 1) / tileCols(dtype)
			dst, row := make([]byte, tiles*tileBytes*together), i%together
			pack(dtype, dst[row*tileBytes:], src, in)
			for col := range tiles * tileCols(dtype) {
				want := byte(0)
				switch {
				case dtype == compute.I4 && col >= in:
					want = 8 // zero
				case dtype == compute.I4:
					want = src[col/2] >> (4 * (col % 2)) & 15
				case col < in:
					want = src[col]
				}
				if got := stored(dtype, dst, row, col); got != want {
					t.Fatalf("%s, %d columns: column %d has code %d, want %d", dtype, in, col, got, want)
				}
			}
		}
	}
}

// stored is the code of a column, by the kernels' rule (code in quant.cu).
func stored(dtype compute.DType, line []byte, row, col int) byte {
	cols := tileCols(dtype)
	tile, in := (col/cols*together+row)*tileBytes, col%cols
	block, thread, k := in/32, in%32/8, in%8
	if dtype == compute.F8E4M3 {
		k = k&4 | []int{1, 3, 0, 2}[k&3]
	}
	if dtype != compute.I4 {
		return line[tile+thread*16+block*8+k]
	}
	at := tile + thread*16 + block*4
	bit := k/2*4 + k%2*16
	return line[at+bit/8] >> (bit % 8) & 15
}
