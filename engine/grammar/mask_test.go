package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sources are grammars of all kinds.
func sources() []Source {
	all := []Source{
		JSONObject(), Regex(`(a|ab)(c|bcd)*`), Regex(`.*é+.*`), Regex(`[a-z" ]{3,40}`), Regex(`(\w+ )*\w+\.`), Choice("a", "ab", "abc", "b", "\n\n", "é"),
		Concat(Text(`{"name": "f", "arguments": `), Schema([]byte(`{"type":"object"}`)), Text("}")),
		Either(Regex(`\d+`), Repeat(Text("ab"), 2, 5), Schema([]byte(`{"type":"array","items":{"type":"integer","minimum":3}}`))),
	}
	for _, c := range schemaCases {
		all = append(all, Schema(json.RawMessage(c.schema)))
	}
	return all
}

// mixed is a vocabulary of bytes, and of tokens that end in the middle of
// strings, of code points and of several brackets.
func mixed(rng *rand.Rand, n int) tokens {
	t := append(bytewise(), special, "")
	parts := []string{`"`, `{`, `}`, `[`, `]`, `:`, `,`, ` `, "\n", "a", "b", "ab", "é", "\xc3", "\xa9", "\xf0\x9f", "\x98\x80", `\`, `\"`, `\u00`, "1", "23", "0.", "-", "true", "null", "e", "k", "x"}
	for len(t) < n {
		var s string
		for range 1 + rng.IntN(5) {
			s += parts[rng.IntN(len(parts))]
		}
		t = append(t, s)
	}
	return t
}

// A mask has exactly the tokens that may come next, in each state that a walk
// comes through, also when all that is remembered was thrown away.
func TestMaskIsExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	v := NewVocabulary(mixed(rng, 1200))
	for _, src := range sources() {
		g := compile(t, v, src)
		for round := range 6 {
			if round >= 3 {
				g.most = 500 // words: a table lasts for a few tokens
			}
			s := g.Start()
			for range 40 {
				s = exact(t, g, s, rng)
				if s.IsZero() || t.Failed() {
					break
				}
			}
		}
		if t.Failed() {
			t.Fatal(src.Key())
		}
	}
}

// exact checks the mask of s and goes on by some token.
func exact(t *testing.T, g *Grammar, s State, rng *rand.Rand) State {
	t.Helper()
	m, err := s.Mask()
	if err != nil {
		t.Fatal(err)
	}
	var can []State
	for id := range int32(g.vocabulary.size) {
		next, ok, err := s.Next(id)
		if err != nil {
			t.Fatal(err)
		}
		if ok != m.Has(id) {
			t.Errorf("token %q: the mask says %t, but that it may come next is %t", g.vocabulary.within.token(id), m.Has(id), ok)
		}
		if ok {
			can = append(can, next)
		}
	}
	if len(can) != m.Len() {
		t.Errorf("the mask has %d tokens, of which %d may come next", m.Len(), len(can))
	}
	if m.Has(-1) || m.Has(int32(g.vocabulary.size)) || m.Has(1<<30) {
		t.Error("the mask has tokens that there are not")
	}
	if len(can) == 0 {
		if !s.Accepting() {
			t.Error("a dead end, though the vocabulary has all bytes")
		}
		return State{}
	}
	return can[rng.IntN(len(can))]
}

// firstless drops a space from a text's first token, as Llama 2's tokenizer does.
type firstless struct{ tokens }

func (t firstless) FirstTokenBytes(id int32) []byte {
	return bytes.TrimPrefix([]byte(t.tokens[id]), []byte(" "))
}

func TestFirstToken(t *testing.T) {
	words := append(bytewise(), " yes", "yes", " ", "  yes", " no")
	v := NewVocabulary(firstless{words})
	g := compile(t, v, Choice("yes", " no", "yes yes"))
	id := func(s string) int32 { return int32(slices.Index(words, s)) }
	m, err := g.Start().Mask()
	if err != nil {
		t.Fatal(err)
	}
	for word, want := range map[string]bool{" yes": true, "yes": true, " ": false, "  yes": false, " no": false, "y": true} {
		_, ok, err := g.Start().Next(id(word))
		if err != nil || ok != want || m.Has(id(word)) != want {
			t.Errorf("%q first: next %t, mask %t, want %t", word, ok, m.Has(id(word)), want)
		}
	}
	s, _, err := g.Start().Next(id(" yes"))
	if err != nil || !s.Accepting() || s.Complete() {
		t.Fatal("a first token lost its text")
	}
	if s, ok, _ := s.Next(id(" yes")); !ok || !s.Complete() {
		t.Error("a later token lost its space")
	}
}

// States are values: any of them can be gone on from again.
func TestStatesAreValues(t *testing.T) {
	g := compile(t, single, JSONObject())
	states := []State{g.Start()}
	text := `{"a":[1,{"b":"x"}]}`
	for i := range len(text) {
		s, ok, err := states[i].Next(int32(text[i]))
		if err != nil || !ok {
			t.Fatalf("%q stops at %d", text, i)
		}
		states = append(states, s)
	}
	g.most = 1
	var wg sync.WaitGroup
	for i := range len(text) {
		wg.Go(func() {
			if s, ok, err := states[i].Next(int32(text[i])); err != nil || !ok || s.Accepting() != (i == len(text)-1) {
				t.Errorf("the state before byte %d has changed", i)
			}
			if _, ok, _ := states[i].Next('\x01'); ok {
				t.Errorf("byte %d: a control character is taken", i)
			}
		})
	}
	wg.Wait()
}

// A pattern whose states are too many fails for the one that sent it, soon.
func TestTooMuchWork(t *testing.T) {
	v := NewVocabulary(mixed(rand.New(rand.NewPCG(1, 1)), 60000))
	_, err := Compile(v, Regex(`(.*a.*b.*é.*){200}(b|a?){800}`))
	if err == nil || !strings.Contains(err.Error(), "ambiguous") && !strings.Contains(err.Error(), "too large") {
		t.Errorf("it is taken: %v", err)
	}
}

func TestMaskKeep(t *testing.T) {
	for _, n := range []int{0, 1, 5, few, few + 1, 700, 1000} {
		set := make([]uint64, 16)
		want := make([]float32, 1100)
		from := make([]float32, 1100)
		for i := range from {
			from[i], want[i] = float32(i+1), -1
		}
		for i := range n {
			set[i>>6] |= 1 << (i & 63)
			want[i] = from[i]
		}
		m := newMask(set)
		to := make([]float32, 1100)
		if m.Keep(to, from, -1); !slices.Equal(to, want) || m.Len() != n {
			t.Errorf("%d tokens: wrong values are kept", n)
		}
		short := make([]float32, 100)
		if m.Keep(short, from[:100], -1); !slices.Equal(short, want[:100]) {
			t.Errorf("%d tokens: wrong values are kept of fewer", n)
		}
	}
}

// realistic is a vocabulary of 128,000 tokens as such are: bytes, words with and
// without a space before them, numbers, runs of spaces, marks in a row, and
// pieces of other scripts, whole and cut.
func realistic() tokens {
	rng := rand.New(rand.NewPCG(128, 0))
	t := append(bytewise(), special)
	seen := map[string]bool{}
	add := func(s string) {
		if len(t) < 128000 && !seen[s] {
			seen[s] = true
			t = append(t, s)
		}
	}
	for n := 2; n <= 128; n++ {
		add(strings.Repeat(" ", n))
		if n < 40 {
			add("\n" + strings.Repeat(" ", n))
			add(strings.Repeat("\t", n))
			add(strings.Repeat("=", n))
			add(strings.Repeat("-", n))
		}
	}
	for n := range 1000 {
		add(fmt.Sprint(n))
		add(fmt.Sprintf("%03d", n))
	}
	marks := []string{`"`, `{`, `}`, `[`, `]`, `:`, `,`, `(`, `)`, `;`, `.`, `'`, `/`, `\`, `=`, "\n", " ", `>`, `<`, `*`, `#`}
	for len(t) < 9000 {
		s := ""
		for range 2 + rng.IntN(4) {
			s += marks[rng.IntN(len(marks))]
		}
		add(s)
	}
	for len(t) < 24000 { // Chinese, Cyrillic, Korean; some end within a code point
		s := ""
		base := []rune{0x4e00, 0x430, 0xac00}[rng.IntN(3)]
		for range 1 + rng.IntN(3) {
			s += string(base + rune(rng.IntN(30)*rng.IntN(30)))
		}
		if rng.IntN(20) == 0 {
			s = s[:len(s)-1]
		}
		add(s)
	}
	onsets := strings.Split("b c d f g h j k l m n p r s t v w st tr pl ch sh th br cr pr gr", " ")
	vowels := strings.Split("a e i o u ea ou ai io er an en in on al", " ")
	for len(t) < 128000 {
		word := ""
		for range 1 + rng.IntN(4) {
			word += onsets[rng.IntN(len(onsets))] + vowels[rng.IntN(len(vowels))]
		}
		if rng.IntN(3) == 0 {
			word += []string{"s", "ed", "ing", "ly", "tion"}[rng.IntN(5)]
		}
		add(word)
		add(" " + word)
		if rng.IntN(4) == 0 {
			add(" " + strings.ToUpper(word[:1]) + word[1:])
			add("_" + word)
			add(word + "\":")
			add("\"" + word)
		}
	}
	return t
}

var large = sync.OnceValue(func() *Vocabulary { return NewVocabulary(realistic()) })
