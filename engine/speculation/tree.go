package speculation

import (
	"cmp"
	"math"
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
)

// tree is the proposal of one sequence while it grows.
type tree struct {
	topK   int
	levels int // that it may have
	keep   int // nodes that are kept at the end

	level int    // levels so far
	first int    // the first node of the last level
	nodes []node // all that the steps added, level by level
	open  []int32
	grown int                      // nodes that were expanded so far
	masks [compute.MaxNodes]uint64 // of the expanded ones: their expanded ancestors and themselves

	best  []choice
	order []int32
	place []int32
}

// node is a draft token and what comes before it.
type node struct {
	token  int32
	parent int32   // a node, or none: the text's end
	score  float64 // log probability of the token and all before it, by the draft
	output int32   // of the last pass: what its parent's row gave
	number int32   // among the expanded nodes, or none
}

// choice is a token of the draft's vocabulary.
type choice struct {
	id    int32
	logit float32
}

const none = -1

// begin empties t for a proposal of at most levels levels and keep nodes.
func (t *tree) begin(levels, keep int) {
	t.levels, t.keep, t.level, t.first, t.grown = levels, keep, 1, 0, 0
	t.nodes, t.open = t.nodes[:0], t.open[:0]
}

// add adds the most likely tokens after a node, by an output of the last pass.
// A node whose logits are no numbers gets no children.
func (t *tree) add(parent, output int32, model Stepper) {
	norm, ok := t.chooseOf(model, int(output))
	if !ok {
		return
	}
	score := 0.0
	if parent != none {
		score = t.nodes[parent].score
	}
	for _, c := range t.best {
		t.nodes = append(t.nodes, node{
			token: model.TargetID(c.id), parent: parent, score: score + min(0, float64(c.logit)-norm), output: output, number: none,
		})
	}
}

// topper is a model whose device may find the most likely tokens of an output.
type topper interface {
	DraftTops(i int) (compute.Tops, bool)
}

// chooseOf is choose for an output of a model, which need not be read where the
// device has found its best tokens.
func (t *tree) chooseOf(model Stepper, output int) (norm float64, ok bool) {
	if m, is := model.(topper); is {
		if tops, ok := m.DraftTops(output); ok && len(tops.IDs) == t.topK {
			t.best = t.best[:0]
			for i, id := range tops.IDs {
				t.best = append(t.best, choice{id, tops.Logits[i]})
			}
			return tops.Norm(), true
		}
	}
	return t.choose(model.DraftLogits(output))
}

// negligible is the distance from the highest logit from which on a token adds
// nothing to a sum of probabilities that is compared only.
const negligible = 20

// choose sets best to the topK highest logits, the first ones where they are
// equal, and gives the logarithm of the sum of all exponentials.
func (t *tree) choose(logits []float32) (norm float64, ok bool) {
	t.best = t.best[:0]
	least := float32(math.Inf(-1))
	for i, v := range logits {
		if v != v {
			return 0, false
		}
		if v <= least {
			continue
		}
		if len(t.best) == t.topK {
			t.best = t.best[:t.topK-1]
		}
		at := len(t.best)
		for at > 0 && t.best[at-1].logit < v {
			at--
		}
		t.best = slices.Insert(t.best, at, choice{int32(i), v})
		if len(t.best) == t.topK {
			least = t.best[t.topK-1].logit
		}
	}
	if len(t.best) == 0 || math.IsInf(float64(t.best[0].logit), 1) {
		return 0, false
	}
	top, sum := t.best[0].logit, 0.0
	for _, v := range logits {
		if v > top-negligible {
			sum += math.Exp(float64(v - top))
		}
	}
	return float64(top) + math.Log(sum), true
}

// descend opens the topK best nodes of the last level for the next one; false if
// the tree is deep enough.
func (t *tree) descend() bool {
	t.open = t.open[:0]
	if t.level >= t.levels || t.first == len(t.nodes) {
		t.first = len(t.nodes)
		return false
	}
	t.sort(t.first)
	t.open = append(t.open, t.order[:min(len(t.order), t.topK)]...)
	slices.Sort(t.open)
	for _, i := range t.open {
		n := &t.nodes[i]
		n.number = int32(t.grown)
		t.masks[t.grown] = 1 << t.grown
		if n.parent != none {
			t.masks[t.grown] |= t.masks[t.nodes[n.parent].number]
		}
		t.grown++
	}
	t.first = len(t.nodes)
	t.level++
	return true
}

// sort orders the nodes from first on by their score, the earlier ones first
// where it is equal: a parent comes before its children.
func (t *tree) sort(first int) {
	t.order = t.order[:0]
	for i := first; i < len(t.nodes); i++ {
		t.order = append(t.order, int32(i))
	}
	slices.SortFunc(t.order, func(a, b int32) int {
		if c := cmp.Compare(t.nodes[b].score, t.nodes[a].score); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
}

// finish writes the best nodes to the proposal of s; as a chain, if they are one.
func (t *tree) finish(s *Sequence) {
	t.sort(0)
	kept := t.order[:min(len(t.order), t.keep)]
	slices.Sort(kept)
	t.place = slices.Grow(t.place[:0], len(t.nodes))[:len(t.nodes)]
	chain := true
	for k, i := range kept {
		n := &t.nodes[i]
		t.place[i] = int32(k)
		parent := int32(none)
		if n.parent != none {
			parent = t.place[n.parent]
		}
		chain = chain && int(parent) == k-1
		s.Draft, s.Parents = append(s.Draft, n.token), append(s.Parents, parent)
	}
	if chain {
		s.Parents = s.Parents[:0]
	}
}
