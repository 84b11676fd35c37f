package speculation

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// oracle is a model whose logits are a function of the tokens of a path.
type oracle struct {
	t        *testing.T
	vocab    int
	seed     uint64
	tables   [][]int32 // by sequence
	pageSize int
	paths    [][]int32 // by output of the last pass
	nodes    []map[int]uint64
	nan      int // a token after which logits are no numbers
}

func (o *oracle) logits(path []int32) []float32 {
	h := o.seed
	for _, id := range path {
		h = mix(h ^ uint64(id))
	}
	out := make([]float32, o.vocab)
	for i := range out {
		h = mix(h)
		out[i] = float32(h%7) - 3 // few values: equal ones are common
		if h%11 == 0 {
			out[i] = float32(math.Inf(-1))
		}
	}
	if len(path) > 1 && int(path[len(path)-1]) == o.nan {
		out[3] = float32(math.NaN())
	}
	return out
}

func (o *oracle) DraftLogits(i int) []float32 { return o.logits(o.paths[i]) }
func (o *oracle) TargetID(draft int32) int32  { return draft + 100 }

// Step implements Stepper. Each row must lie where its path has it.
func (o *oracle) Step(rows *compute.Rows, from []int32) error {
	before := o.paths
	o.paths = nil
	for i, id := range rows.Tokens {
		path := append(slices.Clone(before[from[i]]), id-100)
		o.paths = append(o.paths, path)
		which := path[0]
		mask, base := rows.Masks[i], int(rows.Bases[i])
		node := bits.Len64(mask) - 1
		depth := len(path) - 2
		if bits.OnesCount64(mask) != depth+1 || int(rows.Positions[i]) != base+depth ||
			rows.Slots[i] != compute.Slot(o.tables[which], int32(base+node), o.pageSize) {
			o.t.Errorf("path %v has mask %b, position %d, slot %d", path, mask, rows.Positions[i], rows.Slots[i])
		}
		known := o.nodes[which]
		if _, twice := known[node]; twice {
			o.t.Errorf("node %d is expanded twice", node)
		}
		known[node] = mask
		if rest := mask &^ (1 << node); rest != 0 && known[bits.Len64(rest)-1] != rest {
			o.t.Errorf("node %d has ancestors %b, of which the last has %b", node, mask, known[bits.Len64(rest)-1])
		}
	}
	return nil
}

// grown is a node of the tree by the rule of the docs.
type grown struct {
	path  []int32
	score float64
	order []int // where it comes among equal ones
}

// bruteForce grows the tree by the rule, with sorting and nothing clever. Its sums are
// those of the tree, in the same order: of paths that are as likely by their numbers,
// rounding alone may say which comes first.
func bruteForce(o *oracle, root []int32, topK, levels, keep int) []grown {
	children := func(g grown) []grown {
		logits := o.logits(g.path)
		if slices.ContainsFunc(logits, func(v float32) bool { return v != v }) {
			return nil
		}
		top, sum := slices.Max(logits), 0.0
		ids := []int{}
		for i, v := range logits {
			sum += math.Exp(float64(v - top))
			if !math.IsInf(float64(v), -1) {
				ids = append(ids, i)
			}
		}
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
		var out []grown
		for k, id := range ids[:min(topK, len(ids))] {
			score := g.score + min(0, float64(logits[id])-(float64(top)+math.Log(sum)))
			out = append(out, grown{append(slices.Clone(g.path), int32(id)), score, append(slices.Clone(g.order), k)})
		}
		return out
	}
	best := func(all []grown, n int) []grown {
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b grown) int { return cmp.Compare(b.score, a.score) })
		return all[:min(n, len(all))]
	}
	var all []grown
	level := children(grown{path: root})
	for range levels {
		all = append(all, level...)
		open := best(level, topK)
		slices.SortFunc(open, func(a, b grown) int { return slices.Compare(a.order, b.order) })
		level = nil
		for _, g := range open {
			level = append(level, children(g)...)
		}
	}
	return best(all, keep)
}

// Trees of any shape, beside each other, equal those of the rule: the same nodes,
// each with its parent, and ancestors are always among them.
func TestTreesEqualBruteForce(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 8))
		shape := Shape{TopK: 2 + rng.IntN(5), Nodes: 1 + rng.IntN(20)}
		o := &oracle{t: t, vocab: 4 + rng.IntN(12), seed: seed, pageSize: 1 + rng.IntN(5), nan: rng.IntN(30)}
		g := grower{model: o, shape: shape, pageSize: o.pageSize, behind: rng.IntN(2)}
		var seqs []Sequence
		var active []int
		for i := range 1 + rng.IntN(4) {
			n := 1 + rng.IntN(20)
			depth := 1 + rng.IntN(compute.MaxNodes/shape.TopK)
			depth = min(depth, 6)
			room := depth + rng.IntN(60)
			table := make([]int32, n+room)
			for k := range table {
				table[k] = int32(100*i + k)
			}
			seqs = append(seqs, Sequence{Tokens: make([]int32, n), Table: table, Depth: depth, Room: room, State: new(State)})
			active = append(active, i)
			o.tables, o.paths, o.nodes = append(o.tables, table), append(o.paths, []int32{int32(i)}), append(o.nodes, map[int]uint64{})
		}
		if err := g.grow(seqs, active); err != nil {
			t.Fatal(err)
		}
		for i, s := range seqs {
			levels := min(s.Depth, 1+(s.Room+g.behind)/shape.TopK)
			want := bruteForce(o, []int32{int32(i)}, shape.TopK, levels, min(shape.Nodes, s.Room))
			name := fmt.Sprintf("seed %d, %+v, sequence %d of depth %d, room %d", seed, shape, i, s.Depth, s.Room)
			compareTree(t, name, s, int32(i), want)
		}
		if t.Failed() {
			return
		}
	}
}

func compareTree(t *testing.T, name string, s Sequence, root int32, want []grown) {
	t.Helper()
	var got, expected [][]int32
	for j := range s.Draft {
		var path []int32
		for k := j; k >= 0; k = s.parent(k) {
			if s.parent(k) >= k {
				t.Fatalf("%s: node %d comes before its parent %d", name, k, s.parent(k))
			}
			path = append(path, s.Draft[k]-100)
		}
		path = append(path, root)
		slices.Reverse(path)
		got = append(got, path)
	}
	for _, g := range want {
		expected = append(expected, g.path)
	}
	slices.SortFunc(got, slices.Compare)
	slices.SortFunc(expected, slices.Compare)
	if !slices.EqualFunc(got, expected, slices.Equal) {
		t.Errorf("%s:\n got %v\nwant %v", name, got, expected)
	}
}

// In the steady state a tree allocates nothing.
func TestTreesAllocateNothing(t *testing.T) {
	logits := make([]float32, 200)
	for i := range logits {
		logits[i] = float32(mix(uint64(i)) % 1000)
	}
	g := grower{model: constant(logits), shape: Shape{TopK: 8, Nodes: 31}, pageSize: 16, behind: 1}
	seqs := []Sequence{{Tokens: make([]int32, 30), Table: make([]int32, 20), Depth: 5, Room: 100, State: new(State)}}
	if n := testing.AllocsPerRun(10, func() {
		seqs[0].Draft, seqs[0].Parents = seqs[0].Draft[:0], seqs[0].Parents[:0]
		if err := g.grow(seqs, []int{0}); err != nil || len(seqs[0].Draft) != 31 {
			t.Fatalf("%d nodes, %v", len(seqs[0].Draft), err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for each tree, want 0", n)
	}
}

// constant is a model that always says the same.
type constant []float32

func (f constant) Step(*compute.Rows, []int32) error { return nil }
func (f constant) DraftLogits(int) []float32         { return f }
func (f constant) TargetID(draft int32) int32        { return draft }
