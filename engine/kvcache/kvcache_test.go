package kvcache

import (
	"math/rand/v2"
	"testing"
)

func TestPool(t *testing.T) {
	p := NewPool(5, 16)
	for n, want := range map[int]int{0: 0, 1: 1, 16: 1, 17: 2} {
		if got := p.PagesFor(n); got != want {
			t.Errorf("PagesFor(%d) = %d, want %d", n, got, want)
		}
	}
	a, ok := p.Alloc(nil, 3)
	if !ok || len(a) != 3 || a[0] != 0 || p.Free() != 2 {
		t.Fatalf("Alloc: %v, %v, %d free", a, ok, p.Free())
	}
	if b, ok := p.Alloc(a, 3); ok || len(b) != 3 || p.Free() != 2 {
		t.Errorf("a pool of 2 gave 3 pages: %v", b)
	}
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

// No page has two holders, whatever the order of allocation and release.
func TestPagesHaveOneHolder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	p := NewPool(40, 4)
	var tables [][]int32
	for range 20000 {
		if len(tables) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(tables))
			p.Release(tables[i])
			tables[i] = tables[len(tables)-1]
			tables = tables[:len(tables)-1]
		} else if table, ok := p.Alloc(nil, rng.IntN(9)); ok {
			tables = append(tables, table)
		}
		holder := map[int32]int{}
		for i, table := range tables {
			for _, page := range table {
				if other, taken := holder[page]; taken {
					t.Fatalf("page %d is in tables %d and %d", page, other, i)
				}
				holder[page] = i
			}
		}
		if len(holder)+p.Free() != p.Total() {
			t.Fatalf("%d held and %d free of %d", len(holder), p.Free(), p.Total())
		}
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
	}
}
