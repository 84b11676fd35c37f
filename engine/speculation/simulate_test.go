package speculation

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestParseAcceptance(t *testing.T) {
	for _, c := range []struct {
		in    string
		steps int
		want  []float64
	}{
		{"1", 3, []float64{0}}, {"4", 3, []float64{1}}, {"1.5", 1, []float64{0.5}}, {"1.75", 2, []float64{0.5}},
		{"0.7", 3, []float64{0.7}}, {"0", 3, []float64{0}}, {"0.9, 0.5,1", 3, []float64{0.9, 0.5, 1}}, {"1,1", 3, []float64{1, 1}},
	} {
		got, err := ParseAcceptance(c.in, c.steps)
		if err != nil || !slices.EqualFunc(got, c.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) {
			t.Errorf("%q of %d steps: %v, %v; want %v", c.in, c.steps, got, err, c.want)
		}
	}
	for _, in := range []string{"4.1", "-1", "x", "", "0.5,1.5", "0.5,", "NaN", "NaN,1", "Inf"} {
		if got, err := ParseAcceptance(in, 3); err == nil || !strings.Contains(err.Error(), "allowed is") {
			t.Errorf("%q: %v, %v; want an error that says what is allowed", in, got, err)
		}
	}
}

// sevens proposes token 7 as often as asked.
type sevens struct{ n int }

func (d *sevens) Draft(seqs []Sequence, _ bool) error {
	for i := range seqs {
		for range seqs[i].Depth {
			seqs[i].Draft = append(seqs[i].Draft, 7)
			d.n++
		}
	}
	return nil
}

func (d *sevens) Forget(s *State) { *s = State{} }

// decode plays a request of a text: the answer is how many drafts were verified
// and how many tokens of them accepted, by position.
func decode(t *testing.T, d Drafter, text []int32, prompt, depth int, key uint64) (verifies int, accepted []int) {
	t.Helper()
	accepted = make([]int, depth)
	state := new(State)
	for n := prompt; n < len(text); {
		seqs := []Sequence{{Tokens: text[:n:n], State: state, Depth: min(depth, len(text)-n-1), Key: key}}
		if err := d.Draft(seqs, depth == 0); err != nil {
			t.Fatal(err)
		}
		if depth > 0 {
			verifies++
		}
		for k, id := range seqs[0].Draft {
			if id < 0 || id >= 50 {
				t.Fatalf("proposal %d", id)
			}
			if id != text[n] {
				break
			}
			accepted[k]++
			n++
		}
		n++
	}
	if s, ok := d.(*Simulated); ok { // the end, which nothing follows
		s.Learn(&Sequence{Tokens: text, State: state, Key: key})
	}
	d.Forget(state)
	return verifies, accepted
}

func TestSimulated(t *testing.T) {
	text := make([]int32, 6000)
	for i := range text {
		text[i] = int32(mix(uint64(i)) % 50)
	}
	for _, rates := range [][]float64{{0.7}, {0}, {1}, {0.9, 0.3, 0.6}} {
		inner := &sevens{}
		d := NewSimulated(inner, rates, 50)
		if _, first := decode(t, d, text, 10, 3, 1); first[0] > 400 {
			t.Errorf("%v: %v of an unknown text are accepted: the drafter's own must stand", rates, first)
		}
		inner.n = 0
		verifies, got := decode(t, d, text, 10, 3, 1)
		if inner.n < 3*(verifies-3) {
			t.Errorf("%v: the drafter proposed %d tokens for %d drafts: it must do its work", rates, inner.n, verifies)
		}
		before := float64(verifies)
		for k, n := range got {
			want := rates[min(k, len(rates)-1)]
			if before > 200 && math.Abs(float64(n)/before-want) > 0.04 {
				t.Errorf("%v: at position %d %d of %v are accepted", rates, k, n, before)
			}
			before = float64(n)
		}
		if v, again := decode(t, d, text, 10, 3, 1); v != verifies || !slices.Equal(again, got) {
			t.Errorf("%v: the same request again: %d verifies, %v; before %d, %v", rates, v, again, verifies, got)
		}
		if _, other := decode(t, d, text, 10, 3, 2); other[0] > 400 {
			t.Errorf("%v: a request that is sampled otherwise knows the text: %v", rates, other)
		}
	}
	d := NewSimulated(&sevens{}, []float64{1}, 50)
	decode(t, d, text, 10, 0, 1) // plain decoding teaches too
	if verifies, got := decode(t, d, text, 10, 3, 1); got[2] < verifies*97/100 {
		t.Errorf("after plain decoding %v of %d drafts are accepted", got, verifies)
	}
}

// wide is a drafter of trees: two children after each node of two levels.
type wide struct{}

func (wide) Draft(seqs []Sequence, _ bool) error {
	for i := range seqs {
		seqs[i].Draft, seqs[i].Parents = []int32{1, 2, 3, 4, 5, 6}, []int32{-1, -1, 0, 0, 1, 1}
	}
	return nil
}

func (wide) Forget(*State) {}

// A tree is accepted as often as told too, one path down.
func TestSimulatedTrees(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		least float64
		most  float64
	}{{[]float64{1, 1}, 1.99, 2}, {[]float64{0, 1}, 0, 0}, {[]float64{0.5, 0.5}, 0.7, 0.8}} {
		d := NewSimulated(wide{}, c.rates, 50)
		text := make([]int32, 2000)
		for i := range text {
			text[i] = int32(i * i % 50)
		}
		run := func() float64 {
			accepted, n, state := 0, 0, new(State)
			for at := 10; at < len(text)-2; at++ {
				s := []Sequence{{Tokens: text[:at], State: state}}
				if err := d.Draft(s, false); err != nil {
					t.Fatal(err)
				}
				node, depth := none, 0
				for k := range s[0].Draft {
					if s[0].parent(k) == node && s[0].Draft[k] == text[at+depth] {
						node, depth = k, depth+1
					}
				}
				accepted, n = accepted+depth, n+1
			}
			return float64(accepted) / float64(n)
		}
		run() // from now on the text is known
		if mean := run(); mean < c.least || mean > c.most {
			t.Errorf("rates %v: %.2f draft tokens are accepted, want %v to %v", c.rates, mean, c.least, c.most)
		}
	}
}
