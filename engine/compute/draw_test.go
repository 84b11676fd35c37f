package compute

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A weight is what the exponential is, but for 1e-7 of it and the rounding to a
// whole number.
func TestMassIsAnExponential(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200_000 {
		temperature := 0.01 + 2*rng.Float64()
		distance := float32(rng.ExpFloat64() * 8 * temperature)
		got := float64(Mass(NewDecay(temperature).At(distance)))
		want := math.Ldexp(math.Exp(-float64(distance)/temperature), MassBits)
		if math.Abs(got-want) > 1e-7*want+0.51 {
			t.Fatalf("distance %v at temperature %v: %v, want %v", distance, temperature, got, want)
		}
	}
}

// The weight never rises with the distance: over all octaves, at and around the
// points that are interpolated between.
func TestMassNeverRises(t *testing.T) {
	last := Mass(0)
	if last != 1<<MassBits {
		t.Fatalf("the highest has %d", last)
	}
	for octave := range uint64(Octaves + 1) {
		for i := range uint64(1024) {
			for _, part := range []uint64{0, 1, 1 << 20, 1<<22 - 1} {
				w := Mass(octave<<32 | i<<22 | part)
				if w > last {
					t.Fatalf("octave %d, point %d, part %d: %d after %d", octave, i, part, w, last)
				}
				last = w
			}
		}
	}
	if last != 0 {
		t.Errorf("the lightest has %d", last)
	}
}

func TestDecayOfExtremes(t *testing.T) {
	for _, c := range []struct {
		temperature float64
		distance    float32
		light       bool
	}{
		{1, 0, false}, {2, float32(math.Inf(1)), true}, {5e-324, 1e-7, true}, {5e-324, 0, false}, {1e-20, math.SmallestNonzeroFloat32, false},
		{2, math.MaxFloat32, true}, {2, 1e-37, false},
	} {
		if got := Mass(NewDecay(c.temperature).At(c.distance)); got != map[bool]uint64{false: 1 << MassBits, true: 0}[c.light] {
			t.Errorf("temperature %v, distance %v: %d", c.temperature, c.distance, got)
		}
	}
}

func TestParts(t *testing.T) {
	const one = 1 << ShareBits
	for _, c := range []struct{ share, mass, part, needed uint64 }{
		{0, 5, 0, 1}, {one, 1 << 63, 1 << 63, 1 << 63}, {one / 2, 5, 2, 3}, {one / 2, 4, 2, 2}, {one - 1, 100, 99, 100}, {1, 1, 0, 1},
	} {
		if part, needed := Part(c.share, c.mass), Needed(c.share, c.mass); part != c.part || needed != c.needed {
			t.Errorf("%d of %d: %d, %d, want %d, %d", c.share, c.mass, part, needed, c.part, c.needed)
		}
	}
}
