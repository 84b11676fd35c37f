//go:build linux

package cuda

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// tokens makes rows of one sequence with these tokens at positions 0, 1, ….
func tokens(ids ...int32) *compute.Rows {
	var r compute.Rows
	table := make([]int32, (len(ids)+15)/16+1)
	for i := range table {
		table[i] = int32(i)
	}
	seq := r.AddSequence(table, 0)
	for i, id := range ids {
		r.Add(seq, id, int32(i), 16)
	}
	return &r
}

func TestEmbed(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	d.NewCache(1, 4, 16, compute.AttentionShape{Heads: 1, KVHeads: 1, HeadDim: 16}, compute.CacheFormat{})
	for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.F32} {
		for _, cols := range []int{64, 100, 4096} {
			table, values := plain(t, d, dtype, 50, cols, normals(rng, 50*cols))
			r := tokens(30, 79, 29, 80, 55)
			x := d.newTensor(r.Len(), cols, true)
			poison(d, x)
			d.Prepare(r, make([]float32, 8), 1)
			d.Embed(x, table, 30, r)
			want := make([]float64, r.Len()*cols)
			for i, id := range r.Tokens {
				for j := range cols {
					if at := int(id) - 30; at >= 0 && at < 50 {
						want[i*cols+j] = float64(values[at*cols+j])
					}
				}
			}
			compare(t, fmt.Sprintf("%s, %d columns", dtype, cols), d, x, r.Len(), want, 0)
		}
	}
}

func TestNorms(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, cols := range []int{64, 100, 256, 1027, 4096, 8192, 20000} {
		for _, rows := range []int{1, 5} {
			for _, wide := range []bool{false, true} {
				what := fmt.Sprintf("%d × %d, wide residual %t", rows, cols, wide)
				w, ws := plain(t, d, compute.F32, 1, cols, normals(rng, cols))
				x, residual, y := d.newTensor(rows, cols, false), d.newTensor(rows, cols, wide), d.newTensor(rows, cols, false)
				xs, rs := put(d, x, normals(rng, rows*cols)), put(d, residual, normals(rng, rows*cols))
				want := func(v []float64) []float64 {
					out := make([]float64, len(v))
					for i := range rows {
						var sum float64
						for _, e := range v[i*cols : (i+1)*cols] {
							sum += e * e
						}
						for j := range cols {
							out[i*cols+j] = v[i*cols+j] / math.Sqrt(sum/float64(cols)+1e-5) * float64(ws[j])
						}
					}
					return out
				}
				poison(d, y)
				d.RMSNorm(y, x, w, 1e-5, rows)
				compare(t, "norm of "+what, d, y, rows, want(doubles(xs)), narrowTolerance)
				sum := doubles(xs)
				for i, v := range rs {
					sum[i] += float64(v)
				}
				poison(d, y)
				copied := newCopied(d, rows, cols)
				d.AddRMSNorm(y, compute.Residual{Sum: residual, Copy: copied.of}, x, w, 1e-5, rows)
				copied.check(t, what, d, residual, rows)
				compare(t, "sum of "+what, d, residual, rows, sum, tolerance(residual))
				compare(t, "norm of the sum of "+what, d, y, rows, want(sum), 1.5*narrowTolerance)
			}
		}
	}
}

// copied is where a residual stream goes too: some columns of a tensor without
// numbers.
type copied struct {
	all, of compute.Tensor
	from    int
}

func newCopied(d *Device, rows, cols int) copied {
	c := copied{all: d.newTensor(rows, 3*cols, false), from: cols}
	c.of = d.Columns(c.all, cols, cols)
	poison(d, c.all)
	return c
}

// check fails unless the rows of a stream are there, to the bit that Copy gives, and
// nothing is beside them.
func (c copied) check(t *testing.T, what string, d *Device, stream compute.Tensor, rows int) {
	t.Helper()
	cols := stream.Cols()
	want := d.newTensor(rows, cols, false)
	d.Copy(want, stream, rows)
	for i := range rows {
		row := slices.Clone(d.Floats(c.all, i))
		if !slices.Equal(row[c.from:c.from+cols], d.Floats(want, i)) {
			t.Errorf("%s: row %d of the stream is not copied", what, i)
			return
		}
		for _, v := range slices.Concat(row[:c.from], row[c.from+cols:]) {
			if v == v {
				t.Errorf("%s: row %d is written beside the copy of the stream", what, i)
				return
			}
		}
	}
}

func doubles(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func TestMoves(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, cols := range []int{1, 64, 5000} {
		const rows = 6
		for _, wide := range []bool{false, true} {
			x, y := d.newTensor(rows, cols, wide), d.newTensor(rows, cols, true)
			xs := put(d, x, normals(rng, rows*cols))
			check := func(what string, n int, want func(i, j int) float64) {
				t.Helper()
				w := make([]float64, n*cols)
				for i := range n {
					for j := range cols {
						w[i*cols+j] = want(i, j)
					}
				}
				compare(t, fmt.Sprintf("%s, %d columns", what, cols), d, y, n, w, 1e-6)
			}
			at := func(i, j int) float64 { return float64(xs[i*cols+j]) }
			poison(d, y)
			d.Copy(y, x, rows)
			check("copy", rows, at)
			d.Add(y, x, rows)
			check("add", rows, func(i, j int) float64 { return 2 * at(i, j) })
			bias, bs := plain(t, d, compute.F32, 1, cols, normals(rng, cols))
			d.AddBias(y, bias, rows)
			check("bias", rows, func(i, j int) float64 { return 2*at(i, j) + float64(bs[j]) })
			poison(d, y)
			index := []int32{4, 4, 0, 5}
			d.Gather(y, x, index)
			check("gather", 4, func(i, j int) float64 { return at(int(index[i]), j) })
			poison(d, y)
			d.Scatter(y, x, []int32{2, 0, 1}, []int32{5, 1, 3})
			check("scatter", 3, func(i, j int) float64 { return at([]int{1, 3, 5}[i], j) })
		}
	}
}

func TestSiluMul(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, cols := range []int{1, 96, 14336} {
		const rows = 3
		x, y := d.newTensor(rows, 2*cols, false), d.newTensor(rows, cols, false)
		xs := put(d, x, normals(rng, rows*2*cols))
		poison(d, y)
		d.SiluMul(y, x, rows)
		want := make([]float64, rows*cols)
		for i := range rows {
			for j := range cols {
				g, u := float64(xs[i*2*cols+j]), float64(xs[i*2*cols+cols+j])
				want[i*cols+j] = g / (1 + math.Exp(-g)) * u
			}
		}
		compare(t, fmt.Sprintf("%d columns", cols), d, y, rows, want, narrowTolerance)
	}
}

func TestQKNorm(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, s := range []compute.AttentionShape{{Heads: 4, KVHeads: 2, HeadDim: 16}, {Heads: 3, KVHeads: 1, HeadDim: 128}, {Heads: 1, KVHeads: 1, HeadDim: 80}} {
		const rows = 5
		q, qs := plain(t, d, compute.F32, 1, s.HeadDim, normals(rng, s.HeadDim))
		k, ks := plain(t, d, compute.F32, 1, s.HeadDim, normals(rng, s.HeadDim))
		x := d.newTensor(rows, s.QKVCols(), false)
		want := doubles(put(d, x, normals(rng, rows*s.QKVCols())))
		for i := range rows {
			for h := range s.Heads + s.KVHeads {
				w := qs
				if h >= s.Heads {
					w = ks
				}
				head := want[i*s.QKVCols()+h*s.HeadDim:][:s.HeadDim]
				var sum float64
				for _, v := range head {
					sum += v * v
				}
				for j := range head {
					head[j] *= float64(w[j]) / math.Sqrt(sum/float64(s.HeadDim)+1e-6)
				}
			}
		}
		d.QKNorm(x, q, k, 1e-6, s, rows)
		compare(t, fmt.Sprint(s), d, x, rows, want, narrowTolerance)
	}
}

func TestArgMax(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, cols := range []int{5, 4096, 128256} {
		x := d.newTensor(8, cols+3, true)
		values := normals(rng, 8*(cols+3))
		row := func(i int) []float32 { return values[i*(cols+3):][:cols+3] }
		for i := range 8 {
			row(i)[cols] = 1e9 // beyond the columns that count
		}
		row(0)[3] = 50
		row(1)[cols-1], row(1)[2] = 60, 60 // the first of equals
		for j := range row(2) {
			row(2)[j] = -float32(j) - 2
		}
		row(3)[1] = nan
		row(4)[4] = inf
		for j := range row(5) {
			row(5)[j] = -inf
		}
		row(5)[4] = -7
		for j := range row(6) {
			row(6)[j] = -inf
		}
		row(7)[0] = 70
		put(d, x, values)
		d.ArgMax(x, cols, 8)
		for i, want := range []int32{3, 2, 0, -1, -1, 4, -1, 0} {
			got, ok := d.Best(x, i)
			if !ok {
				got = -1
			}
			if got != want {
				t.Errorf("%d columns, row %d: %d, want %d", cols, i, got, want)
			}
		}
	}
}

func TestCollectives(t *testing.T) {
	rng := seed.Numbers(t)
	const ranks, rows, cols = 3, 4, 40
	comms := collective.NewLocal(ranks, rows*cols)
	devices := make([]*Device, ranks)
	for i := range devices {
		devices[i] = gpu(t, comms[i])
	}
	sum, side := make([]float64, rows*cols), make([]float64, rows*cols*ranks)
	type part struct{ x, sum, all compute.Tensor }
	parts := make([]part, ranks)
	for k, d := range devices {
		p := part{d.newTensor(rows, cols, false), d.newTensor(rows, cols, true), d.newTensor(rows, ranks*cols, true)}
		for i, v := range put(d, p.x, normals(rng, rows*cols)) {
			sum[i] += float64(v)
			side[i/cols*cols*ranks+k*cols+i%cols] = float64(v)
		}
		poison(d, p.all)
		d.Copy(p.sum, p.x, rows)
		parts[k] = p
	}
	var wg sync.WaitGroup
	for k, d := range devices {
		wg.Go(func() {
			d.AllReduce(parts[k].sum, rows)
			d.AllGather(parts[k].all, parts[k].x, rows)
		})
	}
	wg.Wait()
	for k, d := range devices {
		compare(t, "sum", d, parts[k].sum, rows, sum, 1e-6)
		compare(t, "side by side", d, parts[k].all, rows, side, 0)
	}
}
