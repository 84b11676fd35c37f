package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// maxRefine bounds the work of one refinement, in edges looked at: some tenths of a second.
const maxRefine = 1 << 21

// refiner sorts nodes into blocks that cannot be told apart.
type refiner struct {
	a     *automaton
	block []int32
	size  []int32  // of the blocks
	sig   []string // of a block's nodes: what they are followed by
	key   []byte
	edges []edge
	calls []call
	work  int
}

// refine finds the nodes that cannot be told apart by ways of at most rounds
// steps, or by any way if that is negative. Where that takes too much work
// every node stays alone, which is right too.
func (a *automaton) refine(rounds int) []int32 {
	r := &refiner{a: a, block: make([]int32, len(a.nodes)), size: []int32{0, 0}, sig: []string{"", ""}}
	changed := make([]int32, len(a.nodes))
	for i := range a.nodes {
		if a.nodes[i].final {
			r.block[i] = 1
		}
		r.size[r.block[i]]++
		changed[i] = int32(i)
	}
	back := a.predecessors()
	mark := make([]int, len(a.nodes))
	for round := 1; len(changed) > 0 && (rounds < 0 || round <= rounds); round++ {
		due := changed
		if round > 1 {
			due = nil
			for _, i := range changed {
				for _, p := range back[i] {
					if mark[p.node] != round {
						mark[p.node] = round
						due = append(due, p.node)
					}
				}
			}
		}
		if changed = r.split(due); r.work > maxRefine {
			for i := range r.block {
				r.block[i] = int32(i)
			}
			return r.block
		}
	}
	return r.block
}

// split moves the nodes of due that are followed by something new to blocks of
// their own, and returns those that moved. The nodes of a block that are not
// due are still followed by what the block's sig says.
func (r *refiner) split(due []int32) (moved []int32) {
	type group struct {
		block int32
		sig   string
	}
	groups := map[group][]int32{}
	var order []group
	touched := map[int32]int32{} // block: nodes of it that are due
	for _, i := range due {
		g := group{r.block[i], r.signature(i)}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], i)
		touched[g.block]++
	}
	// A block that is wholly due keeps its largest group.
	keeps := map[int32]group{}
	for _, g := range order {
		if touched[g.block] < r.size[g.block] {
			keeps[g.block] = group{g.block, r.sig[g.block]}
		} else if best, ok := keeps[g.block]; !ok || len(groups[g]) > len(groups[best]) {
			keeps[g.block] = g
		}
	}
	for _, g := range order {
		if keeps[g.block] == g {
			r.sig[g.block] = g.sig
			continue
		}
		to := int32(len(r.size))
		r.size, r.sig = append(r.size, int32(len(groups[g]))), append(r.sig, g.sig)
		r.size[g.block] -= int32(len(groups[g]))
		for _, i := range groups[g] {
			r.block[i] = to
		}
		moved = append(moved, groups[g]...)
	}
	return moved
}

// signature says what a node is followed by, up to the blocks there are.
func (r *refiner) signature(i int32) string {
	n := &r.a.nodes[i]
	r.work += 1 + len(n.edges) + len(n.calls)
	r.edges, r.calls = r.edges[:0], r.calls[:0]
	for _, e := range n.edges {
		r.edges = append(r.edges, edge{e.lo, e.hi, r.block[e.to]})
	}
	slices.SortFunc(r.edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.lo, b.lo)) })
	r.key = r.key[:0]
	ranges := uint32(0)
	for k := 0; k < len(r.edges); {
		e := r.edges[k]
		for k++; k < len(r.edges) && r.edges[k].to == e.to && int(r.edges[k].lo) <= int(e.hi)+1; k++ {
			e.hi = max(e.hi, r.edges[k].hi)
		}
		r.key = binary.LittleEndian.AppendUint32(append(r.key, e.lo, e.hi), uint32(e.to))
		ranges++
	}
	for _, c := range n.calls {
		r.calls = append(r.calls, call{c.rule, r.block[c.ret]})
	}
	slices.SortFunc(r.calls, func(a, b call) int { return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.ret, b.ret)) })
	for _, c := range slices.Compact(r.calls) {
		r.key = binary.LittleEndian.AppendUint64(r.key, uint64(uint32(c.rule))<<32|uint64(uint32(c.ret)))
	}
	return string(binary.LittleEndian.AppendUint32(r.key, ranges))
}
