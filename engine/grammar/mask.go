package grammar

import (
	"math/bits"
	"slices"
)

// Mask is a set of token ids. It is not changed after it was made.
type Mask struct {
	ids []int32  // in order, where they are few
	set []uint64 // else a bit for each token
}

// few is the number of tokens up to which a mask lists them.
const few = 256

// Has tells whether a token is in the mask.
func (m *Mask) Has(id int32) bool {
	if m.set == nil {
		_, ok := slices.BinarySearch(m.ids, id)
		return ok
	}
	return id >= 0 && int(id>>6) < len(m.set) && m.set[id>>6]>>(id&63)&1 != 0
}

// Len is the number of tokens in the mask.
func (m *Mask) Len() int {
	if m.set == nil {
		return len(m.ids)
	}
	n := 0
	for _, w := range m.set {
		n += bits.OnesCount64(w)
	}
	return n
}

// Keep copies the values of the mask's tokens from one slice to the other,
// which is as long, and has other in the place of all others.
func (m *Mask) Keep(to, from []float32, other float32) {
	if m.set == nil {
		for i := range to {
			to[i] = other
		}
		for _, id := range m.ids {
			if int(id) < len(from) {
				to[id] = from[id]
			}
		}
		return
	}
	for i, w := range m.set {
		at := i << 6
		if at >= len(from) {
			return
		}
		end := min(at+64, len(from))
		copy(to[at:end], from[at:end])
		for w = ^w; w != 0; w &= w - 1 {
			if id := at + bits.TrailingZeros64(w); id < end {
				to[id] = other
			}
		}
	}
	for i := len(m.set) << 6; i < len(to); i++ {
		to[i] = other
	}
}

// Mark sets the bits of the mask's tokens, as far as there are bits for them.
func (m *Mask) Mark(bits []uint64) {
	for _, id := range m.ids {
		if int(id>>6) < len(bits) {
			bits[id>>6] |= 1 << (id & 63)
		}
	}
	for i, w := range m.set[:min(len(m.set), len(bits))] {
		bits[i] |= w
	}
}

// addTo sets the mask's bits.
func (m *Mask) addTo(set []uint64) {
	for _, id := range m.ids {
		set[id>>6] |= 1 << (id & 63)
	}
	for i, w := range m.set {
		set[i] |= w
	}
}

// words is about what the mask takes in memory.
func (m *Mask) words() int { return 8 + len(m.ids)/2 + len(m.set) }

func newMask(set []uint64) *Mask {
	n := 0
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	if n > few {
		return &Mask{set: slices.Clone(set)}
	}
	m := &Mask{ids: make([]int32, 0, n)}
	for i, w := range set {
		for ; w != 0; w &= w - 1 {
			m.ids = append(m.ids, int32(i<<6+bits.TrailingZeros64(w)))
		}
	}
	return m
}

// piece is what is known of the tokens allowed at a node without what lies
// under its frame. Most tokens end before the node's rule does; for the rest,
// pieces say how it goes on for each node that the rule may return to. So the
// masks of states that differ only far down, however deep the text is nested,
// are the same, and are made once.
type piece struct {
	mask *Mask            // allowed, whatever lies below
	rest []int32          // nodes of the trie at which the rule may have ended: those under them go on after it
	next map[int32]*piece // by class of the node after it
}

// walker goes over a vocabulary's trie beside the states of a table.
type walker struct {
	trie   *trie
	states []*state // by depth
	set    []uint64 // allowed
	rest   []int32
}

func newWalker(trie *trie, size int) *walker {
	return &walker{trie: trie, states: make([]*state, trie.deepest+1), set: make([]uint64, (size+63)/64)}
}

// walk adds the tokens under a node of the trie that go on from s. It is false
// when that is too much work.
func (w *walker) walk(t *table, from int32, s *state) bool {
	nodes, sorted := w.trie.nodes, w.trie.sorted
	if s.final {
		w.rest = append(w.rest, from)
	}
	w.states[nodes[from].depth] = s
	for i, end := from+1, nodes[from].skip; i < end; {
		at := &nodes[i]
		before := w.states[at.depth-1]
		class := t.classes[at.b]
		n := before.next[class]
		if n == nil {
			if n = t.step(before, class); n == nil {
				return false
			}
		}
		if n == t.dead {
			i = at.skip
			continue
		}
		for _, id := range sorted[at.ends:nodes[i+1].ends] {
			w.set[id>>6] |= 1 << (id & 63)
		}
		if n.final && at.skip > i+1 {
			w.rest = append(w.rest, i)
		}
		if len(n.closed) == 0 {
			i = at.skip
			continue
		}
		w.states[at.depth] = n
		i++
	}
	return true
}

// begin empties the walker's result.
func (w *walker) begin() {
	clear(w.set)
	w.rest = w.rest[:0]
}

// piece makes what the walker found into a piece.
func (w *walker) piece(t *table) *piece {
	p := &piece{mask: newMask(w.set), rest: slices.Clone(w.rest)}
	t.kept += p.mask.words() + len(p.rest)/2
	return p
}

// pieceOf is the piece of a node; nil when that is too much work.
func (t *table) pieceOf(w *walker, node int32) *piece {
	class := t.a.nodes[node].class
	if p := t.masks[class]; p != nil {
		return p
	}
	s := t.at(node)
	w.begin()
	if s == nil || !w.walk(t, 0, s) {
		return nil
	}
	t.masks[class] = w.piece(t)
	return t.masks[class]
}

// after is the piece p where its rule returns to a node; nil when that is too
// much work.
func (t *table) after(w *walker, p *piece, node int32) *piece {
	class := t.a.nodes[node].class
	if n := p.next[class]; n != nil {
		return n
	}
	rest := p.rest
	var begin *piece // where the rule may have ended before the first byte
	if rest[0] == 0 {
		if begin = t.pieceOf(w, node); begin == nil {
			return nil
		}
		rest = rest[1:]
	}
	s := t.at(node)
	if s == nil {
		return nil
	}
	w.begin()
	p.mask.addTo(w.set)
	if begin != nil {
		begin.mask.addTo(w.set)
		w.rest = append(w.rest, begin.rest...)
	}
	for _, from := range rest {
		if !w.walk(t, from, s) {
			return nil
		}
	}
	slices.Sort(w.rest)
	w.rest = slices.Compact(w.rest)
	n := w.piece(t)
	if p.next == nil {
		p.next = map[int32]*piece{}
	}
	p.next[class] = n
	return n
}

// maskOf is the mask of a state; nil when that is too much work.
func (t *table) maskOf(w *walker, s *state) *Mask {
	if s.mask != nil {
		return s.mask
	}
	var masks []*Mask
	var collect func(p *piece, f *frame) bool
	collect = func(p *piece, f *frame) bool {
		t.work++
		if p == nil || t.work > maxWork {
			return false
		}
		if len(p.rest) == 0 || f == t.bottom {
			if !slices.Contains(masks, p.mask) {
				masks = append(masks, p.mask)
			}
			return true
		}
		for _, l := range f.links {
			if !collect(t.after(w, p, l.ret), l.parent) {
				return false
			}
		}
		return true
	}
	for _, c := range s.kernel {
		if !collect(t.pieceOf(w, c.node), c.frame) {
			return nil
		}
	}
	switch len(masks) {
	case 0: // the dead state
		s.mask = &Mask{}
	case 1:
		s.mask = masks[0]
	default:
		w.begin()
		for _, m := range masks {
			m.addTo(w.set)
		}
		s.mask = newMask(w.set)
		t.kept += s.mask.words()
	}
	return s.mask
}
