package kvcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// store puts all whole pages of a text into the tree.
func store(p *Pool, table []int32, tokens []int32) {
	for j, key := range p.Keys(nil, tokens) {
		p.Store(table, j, key, tokens, false)
	}
}

// cached is a released text in the tree.
func cached(t *testing.T, p *Pool, tokens ...int32) []int32 {
	t.Helper()
	table := p.Acquire(nil, p.Keys(nil, tokens), tokens)
	table, ok := p.Alloc(table, p.PagesFor(len(tokens))-len(table))
	if !ok {
		t.Fatal("no pages")
	}
	store(p, table, tokens)
	p.Release(table)
	check(t, p)
	return table
}

func found(p *Pool, tokens ...int32) int {
	table := p.Acquire(nil, p.Keys(nil, tokens), tokens)
	p.Release(table)
	return len(table)
}

// A page is shared only with its tokens and the token after them.
func TestPrefix(t *testing.T) {
	for _, c := range []struct {
		size   int
		tokens []int32
		want   int
	}{
		{2, []int32{1, 2, 3, 4, 5, 6, 7}, 3},
		{2, []int32{1, 2, 3, 4, 5, 6, 8}, 2},    // the token after the page is another
		{2, []int32{1, 2, 3, 4, 5, 6}, 2},       // the page's end is the text's
		{2, []int32{1, 2, 3, 4, 5, 6, 7, 8}, 3}, // the cached text ends here
		{2, []int32{1, 2}, 0},
		{2, []int32{9, 2, 3, 4, 5, 6, 7}, 0},
		{2, []int32{3, 4, 5, 6, 7}, 0}, // the same page, but not at the beginning
		{1, []int32{1, 2, 3, 4, 5, 6, 7, 8}, 6},
		{1, []int32{1, 2, 9}, 1},
		{3, []int32{1, 2, 3, 4, 5, 6, 7}, 2},
		{128, []int32{1, 2, 3, 4, 5, 6, 7}, 0},
	} {
		p := NewPool(16, c.size)
		cached(t, p, 1, 2, 3, 4, 5, 6, 7)
		if got := found(p, c.tokens...); got != c.want {
			t.Errorf("page size %d: %v finds %d pages, want %d", c.size, c.tokens, got, c.want)
		}
		if got, _ := p.Match(p.Keys(nil, c.tokens)); got != c.want {
			t.Errorf("page size %d: Match of %v is %d, want %d", c.size, c.tokens, got, c.want)
		}
	}
}

// The text that was not used for longest goes first, from its end.
func TestEviction(t *testing.T) {
	p := NewPool(6, 2)
	cached(t, p, 1, 2, 3, 4, 5)
	cached(t, p, 1, 2, 6, 7, 8)
	cached(t, p, 1, 2, 3, 4, 5) // used again
	if p.Cached() != 4 || p.Free() != 2 {
		t.Fatalf("%d cached, %d free", p.Cached(), p.Free())
	}
	held, _ := p.Alloc(nil, 3)
	if a, b := found(p, 1, 2, 3, 4, 5), found(p, 1, 2, 6, 7, 8); a != 2 || b != 1 {
		t.Errorf("%d and %d pages left, want 2 and 1", a, b)
	}
	held, _ = p.Alloc(held, 1)
	if a := found(p, 1, 2, 3, 4, 5); a != 1 {
		t.Errorf("%d pages left, want 1", a)
	}
	check(t, p, held)
	if _, ok := p.Alloc(held, 3); ok {
		t.Error("a held page was given away")
	}
}

// Two requests that compute the same text at once end up with the same pages.
func TestStoreJoinsEqualPages(t *testing.T) {
	p := NewPool(8, 2)
	tokens := []int32{1, 2, 3, 4, 5}
	a, _ := p.Alloc(nil, 3)
	b, _ := p.Alloc(nil, 3)
	store(p, a, tokens)
	store(p, b, tokens)
	if !slices.Equal(a[:2], b[:2]) || a[2] == b[2] || p.Used() != 4 {
		t.Errorf("tables %v and %v, %d used", a, b, p.Used())
	}
	check(t, p, a, b)
	p.Release(a)
	check(t, p, b)
	p.Release(b)
	check(t, p)
	if p.Cached() != 2 {
		t.Errorf("%d cached, want 2", p.Cached())
	}
}

// A page with draft entries is not given up for one without.
func TestStoreKeepsDraftEntries(t *testing.T) {
	tokens := []int32{1, 2, 3}
	key := func(p *Pool) Key { return p.Keys(nil, tokens)[0] }
	for _, c := range []struct {
		name                   string
		first, second, release bool // drafted, drafted; the first is released before
		stored, joined         bool
	}{
		{"both", true, true, false, true, true},
		{"the first alone", true, false, false, true, true},
		{"neither", false, false, false, true, true},
		{"the second alone, the first in use", false, true, false, false, false},
		{"the second alone", false, true, true, true, false},
	} {
		p := NewPool(4, 2)
		a, _ := p.Alloc(nil, 1)
		b, _ := p.Alloc(nil, 1)
		if c.first {
			p.SetDrafted(a[0])
		}
		if c.second {
			p.SetDrafted(b[0])
		}
		p.Store(a, 0, key(p), tokens, c.first)
		tables := [][]int32{b}
		if c.release {
			p.Release(a)
		} else {
			tables = append(tables, a)
		}
		if got := p.Store(b, 0, key(p), tokens, c.second); got != c.stored || (b[0] == a[0]) != c.joined {
			t.Errorf("%s: stored %v, pages %v and %v", c.name, got, a, b)
		}
		check(t, p, tables...)
		if want := c.first || c.second; p.Drafted(b[0]) != want {
			t.Errorf("%s: drafted is %v", c.name, !want)
		}
	}
}

// Draft entries are added to a text in the middle of others: its page takes the
// place of the one that lacks them, and what followed that one follows it.
func TestStoreMendsPages(t *testing.T) {
	p := NewPool(8, 2)
	text, other := []int32{1, 2, 3, 4, 5, 6, 7}, []int32{1, 2, 3, 4, 5, 8, 9}
	old := slices.Clone(cached(t, p, text...)[:3])
	cached(t, p, other...)
	keys := p.Keys(nil, text)
	table := p.Acquire(nil, keys[:1], text)
	table, _ = p.Alloc(table, 1)
	p.SetDrafted(table[1])
	if !p.Store(table, 1, keys[1], text, true) || table[1] == old[1] {
		t.Fatalf("page %d is at the place of %d, which has no draft entries", table[1], old[1])
	}
	check(t, p, table)
	p.Release(table)
	check(t, p)
	for _, tokens := range [][]int32{text, other} {
		got := p.Acquire(nil, p.Keys(nil, tokens), tokens)
		if len(got) != 3 || got[1] != table[1] || !p.Drafted(got[1]) {
			t.Errorf("%v finds pages %v, want %d among 3", tokens, got, table[1])
		}
		p.Release(got)
	}
	if p.Cached() != 4 || p.Free() != 4 {
		t.Errorf("%d pages cached and %d free, want 4 and 4", p.Cached(), p.Free())
	}
}

// Two texts with one key: the second is not stored, and not found.
func TestKeysThatCollide(t *testing.T) {
	p := NewPool(8, 2)
	one, two := []int32{1, 2, 3, 4, 5}, []int32{6, 7, 8, 9, 10}
	a, _ := p.Alloc(nil, 2)
	b, _ := p.Alloc(nil, 2)
	keys := p.Keys(nil, one)
	p.Store(a, 0, keys[0], one, false)
	if p.Store(b, 0, keys[0], two, false) {
		t.Error("a page of another text was stored under the same key")
	}
	if p.Store(b, 1, p.Keys(nil, two)[1], two, false) {
		t.Error("a page was stored whose parent is not in the tree")
	}
	if got := p.Acquire(nil, keys, two); len(got) != 0 {
		t.Error("a text got another text's page")
	}
	other := []int32{1, 2, 9, 4, 5} // the token after the page alone is another
	if got := p.Acquire(nil, keys, other); len(got) != 0 || p.Store(b, 0, keys[0], other, false) {
		t.Error("a text got, or stored, a page with another token after it")
	}
	check(t, p, a, b)
}

func TestForget(t *testing.T) {
	p := NewPool(8, 2)
	bad, good := []int32{1, 2, 3, 4, 5, 6, 7}, []int32{1, 2, 3, 8, 9}
	a, _ := p.Alloc(nil, 4)
	store(p, a, bad)
	b := p.Acquire(nil, p.Keys(nil, good), good)
	if len(b) != 1 {
		t.Fatalf("%d pages found, want 1", len(b))
	}
	p.Forget(a)
	check(t, p, a, b)
	p.Release(a)
	if got := found(p, bad...); got != 1 {
		t.Errorf("%d pages of a forgotten text found, want the one that is shared", got)
	}
	p.Forget(b)
	p.Release(b)
	check(t, p)
	if p.Free() != p.Total() {
		t.Errorf("%d of %d pages free", p.Free(), p.Total())
	}
}

// naive is the cache as a map from beginnings of texts, token after included.
type naive struct {
	entries map[string]*entry
	clock   int
}

type entry struct {
	refs, stamp int
	drafted     bool
}

func beginning(tokens []int32, j, size int) string {
	return fmt.Sprint(tokens[:(j+1)*size+1])
}

// evict drops the n entries that were not used for longest, leaves first.
func (m *naive) evict(n int) {
	for range n {
		best := ""
		for k, e := range m.entries {
			leaf := e.refs == 0
			for other := range m.entries {
				leaf = leaf && (other == k || !strings.HasPrefix(other, strings.TrimSuffix(k, "]")+" "))
			}
			if leaf && (best == "" || e.stamp < m.entries[best].stamp) {
				best = k
			}
		}
		delete(m.entries, best)
	}
}

// pair is a pool and a map that go through the same.
type pair struct {
	t       *testing.T
	rng     *rand.Rand
	p       *Pool
	m       *naive
	size    int
	memory  []string // what was computed into each page
	holders []*holder
}

type holder struct {
	tokens, table []int32
	stored        int
	drafts        bool // computes draft entries too
	blocked       bool // stores nothing more
}

// begin has a request begin with what is cached, and take pages for the rest.
func (x *pair) begin() {
	h := &holder{tokens: make([]int32, 2+x.rng.IntN(7*x.size))}
	for i := range h.tokens {
		h.tokens[i] = x.rng.Int32N(2)
	}
	keys := x.p.Keys(nil, h.tokens)
	h.table = x.p.Acquire(nil, keys, h.tokens)
	for h.stored < len(keys) && x.m.entries[beginning(h.tokens, h.stored, x.size)] != nil {
		x.m.entries[beginning(h.tokens, h.stored, x.size)].refs++
		h.stored++
	}
	if len(h.table) != h.stored {
		x.t.Fatalf("%v found in %d pages, want %d", h.tokens, len(h.table), h.stored)
	}
	for j, i := range h.table {
		if want := beginning(h.tokens, j, x.size); x.memory[i] != want {
			x.t.Fatalf("page %d has %s, want %s", i, x.memory[i], want)
		}
		if x.p.Drafted(i) != x.m.entries[beginning(h.tokens, j, x.size)].drafted {
			x.t.Fatalf("page %d has draft entries: %v", i, x.p.Drafted(i))
		}
	}
	if h.drafts = x.rng.IntN(2) == 0; h.drafts {
		x.shorten(h)
	}
	need := x.p.PagesFor(len(h.tokens)) - h.stored
	free := x.p.Free()
	table, ok := x.p.Alloc(h.table, need)
	if !ok {
		x.end(h)
		return
	}
	x.m.evict(max(0, need-free))
	h.table = table
	x.holders = append(x.holders, h)
}

// shorten has a request compute again what of its end lacks draft entries.
func (x *pair) shorten(h *holder) {
	keep := x.rng.IntN(len(h.table) + 1)
	for keep < len(h.table) && x.m.entries[beginning(h.tokens, keep, x.size)].refs > 1 {
		if !x.p.Shared(h.table[keep]) {
			x.t.Fatalf("page %d is shared, but does not say so", h.table[keep])
		}
		keep++
	}
	x.p.Release(h.table[keep:])
	h.table = h.table[:keep]
	for ; h.stored > keep; h.stored-- {
		x.m.release(beginning(h.tokens, h.stored-1, x.size))
	}
}

// compute fills one more page of a request.
func (x *pair) compute(h *holder) {
	keys := x.p.Keys(nil, h.tokens)
	if h.stored == len(keys) || h.blocked {
		return
	}
	text := beginning(h.tokens, h.stored, x.size)
	x.memory[h.table[h.stored]] = text
	if h.drafts {
		x.p.SetDrafted(h.table[h.stored])
	}
	e := x.m.entries[text]
	h.blocked = h.drafts && e != nil && !e.drafted && e.refs > 0
	if x.p.Store(h.table, h.stored, keys[h.stored], h.tokens, h.drafts) == h.blocked {
		x.t.Fatalf("a page is stored: %v", !h.blocked)
	}
	if h.blocked {
		return
	}
	if e == nil {
		e = &entry{}
		x.m.entries[text] = e
	}
	e.drafted = e.drafted || h.drafts
	e.refs++
	h.stored++
}

func (x *pair) end(h *holder) {
	for j := h.stored - 1; j >= 0; j-- {
		x.m.release(beginning(h.tokens, j, x.size))
	}
	x.p.Release(h.table)
}

// same compares the two.
func (x *pair) same() {
	x.t.Helper()
	var tables [][]int32
	for _, h := range x.holders {
		tables = append(tables, h.table)
	}
	check(x.t, x.p, tables...)
	cached := 0
	for _, e := range x.m.entries {
		if e.refs == 0 {
			cached++
		}
	}
	if x.p.Cached() != cached || len(x.p.index) != len(x.m.entries) {
		x.t.Fatalf("%d cached of %d in the tree, want %d of %d", x.p.Cached(), len(x.p.index), cached, len(x.m.entries))
	}
}

// Whatever is acquired, stored, released and evicted, the tree has what a map
// has, and a page that is found has the entries of exactly that text.
func TestTreeEqualsAMap(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			size := 1 + rng.IntN(4)
			x := &pair{t: t, rng: rng, p: NewPool(12+rng.IntN(20), size), m: &naive{entries: map[string]*entry{}}, size: size}
			x.memory = make([]string, x.p.Total())
			for range 400 {
				switch k := rng.IntN(3); {
				case k == 0 || len(x.holders) == 0:
					x.begin()
				case k == 1:
					x.compute(x.holders[rng.IntN(len(x.holders))])
				default:
					i := rng.IntN(len(x.holders))
					x.end(x.holders[i])
					x.holders = slices.Delete(x.holders, i, i+1)
				}
				x.same()
			}
		})
	}
}

func (m *naive) release(text string) {
	e := m.entries[text]
	e.refs--
	m.clock++
	e.stamp = m.clock
}

func BenchmarkMatch(b *testing.B) {
	p := NewPool(1<<13, 1)
	tokens := make([]int32, 1<<13)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	table, _ := p.Alloc(nil, len(tokens))
	store(p, table, tokens)
	keys := p.Keys(nil, tokens)
	b.Run("keys", func(b *testing.B) {
		for b.Loop() {
			keys = p.Keys(keys[:0], tokens)
		}
	})
	b.Run("match", func(b *testing.B) {
		for b.Loop() {
			p.Match(keys)
		}
	})
	b.Run("acquire", func(b *testing.B) {
		for b.Loop() {
			p.Release(p.Acquire(table[:0], keys, tokens))
		}
	})
}
