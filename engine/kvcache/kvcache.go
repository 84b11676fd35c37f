// Package kvcache keeps the books of the paged key-value pool: which pages are
// free, which a request holds, and which still have a text's entries that a
// later request with the same beginning can use. The memory itself is the
// devices'.
package kvcache

import (
	"fmt"
	"hash/maphash"
)

// Pool hands out pages of pageSize positions each. The target's and the
// draft's caches use the same page numbers, so one table serves both. A page is
// free, used (a request holds it) or cached (nobody holds it, but its text is
// known); free + used + cached = total.
//
// Pages with a known text form a radix tree whose edges are one page long, so a
// node is a page and all of the tree's memory is sized with the pool. The pages
// of a table that are in the tree come first in it and are a path from the root.
//
// Keys may be called from anywhere; everything else is the step loop's.
type Pool struct {
	pageSize int
	seed     maphash.Seed
	free     []int32
	pages    []page
	texts    []int32 // of page i from i·pageSize on: its tokens, while it is in the tree
	index    map[Key]int32
	// Cached pages, the one to evict first at the head. A page comes before its
	// parent, so the head has no children.
	head, tail int32
	cached     int
}

// page is what is known of one page.
type page struct {
	refs       int32 // holders
	inTree     bool
	drafted    bool  // see SetDrafted
	after      int32 // in the tree: the token after the page's last
	parent     int32 // in the tree: the page before, or none
	children   int32 // in the tree: the pages that follow this one
	prev, next int32 // in the list of cached pages, or none
	key        Key
}

const none = -1

// NewPool makes a pool of pages free pages.
func NewPool(pages, pageSize int) *Pool {
	p := &Pool{pageSize: pageSize, seed: maphash.MakeSeed(), index: make(map[Key]int32), head: none, tail: none}
	p.Grow(pages)
	return p
}

// Grow makes it a pool of pages pages, unless it has as many; those beyond what it
// had are free.
func (p *Pool) Grow(pages int) {
	had := len(p.pages)
	if pages <= had {
		return
	}
	free := make([]int32, 0, pages-had+len(p.free))
	for i := pages - 1; i >= had; i-- {
		free = append(free, int32(i))
	}
	p.free = append(free, p.free...) // the lowest is taken first
	p.pages = append(p.pages, make([]page, pages-had)...)
	p.texts = append(p.texts, make([]int32, (pages-had)*p.pageSize)...)
}

// PageSize is the number of positions in a page.
func (p *Pool) PageSize() int { return p.pageSize }

// Total is the number of pages.
func (p *Pool) Total() int { return len(p.pages) }

// Free is the number of pages that nobody holds and that hold no known text.
func (p *Pool) Free() int { return len(p.free) }

// Cached is the number of pages that nobody holds but that have a known text.
func (p *Pool) Cached() int { return p.cached }

// Available is the number of pages that Alloc can give: free and cached ones.
func (p *Pool) Available() int { return len(p.free) + p.cached }

// Used is the number of pages that requests hold, each counted once.
func (p *Pool) Used() int { return len(p.pages) - p.Available() }

// PagesFor is the number of pages that hold n positions.
func (p *Pool) PagesFor(n int) int { return (n + p.pageSize - 1) / p.pageSize }

// Alloc appends n pages to table, free ones first, then the cached ones that
// were not used for longest; false, with table unchanged, if there are fewer.
func (p *Pool) Alloc(table []int32, n int) ([]int32, bool) {
	if n > p.Available() {
		return table, false
	}
	for range n {
		if len(p.free) == 0 {
			p.evict(p.head)
		}
		last := len(p.free) - 1
		i := p.free[last]
		p.free = p.free[:last]
		p.pages[i].refs, p.pages[i].drafted = 1, false
		table = append(table, i)
	}
	return table, true
}

// Release gives up one hold on each page of table: a page that nobody else
// holds becomes cached if it is in the tree, otherwise free. It panics on a page
// that is not held: a page with two owners would mix two requests' texts.
func (p *Pool) Release(table []int32) {
	for k := len(table) - 1; k >= 0; k-- { // children before parents: the order of eviction
		i := table[k]
		q := &p.pages[i]
		if q.refs <= 0 {
			panic(fmt.Sprintf("kvcache: page %d is released but not held", i))
		}
		q.refs--
		switch {
		case q.refs > 0:
		case q.inTree:
			p.append(i)
		default:
			p.free = append(p.free, i)
		}
	}
}

// SetDrafted notes that the draft's entries of a page are there too, all of
// them computed from the target's features.
func (p *Pool) SetDrafted(page int32) { p.pages[page].drafted = true }

// Drafted tells whether SetDrafted was called since the page was allocated.
func (p *Pool) Drafted(page int32) bool { return p.pages[page].drafted }

// Shared tells whether a page has other holders beside one.
func (p *Pool) Shared(page int32) bool { return p.pages[page].refs > 1 }

// append makes page i, which nobody holds any more, the last to be evicted.
func (p *Pool) append(i int32) {
	q := &p.pages[i]
	q.prev, q.next = p.tail, none
	if p.tail != none {
		p.pages[p.tail].next = i
	} else {
		p.head = i
	}
	p.tail = i
	p.cached++
}

// unlink takes page i out of the list of cached pages.
func (p *Pool) unlink(i int32) {
	q := &p.pages[i]
	if q.prev != none {
		p.pages[q.prev].next = q.next
	} else {
		p.head = q.next
	}
	if q.next != none {
		p.pages[q.next].prev = q.prev
	} else {
		p.tail = q.prev
	}
	p.cached--
}

// evict makes a cached page without children free.
func (p *Pool) evict(i int32) {
	p.unlink(i)
	p.remove(i)
	p.free = append(p.free, i)
}
