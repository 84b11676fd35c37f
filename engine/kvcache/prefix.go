package kvcache

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Key stands for all that a page's entries depend on: the tokens from the
// beginning of the text to the page's end, and the token after, since the
// draft's entry of a position reads the next token's embedding. Different texts
// can have the same key, so texts are compared before a page is shared.
type Key uint64

// Keys extends keys, which has those of the first pages of a text, by those of
// its other whole pages that have a token after them. At most
// (len(tokens)−1) / pageSize pages have keys, so a text's last token is never
// found in the cache: its row is computed, since its logits are wanted.
func (p *Pool) Keys(keys []Key, tokens []int32) []Key {
	var h maphash.Hash
	h.SetSeed(p.seed)
	var b [8]byte
	for j := len(keys); (j+1)*p.pageSize < len(tokens); j++ {
		h.Reset()
		if j > 0 {
			binary.LittleEndian.PutUint64(b[:], uint64(keys[j-1]))
			h.Write(b[:])
		}
		for _, id := range tokens[j*p.pageSize : (j+1)*p.pageSize+1] {
			binary.LittleEndian.PutUint32(b[:], uint32(id))
			h.Write(b[:4])
		}
		keys = append(keys, Key(h.Sum64()))
	}
	return keys
}

// Match is the number of leading keys whose pages are in the tree, and how many
// of these requests hold. It goes by keys alone: Acquire may find less.
func (p *Pool) Match(keys []Key) (found, held int) {
	// A page in the tree has its parents there; a page that is held has its
	// parents held.
	found = first(len(keys), func(i int) bool { _, ok := p.index[keys[i]]; return !ok })
	held = first(found, func(i int) bool { return p.pages[p.index[keys[i]]].refs == 0 })
	return found, held
}

// first is the least i < n for which is(i) holds, or n; is must stay true once
// it is.
func first(n int, is func(int) bool) int {
	low, high := 0, n
	for low < high {
		if mid := int(uint(low+high) >> 1); is(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// Acquire appends to an empty table the pages that have the beginning of a
// text, and holds them. keys are the text's; see Keys.
func (p *Pool) Acquire(table []int32, keys []Key, tokens []int32) []int32 {
	parent := int32(none)
	for j, key := range keys {
		i, ok := p.index[key]
		if !ok || !p.has(i, parent, j, tokens) {
			break
		}
		p.hold(i)
		table = append(table, i)
		parent = i
	}
	return table
}

// hold adds a holder to page i of the tree.
func (p *Pool) hold(i int32) {
	if p.pages[i].refs == 0 {
		p.unlink(i)
	}
	p.pages[i].refs++
}

// text is where the tokens of page i are.
func (p *Pool) text(i int32) []int32 {
	return p.texts[int(i)*p.pageSize : (int(i)+1)*p.pageSize]
}

// has tells whether page i of the tree is page j of the text, given that parent
// is the page before.
func (p *Pool) has(i, parent int32, j int, tokens []int32) bool {
	q := &p.pages[i]
	end := (j + 1) * p.pageSize
	return q.parent == parent && q.after == tokens[end] && slices.Equal(p.text(i), tokens[end-p.pageSize:end])
}

// Store puts page j of a text, whose entries are all computed, into the tree
// under its key. Where the tree has the same page already, table[j] becomes
// that one; drafted tells that the draft has entries of its own in table[j],
// maybe not all, so that only a page with all of them may take its place:
// another one gives its own up to table[j]. The answer is false, with the page
// left out, if the page before is not in the tree, if another text has the same
// key, or if the tree's page lacks draft entries and is in use.
func (p *Pool) Store(table []int32, j int, key Key, tokens []int32, drafted bool) bool {
	own := table[j]
	if p.pages[own].inTree {
		return true
	}
	parent := int32(none)
	if j > 0 {
		if parent = table[j-1]; !p.pages[parent].inTree {
			return false
		}
	}
	children := int32(0)
	if i, ok := p.index[key]; ok {
		q := &p.pages[i]
		switch {
		case !p.has(i, parent, j, tokens):
			return false
		case q.drafted || !drafted:
			p.Release(table[j : j+1])
			p.hold(i)
			table[j] = i
			return true
		case q.refs > 0:
			return false
		}
		children = p.adopt(own, i)
		p.evict(i)
	}
	q := &p.pages[own]
	q.inTree, q.parent, q.children, q.key, q.after = true, parent, children, key, tokens[(j+1)*p.pageSize]
	copy(p.text(own), tokens[j*p.pageSize:])
	p.index[key] = own
	if parent != none {
		p.pages[parent].children++
	}
	return true
}

// adopt has the children of page i follow page own instead, and tells how many
// they are. It looks for them among all pages, so it is for what is rare.
func (p *Pool) adopt(own, i int32) (n int32) {
	for k := 0; p.pages[i].children > 0; k++ {
		if q := &p.pages[k]; q.inTree && q.parent == i {
			q.parent = own
			p.pages[i].children--
			n++
		}
	}
	return n
}

// Forget takes the pages of a table out of the tree that nothing else needs:
// their entries are not to be trusted. The table still holds them.
func (p *Pool) Forget(table []int32) {
	for k := len(table) - 1; k >= 0; k-- {
		if q := &p.pages[table[k]]; q.inTree && (q.refs > 1 || q.children > 0) {
			return
		} else if q.inTree {
			p.remove(table[k])
		}
	}
}

// remove takes page i, which has no children, out of the tree.
func (p *Pool) remove(i int32) {
	q := &p.pages[i]
	delete(p.index, q.key)
	if q.parent != none {
		p.pages[q.parent].children--
	}
	q.inTree = false
}
