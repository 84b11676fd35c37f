package sampling

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// set is a Mask.
type set map[int32]bool

func (s set) Keep(to, from []float32, other float32) {
	for i := range to {
		to[i] = other
		if s[int32(i)] {
			to[i] = from[i]
		}
	}
}

func (s set) Mark(bits []uint64) {
	for id := range s {
		if int(id>>6) < len(bits) {
			bits[id>>6] |= 1 << (id & 63)
		}
	}
}

// A draw under a mask is the draw from logits that are minus infinity outside
// of it, whatever the settings.
func TestMaskedDraws(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var s, plain Sampler
	for range 2000 {
		logits, masked := make([]float32, 50), make([]float32, 50)
		allowed := set{}
		for range 1 + rng.IntN(20) {
			allowed[rng.Int32N(50)] = true
		}
		ends, mayEnd := []int32{rng.Int32N(50), 70, -1}, rng.IntN(2) == 0
		allowed[(ends[0]+1)%50] = true
		for i := range logits {
			logits[i] = float32(rng.NormFloat64() * 3)
			masked[i] = float32(math.Inf(-1))
			if isEnd := int32(i) == ends[0]; isEnd && mayEnd || !isEnd && allowed[int32(i)] {
				masked[i] = logits[i]
			}
		}
		p := Params{Temperature: float64(rng.IntN(3)) * 0.6, TopP: 0.5 + rng.Float64()/2, TopK: rng.IntN(10), MinP: rng.Float64() / 10, Seed: rng.Uint64()}
		var banned []int32
		if rng.IntN(3) == 0 {
			banned = []int32{rng.Int32N(50)}
		}
		if rng.IntN(2) == 0 {
			p.Bias = []Bias{{ID: rng.Int32N(50), Value: 2}}
		}
		want, err := plain.Sample(masked, &p, 7, Text{Banned: banned})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Sample(logits, &p, 7, Text{Banned: banned, Allowed: allowed, Ends: ends, MayEnd: mayEnd})
		if err != nil || got != want {
			t.Fatalf("%d, %v; want %d", got, err, want)
		}
	}
}

func TestDeadEnd(t *testing.T) {
	var s Sampler
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		logits []float32
		text   Text
		want   int32
		err    error
	}{
		{"nothing allowed", []float32{1, 2}, Text{Allowed: set{}}, 0, ErrDeadEnd},
		{"only the end", []float32{1, 2}, Text{Allowed: set{}, Ends: []int32{0}, MayEnd: true}, 0, nil},
		{"an end too early", []float32{1, 2}, Text{Allowed: set{1: true}, Ends: []int32{1}}, 0, ErrDeadEnd},
		{"impossible ones allowed", []float32{-inf, 2}, Text{Allowed: set{0: true}}, 0, ErrDeadEnd},
		{"all that is allowed is banned", []float32{1, 2}, Text{Allowed: set{0: true}, Banned: []int32{0}}, 0, nil},
		{"no numbers", []float32{-inf, -inf}, Text{Allowed: set{0: true}}, 0, ErrNotFinite},
	} {
		for _, temperature := range []float64{0, 1} {
			got, err := s.Sample(c.logits, &Params{TopP: 1, Temperature: temperature}, 0, c.text)
			if !errors.Is(err, c.err) || err == nil && got != c.want {
				t.Errorf("%s: %d, %v; want %d, %v", c.name, got, err, c.want, c.err)
			}
		}
	}
}
