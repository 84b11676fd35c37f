package kvcache

import (
	"fmt"
	"slices"
)

// Check reports books that do not add up, given all tables that hold pages:
// with none it reports pages that were never released.
func (p *Pool) Check(tables ...[]int32) error {
	refs := make([]int32, len(p.pages))
	for _, table := range tables {
		if err := p.checkTable(table); err != nil {
			return err
		}
		for _, i := range table {
			refs[i]++
		}
	}
	isFree := make([]bool, len(p.pages))
	for _, i := range p.free {
		if isFree[i] || p.pages[i].inTree || refs[i] > 0 {
			return fmt.Errorf("kvcache: page %d is free twice, or free and in use", i)
		}
		isFree[i] = true
	}
	used, inTree := 0, 0
	children := make([]int32, len(p.pages))
	for i := range p.pages {
		q := &p.pages[i]
		if q.refs != refs[i] {
			return fmt.Errorf("kvcache: page %d counts %d holders but has %d", i, q.refs, refs[i])
		}
		if q.refs > 0 {
			used++
		} else if !q.inTree && !isFree[i] {
			return fmt.Errorf("kvcache: page %d is lost: not free, used or cached", i)
		}
		if !q.inTree {
			continue
		}
		inTree++
		if at, ok := p.index[q.key]; !ok || at != int32(i) {
			return fmt.Errorf("kvcache: page %d of the tree is not found by its key", i)
		}
		if q.parent != none {
			children[q.parent]++
			if parent := &p.pages[q.parent]; !parent.inTree || parent.refs < q.refs {
				return fmt.Errorf("kvcache: page %d has %d holders, but its parent %d has %d (in the tree: %v)", i, q.refs, q.parent, parent.refs, parent.inTree)
			}
		}
	}
	if inTree != len(p.index) || len(p.free)+used+p.cached != len(p.pages) {
		return fmt.Errorf("kvcache: %d free, %d used and %d cached pages of %d; %d in the tree of %d keys", len(p.free), used, p.cached, len(p.pages), inTree, len(p.index))
	}
	for i := range p.pages {
		if p.pages[i].inTree && p.pages[i].children != children[i] {
			return fmt.Errorf("kvcache: page %d counts %d children but has %d", i, p.pages[i].children, children[i])
		}
	}
	return p.checkCached()
}

// checkTable reports a table whose pages in the tree are no path from the root.
func (p *Pool) checkTable(table []int32) error {
	parent, path := int32(none), true
	for j, i := range table {
		q := &p.pages[i]
		if q.inTree && (!path || q.parent != parent) {
			return fmt.Errorf("kvcache: page %d, entry %d of a table, does not follow page %d in the tree", i, j, parent)
		}
		path = q.inTree
		parent = i
		if slices.Index(table, i) != j {
			return fmt.Errorf("kvcache: page %d is twice in a table", i)
		}
	}
	return nil
}

// checkCached reports a list of cached pages in which a page comes after its
// parent, is held, or is missing.
func (p *Pool) checkCached() error {
	seen := make(map[int32]bool)
	prev := int32(none)
	for i := p.head; i != none; prev, i = i, p.pages[i].next {
		q := &p.pages[i]
		if q.refs != 0 || !q.inTree || q.prev != prev || seen[i] || q.parent != none && seen[q.parent] {
			return fmt.Errorf("kvcache: page %d is wrongly in the list of cached pages: %+v", i, *q)
		}
		seen[i] = true
	}
	if len(seen) != p.cached || p.tail != prev {
		return fmt.Errorf("kvcache: %d pages are cached but %d listed, the last %d and not %d", p.cached, len(seen), prev, p.tail)
	}
	return nil
}
