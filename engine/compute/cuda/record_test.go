//go:build linux

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// A recorded pass gives what an issued one does, bit for bit, with other values,
// lengths and numbers of rows in its place.
func TestRecordedPassesEqualIssuedOnes(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	s := compute.AttentionShape{Heads: 8, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	a := newAttended(d, rng, s, 16)
	const hidden, vocab, most = 128, 64, 40
	table, _ := plain(t, d, compute.BF16, vocab, hidden, normals(rng, vocab*hidden))
	w, _ := plain(t, d, compute.BF16, s.QKVCols(), hidden, normals(rng, s.QKVCols()*hidden))
	o, _ := plain(t, d, compute.BF16, vocab, s.Heads*s.HeadDim, normals(rng, vocab*s.Heads*s.HeadDim))
	x, qkv := d.NewTensor(most, hidden), d.NewTensor(most, s.QKVCols())
	attn, picked, out := d.NewTensor(most, s.Heads*s.HeadDim), d.NewTensor(most, s.Heads*s.HeadDim), d.NewSums(most, vocab)
	bodies := 0
	body := func(r *compute.Rows, lists [2][]int32) {
		bodies++
		d.Prepare(r, a.freqs, 1)
		d.Embed(x, table, 0, r)
		d.Linear(qkv, x, w, r.Len())
		d.RopeAndCache(qkv, a.cache, 0, r)
		d.Attention(attn, qkv, a.cache, 0, 0, r)
		d.Gather(picked, attn, lists[1])
		d.Linear(out, picked, o, len(lists[1]))
		d.ArgMax(out, vocab, len(lists[1]))
	}
	var tables [][]int32
	for range 12 {
		tables = append(tables, a.sequence(160))
	}
	// What passes look at was written before: memory of a new cache may hold NaNs.
	for _, table := range tables {
		for from := 0; from < 160; from += most {
			var r compute.Rows
			seq := r.AddSequence(table, 0)
			for p := range most {
				r.Add(seq, 0, int32(from+p), 16)
			}
			put(d, qkv, normals(rng, most*s.QKVCols()))
			d.Prepare(&r, a.freqs, 1)
			d.RopeAndCache(qkv, a.cache, 0, &r)
		}
	}
	for trial := range 60 {
		var r compute.Rows
		var want []int32
		length := 1 + rng.IntN(3)
		for _, k := range rng.Perm(len(tables))[:1+rng.IntN(len(tables))] {
			seq := r.AddSequence(tables[k], 0)
			at := rng.IntN(150)
			for p := range length {
				want = append(want, int32(r.Len()))
				r.Add(seq, rng.Int32N(vocab), int32(at+p), 16)
			}
		}
		run := func() (logits []float32, best []int32) {
			d.Run(compute.Pass{Kind: 1, Rows: &r, Lists: [2][]int32{nil, want}}, body)
			for i := range want {
				logits = append(logits, d.Floats(out, i)...)
				id, _ := d.Best(out, i)
				best = append(best, id)
			}
			return logits, best
		}
		got, best := run()
		d.options.NoGraphs = true
		issued, wanted := run()
		d.options.NoGraphs = false
		if err := d.Err(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(best, wanted) {
			t.Fatalf("trial %d, %d rows: best %v, want %v", trial, r.Len(), best, wanted)
		}
		for i := range got {
			if d := got[i] - issued[i]; d > 1e-2 || d < -1e-2 || d != d {
				t.Fatalf("trial %d, %d rows: value %d is %v, want %v", trial, r.Len(), i, got[i], issued[i])
			}
		}
	}
	if bodies >= 120 {
		t.Error("no pass was repeated from a recording")
	}
}

// Products that leave norms to each other, in passes with a norm that is a kernel ahead of
// them and without, give what they should whatever pass was issued, recorded or repeated
// before.
func TestRecordedNormsWithinProducts(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	d.NewCache(1, 4, 16, compute.AttentionShape{Heads: 1, KVHeads: 1, HeadDim: 16}, compute.CacheFormat{})
	const eps, hidden, in, most = 1e-5, 160, 96, plainRows
	w, ws := plain(t, d, compute.BF16, hidden, in, normals(rng, hidden*in))
	next, nexts := plain(t, d, compute.BF16, in, hidden, normals(rng, in*hidden))
	norm, norms := plain(t, d, compute.F32, 1, hidden, normals(rng, hidden))
	x, sum, h, y := d.newTensor(most, in, false), d.newTensor(most, hidden, false), d.newTensor(most, hidden, false), d.newTensor(most, in, true)
	residual, ahead, freqs := d.newTensor(most, hidden, true), d.newTensor(most, hidden, false), make([]float32, 8)
	for trial := range 60 {
		rows, kernel, products := 1+rng.IntN(most), rng.IntN(2), 1+rng.IntN(2) // of a kind: as many products
		var r compute.Rows
		for range rows {
			r.Add(r.AddSequence([]int32{0}, 0), 0, 0, 16)
		}
		xs, rs := put(d, x, normals(rng, most*in)), put(d, residual, normals(rng, most*hidden))
		d.Run(compute.Pass{Kind: 1 + kernel + 2*products, Rows: &r}, func(r *compute.Rows, _ [2][]int32) {
			d.Prepare(r, freqs, 1)
			if kernel == 1 {
				d.RMSNorm(ahead, residual, norm, eps, r.Len())
			}
			for range products {
				d.LinearNorm(h, compute.Residual{Sum: residual}, sum, x, w, norm, eps, next, r.Len())
				d.Linear(y, h, next, r.Len())
			}
		})
		stream := make([]float64, rows*hidden)
		for range products {
			for i, v := range product(xs, ws, rows, hidden, in) {
				stream[i] += v
			}
		}
		normed := normOfStream(stream, rs[:rows*hidden], norms, eps)
		compare(t, fmt.Sprintf("trial %d, %d rows, %d products, %d kernels", trial, rows, products, kernel), d, y, rows, product(normed, nexts, rows, in, hidden), narrowTolerance)
	}
	if d.record.recorded() == 0 {
		t.Error("nothing was recorded")
	}
}

// 128 sequences that verify 5 drafts each are recorded.
func TestWidestPassesAreRecorded(t *testing.T) {
	d := gpu(t, nil)
	d.NewCache(1, 4, 16, compute.AttentionShape{Heads: 1, KVHeads: 1, HeadDim: 16}, compute.CacheFormat{})
	var r compute.Rows
	for range 128 {
		seq := r.AddSequence([]int32{0}, 0)
		for p := range 6 {
			r.Add(seq, 0, int32(p), 16)
		}
	}
	bodies, freqs := 0, make([]float32, 8)
	for range 3 {
		d.Run(compute.Pass{Kind: 1, Rows: &r}, func(r *compute.Rows, _ [2][]int32) {
			bodies++
			d.Prepare(r, freqs, 1)
		})
	}
	if err := d.Err(); err != nil || bodies != 2 || d.record.recorded() != 1 {
		t.Errorf("%d passes were issued or recorded, %d are recorded, %v; want the third repeated", bodies, d.record.recorded(), err)
	}
}

// Where there is no memory for a recording, passes go on without it, and with fewer
// recordings afterwards.
func TestRecordingsGiveWay(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const hidden, vocab, most = 64, 32, 16
	d.NewCache(1, 4, 16, compute.AttentionShape{Heads: 1, KVHeads: 1, HeadDim: 16}, compute.CacheFormat{})
	table, values := plain(t, d, compute.BF16, vocab, hidden, normals(rng, vocab*hidden))
	x, freqs := d.NewTensor(most, hidden), make([]float32, 8)
	bodies := 0
	run := func(rows int) {
		t.Helper()
		var r compute.Rows
		for i := range rows {
			r.Add(r.AddSequence([]int32{0}, 0), int32(i), 0, 16)
		}
		d.Run(compute.Pass{Kind: 1, Rows: &r}, func(r *compute.Rows, _ [2][]int32) {
			bodies++
			d.Prepare(r, freqs, 1)
			d.Embed(x, table, 0, r)
		})
		want := make([]float64, rows*hidden)
		for i := range want {
			want[i] = float64(values[i])
		}
		compare(t, "embedded", d, x, rows, want, narrowTolerance)
	}
	for _, rows := range []int{1, 2, 3, 4} { // each is recorded the second time
		run(rows)
		run(rows)
	}
	if n := d.record.recorded(); n != 4 {
		t.Fatalf("%d passes are recorded, want 4", n)
	}
	d.record.refuse = 1
	run(5)
	run(5)
	if d.record.recorded() != 0 || d.record.most() != 2 || d.Err() != nil {
		t.Fatalf("%d passes are recorded, at most %d, %v; want 0 of 2", d.record.recorded(), d.record.most(), d.Err())
	}
	run(1)
	run(1)
	if before := bodies; d.record.recorded() == 1 {
		if run(1); bodies != before {
			t.Error("a recorded pass was issued")
		}
	} else {
		t.Error("nothing is recorded any more")
	}
	d.record.refuse = 1
	run(2)
	run(2)
	run(2)
	if d.record.most() != 0 || d.record.recorded() != 0 {
		t.Errorf("%d passes are recorded, at most %d; want none", d.record.recorded(), d.record.most())
	}
}

// Passes whose shape comes again are known as such, for which products time their ways:
// decode and verify, and not prompts, nor what is computed outside of passes.
func TestPassesThatComeAgain(t *testing.T) {
	d := gpu(t, nil)
	for _, c := range []struct {
		seqs, rows int
		again      bool
	}{{1, 1, true}, {40, 1, true}, {3, 8, true}, {1, longItem - 1, true}, {1, longItem, false}, {2, 200, false}, {maxRecorded + 1, 1, false}} {
		var r compute.Rows
		for range c.seqs {
			seq := r.AddSequence([]int32{0}, 0)
			for range c.rows {
				r.Add(seq, 0, 0, 16)
			}
		}
		seen := false
		d.Run(compute.Pass{Kind: 1, Rows: &r}, func(*compute.Rows, [2][]int32) {
			seen = true
			if d.often != c.again {
				t.Errorf("%d sequences of %d rows: %t", c.seqs, c.rows, d.often)
			}
		})
		if !seen || d.often {
			t.Errorf("%d sequences of %d rows: computed %t, and after it %t", c.seqs, c.rows, seen, d.often)
		}
	}
}
