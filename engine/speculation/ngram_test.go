package speculation

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// lookup is the rule of n-gram drafting, by brute force: what follows the last
// earlier place of the longest run that ends the text, in a text of which the
// tokens from start on are known.
func lookup(tokens []int32, start, least, most, depth int) []int32 {
	for n := most; n >= least; n-- {
		for end := len(tokens) - 1; end-n >= start; end-- {
			if !slices.Equal(tokens[end-n:end], tokens[len(tokens)-n:]) {
				continue
			}
			all := slices.Clone(tokens)
			for k := range depth {
				all = append(all, all[end+k])
			}
			return all[len(tokens):]
		}
	}
	return nil
}

// Drafts equal the rule's, however many tokens come between two of them, after
// requests that held the same slot, and of texts that become longer than there was
// room for.
func TestNGramEqualsBruteForce(t *testing.T) {
	drafted := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		least := 1 + rng.IntN(4)
		most := least + rng.IntN(6)
		g := NewNGram(least, most, 2)
		for range 3 {
			kinds := int32(1 + rng.IntN(6))
			text := make([]int32, 1, 2+rng.IntN(400))
			state := new(State)
			for {
				s := []Sequence{{Tokens: text, Depth: rng.IntN(9), State: state}}
				if rng.IntN(2) == 0 {
					s[0].Tokens = slices.Clip(text)
				}
				if err := g.Draft(s, rng.IntN(8) == 0); err != nil {
					t.Fatal(err)
				}
				if want := lookup(text, 0, least, most, s[0].Depth); len(s[0].Draft) > 0 {
					drafted++
					if !slices.Equal(s[0].Draft, want) {
						t.Fatalf("seed %d, %d to %d: after %v got %v, want %v", seed, least, most, text, s[0].Draft, want)
					}
				}
				grow := min(1+rng.IntN(5), cap(text)-len(text))
				if grow == 0 {
					break
				}
				for range grow {
					id := rng.Int32N(kinds)
					if len(s[0].Draft) > 0 && rng.IntN(3) == 0 {
						id = s[0].Draft[0]
					}
					text = append(text, id)
				}
			}
			g.Forget(state)
		}
	}
	if drafted < 1000 {
		t.Errorf("only %d drafts: the test does not test them", drafted)
	}
}

// A draft there is whenever the rule has one, and none otherwise.
func TestNGramFindsWhatThereIs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	g := NewNGram(2, 5, 1)
	state := new(State)
	text := make([]int32, 0, 3000)
	hits := 0
	for len(text) < cap(text) {
		text = append(text, rng.Int32N(30))
		s := []Sequence{{Tokens: text, Depth: 3, State: state}}
		if err := g.Draft(s, false); err != nil {
			t.Fatal(err)
		}
		want := lookup(text, 0, 2, 5, 3)
		if !slices.Equal(s[0].Draft, want) {
			t.Fatalf("after %d tokens: got %v, want %v", len(text), s[0].Draft, want)
		}
		if want != nil {
			hits++
		}
	}
	if hits < 500 || hits > 2900 {
		t.Errorf("%d of 3000 places have a draft: the test does not test both", hits)
	}
}

// Of a long text the recent part is known, in bounded memory, and a request that
// goes on allocates nothing.
func TestNGramOfALongText(t *testing.T) {
	const n = 7 * historyWindow
	g := NewNGram(2, 4, 1)
	state := new(State)
	text := make([]int32, 0, n+1)
	for i := range n {
		text = append(text, int32(i)) // no run comes twice, but for those made below
	}
	draft := func(at int) []int32 {
		s := []Sequence{{Tokens: text[:at], Depth: 2, State: state}}
		if err := g.Draft(s, false); err != nil {
			t.Fatal(err)
		}
		return s[0].Draft
	}
	for at := 10; at < n; at += 4096 {
		if got := draft(at); got != nil {
			t.Fatalf("after %d tokens: %v", at, got)
		}
		end := text[at-2 : at]
		saved := slices.Clone(end)
		back := at - historyWindow/2
		if back > 2 {
			copy(end, text[back:]) // the run is there, within the window
			state.slot, g.free = 0, newSlots(1)
			if got := draft(at); !slices.Equal(got, text[back+2:back+4]) {
				t.Fatalf("after %d tokens: %v, want what follows position %d", at, got, back)
			}
		}
		copy(end, saved)
		state.slot, g.free = 0, newSlots(1)
	}
	if size := len(g.histories[0].tables[0]); size > 8*historyWindow {
		t.Errorf("a table has %d entries for a window of %d", size, historyWindow)
	}
	draft(n - 2000)
	at, into := n-2000, make([]int32, 0, 8)
	if allocs := testing.AllocsPerRun(200, func() {
		at += 3
		s := [1]Sequence{{Tokens: text[:at], Depth: 2, State: state, Draft: into}}
		if err := g.Draft(s[:], false); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations for each draft, want 0", allocs)
	}
}

func BenchmarkNGram(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	text := make([]int32, 1<<15)
	for i := range text {
		text[i] = rng.Int32N(2000)
		if i > 100 && rng.IntN(4) > 0 {
			text[i] = text[i-100]
		}
	}
	g := NewNGram(2, 8, 1)
	state := new(State)
	at := len(text)
	into := make([]int32, 0, 8)
	for b.Loop() {
		if at++; at > len(text) {
			g.Forget(state)
			at = 200
		}
		s := [1]Sequence{{Tokens: text[:at], Depth: 4, State: state, Draft: into}}
		if err := g.Draft(s[:], false); err != nil {
			b.Fatal(err)
		}
	}
}
