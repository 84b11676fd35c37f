package cpu

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
)

// linearTask is Linear, split by weight rows.
type linearTask struct {
	k      *kernels
	dst, x *tensor
	w      *weight
	rows   int
	// Of a weight of integer codes: the activations' words, wordStride a row.
	words      []int16
	wordStride int
	spill      [maxLanes * maxVecs]float32 // outputs of a last panel with rows beyond the weight's
}

// The most rows of a panel and of activations in a tile of a quantised weight.
const maxLanes, maxVecs = 16, 8

// Linear implements compute.Device.
func (d *Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	d.linear = linearTask{k: d.k, dst: dst.(*tensor), x: x.(*tensor), w: w.(*weight), rows: rows}
	if p := d.linear.w.panels; p == nil && d.linear.w.in < d.k.lanes || p != nil && !p.even() {
		d.linear.k = genericKernels
	}
	d.prepare(&d.linear)
	d.fork(&d.linear, rows*d.linear.w.in*d.linear.w.out)
}

// rowBlock is how many activation rows are kept close (in the second-level
// cache) while the weights pass by.
const rowBlock = 64

func (t *linearTask) run(part, parts int) {
	if t.w.panels != nil {
		t.runPanels(part, parts)
		return
	}
	set := &t.k.bf16
	switch t.w.dtype {
	case compute.F32:
		set = &t.k.f32
	case compute.F16:
		set = &t.k.f16
	}
	from, to := split((t.w.out+3)/4, part, parts)
	from, to = 4*from, min(4*to, t.w.out)
	for i := 0; i < t.rows; i += rowBlock {
		end := min(i+rowBlock, t.rows)
		r := from
		for ; r+4 <= to; r += 4 {
			t.tiles(set.rows4, r, i, end)
		}
		for ; r < to; r++ {
			t.tiles(set.row1, r, i, end)
		}
		t.tail(t.w.in-t.w.in%t.k.lanes, from, to, i, end)
	}
}

// tiles computes the outputs of the weight rows from r for activation rows [i, end).
func (t *linearTask) tiles(fns []tileFunc, r, i, end int) {
	n := t.w.in - t.w.in%t.k.lanes
	for i < end {
		m := min(end-i, len(fns))
		fns[m-1](t.w.ptr(r), t.w.stride(), &t.x.row(i)[0], uintptr(4*t.x.stride), n,
			&t.dst.row(i)[r], uintptr(4*t.dst.stride))
		i += m
	}
}

// tail adds the products of the columns from n on, which are too few for a kernel.
func (t *linearTask) tail(n, from, to, i, end int) {
	if n == t.w.in {
		return
	}
	for ; i < end; i++ {
		x, out := t.x.row(i), t.dst.row(i)
		for r := from; r < to; r++ {
			var sum float32
			for j := n; j < t.w.in; j++ {
				sum += t.w.at(r, j) * x[j]
			}
			out[r] += sum
		}
	}
}

// attentionTask is Attention, split by (row, KV head).
type attentionTask struct {
	k        *kernels
	dst, qkv *tensor
	c        *cache
	layer    int
	window   int // 0: none
	r        *compute.Rows
	scores   [][]float32 // by part: [queries of a KV head, positions], and their sums
	decoded  [][]float32 // by part: keys or values of decodedRows positions, of a float8 cache
}

// Attention implements compute.Device.
func (d *Device) Attention(dst, qkv compute.Tensor, kv compute.Cache, layer, window int, r *compute.Rows) {
	t := &d.attention
	t.k, t.dst, t.qkv, t.c, t.layer, t.window, t.r = d.k, dst.(*tensor), qkv.(*tensor), kv.(*cache), layer, window, r
	if t.c.shape.HeadDim%d.k.lanes != 0 {
		t.k = genericKernels
	}
	longest, work := 0, 0
	for i := range r.Positions {
		v := t.visible(i)
		n := v.len()
		longest = max(longest, n)
		work += 2 * n * t.c.shape.HeadDim * t.c.shape.Heads
	}
	group := t.c.shape.Heads / t.c.shape.KVHeads
	if need := group * (longest + 1); t.scores == nil || cap(t.scores[0]) < need {
		t.scores = make([][]float32, d.pool.parts)
		for i := range t.scores {
			t.scores[i] = make([]float32, 2*need) // grows by doubling
		}
	}
	if need := decodedRows * t.c.shape.HeadDim; t.c.float8() && (t.decoded == nil || len(t.decoded[0]) < need) {
		t.decoded = make([][]float32, d.pool.parts)
		for i := range t.decoded {
			t.decoded[i] = make([]float32, need)
		}
	}
	d.fork(t, work)
}

func (t *attentionTask) run(part, parts int) {
	heads := t.c.shape.KVHeads
	from, to := split(t.r.Len()*heads, part, parts)
	for u := from; u < to; u++ {
		var decoded []float32
		if t.c.float8() {
			decoded = t.decoded[part]
		}
		t.one(u/heads, u%heads, t.scores[part], decoded)
	}
}

// view is the positions that a row sees: [from, to), then to+j for each bit j of
// nodes.
type view struct {
	from, to int
	nodes    uint64
}

func (v *view) len() int { return v.to - v.from + bits.OnesCount64(v.nodes) }

// next takes the first positions that follow each other off v; count 0 is the end.
func (v *view) next() (p, count int) {
	if v.from < v.to {
		p, count = v.from, v.to-v.from
		v.from = v.to
		return p, count
	}
	if v.nodes == 0 {
		return 0, 0
	}
	j := bits.TrailingZeros64(v.nodes)
	count = bits.TrailingZeros64(^(v.nodes >> j))
	v.nodes &^= (1<<count - 1) << j
	return v.to + j, count
}

// visible is what row i sees.
func (t *attentionTask) visible(i int) view {
	v := view{from: int(t.r.Starts[t.r.Seqs[i]]), to: int(t.r.Positions[i]) + 1}
	if t.r.Trees() && t.r.Masks[i] != 0 {
		v.to, v.nodes = int(t.r.Bases[i]), t.r.Masks[i]
	}
	if t.window > 0 {
		n := bits.OnesCount64(v.nodes)
		v.from = min(max(v.from, v.to+n-t.window), v.to)
		for ; n > t.window; n-- {
			v.nodes &= v.nodes - 1
		}
	}
	return v
}

// decodedRows is how many positions of a float8 cache are decoded at a time: they
// stay in the nearest memory until they have been used.
const decodedRows = 32

// one computes the outputs of row i for the query heads of KV head h.
func (t *attentionTask) one(i, h int, scratch, decoded []float32) {
	s := t.c.shape
	group, dim := s.Heads/s.KVHeads, s.HeadDim
	all := t.visible(i)
	n := all.len()
	queries := t.qkv.row(i)[h*group*dim : (h+1)*group*dim]
	table := t.r.Tables[t.r.Seqs[i]]
	scratch, sums := scratch[:group*n], scratch[group*n:group*(n+1)]

	k, v := 0, all
	for p, count := v.next(); count > 0; p, count = v.next() {
		for to := p + count; p < to; {
			at, m := t.stretch(table, h, p, to)
			t.score(scratch[k:], t.keys(decoded, h, at, m), queries, m, group, n)
			p += m
			k += m
		}
	}
	out := t.dst.row(i)[h*group*dim : (h+1)*group*dim]
	clear(out)
	for g := range group {
		sums[g] = softmax(scratch[g*n:(g+1)*n], s.Scale)
	}
	k, v = 0, all
	for p, count := v.next(); count > 0; p, count = v.next() {
		for to := p + count; p < to; {
			at, m := t.stretch(table, h, p, to)
			values := t.values(decoded, h, at, m)
			for g := range group {
				t.k.weighted(&scratch[g*n+k], &values[0], uintptr(4*dim), m, &out[g*dim], dim)
			}
			p += m
			k += m
		}
	}
	for g, sum := range sums {
		o := out[g*dim : (g+1)*dim]
		for j := range o {
			o[j] /= sum
		}
	}
}

// stretch is where the cache entries of head h from position p on begin, and how
// many, up to position to, are taken together: the rest of a page, or of a float8
// cache what decodedRows has of it.
func (t *attentionTask) stretch(table []int32, h, p, to int) (at, count int) {
	page, offset := p/t.c.pageSize, p%t.c.pageSize
	count = min(t.c.pageSize-offset, to-p)
	if t.c.float8() {
		count = min(count, decodedRows)
	}
	return t.c.at(t.layer, int(table[page]), h, offset), count
}

// keys are the keys of count positions of head h that begin at index at.
func (t *attentionTask) keys(decoded []float32, h, at, count int) []float32 {
	n := count * t.c.shape.HeadDim
	if !t.c.float8() {
		return t.c.k[at : at+n]
	}
	decode(decoded, t.c.k8[at:at+n], t.c.kScales[t.layer*t.c.shape.KVHeads+h])
	return decoded
}

// values is keys for values.
func (t *attentionTask) values(decoded []float32, h, at, count int) []float32 {
	n := count * t.c.shape.HeadDim
	if !t.c.float8() {
		return t.c.v[at : at+n]
	}
	decode(decoded, t.c.v8[at:at+n], t.c.vScales[t.layer*t.c.shape.KVHeads+h])
	return decoded
}

// score sets dst[g·stride + j] to query g · key j for count keys.
func (t *attentionTask) score(dst, keys, queries []float32, count, group, stride int) {
	dim := t.c.shape.HeadDim
	tile := func(fns []tileFunc, j int) {
		for g := 0; g < group; {
			m := min(group-g, len(fns))
			fns[m-1]((*byte)(unsafe.Pointer(&keys[j*dim])), uintptr(4*dim), &queries[g*dim], uintptr(4*dim), dim,
				&dst[g*stride+j], uintptr(4*stride))
			g += m
		}
	}
	j := 0
	for ; j+4 <= count; j += 4 {
		tile(t.k.f32.rows4, j)
	}
	for ; j < count; j++ {
		tile(t.k.f32.row1, j)
	}
}

// softmax sets x = exp(scale·x − max) and returns the sum of that.
func softmax(x []float32, scale float32) float32 {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v)
	}
	var sum float32
	for i, v := range x {
		e := exp32((v - top) * scale)
		x[i] = e
		sum += e
	}
	return sum
}
