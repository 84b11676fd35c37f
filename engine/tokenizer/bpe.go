package tokenizer

import "unicode/utf8"

type pair struct{ left, right int32 }

// merge says that a pair becomes into; pairs of a lower rank are merged first.
type merge struct{ rank, into int32 }

type merges map[pair]merge

// symbol is a token of a piece in the making, in a linked list; id −1 is one
// that was merged into the one before it.
type symbol struct {
	id, prev, next int32
	merge          // of it and the next one; rank −1: there is none
}

// A candidate is a pair that can be merged: its rank, then the place of its left
// symbol, so that smaller ones come first.
type candidate uint64

func newCandidate(rank int32, at int) candidate { return candidate(rank)<<32 | candidate(at) }

func (c candidate) rank() int32 { return int32(c >> 32) }
func (c candidate) at() int32   { return int32(uint32(c)) }

// queue is a heap that gives the candidates by rank, then from left to right.
// Nodes have four children, which lie in one or two cache lines: in a word of
// millions of letters, going down is what takes the time. (container/heap would
// allocate for each of them.)
type queue []candidate

// order makes a heap of candidates in any order.
func (q queue) order() {
	for i := (len(q)+2)/4 - 1; i >= 0; i-- {
		q.down(i)
	}
}

func (q *queue) push(c candidate) {
	h := append(*q, c)
	i := len(h) - 1
	for i > 0 && c < h[(i-1)/4] {
		h[i] = h[(i-1)/4]
		i = (i - 1) / 4
	}
	h[i] = c
	*q = h
}

func (q *queue) pop() candidate {
	h := *q
	top, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	if n > 1 {
		h.down(0)
	}
	*q = h
	return top
}

// down moves the candidate at i below smaller ones.
func (q queue) down(i int) {
	c := q[i]
	for {
		first := 4*i + 1
		if first >= len(q) {
			break
		}
		child, least := first, q[first]
		for k := first + 1; k < min(first+4, len(q)); k++ {
			if q[k] < least {
				child, least = k, q[k]
			}
		}
		if c <= least {
			break
		}
		q[i] = least
		i = child
	}
	q[i] = c
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
	find := func(i int32) bool {
		s := &symbols[i]
		s.rank = -1
		if s.next >= 0 {
			if m, ok := t.merges[pair{s.id, symbols[s.next].id}]; ok {
				s.merge = m
			}
		}
		return s.rank >= 0
	}
	var q queue
	for i := range symbols {
		if find(int32(i)) {
			q = append(q, newCandidate(symbols[i].rank, i))
		}
	}
	q.order()
	for len(q) > 0 {
		c := q.pop()
		at := c.at()
		s := &symbols[at]
		if s.id < 0 || s.rank != c.rank() {
			continue // one of the two was merged otherwise meanwhile
		}
		gone := &symbols[s.next]
		s.id, gone.id = s.into, -1
		if s.next = gone.next; s.next >= 0 {
			symbols[s.next].prev = at
		}
		if s.prev >= 0 && find(s.prev) {
			q.push(newCandidate(symbols[s.prev].rank, int(s.prev)))
		}
		if find(at) {
			q.push(newCandidate(s.rank, int(at)))
		}
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
