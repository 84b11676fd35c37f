package sampling

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

// The known answers are those of the Random123 distribution (kat_vectors).
func TestPhiloxKnownAnswers(t *testing.T) {
	const f = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestGreedy(t *testing.T) {
	var s Sampler
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		logits []float32
		banned []int32
		want   int32
		err    error
	}{
		{"highest", []float32{1, 3, 2}, nil, 1, nil},
		{"tie goes to the lower id", []float32{1, 3, 3}, nil, 1, nil},
		{"banned", []float32{1, 3, 2}, []int32{1}, 2, nil},
		{"all banned", []float32{1, 3, 2}, []int32{0, 1, 2}, 1, nil},
		{"NaN", []float32{1, nan, 2}, nil, 0, ErrNotFinite},
		{"no finite value", []float32{-inf, -inf}, nil, 0, ErrNotFinite},
		{"infinite", []float32{1, inf}, nil, 0, ErrNotFinite},
		{"none", nil, nil, 0, ErrNotFinite},
		{"some are minus infinity", []float32{-inf, -5}, nil, 1, nil},
	} {
		got, err := s.Sample(c.logits, &Params{TopP: 1}, 0, Text{Banned: c.banned})
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, got, err, c.want, c.err)
		}
	}
}

// kept is the set of tokens that the settings leave, by the definition.
func kept(logits []float32, p Params) map[int32]float64 {
	ids := make([]int32, len(logits))
	weights := make([]float64, len(logits))
	top := float64(slices.Max(logits))
	var total float64
	for i, v := range logits {
		ids[i], weights[i] = int32(i), math.Exp((float64(v)-top)/p.Temperature)
		if weights[i] < p.MinP {
			weights[i] = 0
		}
	}
	sort.SliceStable(ids, func(a, b int) bool { return weights[ids[a]] > weights[ids[b]] })
	if p.TopK > 0 && p.TopK < len(ids) {
		ids = ids[:p.TopK]
	}
	for _, id := range ids {
		total += weights[id]
	}
	set, mass := map[int32]float64{}, 0.0
	for i, id := range ids {
		if i > 0 && mass >= p.TopP*total || weights[id] == 0 {
			break
		}
		mass += weights[id]
		set[id] = weights[id]
	}
	for id := range set {
		set[id] /= mass
	}
	return set
}

func TestSampledFrequencies(t *testing.T) {
	var s Sampler
	rng := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 60)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 2)
	}
	for _, p := range []Params{
		{Temperature: 1, TopP: 1},
		{Temperature: 0.5, TopP: 1},
		{Temperature: 1, TopP: 0.7},
		{Temperature: 1.3, TopP: 1, TopK: 5},
		{Temperature: 1, TopP: 0.9, TopK: 20, MinP: 0.05},
		{Temperature: 1, TopP: 1, MinP: 0.2},
		{Temperature: 1, TopP: 1e-9},
	} {
		p.Seed = 42
		want := kept(logits, p)
		const n = 40000
		count := map[int32]int{}
		for pos := range n {
			id, err := s.Sample(logits, &p, pos, Text{})
			if err != nil {
				t.Fatal(err)
			}
			count[id]++
		}
		for id := range count {
			if _, ok := want[id]; !ok {
				t.Errorf("%+v: drew token %d, which the settings leave out", p, id)
			}
		}
		for id, q := range want {
			// Five standard deviations of a binomial count, and as many tokens more:
			// of a rare one any number of times is far from what is expected.
			if d := math.Abs(float64(count[id]) - n*q); d > 5*math.Sqrt(n*q*(1-q))+min(5, n*(1-q)) {
				t.Errorf("%+v: token %d drawn %d times, expected %.0f", p, id, count[id], n*q)
			}
		}
	}
}

func TestDrawsDependOnSeedAndPositionOnly(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	logits := make([]float32, 500)
	for i := range logits {
		logits[i] = rng.Float32() * 3
	}
	p := Params{Temperature: 1, TopP: 0.95, Seed: 7}
	var a Sampler
	first := make([]int32, 50)
	for i := range first {
		first[i], _ = a.Sample(logits, &p, i, Text{})
	}
	before := slices.Clone(logits)
	for i := len(first) - 1; i >= 0; i-- { // another order, with other draws between
		var b Sampler
		b.Sample(logits[:10], &Params{Temperature: 2, TopP: 0.5, Seed: 1}, i, Text{})
		if id, _ := b.Sample(logits, &p, i, Text{}); id != first[i] {
			t.Fatalf("position %d drew %d, before %d", i, id, first[i])
		}
	}
	if !slices.Equal(before, logits) {
		t.Error("sampling changed the logits")
	}
	other := 0
	p.Seed = 8
	for i := range first {
		if id, _ := a.Sample(logits, &p, i, Text{}); id != first[i] {
			other++
		}
	}
	if other < len(first)/2 {
		t.Errorf("another seed changed %d of %d draws", other, len(first))
	}
}

func TestBannedTokensAreNotDrawn(t *testing.T) {
	var s Sampler
	logits := []float32{5, 4, 3, 2}
	p := Params{Temperature: 1.5, TopP: 1, Seed: 3}
	for pos := range 500 {
		id, err := s.Sample(logits, &p, pos, Text{Banned: []int32{0, 2}})
		if err != nil || id == 0 || id == 2 {
			t.Fatalf("position %d: %d, %v", pos, id, err)
		}
	}
}

func TestLogprob(t *testing.T) {
	logits := []float32{0, 1, 2, 1, -3}
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	want := func(v float64) float32 { return float32(v - math.Log(sum)) }
	lp, top := Logprob(logits, 3, 3)
	if d := lp - want(1); d > 1e-6 || d < -1e-6 {
		t.Errorf("logprob %v, want %v", lp, want(1))
	}
	ids := []int32{}
	for _, e := range top {
		ids = append(ids, e.ID)
		if d := e.Logprob - want(float64(logits[e.ID])); d > 1e-6 || d < -1e-6 {
			t.Errorf("token %d has %v", e.ID, e.Logprob)
		}
	}
	if !slices.Equal(ids, []int32{2, 1, 3}) {
		t.Errorf("best tokens %v, want [2 1 3]", ids)
	}
	if _, top := Logprob(logits, 0, 0); len(top) != 0 {
		t.Errorf("asked for none, got %v", top)
	}
	if _, top := Logprob(logits, 0, 9); len(top) != 5 {
		t.Errorf("asked for 9 of 5, got %d", len(top))
	}
}

func TestValidate(t *testing.T) {
	ok := Params{Temperature: 1, TopP: 1}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Params){
		"temperature": func(p *Params) { p.Temperature = 2.1 },
		"top_p":       func(p *Params) { p.TopP = 0 },
		"top_k":       func(p *Params) { p.TopK = -2 },
		"min_p":       func(p *Params) { p.MinP = math.NaN() },

		"repetition_penalty": func(p *Params) { p.Repetition = 1e-40 },
		"presence_penalty":   func(p *Params) { p.Presence = 2.1 },
		"frequency_penalty":  func(p *Params) { p.Frequency = math.NaN() },

		"logit_bias of token 3": func(p *Params) { p.Bias = []Bias{{3, 101}} },
	} {
		p := ok
		change(&p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), name+" is") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPenaltiesAndBiases(t *testing.T) {
	logits := []float32{4, -1, 3, 0.5, 2, -2}
	text := Text{Prompt: []int32{0, 1, 0}, Answer: []int32{2, 2, 4, 1}}
	for name, c := range map[string]struct {
		p    Params
		want []float32
	}{
		"repetition": {Params{Repetition: 2}, []float32{2, -2, 1.5, 0.5, 1, -2}},
		"presence":   {Params{Presence: 1}, []float32{4, -2, 2, 0.5, 1, -2}},
		"frequency":  {Params{Frequency: 0.5}, []float32{4, -1.5, 2, 0.5, 1.5, -2}},
		"bias":       {Params{Bias: []Bias{{5, 10}, {0, -10}, {99, 1}, {-1, 1}}}, []float32{-6, -1, 3, 0.5, 2, 8}},
		"all":        {Params{Repetition: 2, Presence: 1, Frequency: 0.5, Bias: []Bias{{2, 1}}}, []float32{2, -3.5, 0, 0.5, -0.5, -2}},
	} {
		var s Sampler
		before := slices.Clone(logits)
		for range 2 { // the second time after the first: nothing is left over
			if got := s.penalize(logits, &c.p, text); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		if !slices.Equal(logits, before) {
			t.Errorf("%s: the logits were changed", name)
		}
		c.p.TopP = 1
		want := int32(slices.Index(c.want, slices.Max(c.want)))
		if got, err := s.Sample(logits, &c.p, 0, text); err != nil || got != want {
			t.Errorf("%s: drew %d, %v; want %d", name, got, err, want)
		}
	}
	if (&Params{Repetition: 1}).plain() != true || (&Params{Presence: 0.1}).plain() {
		t.Error("plain is wrong")
	}
}
