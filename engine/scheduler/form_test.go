package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/grammar"
)

// alphabet has a token for each lower-case letter.
type alphabet struct{}

func (alphabet) VocabSize() int                  { return 26 }
func (alphabet) TokenBytes(id int32) []byte      { return []byte{'a' + byte(id)} }
func (alphabet) FirstTokenBytes(id int32) []byte { return []byte{'a' + byte(id)} }
func (alphabet) IsSpecial(int32) bool            { return false }

// Of a draft, chain or tree, exactly those nodes stay whose way from the text's
// end the form allows, in their order and under their own parents.
func TestDraftsFitTheForm(t *testing.T) {
	g, err := grammar.Compile(grammar.NewVocabulary(alphabet{}), grammar.Regex(`(ab|a?cd|[ad]b?a)*`))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(6, 6))
	kept, dropped := 0, 0
	for range 5000 {
		s := Sequence{Request: &Request{Grammar: g}}
		s.form.begin(s.Request, nil)
		n := rng.IntN(12)
		draft, parents := make([]int32, n), make([]int32, n)
		for i := range draft {
			draft[i], parents[i] = rng.Int32N(4), rng.Int32N(int32(i+1))-1
		}
		chain := rng.IntN(3) == 0
		if chain {
			parents = nil
		}
		way := func(draft, parents []int32, i int) (tokens []int32) {
			for i >= 0 {
				tokens = append(tokens, draft[i])
				if len(parents) > 0 {
					i = int(parents[i])
				} else {
					i--
				}
			}
			slices.Reverse(tokens)
			return tokens
		}
		var want [][]int32
		for i := range draft {
			w := way(draft, parents, i)
			if allowed(t, g, w) {
				want = append(want, w)
			}
		}
		s.SetDraft(slices.Clone(draft), slices.Clone(parents))
		var got [][]int32
		for i := range s.Draft {
			got = append(got, way(s.Draft, s.Parents, i))
		}
		if !slices.EqualFunc(got, want, slices.Equal[[]int32]) || !chain && len(s.Parents) != len(s.Draft) {
			t.Fatalf("%v under %v: %v under %v", draft, parents, s.Draft, s.Parents)
		}
		kept, dropped = kept+len(got), dropped+n-len(got)
	}
	if kept < 1000 || dropped < 1000 {
		t.Errorf("%d kept and %d dropped: the test shows too little", kept, dropped)
	}
}

func allowed(t *testing.T, g *grammar.Grammar, tokens []int32) bool {
	t.Helper()
	s := g.Start()
	for _, id := range tokens {
		next, ok, err := s.Next(id)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return false
		}
		s = next
	}
	return true
}
