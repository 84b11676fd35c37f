package grammar

import (
	"fmt"
	"sync"
	"testing"
)

func TestCache(t *testing.T) {
	c := NewCache(single, 2)
	get := func(pattern string) *Grammar {
		g, err := c.Get(Regex(pattern))
		if err != nil {
			t.Error(err)
		}
		return g
	}
	a := get("a")
	if get("a") != a {
		t.Error("a grammar used just before was compiled again")
	}
	get("b")
	get("a")
	get("c") // b was used the longest ago
	if get("a") != a {
		t.Error("a grammar used lately was dropped")
	}
	if !takes(t, a, "a") || takes(t, a, "b") {
		t.Error("another grammar came back")
	}
	if _, err := c.Get(Regex("(")); err == nil {
		t.Error("a wrong pattern has a grammar")
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if g := get(fmt.Sprintf("x{%d}", i%5)); !takes(t, g, "xxxxx"[:i%5]) {
				t.Errorf("x{%d} does not take its text", i%5)
			}
		})
	}
	wg.Wait()
}

// Sources that are not the same have not the same key.
func TestKeys(t *testing.T) {
	all := append(sources(), Text("a"), Choice("a"), Regex("a"), Concat(Text("a"), Text("b")), Concat(Text("ab")), Either(Text("a"), Text("b")), Choice("a", "b"), Choice("a1:b"),
		Concat(Concat(Text("a")), Text("b")), Concat(Concat(Text("a"), Text("b"))), Repeat(Text("a"), 1, -1), Repeat(Text("a"), 11, -1), Repeat(Text("1"), 1, -1), Repeat(Text("a"), 1, 1), Text("4:text"))
	seen := map[string]int{}
	for i, s := range all {
		if j, ok := seen[s.Key()]; ok {
			t.Errorf("sources %d and %d have the key %q", i, j, s.Key())
		}
		seen[s.Key()] = i
	}
}
