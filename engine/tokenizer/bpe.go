package tokenizer

import "unicode/utf8"

type pair struct{ left, right int32 }

// merge says that a pair becomes id; pairs of a lower rank are merged first.
type merge struct{ rank, id int32 }

type merges map[pair]merge

// symbol is a token of a piece in the making, in a linked list; id −1 is one
// that was merged into the one before it.
type symbol struct{ id, prev, next int32 }

// candidate is a pair that can be merged, at the symbol at.
type candidate struct {
	rank, at    int32
	left, right int32 // as they were when it was found
	id          int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// queue is a heap that gives the candidates by rank, then from left to right.
// (container/heap would allocate for each of them.)
type queue []candidate

func (q *queue) push(c candidate) {
	h := append(*q, c)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	*q = h
}

func (q *queue) pop() candidate {
	h := *q
	top, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	*q = h
	return top
}

// bpe merges the symbols of a piece pair by pair, the lowest rank first and the
// leftmost of equals (Sennrich et al., "Neural machine translation of rare
// words with subword units", 2016), in n·log n steps.
func (t *Tokenizer) bpe(piece string, out []int32) []int32 {
	if t.ignore {
		if id, ok := t.ids[piece]; ok {
			return append(out, id)
		}
	}
	symbols := t.symbols(piece)
	for i := range symbols {
		symbols[i].prev, symbols[i].next = int32(i-1), int32(i+1)
	}
	if n := len(symbols); n > 0 {
		symbols[n-1].next = -1
	}
	var q queue
	find := func(i int32) {
		if i < 0 || symbols[i].next < 0 {
			return
		}
		p := pair{symbols[i].id, symbols[symbols[i].next].id}
		if m, ok := t.merges[p]; ok {
			q.push(candidate{m.rank, i, p.left, p.right, m.id})
		}
	}
	for i := range symbols {
		find(int32(i))
	}
	for len(q) > 0 {
		c := q.pop()
		s := &symbols[c.at]
		if s.id != c.left || s.next < 0 || symbols[s.next].id != c.right {
			continue // one of the two was merged otherwise meanwhile
		}
		gone := &symbols[s.next]
		s.id, gone.id = c.id, -1
		if s.next = gone.next; s.next >= 0 {
			symbols[s.next].prev = c.at
		}
		find(s.prev)
		find(c.at)
	}
	for _, s := range symbols {
		if s.id >= 0 {
			out = append(out, s.id)
		}
	}
	return out
}

// symbols are what merging begins with: bytes, or code points with those of
// their bytes where they have no token. What has neither is unknown.
func (v *vocabulary) symbols(piece string) []symbol {
	s := make([]symbol, 0, len(piece))
	unknown := false // the last symbol is
	add := func(id int32) {
		s = append(s, symbol{id: id})
		unknown = false
	}
	addUnknown := func() {
		if v.unknown >= 0 && (!v.fuse || !unknown) {
			add(v.unknown)
			unknown = true
		}
	}
	if v.byteLevel {
		for i := range len(piece) {
			if id := v.bytes[piece[i]]; id >= 0 {
				add(id)
			} else {
				addUnknown()
			}
		}
		return s
	}
	for len(piece) > 0 {
		_, n := utf8.DecodeRuneInString(piece)
		char := piece[:n]
		piece = piece[n:]
		if id, ok := v.ids[char]; ok {
			add(id)
		} else if v.spelled(char) {
			for i := range n {
				add(v.bytes[char[i]])
			}
		} else {
			addUnknown()
		}
	}
	return s
}

// spelled tells whether all bytes of a code point have tokens.
func (v *vocabulary) spelled(char string) bool {
	for i := range len(char) {
		if v.bytes[char[i]] < 0 {
			return false
		}
	}
	return true
}
