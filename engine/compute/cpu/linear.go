package cpu

import (
	"math"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
)

// linearTask is Linear, split by weight rows.
type linearTask struct {
	k      *kernels
	dst, x *tensor
	w      *weight
	rows   int
	spill  [4 * maxVecs]float32 // outputs of a last panel with rows beyond the weight's
}

// maxVecs is the most activation rows that a quantTileFunc takes.
const maxVecs = 4

// Linear implements compute.Device.
func (d *Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	d.linear = linearTask{k: d.k, dst: dst.(*tensor), x: x.(*tensor), w: w.(*weight), rows: rows}
	if d.linear.w.in < d.k.lanes || d.linear.w.panels != nil && !d.linear.w.panels.even() {
		d.linear.k = genericKernels
	}
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
	scores   [][]float32 // by part: [queries of a KV head, positions]
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
		from, to := t.visible(i)
		longest = max(longest, to-from)
		work += 2 * (to - from) * t.c.shape.HeadDim * t.c.shape.Heads
	}
	group := t.c.shape.Heads / t.c.shape.KVHeads
	if need := group * longest; t.scores == nil || cap(t.scores[0]) < need {
		t.scores = make([][]float32, d.pool.threads())
		for i := range t.scores {
			t.scores[i] = make([]float32, 2*need) // grows by doubling
		}
	}
	d.fork(t, work)
}

func (t *attentionTask) run(part, parts int) {
	heads := t.c.shape.KVHeads
	from, to := split(t.r.Len()*heads, part, parts)
	for u := from; u < to; u++ {
		t.one(u/heads, u%heads, t.scores[part])
	}
}

// visible is the range [from, to) of positions that row i sees.
func (t *attentionTask) visible(i int) (from, to int) {
	from, to = int(t.r.Starts[t.r.Seqs[i]]), int(t.r.Positions[i])+1
	if t.window > 0 {
		from = max(from, to-t.window)
	}
	return from, to
}

// one computes the outputs of row i for the query heads of KV head h.
func (t *attentionTask) one(i, h int, scratch []float32) {
	s := t.c.shape
	group, dim := s.Heads/s.KVHeads, s.HeadDim
	from, to := t.visible(i)
	n := to - from
	queries := t.qkv.row(i)[h*group*dim : (h+1)*group*dim]
	table := t.r.Tables[t.r.Seqs[i]]
	scratch = scratch[:group*n]

	for p := from; p < to; {
		at, count := t.stretch(table, h, p, to)
		t.score(scratch[p-from:], t.c.k[at:], queries, count, group, n)
		p += count
	}
	out := t.dst.row(i)[h*group*dim : (h+1)*group*dim]
	clear(out)
	for g := range group {
		scores, o := scratch[g*n:(g+1)*n], out[g*dim:(g+1)*dim]
		sum := softmax(scores, s.Scale)
		for p := from; p < to; {
			at, count := t.stretch(table, h, p, to)
			t.k.weighted(&scores[p-from], &t.c.v[at], uintptr(4*dim), count, &o[0], dim)
			p += count
		}
		for j := range o {
			o[j] /= sum
		}
	}
}

// stretch is where the cache entries of head h from position p on begin, and how
// many, up to position to, lie there together: the rest of a page.
func (t *attentionTask) stretch(table []int32, h, p, to int) (at, count int) {
	page, offset := p/t.c.pageSize, p%t.c.pageSize
	return t.c.at(t.layer, int(table[page]), h, offset), min(t.c.pageSize-offset, to-p)
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
