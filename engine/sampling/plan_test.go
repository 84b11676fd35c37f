package sampling

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/drawtest"
)

// What a device is told to draw is, by the definition of a draw, what Sample
// draws of the same logits, whatever the settings; log probabilities too.
func TestPlansAreDraws(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	some := func(n int) bool { return rng.IntN(n) == 0 }
	var s, other Sampler
	var draw compute.Draw
	for range 3000 {
		vocab := 10 + rng.IntN(700)
		logits := drawtest.Logits(rng, vocab)
		ids := func(n int) []int32 {
			x := make([]int32, rng.IntN(n))
			for i := range x {
				x[i] = int32(rng.IntN(vocab+2)) - 1 // some that the model does not have
			}
			return x
		}
		p := Params{Temperature: []float64{0, 1, 1, 0.3, 2}[rng.IntN(5)], TopP: 1, Seed: rng.Uint64()}
		if some(3) {
			p.TopP = max(1e-9, rng.Float64())
		}
		if some(3) {
			p.TopK = rng.IntN(vocab+20) - 1
		}
		if some(4) {
			p.MinP = rng.Float64() / 5
		}
		if some(3) {
			p.Repetition, p.Presence, p.Frequency = 0.5+rng.Float64(), rng.Float64()*2-1, rng.Float64()-0.5
		}
		if some(3) {
			for _, id := range rng.Perm(vocab)[:5] {
				p.Bias = append(p.Bias, Bias{int32(id), rng.Float64()*10 - 5})
			}
		}
		text := Text{Prompt: ids(40), Answer: ids(40)}
		if some(3) {
			text.Banned = ids(4)
		}
		if some(3) {
			allowed := set{0: true, 1: true, 2: true, 5: true, int32(vocab - 1): true}
			text.Allowed, text.Ends, text.MayEnd = allowed, []int32{0, int32(vocab), -1}, some(2)
		}
		s.Plan(&draw, &p, 11, text, vocab)
		draw.Tops = rng.IntN(5)
		got, ok := drawtest.By(logits, &draw)
		want, err := other.Sample(logits, &p, 11, text)
		if !ok { // the host is asked then: no token but a banned one is left, or none at all
			if err == nil && !slices.Contains(text.Banned, want) {
				t.Fatalf("%+v, %+v: the device has no token, the host %d", p, text, want)
			}
			continue
		}
		if err != nil || got.Token != want {
			t.Fatalf("%+v, %+v: token %d by definition; sampled is %d, %v", p, text, got.Token, want, err)
		}
		logprob, best := LogprobOf(got.Logit, got.Tops)
		if l, b := Logprob(logits, want, draw.Tops); l != logprob || !slices.Equal(b, best) {
			t.Fatalf("log probabilities %v, %v; want %v, %v", logprob, best, l, b)
		}
	}
}

// A share keeps its tokens whatever the order of the sum is: of equal logits the
// first ones.
func TestEqualLogits(t *testing.T) {
	var s Sampler
	logits := make([]float32, 100)
	for _, c := range []struct {
		p    Params
		most int32
	}{{Params{Temperature: 1, TopP: 1, TopK: 7}, 6}, {Params{Temperature: 1, TopP: 0.205}, 20}, {Params{Temperature: 1, TopP: 0.2}, 19}} {
		highest := int32(0)
		for c.p.Seed = range 2000 {
			id, err := s.Sample(logits, &c.p, 0, Text{})
			if err != nil {
				t.Fatal(err)
			}
			highest = max(highest, id)
		}
		if highest != c.most {
			t.Errorf("%+v: the highest token drawn is %d, want %d", c.p, highest, c.most)
		}
	}
}
