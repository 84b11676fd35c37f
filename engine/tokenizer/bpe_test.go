package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// slow merges the pair of the lowest rank, the leftmost of equals, until there is
// none.
func slow(m merges, ids []int32) []int32 {
	ids = slices.Clone(ids)
	for {
		at, best := -1, merge{}
		for i := range len(ids) - 1 {
			if c, ok := m[pair{ids[i], ids[i+1]}]; ok && (at < 0 || c.rank < best.rank) {
				at, best = i, c
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.into)
	}
}

// Merges of any order, those whose result has a lower rank than its parts and
// several of one rank among them.
func TestMergingEqualsTheDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	for range 300 {
		letters := 1 + rng.IntN(4)
		v := vocabulary{byteLevel: true, unknown: -1}
		for i := range v.bytes {
			v.bytes[i] = int32(i)
		}
		tok := &Tokenizer{vocabulary: v, merges: merges{}}
		all := []int32{}
		for i := range letters {
			all = append(all, int32('a'+i))
		}
		for id := range int32(rng.IntN(12)) {
			p := pair{all[rng.IntN(len(all))], all[rng.IntN(len(all))]}
			if _, ok := tok.merges[p]; !ok {
				tok.merges[p] = merge{int32(rng.IntN(12)), 300 + id}
				all = append(all, 300+id)
			}
		}
		for range 20 {
			text, ids := make([]byte, rng.IntN(60)), []int32{}
			for i := range text {
				text[i] = byte('a' + rng.IntN(letters))
				ids = append(ids, int32(text[i]))
			}
			if got, want := tok.bpe(string(text), nil), slow(tok.merges, ids); !slices.Equal(got, want) {
				t.Fatalf("%q with %v: %v, want %v", text, tok.merges, got, want)
			}
		}
	}
}

// BenchmarkLongWord encodes 2 MiB without a break.
func BenchmarkLongWord(b *testing.B) {
	tok := gocode(b)
	rng := rand.New(rand.NewPCG(1, 1))
	letters := make([]byte, 2<<20)
	for i := range letters {
		letters[i] = byte('a' + rng.IntN(26))
	}
	for _, c := range []struct{ name, text string }{
		{"random", string(letters)}, {"one letter", strings.Repeat("a", 2<<20)}, {"words", strings.Repeat("functionreturns", 2<<20/15)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				tok.Encode(c.text, false)
			}
		})
	}
}
