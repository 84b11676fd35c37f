package grammar

import (
	"cmp"
	"fmt"
	"slices"
)

// node is a node of an automaton. A text of the node's rule may end here if it
// is final.
type node struct {
	edges []edge // in order of lo
	calls []call
	final bool
	class int32 // nodes of one class allow the same tokens, whatever they return to
}

// rule is a rule of an automaton: where it starts, and its place in the order
// in which rules begin one another.
type rule struct{ start, order int32 }

// automaton is a network of rules. No rule has the empty text, none begins with
// itself, and from each node there is a way to the end of its rule.
type automaton struct {
	nodes []node
	rules []rule
	start int32 // its node; final if the empty text is allowed
}

// finish makes the automaton of a grammar whose texts are those of rule 0.
// Tokens have at most longest bytes.
func (b *builder) finish(longest int) (*automaton, error) {
	if err := b.build(); err != nil {
		return nil, err
	}
	b.findNullable()
	a, err := b.withoutFree()
	if err != nil {
		return nil, err
	}
	if !a.trim() && !b.rules[0].nullable {
		return nil, errNothing
	}
	a.merge()
	if err := a.orderRules(b.rules); err != nil {
		return nil, err
	}
	start := a.nodes[a.rules[0].start]
	start.final = b.rules[0].nullable
	a.start = int32(len(a.nodes))
	a.nodes = append(a.nodes, start)
	a.classify(longest)
	return a, nil
}

// withoutFree leaves out the ways that need no byte: what they lead to is
// copied to where they begin.
func (b *builder) withoutFree() (*automaton, error) {
	a := &automaton{rules: make([]rule, len(b.rules))}
	place := make([]int32, len(b.nodes)) // in a, plus one
	var origin []int32
	number := func(n int32) int32 {
		if place[n] == 0 {
			origin = append(origin, n)
			place[n] = int32(len(origin))
		}
		return place[n] - 1
	}
	starts := make(map[int32]bool, len(b.rules))
	for i := range b.rules {
		a.rules[i].start = number(b.rules[i].start)
		starts[b.rules[i].start] = true
	}
	edges, work := 0, 0
	for i := 0; i < len(origin); i++ {
		var n node
		reached := b.reach(origin[i])
		if work += len(reached); work > 16*maxEdges {
			return nil, errTooLarge
		}
		for _, from := range reached {
			d := &b.nodes[from]
			n.final = n.final || d.end && !starts[origin[i]]
			for _, e := range d.edges {
				n.edges = append(n.edges, edge{e.lo, e.hi, number(e.to)})
			}
			for _, c := range d.calls {
				n.calls = append(n.calls, call{c.rule, number(c.ret)})
			}
		}
		n.tidy()
		if edges += len(n.edges) + len(n.calls); edges > maxEdges || len(origin) > maxNodes {
			return nil, errTooLarge
		}
		a.nodes = append(a.nodes, n)
	}
	return a, nil
}

// tidy sorts the edges and calls, drops double ones and joins ranges.
func (n *node) tidy() {
	slices.SortFunc(n.edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.lo, b.lo))
	})
	joined := n.edges[:0]
	for _, e := range n.edges {
		if k := len(joined) - 1; k >= 0 && joined[k].to == e.to && int(e.lo) <= int(joined[k].hi)+1 {
			joined[k].hi = max(joined[k].hi, e.hi)
			continue
		}
		joined = append(joined, e)
	}
	n.edges = joined
	slices.SortFunc(n.edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.lo, b.lo), cmp.Compare(a.hi, b.hi), cmp.Compare(a.to, b.to))
	})
	slices.SortFunc(n.calls, func(a, b call) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.ret, b.ret))
	})
	n.calls = slices.Compact(n.calls)
}

// trim takes out what never comes to an end, so that a text can be finished
// from wherever it is. It tells whether rule 0 has a text that is not empty.
func (a *automaton) trim() bool {
	back := a.predecessors()
	callers := make([][][2]int32, len(a.rules)) // node and ret of the calls of a rule
	for i := range a.nodes {
		for _, c := range a.nodes[i].calls {
			callers[c.rule] = append(callers[c.rule], [2]int32{int32(i), c.ret})
		}
	}
	ends := make([]bool, len(a.nodes)) // there is a way to the rule's end
	done := make([]bool, len(a.rules))
	startOf := make(map[int32]int, len(a.rules))
	for r := range a.rules {
		startOf[a.rules[r].start] = r
	}
	var work []int32
	mark := func(i int32) {
		if !ends[i] {
			ends[i] = true
			work = append(work, i)
		}
	}
	for i := range a.nodes {
		if a.nodes[i].final {
			mark(int32(i))
		}
	}
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		for _, p := range back[i] {
			if p.rule < 0 || done[p.rule] {
				mark(p.node)
			}
		}
		if r, ok := startOf[i]; ok && !done[r] {
			done[r] = true
			for _, c := range callers[r] {
				if ends[c[1]] {
					mark(c[0])
				}
			}
		}
	}
	for i := range a.nodes {
		n := &a.nodes[i]
		n.edges = slices.DeleteFunc(n.edges, func(e edge) bool { return !ends[e.to] })
		n.calls = slices.DeleteFunc(n.calls, func(c call) bool { return !ends[c.ret] || !done[c.rule] })
	}
	return done[0]
}

// predecessor is a node with an edge, or with a call of rule, to another.
type predecessor struct{ node, rule int32 }

func (a *automaton) predecessors() [][]predecessor {
	back := make([][]predecessor, len(a.nodes))
	for i := range a.nodes {
		for _, e := range a.nodes[i].edges {
			back[e.to] = append(back[e.to], predecessor{int32(i), -1})
		}
		for _, c := range a.nodes[i].calls {
			back[c.ret] = append(back[c.ret], predecessor{int32(i), c.rule})
		}
	}
	return back
}

// merge makes one node of those that are followed by the same.
func (a *automaton) merge() {
	class := a.refine(-1)
	at := map[int32]int32{} // the node of a class
	place := make([]int32, len(a.nodes))
	var nodes []node
	for i := range a.nodes {
		to, ok := at[class[i]]
		if !ok {
			to = int32(len(nodes))
			at[class[i]] = to
			nodes = append(nodes, a.nodes[i])
		}
		place[i] = to
	}
	for i := range nodes {
		n := &nodes[i]
		for k := range n.edges {
			n.edges[k].to = place[n.edges[k].to]
		}
		for k := range n.calls {
			n.calls[k].ret = place[n.calls[k].ret]
		}
		n.tidy()
	}
	for r := range a.rules {
		a.rules[r].start = place[a.rules[r].start]
	}
	a.nodes = nodes
}

// classify finds which nodes allow the same tokens: those that cannot be told
// apart by the bytes of one token.
func (a *automaton) classify(longest int) {
	for i, c := range a.refine(longest) {
		a.nodes[i].class = c
	}
}

// orderRules numbers the rules so that one that begins with another has the
// lower number.
func (a *automaton) orderRules(names []draftRule) error {
	const unseen, open = 0, 1
	state := make([]byte, len(a.rules))
	next := int32(len(a.rules))
	type place struct {
		rule int32
		call int
	}
	for first := range a.rules {
		if state[first] != unseen {
			continue
		}
		path := []place{{int32(first), 0}}
		state[first] = open
		for len(path) > 0 {
			p := &path[len(path)-1]
			calls := a.nodes[a.rules[p.rule].start].calls
			if p.call == len(calls) {
				state[p.rule] = 2
				next--
				a.rules[p.rule].order = next
				path = path[:len(path)-1]
				continue
			}
			r := calls[p.call].rule
			p.call++
			switch state[r] {
			case open:
				return fmt.Errorf("%s refers to itself with nothing before it: that is no text", names[r].name)
			case unseen:
				state[r] = open
				path = append(path, place{r, 0})
			}
		}
	}
	return nil
}
