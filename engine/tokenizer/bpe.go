package tokenizer

import "container/heap"

// symbol is a token of a piece in the making, in a linked list; id −1 is one
// that was merged into the one before it.
type symbol struct{ id, prev, next int32 }

// candidate is a pair that can be merged, at the symbol at.
type candidate struct {
	rank, at    int32
	left, right int32 // as they were when it was found
	id          int32
}

// queue gives the candidates by rank, then from left to right.
type queue []candidate

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].at < q[j].at
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(candidate)) }
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// bpe merges the bytes of a piece pair by pair, the lowest rank first and the
// leftmost of equals (Sennrich et al., "Neural machine translation of rare
// words with subword units", 2016), in n·log n steps.
func (t *Tokenizer) bpe(piece string, out []int32) []int32 {
	if t.ignore || len(piece) == 1 {
		if id, ok := t.ids[piece]; ok {
			return append(out, id)
		}
	}
	symbols := make([]symbol, len(piece))
	for i := range symbols {
		symbols[i] = symbol{t.unit[piece[i]], int32(i - 1), int32(i + 1)}
	}
	symbols[len(symbols)-1].next = -1
	var q queue
	find := func(i int32) (candidate, bool) {
		if i < 0 || symbols[i].next < 0 {
			return candidate{}, false
		}
		p := pair{symbols[i].id, symbols[symbols[i].next].id}
		m, ok := t.merges[p]
		return candidate{m.rank, i, p.left, p.right, m.id}, ok
	}
	for i := range symbols {
		if c, ok := find(int32(i)); ok {
			q = append(q, c)
		}
	}
	heap.Init(&q)
	for len(q) > 0 {
		c := heap.Pop(&q).(candidate)
		s := &symbols[c.at]
		if s.id != c.left || s.next < 0 || symbols[s.next].id != c.right {
			continue // one of the two was merged otherwise meanwhile
		}
		gone := &symbols[s.next]
		s.id, gone.id = c.id, -1
		if s.next = gone.next; s.next >= 0 {
			symbols[s.next].prev = c.at
		}
		for _, i := range [2]int32{s.prev, c.at} {
			if c, ok := find(i); ok {
				heap.Push(&q, c)
			}
		}
	}
	for _, s := range symbols {
		if s.id >= 0 {
			out = append(out, s.id)
		}
	}
	return out
}
