//go:build linux

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/internal/seed"
)

// attended is one attention layer with what the host knows of it.
type attended struct {
	d           *Device
	rng         *rand.Rand
	shape       compute.AttentionShape
	format      compute.CacheFormat
	pageSize    int
	cache       compute.Cache
	freqs       []float32
	keys, value map[int32][]float64 // by slot, [KV heads · dim]
	free        []int32             // pages
}

const attentionPages = 400

func newAttended(d *Device, rng *rand.Rand, s compute.AttentionShape, pageSize int) *attended {
	return newAttendedAs(d, rng, s, pageSize, compute.CacheFormat{})
}

// float8 is a format with scales for two layers' heads, of which the larger lets no
// number be beyond the largest code.
func float8(rng *rand.Rand, s compute.AttentionShape) compute.CacheFormat {
	f := compute.CacheFormat{Float8: true}
	for range 2 * s.KVHeads {
		f.KeyScales = append(f.KeyScales, float32(0.02*math.Exp2(3*rng.Float64())))
		f.ValueScales = append(f.ValueScales, float32(0.02*math.Exp2(3*rng.Float64())))
	}
	return f
}

func newAttendedAs(d *Device, rng *rand.Rand, s compute.AttentionShape, pageSize int, format compute.CacheFormat) *attended {
	a := &attended{d: d, rng: rng, shape: s, format: format, pageSize: pageSize, cache: d.NewCache(2, attentionPages, pageSize, s, format),
		keys: map[int32][]float64{}, value: map[int32][]float64{}, free: make([]int32, attentionPages)}
	for i, p := range rng.Perm(attentionPages) {
		a.free[i] = int32(p)
	}
	for i := range s.HeadDim / 2 {
		a.freqs = append(a.freqs, float32(math.Pow(10000, -2*float64(i)/float64(s.HeadDim))))
	}
	return a
}

// sequence is a table of its own for n positions.
func (a *attended) sequence(n int) []int32 {
	pages := (n + a.pageSize - 1) / a.pageSize
	table := slices.Clone(a.free[:pages])
	a.free = a.free[pages:]
	return table
}

// pass writes the rows' keys and values, attends, and compares.
func (a *attended) pass(t *testing.T, what string, r *compute.Rows, window int) {
	t.Helper()
	d, s, n := a.d, a.shape, r.Len()
	qkv, out := d.newTensor(n, s.QKVCols(), false), d.newTensor(n, s.Heads*s.HeadDim, false)
	x := doubles(put(d, qkv, normals(a.rng, n*s.QKVCols())))
	poison(d, out)
	d.Prepare(r, a.freqs, 1)
	d.RopeAndCache(qkv, a.cache, 1, r)
	d.Attention(out, qkv, a.cache, 1, window, r)
	a.turn(x, r)
	compare(t, what+": turned", d, qkv, n, x, narrowTolerance)
	want := make([]float64, n*s.Heads*s.HeadDim)
	for i := range n {
		a.attend(want[i*s.Heads*s.HeadDim:], x[i*s.QKVCols():], r, i, window)
	}
	compare(t, what, d, out, n, want, 2*narrowTolerance)
}

// turn rotates queries and keys, and notes keys and values as the cache has them.
func (a *attended) turn(x []float64, r *compute.Rows) {
	s := a.shape
	half := s.HeadDim / 2
	for i, slot := range r.Slots {
		row := x[i*s.QKVCols():][:s.QKVCols()]
		for h := range s.Heads + s.KVHeads {
			for j, f := range a.freqs {
				sin, cos := math.Sincos(float64(float32(r.Positions[i]) * f))
				lo, hi := row[h*s.HeadDim+j], row[h*s.HeadDim+half+j]
				row[h*s.HeadDim+j], row[h*s.HeadDim+half+j] = lo*cos-hi*sin, hi*cos+lo*sin
			}
		}
		rounded := make([]float64, len(row))
		for j, v := range row {
			rounded[j] = a.kept(j/s.HeadDim-s.Heads, float32(v))
		}
		k := rounded[s.Heads*s.HeadDim:]
		a.keys[slot], a.value[slot] = k[:s.KVHeads*s.HeadDim], k[s.KVHeads*s.HeadDim:]
	}
}

// kept is what the cache's second layer makes of a number of KV head kv, or, counted
// on from the keys', of a value.
func (a *attended) kept(kv int, v float32) float64 {
	if kv < 0 || !a.format.Float8 {
		return float64(bf16(v))
	}
	scale := a.scale(kv)
	return float64(compute.Float8(compute.ToFloat8(v/scale))) * float64(scale)
}

// stored notes what the cache's second layer holds of the rows' keys and values: each
// is what it makes of a number no further from the turned one than the bfloat16 of a
// product is.
func (a *attended) stored(t *testing.T, what string, turned []float64, r *compute.Rows) {
	t.Helper()
	s, c := a.shape, a.cache.(*cache)
	size := s.KVHeads * s.HeadDim
	page := a.pageSize * size * c.element // bytes
	pages := map[int][2][]byte{}          // keys and values
	for i, slot := range r.Slots {
		p, offset := int(slot)/a.pageSize, int(slot)%a.pageSize
		if _, ok := pages[p]; !ok {
			pages[p] = [2][]byte{download(t, a.d, c.layer(c.keys, 1)+driver.Ptr(p*page), page), download(t, a.d, c.layer(c.values, 1)+driver.Ptr(p*page), page)}
		}
		held := make([]float64, 2*size)
		row := turned[i*s.QKVCols()+s.Heads*s.HeadDim:]
		for k := range held {
			kv, j, v := k/s.HeadDim, k%s.HeadDim, row[k]
			near := math.Abs(v)
			if kv < s.KVHeads { // two of the product's numbers are in a key's
				near = math.Hypot(v, row[k-j+(j+s.HeadDim/2)%s.HeadDim])
			}
			near = near/256 + 1e-4
			held[k] = a.read(pages[p][kv/s.KVHeads], kv, (kv%s.KVHeads*a.pageSize+offset)*s.HeadDim+j)
			if least, most := a.kept(kv, float32(v-near)), a.kept(kv, float32(v+near)); !(held[k] >= least && held[k] <= most) {
				t.Fatalf("%s: row %d, number %d of its keys and values is %v, want %v to %v for %v", what, i, k, held[k], least, most, v)
			}
		}
		a.keys[slot], a.value[slot] = held[:size], held[size:]
	}
}

// read is number i of a page, which is of a KV head as kept counts them.
func (a *attended) read(from []byte, kv, i int) float64 {
	if a.format.Float8 {
		return float64(compute.Float8(from[i])) * float64(a.scale(kv))
	}
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(from[2*i:])) << 16))
}

// scale is that of the second layer's KV head kv, or, counted on from the keys', of
// a value's.
func (a *attended) scale(kv int) float32 {
	n := a.shape.KVHeads
	return slices.Concat(a.format.KeyScales[n:2*n], a.format.ValueScales[n:2*n])[kv]
}

// attend is the definition: softmax over what row i sees.
func (a *attended) attend(out, row []float64, r *compute.Rows, i, window int) {
	s := a.shape
	seq := r.Seqs[i]
	var seen []int32
	to := r.Positions[i] + 1
	if r.Trees() && r.Masks[i] != 0 {
		to = r.Bases[i]
	}
	for p := r.Starts[seq]; p < to; p++ {
		seen = append(seen, compute.Slot(r.Tables[seq], p, a.pageSize))
	}
	if r.Trees() {
		for m := r.Masks[i]; m != 0; m &= m - 1 {
			seen = append(seen, compute.Slot(r.Tables[seq], to+int32(bits.TrailingZeros64(m)), a.pageSize))
		}
	}
	if window > 0 {
		seen = seen[max(0, len(seen)-window):]
	}
	for h := range s.Heads {
		kv := h / (s.Heads / s.KVHeads) * s.HeadDim
		weights, top, sum := make([]float64, len(seen)), math.Inf(-1), 0.0
		for k, slot := range seen {
			for j := range s.HeadDim {
				weights[k] += row[h*s.HeadDim+j] * a.keys[slot][kv+j] * float64(s.Scale)
			}
			top = max(top, weights[k])
		}
		for k := range weights {
			weights[k] = math.Exp(weights[k] - top)
			sum += weights[k]
		}
		for j := range s.HeadDim {
			var v float64
			for k, slot := range seen {
				v += weights[k] / sum * a.value[slot][kv+j]
			}
			out[h*s.HeadDim+j] = v
		}
	}
}

// tree adds rows of a random tree of n nodes after base positions.
func (a *attended) tree(r *compute.Rows, seq int32, base, n int) {
	masks, depths := make([]uint64, n), make([]int, n)
	for k := range n {
		masks[k] = 1 << k
		if parent := a.rng.IntN(k+1) - 1; parent >= 0 {
			masks[k] |= masks[parent]
			depths[k] = depths[parent] + 1
		}
		r.AddNode(seq, 0, int32(base), k, depths[k], masks[k], a.pageSize)
	}
}

func TestAttentionEqualsTheDefinition(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, s := range []compute.AttentionShape{
		{Heads: 8, KVHeads: 2, HeadDim: 128}, {Heads: 4, KVHeads: 4, HeadDim: 64}, {Heads: 16, KVHeads: 2, HeadDim: 64},
		{Heads: 4, KVHeads: 2, HeadDim: 16}, {Heads: 3, KVHeads: 1, HeadDim: 96}, {Heads: 6, KVHeads: 2, HeadDim: 128}, {Heads: 2, KVHeads: 1, HeadDim: 256},
	} {
		s.Scale = float32(1 / math.Sqrt(float64(s.HeadDim)))
		for _, pageSize := range []int{1, 7, 16, -7, -16} {
			format := compute.CacheFormat{}
			if pageSize < 0 {
				pageSize, format = -pageSize, float8(rng, s)
			}
			a := newAttendedAs(d, rng, s, pageSize, format)
			const prompt = 90
			tables := [][]int32{a.sequence(prompt + 40), a.sequence(prompt + 40), a.sequence(prompt + 40)}
			for _, window := range []int{0, 20} {
				name := fmt.Sprintf("%+v, pages of %d, window %d, float8 %t", s, pageSize, window, format.Float8)
				var r compute.Rows // prompts, one of them from a later position on
				for k, n := range []int{prompt, 33, 5} {
					seq := r.AddSequence(tables[k], 0)
					for p := range n {
						r.Add(seq, 0, int32(p), pageSize)
					}
				}
				a.pass(t, name+": prompts", &r, window)
				r = compute.Rows{} // decode, a prompt that goes on, verify
				seq := r.AddSequence(tables[0], 0)
				r.Add(seq, 0, prompt, pageSize)
				seq = r.AddSequence(tables[1], 0)
				for p := range 40 {
					r.Add(seq, 0, int32(33+p), pageSize)
				}
				seq = r.AddSequence(tables[2], 2)
				for p := range 4 {
					r.Add(seq, 0, int32(5+p), pageSize)
				}
				a.pass(t, name+": mixed", &r, window)
				r = compute.Rows{} // trees beside a chain
				a.tree(&r, r.AddSequence(tables[0], 0), prompt+1, 30)
				seq = r.AddSequence(tables[2], 0)
				r.Add(seq, 0, 9, pageSize)
				a.tree(&r, r.AddSequence(tables[1], 3), 73, 9)
				a.pass(t, name+": trees", &r, window)
			}
		}
	}
}

// A product that turns its queries and keys and writes the cache: the queries,
// and what attention then makes of the cache.
func TestQKV(t *testing.T) {
	d := gpu(t, nil)
	tryQKV(t, d, seed.Numbers(t))
	tryQKV(t, d, rand.New(rand.NewPCG(5571625347212733457, 1))) // with values near the middle between two codes
}

func tryQKV(t *testing.T, d *Device, rng *rand.Rand) {
	t.Helper()
	for _, s := range []compute.AttentionShape{{Heads: 4, KVHeads: 2, HeadDim: 128, Scale: 0.001}, {Heads: 2, KVHeads: 1, HeadDim: 16, Scale: 0.003}, {Heads: 1, KVHeads: 1, HeadDim: 24, Scale: 0.002}} {
		for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.I4} {
			for i, rows := range []int{1, 5, 12, 30, 1, 7, 30} {
				const hidden = 128
				format := compute.CacheFormat{}
				if i >= 4 {
					format = float8(rng, s) // keys and values are larger here: some are beyond its largest
				}
				a := newAttendedAs(d, rng, s, 16, format)
				w, values := anyWeight(t, d, rng, dtype, s.QKVCols(), hidden)
				qkvEquals(t, fmt.Sprintf("%+v, %s, %d rows, float8 %t", s, dtype, rows, format.Float8), a, w, values, rows, hidden)
			}
		}
	}
}

// qkvEquals compares a product that turns queries and keys and writes them to the cache a, and
// attention after it, of a sequence of so many rows, with their definitions.
func qkvEquals(t *testing.T, name string, a *attended, w compute.Weight, values []float32, rows, hidden int) {
	t.Helper()
	d, s := a.d, a.shape
	x, qkv, out := d.newTensor(rows, hidden, false), d.newTensor(rows, s.QKVCols(), false), d.newTensor(rows, s.Heads*s.HeadDim, false)
	xs := put(d, x, normals(a.rng, rows*hidden))
	poison(d, qkv)
	poison(d, out)
	var r compute.Rows
	seq := r.AddSequence(a.sequence(max(64, rows)), 0)
	for p := range rows {
		r.Add(seq, 0, int32(p), 16)
	}
	d.Prepare(&r, a.freqs, 1)
	d.QKV(qkv, x, w, a.cache, 1, &r)
	d.Attention(out, qkv, a.cache, 1, 0, &r)
	turned := product(xs, values, rows, s.QKVCols(), hidden)
	a.turn(turned, &r)
	queries, want := make([]float64, 0, rows*s.Heads*s.HeadDim), make([]float64, rows*s.Heads*s.HeadDim)
	for i := range rows {
		queries = append(queries, turned[i*s.QKVCols():][:s.Heads*s.HeadDim]...)
	}
	compare(t, name+": queries", d, d.Columns(qkv, 0, s.Heads*s.HeadDim), rows, queries, narrowTolerance)
	// Where the product is rounded first, a number near the middle between two
	// codes may get the other one: attention is that of what is there.
	a.stored(t, name, turned, &r)
	for i := range rows {
		a.attend(want[i*s.Heads*s.HeadDim:], doubles(d.Floats(qkv, i)), &r, i, 0)
	}
	compare(t, name, d, out, rows, want, 2*narrowTolerance)
}

// Long contexts: positions are split over blocks, whose sums are put together.
func TestAttentionOfSplits(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	s := compute.AttentionShape{Heads: 4, KVHeads: 1, HeadDim: 128, Scale: 0.088}
	for _, format := range []compute.CacheFormat{{}, float8(rng, s)} {
		a := newAttendedAs(d, rng, s, 16, format)
		const context = 700
		table := a.sequence(context + 200)
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		for p := range context {
			r.Add(seq, 0, int32(p), 16)
		}
		a.pass(t, fmt.Sprintf("a long prompt, float8 %t", format.Float8), &r, 0)
		at := context
		for _, rows := range []int{1, 4, 9, 16, 1, 8} {
			r = compute.Rows{}
			seq := r.AddSequence(table, 0)
			for range rows {
				r.Add(seq, 0, int32(at), 16)
				at++
			}
			a.pass(t, fmt.Sprintf("%d rows, float8 %t", rows, format.Float8), &r, 0)
		}
	}
}

func TestMoveCache(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	s := compute.AttentionShape{Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 0.1}
	for _, format := range []compute.CacheFormat{{}, float8(rng, s)} {
		a := newAttendedAs(d, rng, s, 4, format)
		table := a.sequence(40)
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		for p := range 20 {
			r.Add(seq, 0, int32(p), 4)
		}
		a.pass(t, "before", &r, 0)
		slot := func(p int32) int32 { return compute.Slot(table, p, 4) }
		to, from := []int32{slot(10), slot(11), slot(12)}, []int32{slot(11), slot(15), slot(18)}
		d.MoveCache(a.cache, to, from)
		for i := range to {
			a.keys[to[i]], a.value[to[i]] = a.keys[from[i]], a.value[from[i]]
		}
		r = compute.Rows{}
		r.AddSequence(table, 0)
		r.Add(0, 0, 20, 4)
		a.pass(t, "after", &r, 0)
	}
}
