package speculation

import (
	"math"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Shape is what proposals look like.
type Shape struct {
	// TopK is 1 for chains: the most likely token at each step. Otherwise a step
	// adds the TopK most likely tokens after each of the TopK best nodes of the
	// level before.
	TopK int
	// Nodes is the number of draft tokens of a tree: of all that the steps added
	// the best ones are kept.
	Nodes int
}

// At is the number of draft tokens of a proposal that is depth levels deep.
func (s Shape) At(depth int) int {
	if s.TopK == 1 || depth == 0 {
		return depth
	}
	return min(s.Nodes, s.TopK+(depth-1)*s.TopK*s.TopK)
}

// Stepper runs the passes of a draft model after its first: row i of rows goes on
// from output from[i] of the pass before, and becomes output i.
type Stepper interface {
	Step(rows *compute.Rows, from []int32) error
	// DraftLogits are those of output i, over the draft's vocabulary.
	DraftLogits(i int) []float32
	TargetID(draft int32) int32
}

// grower makes proposals, one level a step, from the outputs of a draft model.
type grower struct {
	model    Stepper
	shape    Shape
	pageSize int
	behind   int // a draft token's row lies this many positions before its own place in the text

	rows   compute.Rows
	from   []int32
	keep   []int32
	kept   []kept
	active []int // sequences that go on, by output of the last pass
	trees  []tree
}

// grow makes the proposals of the sequences active, whose outputs are 0, 1, … of
// the last pass.
func (g *grower) grow(seqs []Sequence, active []int) error {
	if len(active) == 0 {
		return nil
	}
	if g.shape.TopK > 1 {
		return g.growTrees(seqs, active)
	}
	g.active = append(g.active[:0], active...)
	if m, ok := g.model.(chainer); ok && m.Chains() {
		return g.chain(seqs, m)
	}
	g.propose(seqs)
	for {
		g.step(seqs)
		if g.rows.Len() == 0 {
			return nil
		}
		if err := g.model.Step(&g.rows, g.from); err != nil {
			return err
		}
		g.propose(seqs)
	}
}

// chainer is a Stepper whose device may take the most likely tokens of a pass to
// the next one by itself. Chain is Step for these: row i goes on from output
// from[i]. Of all of from, which may be more, it keeps the token as number keep[i].
type chainer interface {
	Chains() bool
	Chain(rows *compute.Rows, keep, from []int32) error
	Chained(i int) (token int32, ok bool)
}

// kept is a token that a chainer keeps: number i, of sequence seq.
type kept struct {
	seq int
	i   int32
}

// chain is grow for a chainer: all steps are on their way before the first token
// is known. What comes after an output without a best token is for nothing.
func (g *grower) chain(seqs []Sequence, m chainer) error {
	g.kept = g.kept[:0]
	for step := 1; ; step++ {
		g.reset()
		g.keep = g.keep[:0]
		// Those that go on come first: an output is a row's if there is one.
		for k, i := range g.active {
			if s := &seqs[i]; step < s.Depth {
				g.add(k, i)
				seq := g.rows.AddSequence(s.Table, s.State.Start)
				g.rows.Add(seq, 0, int32(len(s.Tokens)-g.behind+step-1), g.pageSize)
			}
		}
		on := g.rows.Len()
		if on == 0 {
			break
		}
		for k, i := range g.active {
			if step >= seqs[i].Depth {
				g.add(k, i)
			}
		}
		if err := m.Chain(&g.rows, g.keep, g.from); err != nil {
			return err
		}
		g.active = g.active[:0]
		for _, k := range g.kept[len(g.kept)-len(g.from):][:on] {
			g.active = append(g.active, k.seq)
		}
	}
	for _, k := range g.kept {
		token, ok := m.Chained(int(k.i))
		seqs[k.seq].follow(token, ok)
	}
	for k, i := range g.active {
		if s := &seqs[i]; len(s.Draft) < s.Depth {
			best, ok := g.best(k)
			if ok {
				best = g.model.TargetID(best)
			}
			s.follow(best, ok)
		}
	}
	return nil
}

// add has the token of output k, which is of sequence i, kept.
func (g *grower) add(k, i int) {
	n := int32(len(g.kept))
	g.kept = append(g.kept, kept{i, n})
	g.keep, g.from = append(g.keep, n), append(g.from, int32(k))
}

// follow adds a token to a chain, or ends it.
func (s *Sequence) follow(token int32, ok bool) {
	switch {
	case len(s.Draft) >= s.Depth:
	case ok:
		s.Draft = append(s.Draft, token)
	default:
		s.Depth = len(s.Draft)
	}
}

func (g *grower) reset() {
	g.rows.Reset()
	g.from = g.from[:0]
}

// step adds a row for each sequence that wants another token: its last
// proposal, one position further, going on from its output of the last pass.
func (g *grower) step(seqs []Sequence) {
	g.reset()
	kept := g.active[:0]
	for k, i := range g.active {
		s := &seqs[i]
		n := len(s.Draft)
		if n == 0 || n >= s.Depth {
			continue
		}
		seq := g.rows.AddSequence(s.Table, s.State.Start)
		g.rows.Add(seq, s.Draft[n-1], int32(len(s.Tokens)-g.behind+n-1), g.pageSize)
		g.from = append(g.from, int32(k))
		kept = append(kept, i)
	}
	g.active = kept
}

// propose takes the most likely token of each active sequence. Logits that are
// no numbers end a proposal: the target decides alone.
func (g *grower) propose(seqs []Sequence) {
	for k, i := range g.active {
		s := &seqs[i]
		best, ok := g.best(k)
		if ok {
			best = g.model.TargetID(best)
		}
		s.follow(best, ok)
	}
}

// bester is a model whose device may find the most likely token of an output.
type bester interface {
	DraftBest(i int) (int32, bool)
}

// best is the most likely draft token of output k, which some devices find
// themselves.
func (g *grower) best(k int) (int32, bool) {
	if m, ok := g.model.(bester); ok {
		if best, ok := m.DraftBest(k); ok {
			return best, true
		}
	}
	return argmax(g.model.DraftLogits(k))
}

// growTrees is grow for trees.
func (g *grower) growTrees(seqs []Sequence, active []int) error {
	for len(g.trees) < len(active) {
		g.trees = append(g.trees, tree{topK: g.shape.TopK})
	}
	for k, i := range active {
		s, t := &seqs[i], &g.trees[k]
		t.begin(min(s.Depth, 1+(s.Room+g.behind)/t.topK), min(g.shape.Nodes, s.Room))
		t.add(none, int32(k), g.model)
	}
	for {
		g.reset()
		for k, i := range active {
			g.expand(&seqs[i], &g.trees[k])
		}
		if g.rows.Len() == 0 {
			break
		}
		if err := g.model.Step(&g.rows, g.from); err != nil {
			return err
		}
		out := int32(0)
		for k := range active {
			t := &g.trees[k]
			for _, c := range t.open {
				t.add(c, out, g.model)
				out++
			}
		}
	}
	for k, i := range active {
		g.trees[k].finish(&seqs[i])
	}
	return nil
}

// expand adds rows for the nodes that get children in the next level of t.
func (g *grower) expand(s *Sequence, t *tree) {
	if !t.descend() {
		return
	}
	seq := g.rows.AddSequence(s.Table, s.State.Start)
	for _, i := range t.open {
		c := &t.nodes[i]
		g.rows.AddNode(seq, c.token, int32(len(s.Tokens)-g.behind), int(c.number), t.level-2, t.masks[c.number], g.pageSize)
		g.from = append(g.from, c.output)
	}
}

func argmax(logits []float32) (int32, bool) {
	best, top := int32(-1), float32(math.Inf(-1))
	for i, v := range logits {
		if v != v {
			return 0, false
		}
		if v > top {
			best, top = int32(i), v
		}
	}
	return best, best >= 0
}
