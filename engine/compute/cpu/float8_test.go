package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// A float8 cache has the codes of the turned keys and of the values, by the scales
// of their heads; and attention is that of what the codes stand for.
func TestAttentionOverFloat8(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for seed, c := range []struct {
			shape            compute.AttentionShape
			n, pageSize      int
			keys, values     []float32
			threads          int
			window, stepRows int
		}{
			{shape: compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125}, n: 90, pageSize: 16, threads: 2, stepRows: 90},
			{shape: compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 64, Scale: 0.125}, n: 90, pageSize: 128, threads: 1, stepRows: 3, window: 40,
				keys: []float32{1, 1, 0.02, 0.3}, values: []float32{1, 1, 3, 0.004}},
			{shape: compute.AttentionShape{Heads: 3, KVHeads: 1, HeadDim: 20, Scale: 0.2}, n: 21, pageSize: 5, threads: 1, stepRows: 1, values: []float32{1, 0.01}},
		} {
			checkFloat8(t, k, uint64(seed), c.shape, compute.CacheFormat{Float8: true, KeyScales: c.keys, ValueScales: c.values}, c.n, c.pageSize, c.threads, c.window, c.stepRows)
		}
	})
}

// checkFloat8 runs n rows of one sequence, rows at a time, in the second layer.
func checkFloat8(t *testing.T, k *kernels, seed uint64, s compute.AttentionShape, f compute.CacheFormat, n, pageSize, threads, window, rows int) {
	rng := rand.New(rand.NewPCG(seed, 8))
	d, pages, dim := device(t, k, threads), (n+pageSize-1)/pageSize, s.HeadDim
	kv := d.NewCache(2, pages, pageSize, s, f)
	table := make([]int32, pages)
	for i, p := range rng.Perm(pages) {
		table[i] = int32(p)
	}
	scale := func(of []float32, h int) float32 {
		if of == nil {
			return 1
		}
		return of[s.KVHeads+h]
	}
	freqs := make([]float32, dim/2)
	for i := range freqs {
		freqs[i] = float32(math.Pow(10000, -2*float64(i)/float64(dim)))
	}
	qkv := random(rng, n*s.QKVCols())
	x, y := d.NewTensor(rows, s.QKVCols()), d.NewTensor(rows, s.Heads*dim)
	codes := kv.(*cache)
	// number is what a code of the cache stands for.
	number := func(of []byte, scales []float32, h, p, j int) float64 {
		return float64(compute.Float8(of[codes.at(1, int(table[p/pageSize]), h, p%pageSize)+j]) * scale(scales, h))
	}
	for from := 0; from < n; from += rows {
		m := min(rows, n-from)
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		for p := range m {
			r.Add(seq, 0, int32(from+p), pageSize)
		}
		fill(x, qkv[from*s.QKVCols():(from+m)*s.QKVCols()])
		d.Prepare(&r, freqs, 1)
		d.RopeAndCache(x, kv, 1, &r)
		d.Attention(y, x, kv, 1, window, &r)
		for i := range m {
			row := d.Floats(x, i) // turned
			for h := range s.KVHeads {
				for j := range dim {
					key, value := row[(s.Heads+h)*dim+j], row[(s.Heads+s.KVHeads+h)*dim+j]
					if got, want := number(codes.k8, f.KeyScales, h, from+i, j), compute.Float8(compute.ToFloat8(key/scale(f.KeyScales, h)))*scale(f.KeyScales, h); got != float64(want) {
						t.Fatalf("position %d, head %d: key %v is kept as %v, want %v", from+i, h, key, got, want)
					}
					if got, want := number(codes.v8, f.ValueScales, h, from+i, j), compute.Float8(compute.ToFloat8(value/scale(f.ValueScales, h)))*scale(f.ValueScales, h); got != float64(want) {
						t.Fatalf("position %d, head %d: value %v is kept as %v, want %v", from+i, h, value, got, want)
					}
				}
			}
			for h := range s.Heads {
				g, first := h/(s.Heads/s.KVHeads), 0
				if window > 0 {
					first = max(0, from+i+1-window)
				}
				var sum float64
				want := make([]float64, dim)
				for p := first; p <= from+i; p++ {
					var score float64
					for j := range dim {
						score += float64(row[h*dim+j]) * number(codes.k8, f.KeyScales, g, p, j)
					}
					e := math.Exp(score * float64(s.Scale))
					sum += e
					for j := range dim {
						want[j] += e * number(codes.v8, f.ValueScales, g, p, j)
					}
				}
				for j, got := range d.Floats(y, i)[h*dim : (h+1)*dim] {
					if w := want[j] / sum; math.Abs(float64(got)-w) > 3e-5*(1+math.Abs(w)) {
						t.Fatalf("%+v: row %d, head %d, value %d is %v, want %v", s, from+i, h, j, got, w)
					}
				}
			}
		}
	}
}
