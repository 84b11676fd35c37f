package grammar

import (
	"errors"
	"fmt"
	"slices"
)

// Limits of a compiled grammar, so that a hostile one costs neither memory nor
// time beyond them.
const (
	maxNodes = 1 << 15
	maxEdges = 1 << 18
)

// errTooLarge is the error of a grammar beyond the limits.
var errTooLarge = fmt.Errorf("the grammar is too large: it needs more than %d states or %d transitions, which are the most: shorten lists, repetitions and length limits", maxNodes, maxEdges)

// expr adds to a builder what leads from one node to another: the texts of a
// piece of a grammar.
type expr func(b *builder, from, to int32)

// edge is taken on a byte of lo … hi.
type edge struct {
	lo, hi byte
	to     int32
}

// call is taken by a text of a rule, which is not empty; afterwards ret goes on.
type call struct{ rule, ret int32 }

// draft is a node under construction.
type draft struct {
	free  []int32 // nodes reached without a byte
	edges []edge
	calls []call
	end   bool // of its rule
}

// draftRule is a named piece that others call, possibly itself.
type draftRule struct {
	name       string
	start, end int32
	make       func() (expr, error) // nil once it is built
	nullable   bool
}

// builder collects rules. What exceeds the limits is left out, and finish
// reports it.
type builder struct {
	nodes []draft
	edges int
	rules []draftRule
	byKey map[string]int32
	full  bool

	schemas int // read so far
}

func newBuilder() *builder {
	return &builder{nodes: make([]draft, 1), byKey: map[string]int32{}}
}

// node makes a node.
func (b *builder) node() int32 {
	if len(b.nodes) >= 4*maxNodes { // many of these vanish
		b.full = true
		return 0
	}
	b.nodes = append(b.nodes, draft{})
	return int32(len(b.nodes) - 1)
}

func (b *builder) free(from, to int32) {
	if b.count() {
		n := &b.nodes[from]
		n.free = append(n.free, to)
	}
}

func (b *builder) edge(from int32, lo, hi byte, to int32) {
	if b.count() {
		n := &b.nodes[from]
		n.edges = append(n.edges, edge{lo, hi, to})
	}
}

func (b *builder) count() bool {
	b.edges++
	b.full = b.full || b.edges > maxEdges
	return !b.full
}

// rule is the rule of a key. make is called later, and only for the first of a
// key; its name is for errors.
func (b *builder) rule(key, name string, make func() (expr, error)) expr {
	id, ok := b.byKey[key]
	if !ok {
		id = int32(len(b.rules))
		b.rules = append(b.rules, draftRule{name: name, start: b.node(), end: b.node(), make: make})
		b.nodes[b.rules[id].end].end = true
		b.byKey[key] = id
	}
	return func(b *builder, from, to int32) {
		if b.count() {
			n := &b.nodes[from]
			n.calls = append(n.calls, call{id, to})
		}
	}
}

// simple is rule for pieces that cannot be wrong.
func (b *builder) simple(key string, make func() expr) expr {
	return b.rule(key, key, func() (expr, error) { return make(), nil })
}

// build makes all rules, those that they call too.
func (b *builder) build() error {
	for i := 0; i < len(b.rules); i++ {
		e, err := b.rules[i].make()
		if err != nil {
			return err
		}
		e(b, b.rules[i].start, b.rules[i].end)
		b.rules[i].make = nil
		if b.full {
			return errTooLarge
		}
	}
	return nil
}

// findNullable marks the rules that the empty text is one of. Their callers may
// go past them; the rule itself stands for its other texts.
func (b *builder) findNullable() {
	for changed := true; changed; {
		changed = false
		for i := len(b.rules) - 1; i >= 0; i-- {
			r := &b.rules[i]
			if !r.nullable && slices.Contains(b.reach(r.start), r.end) {
				r.nullable, changed = true, true
			}
		}
	}
}

// reach are the nodes reached from one without a byte, itself first.
func (b *builder) reach(from int32) []int32 {
	all := []int32{from}
	seen := map[int32]bool{from: true}
	add := func(to int32) {
		if !seen[to] {
			seen[to] = true
			all = append(all, to)
		}
	}
	for i := 0; i < len(all); i++ {
		n := &b.nodes[all[i]]
		for _, to := range n.free {
			add(to)
		}
		for _, c := range n.calls {
			if b.rules[c.rule].nullable {
				add(c.ret)
			}
		}
	}
	return all
}

// errNothing is the error of a grammar without a text.
var errNothing = errors.New("the grammar allows no text at all: every text would have to satisfy what contradicts itself or goes on without end")

// Pieces.

// literal is one text.
func literal(s string) expr {
	return func(b *builder, from, to int32) {
		if s == "" {
			b.free(from, to)
			return
		}
		for i := range len(s) {
			next := to
			if i < len(s)-1 {
				next = b.node()
			}
			b.edge(from, s[i], s[i], next)
			from = next
		}
	}
}

// oneByte is a byte of set.
func oneByte(set string) expr {
	return func(b *builder, from, to int32) {
		for i := range len(set) {
			b.edge(from, set[i], set[i], to)
		}
	}
}

// byteRange is a byte of lo … hi.
func byteRange(lo, hi byte) expr {
	return func(b *builder, from, to int32) { b.edge(from, lo, hi, to) }
}

// nothing has no text.
func nothing(*builder, int32, int32) {}

// empty is the empty text.
func empty(b *builder, from, to int32) { b.free(from, to) }

// concat is one piece after the other.
func concat(all ...expr) expr {
	return func(b *builder, from, to int32) {
		if len(all) == 0 {
			b.free(from, to)
		}
		for i, e := range all {
			next := to
			if i < len(all)-1 {
				next = b.node()
			}
			e(b, from, next)
			from = next
		}
	}
}

// either is one of the pieces.
func either(all ...expr) expr {
	return func(b *builder, from, to int32) {
		for _, e := range all {
			if b.full {
				return
			}
			e(b, from, to)
		}
	}
}

// optional is the piece or nothing.
func optional(e expr) expr { return either(e, empty) }

// repeat is the piece at least least times, and at most most times unless that
// is negative.
func repeat(e expr, least, most int) expr {
	return func(b *builder, from, to int32) {
		for range least {
			if b.full {
				return
			}
			next := b.node()
			e(b, from, next)
			from = next
		}
		if most < 0 {
			loop := b.node()
			b.free(from, loop)
			e(b, loop, loop)
			b.free(loop, to)
			return
		}
		b.free(from, to)
		for range most - least {
			if b.full {
				return
			}
			next := b.node()
			e(b, from, next)
			b.free(next, to)
			from = next
		}
	}
}

// until is any text that ends with the first mark in it: after each code point
// it is known how much of the mark the text ends with (Knuth, Morris, Pratt).
func (b *builder) until(mark []rune) expr {
	if len(mark) == 0 {
		return empty
	}
	restart := make([]int, len(mark)) // by length: the longest shorter begin that such a begin ends with
	next := func(i int, r rune) int {
		for i > 0 && mark[i] != r {
			i = restart[i]
		}
		if mark[i] == r {
			i++
		}
		return i
	}
	for i := 1; i < len(mark)-1; i++ {
		restart[i+1] = next(restart[i], mark[i])
	}
	return func(b *builder, from, to int32) {
		nodes := make([]int32, len(mark)+1)
		for i := range mark {
			nodes[i] = b.node()
		}
		nodes[len(mark)] = to
		b.free(from, nodes[0])
		for i := range mark {
			others := normal(anyPoint)
			for k, r := range mark[:i+1] {
				if slices.Contains(mark[:k], r) {
					continue
				}
				b.codePoint([]span{{r, r}})(b, nodes[i], nodes[next(i, r)])
				others = except(others, []span{{r, r}})
			}
			b.codePoint(others)(b, nodes[i], nodes[0])
		}
	}
}

// choice is one of the texts. They share their beginnings, so that many of them
// cost no more than their letters.
func choice(texts []string) expr {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	texts = slices.Compact(texts)
	return func(b *builder, from, to int32) { b.choice(texts, 0, from, to) }
}

// choice adds sorted texts that are alike up to at.
func (b *builder) choice(texts []string, at int, from, to int32) {
	for len(texts) == 1 || len(texts) > 1 && at < len(texts[0]) && texts[0][at] == texts[len(texts)-1][at] {
		// One way on: no deeper call for each byte of a long text.
		if len(texts) == 1 {
			literal(texts[0][at:])(b, from, to)
			return
		}
		next := b.node()
		b.edge(from, texts[0][at], texts[0][at], next)
		from, at = next, at+1
		if b.full {
			return
		}
	}
	for len(texts) > 0 && !b.full {
		if len(texts[0]) == at {
			b.free(from, to)
			texts = texts[1:]
			continue
		}
		n := 1
		for n < len(texts) && texts[n][at] == texts[0][at] {
			n++
		}
		if n == 1 {
			literal(texts[0][at:])(b, from, to)
		} else {
			next := b.node()
			b.edge(from, texts[0][at], texts[0][at], next)
			b.choice(texts[:n], at+1, next, to)
		}
		texts = texts[n:]
	}
}
