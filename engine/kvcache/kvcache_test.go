package kvcache

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func check(t *testing.T, p *Pool, tables ...[]int32) {
	t.Helper()
	if err := p.Check(tables...); err != nil {
		t.Fatal(err)
	}
}

func TestPool(t *testing.T) {
	p := NewPool(5, 16)
	for n, want := range map[int]int{0: 0, 1: 1, 16: 1, 17: 2} {
		if got := p.PagesFor(n); got != want {
			t.Errorf("PagesFor(%d) = %d, want %d", n, got, want)
		}
	}
	a, ok := p.Alloc(nil, 3)
	if !ok || len(a) != 3 || a[0] != 0 || p.Free() != 2 || p.Used() != 3 {
		t.Fatalf("Alloc: %v, %v, %d free, %d used", a, ok, p.Free(), p.Used())
	}
	if b, ok := p.Alloc(a, 3); ok || len(b) != 3 || p.Free() != 2 {
		t.Errorf("a pool of 2 gave 3 pages: %v", b)
	}
	check(t, p, a)
	p.Release(a)
	if p.Free() != p.Total() {
		t.Errorf("%d free of %d after the last release", p.Free(), p.Total())
	}
	defer func() {
		if recover() == nil {
			t.Error("a page was released twice without a panic")
		}
	}()
	p.Release(a[:1])
}

func TestGrow(t *testing.T) {
	p := NewPool(2, 4)
	a, _ := p.Alloc(nil, 2)
	p.Grow(5)
	check(t, p, a)
	b, ok := p.Alloc(nil, 3)
	if !ok || !slices.Equal(b, []int32{2, 3, 4}) || p.Total() != 5 {
		t.Errorf("a pool that has grown to %d pages gives %v, %v", p.Total(), b, ok)
	}
	p.Grow(3) // it does not shrink
	check(t, p, a, b)
	p.Release(a)
	p.Release(b)
	if p.Free() != 5 {
		t.Errorf("%d of 5 pages are free after the last release", p.Free())
	}
}

// Check finds each kind of wrong book.
func TestCheckFinds(t *testing.T) {
	for _, c := range []struct {
		name, says string
		spoil      func(p *Pool, table []int32) [][]int32
	}{
		{"leak", "counts 1 holders but has 0", func(*Pool, []int32) [][]int32 { return nil }},
		{"free twice", "free twice", func(p *Pool, table []int32) [][]int32 { p.free = append(p.free, p.free[0]); return [][]int32{table} }},
		{"free and used", "free and in use", func(p *Pool, table []int32) [][]int32 { p.free[0] = table[0]; return [][]int32{table} }},
		{"lost", "is lost", func(p *Pool, table []int32) [][]int32 { p.free = p.free[1:]; return [][]int32{table} }},
		{"not found", "not found by its key", func(p *Pool, table []int32) [][]int32 {
			delete(p.index, p.pages[table[0]].key)
			return [][]int32{table}
		}},
		{"children", "counts 4 children", func(p *Pool, table []int32) [][]int32 { p.pages[table[0]].children = 4; return [][]int32{table} }},
		{"no path", "does not follow", func(p *Pool, table []int32) [][]int32 { return [][]int32{{table[1], table[0], table[2]}} }},
		{"twice", "twice in a table", func(p *Pool, table []int32) [][]int32 { return [][]int32{{table[0], table[1], table[2], table[2]}} }},
		{"not listed", "pages are cached but", func(p *Pool, table []int32) [][]int32 { p.Release(table); p.tail = none; return nil }},
		{"cached and held", "4 free, 1 used and 2 cached pages of 6", func(p *Pool, table []int32) [][]int32 {
			p.Release(table)
			p.pages[table[0]].refs = 1
			return [][]int32{table[:1]}
		}},
	} {
		p := NewPool(6, 2)
		tokens := []int32{1, 2, 3, 4, 5, 6}
		table, _ := p.Alloc(nil, 3)
		for j, key := range p.Keys(nil, tokens) {
			p.Store(table, j, key, tokens, false)
		}
		check(t, p, table)
		if err := p.Check(c.spoil(p, table)...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Check says %v, want %q", c.name, err, c.says)
		}
	}
}

// Steady use of the pool allocates no memory.
func TestNoAllocation(t *testing.T) {
	p := NewPool(32, 4)
	rng := rand.New(rand.NewPCG(1, 1))
	tokens := make([]int32, 33)
	var table []int32
	var keys []Key
	round := func() {
		for i := range tokens {
			tokens[i] = rng.Int32N(2)
		}
		keys = p.Keys(keys[:0], tokens)
		p.Match(keys)
		table = p.Acquire(table[:0], keys, tokens)
		table, _ = p.Alloc(table, 9-len(table))
		for j, key := range keys {
			p.Store(table, j, key, tokens, false)
		}
		p.Release(table)
	}
	for range 200 {
		round()
	}
	if n := testing.AllocsPerRun(500, round); n != 0 {
		t.Errorf("%v allocations in a round", n)
	}
}
