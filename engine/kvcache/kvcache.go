// Package kvcache keeps the books of the paged key-value pool: which pages are
// free and which request holds which. The memory itself is the devices'.
package kvcache

import "fmt"

// Pool hands out pages of pageSize positions each. The target's and the
// draft's caches use the same page numbers, so one table serves both. It is
// used by the step loop alone.
type Pool struct {
	pageSize int
	free     []int32
	held     []bool // by page
}

// NewPool makes a pool of pages free pages.
func NewPool(pages, pageSize int) *Pool {
	p := &Pool{pageSize: pageSize, free: make([]int32, pages), held: make([]bool, pages)}
	for i := range p.free {
		p.free[i] = int32(pages - 1 - i) // the lowest is taken first
	}
	return p
}

// PageSize is the number of positions in a page.
func (p *Pool) PageSize() int { return p.pageSize }

// Total is the number of pages.
func (p *Pool) Total() int { return len(p.held) }

// Free is the number of pages that nobody holds.
func (p *Pool) Free() int { return len(p.free) }

// PagesFor is the number of pages that hold n positions.
func (p *Pool) PagesFor(n int) int { return (n + p.pageSize - 1) / p.pageSize }

// Alloc appends n pages to table; false, with table unchanged, if fewer are free.
func (p *Pool) Alloc(table []int32, n int) ([]int32, bool) {
	if n > len(p.free) {
		return table, false
	}
	for range n {
		last := len(p.free) - 1
		page := p.free[last]
		p.free = p.free[:last]
		p.held[page] = true
		table = append(table, page)
	}
	return table, true
}

// Release gives the pages of table back. It panics on a page that is not held:
// a page with two owners would mix two requests' texts.
func (p *Pool) Release(table []int32) {
	for _, page := range table {
		if !p.held[page] {
			panic(fmt.Sprintf("kvcache: page %d is released but not held", page))
		}
		p.held[page] = false
		p.free = append(p.free, page)
	}
}

// Check reports books that do not add up: a page free twice, or lost.
func (p *Pool) Check() error {
	seen := make([]bool, len(p.held))
	for _, page := range p.free {
		if seen[page] || p.held[page] {
			return fmt.Errorf("kvcache: page %d is free twice, or free and held", page)
		}
		seen[page] = true
	}
	held := 0
	for _, h := range p.held {
		if h {
			held++
		}
	}
	if len(p.free)+held != len(p.held) {
		return fmt.Errorf("kvcache: %d free and %d held pages of %d", len(p.free), held, len(p.held))
	}
	return nil
}
