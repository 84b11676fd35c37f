package scheduler

import (
	"math/bits"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
)

// computeTree is the target's pass over the nodes of a tree.
func (w *world) computeTree(b *Batch, s *Sequence) {
	base := s.Computed + s.Count
	for j, id := range s.Draft {
		path := []int32{id}
		for i := s.Parents[j]; i >= 0; i = s.Parents[i] {
			path = append(path, s.Draft[i])
		}
		slices.Reverse(path)
		row := s.Row + s.Count + j
		if bits.OnesCount64(b.Rows.Masks[row]) != len(path) || b.Rows.Tokens[row] != id {
			w.t.Fatalf("node %d has mask %b and token %d", j, b.Rows.Masks[row], b.Rows.Tokens[row])
		}
		all := texts(slices.Concat(s.Tokens, path)...)
		w.target[w.slot(s.Table, base+j)] = all[len(all)-1]
	}
}

// proposeTree is a random tree with the right token among some nodes' children.
func (w *world) proposeTree(s *Sequence) {
	depths := []int{}
	for j := range min(w.s.cfg.MaxDraft, s.Spare()) {
		parent, depth := -1, 0
		if j > 0 && w.rng.IntN(3) > 0 {
			parent = w.rng.IntN(j)
			depth = depths[parent] + 1
		}
		if depth >= s.Asked {
			break
		}
		id := next(s, len(s.Tokens)+depth)
		if w.rng.Float64() > w.luck {
			id = (id + 1 + w.rng.Int32N(3)) % 26
		}
		depths = append(depths, depth)
		s.Draft, s.Parents = append(s.Draft, id), append(s.Parents, int32(parent))
	}
	for p := s.Computed; p < len(s.Tokens)+s.Spare(); p++ { // whatever the drafter leaves there
		w.draft[w.slot(s.Table, p)] = 0
	}
}

// move copies the accepted nodes of trees to where the text goes on.
func (w *world) move(s *Sequence) {
	to, from := s.Moves(nil, nil)
	for i := range to {
		w.target[to[i]] = w.target[from[i]]
	}
	w.moves += len(to)
}

// script draws the tokens that it is given, one after the other, whatever row
// they are drawn from, and notes the rows.
type script struct {
	tokens []int32
	rows   []int
}

func (s *script) Sample(_ *Sequence, i int) (int32, error) {
	if len(s.rows) == len(s.tokens) {
		return 0, sampling.ErrNotFinite
	}
	s.rows = append(s.rows, i)
	return s.tokens[len(s.rows)-1], nil
}

// The walk goes from a node to the first child that has the target's token, and
// says which entries have to be moved where.
func TestVerifyWalksDownTheTree(t *testing.T) {
	// The tree: 10 → (11 → 13, 12 → (14, 15)), 20 → 21.
	draft, parents := []int32{10, 20, 11, 12, 21, 13, 14, 15}, []int32{-1, -1, 0, 0, 1, 2, 3, 3}
	for _, c := range []struct {
		draws    []int32
		rows     []int // that were sampled from
		path     []int32
		to, from []int32
	}{
		{[]int32{30}, []int{0}, nil, nil, nil},
		{[]int32{11}, []int{0}, nil, nil, nil}, // it is no child of the text's end
		{[]int32{10, 30}, []int{0, 1}, []int32{0}, nil, nil},
		{[]int32{20, 21, 30}, []int{0, 2, 5}, []int32{1, 4}, []int32{40, 41}, []int32{41, 2}},
		{[]int32{10, 12, 15, 30}, []int{0, 1, 4, 8}, []int32{0, 3, 7}, []int32{41, 0}, []int32{1, 15}},
		{[]int32{10, 11, 13, 30}, []int{0, 1, 3, 6}, []int32{0, 2, 5}, []int32{41, 0}, []int32{0, 3}},
	} {
		s := &Sequence{Request: &Request{PromptIDs: []int32{1, 2}}, Tokens: []int32{1, 2}, Computed: 1, Count: 1, limit: 100,
			Draft: slices.Clone(draft), Parents: slices.Clone(parents), Table: []int32{30, 20, 0, 1, 7}, pageSize: 2, Path: []int32{9, 9}}
		d := &script{tokens: c.draws}
		accepted, err := s.Verify(d)
		to, from := s.Moves(nil, nil)
		if err != nil || accepted != len(c.draws)-1 || !slices.Equal(d.rows, c.rows) || !slices.Equal(s.Path, c.path) {
			t.Errorf("%v: %d accepted, rows %v, path %v, %v; want rows %v, path %v", c.draws, accepted, d.rows, s.Path, err, c.rows, c.path)
		}
		if !slices.Equal(to, c.to) || !slices.Equal(from, c.from) {
			t.Errorf("%v: entries move from %v to %v, want from %v to %v", c.draws, from, to, c.from, c.to)
		}
		if s.Computed != 2+len(c.path) || len(s.Tokens) != 2+len(c.draws) || len(s.Draft)+len(s.Parents) != 0 {
			t.Errorf("%v: computed %d of %d tokens, draft %v", c.draws, s.Computed, len(s.Tokens), s.Draft)
		}
	}
}
