package cpu

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// grove is random trees after a text, and a device to compute them on. Row
// contents stand for positions and nodes.
type grove struct {
	t                     *testing.T
	d                     *Device
	shape                 compute.AttentionShape
	x, y                  compute.Tensor
	pageSize, pages       int
	base, start, window   int
	table                 []int32
	format                compute.CacheFormat
	paths                 [][]int // by node: its ancestors, and itself
	prefix, drafts, after []float32
}

const groveLayers = 2

func plant(t *testing.T, k *kernels, seed uint64) *grove {
	rng := rand.New(rand.NewPCG(seed, 21))
	g := &grove{t: t, shape: compute.AttentionShape{Heads: 4, KVHeads: 2, HeadDim: 32, Scale: 0.18}, pageSize: []int{1, 3, 16}[rng.IntN(3)]}
	g.base = 1 + rng.IntN(30)
	g.start, g.window = rng.IntN(g.base+1), rng.IntN(3)*(1+rng.IntN(6))
	nodes := 1 + rng.IntN(compute.MaxNodes)
	if seed == 0 {
		nodes = compute.MaxNodes
	}
	if seed%2 == 1 {
		g.format = compute.CacheFormat{Float8: true, KeyScales: []float32{1, 1, 0.1, 0.03}}
	}
	for j := range nodes {
		var path []int
		if j > 0 && rng.IntN(4) > 0 {
			path = g.paths[j-1-rng.IntN(min(j, 5))]
		}
		g.paths = append(g.paths, append(slices.Clone(path), j))
	}
	g.pages = (g.base+nodes+g.pageSize)/g.pageSize + 1
	for _, p := range rng.Perm(g.pages) {
		g.table = append(g.table, int32(p))
	}
	width := g.shape.QKVCols()
	g.prefix, g.drafts, g.after = random(rng, (g.base-g.start)*width), random(rng, nodes*width), random(rng, width)
	g.d = device(t, k, 2)
	g.x, g.y = g.d.NewTensor(g.base+nodes+1, width), g.d.NewTensor(g.base+nodes+1, g.shape.Heads*g.shape.HeadDim)
	return g
}

func (g *grove) cache() compute.Cache {
	return g.d.NewCache(groveLayers, g.pages, g.pageSize, g.shape, g.format)
}

func (g *grove) run(c compute.Cache, r *compute.Rows, qkv []float32) [][]float32 {
	freqs := make([]float32, g.shape.HeadDim/2)
	for i := range freqs {
		freqs[i] = 1 / float32(1+i*i)
	}
	g.d.Prepare(r, freqs, 1)
	for layer := range groveLayers {
		fill(g.x, qkv)
		g.d.RopeAndCache(g.x, c, layer, r)
	}
	g.d.Attention(g.y, g.x, c, groveLayers-1, g.window, r)
	var out [][]float32
	for i := range r.Len() {
		out = append(out, slices.Clone(g.d.Floats(g.y, i)))
	}
	return out
}

// text makes the rows of the text and of n more.
func (g *grove) text(n int) (*compute.Rows, int32) {
	var r compute.Rows
	seq := r.AddSequence(g.table, g.start)
	for p := g.start; p < g.base+n; p++ {
		r.Add(seq, 0, int32(p), g.pageSize)
	}
	return &r, seq
}

// chain computes a path of nodes as a chain, and a row after it.
func (g *grove) chain(path []int) (last, after []float32) {
	r, _ := g.text(len(path) + 1)
	qkv, width := slices.Clone(g.prefix), g.shape.QKVCols()
	for _, j := range path {
		qkv = append(qkv, g.drafts[j*width:(j+1)*width]...)
	}
	out := g.run(g.cache(), r, append(qkv, g.after...))
	return out[len(out)-2], out[len(out)-1]
}

// A node gets, bit for bit, what it gets as the end of a chain of its ancestors,
// with any page size, start and window; and so does what goes on from it after
// its path was moved together.
func TestNodesOfATreeEqualChains(t *testing.T) {
	onEach(t, func(t *testing.T, k *kernels) {
		for seed := range uint64(16) {
			g := plant(t, k, seed)
			name := fmt.Sprintf("seed %d: %d nodes after %d, pages of %d, start %d, window %d, float8 %t", seed, len(g.paths), g.base, g.pageSize, g.start, g.window, g.format.Float8)
			c := g.cache()
			r, seq := g.text(0)
			for j, path := range g.paths {
				var mask uint64
				for _, i := range path {
					mask |= 1 << i
				}
				r.AddNode(seq, 0, int32(g.base), j, bits.OnesCount64(mask)-1, mask, g.pageSize)
			}
			got := g.run(c, r, append(slices.Clone(g.prefix), g.drafts...))
			var deepest []int
			for j, path := range g.paths {
				if want, _ := g.chain(path); !slices.Equal(got[g.base-g.start+j], want) {
					t.Fatalf("%s: node %d, path %v, differs from the chain", name, j, path)
				}
				if len(path) >= len(deepest) {
					deepest = path
				}
			}
			var to, from []int32
			for depth, j := range deepest {
				from = append(from, compute.Slot(g.table, int32(g.base+j), g.pageSize))
				to = append(to, compute.Slot(g.table, int32(g.base+depth), g.pageSize))
			}
			g.d.MoveCache(c, to, from)
			r.Reset()
			r.Add(r.AddSequence(g.table, g.start), 0, int32(g.base+len(deepest)), g.pageSize)
			if _, want := g.chain(deepest); !slices.Equal(g.run(c, r, g.after)[0], want) {
				t.Fatalf("%s: what follows the path %v differs from the chain", name, deepest)
			}
		}
	})
}

// Rows of a pass beside a tree's keep their own view.
func TestRowsBesideATree(t *testing.T) {
	var r compute.Rows
	a, b := r.AddSequence([]int32{0, 1}, 0), r.AddSequence([]int32{2, 3}, 1)
	r.Add(a, 5, 3, 4)
	r.AddNode(a, 6, 4, 0, 0, 1, 4)
	r.AddNode(a, 7, 4, 1, 0, 2, 4)
	r.AddNode(a, 8, 4, 2, 1, 6, 4)
	r.Add(b, 9, 5, 4)
	if !slices.Equal(r.Positions, []int32{3, 4, 4, 5, 5}) || !slices.Equal(r.Slots, []int32{3, 4, 5, 6, 13}) {
		t.Errorf("positions %v, slots %v", r.Positions, r.Slots)
	}
	task := attentionTask{r: &r}
	for i, want := range []view{{0, 4, 0}, {0, 4, 1}, {0, 4, 2}, {0, 4, 6}, {1, 6, 0}} {
		if got := task.visible(i); got != want {
			t.Errorf("row %d sees %+v, want %+v", i, got, want)
		}
	}
	task.window = 2
	for i, want := range []view{{2, 4, 0}, {3, 4, 1}, {3, 4, 2}, {4, 4, 6}, {4, 6, 0}} {
		if got := task.visible(i); got != want {
			t.Errorf("row %d sees %+v through a window of 2, want %+v", i, got, want)
		}
	}
	r.Reset()
	if r.Trees() {
		t.Error("an empty pass has trees")
	}
}
