package compute

import (
	"math"
	"math/rand/v2"
	"testing"
)

// nearest8 is ToFloat8 by its definition: of all codes, the nearest; of two, the even.
func nearest8(x float32) byte {
	best, least := byte(0), math.Inf(1)
	for code := range byte(0x7f) {
		d := math.Abs(math.Abs(float64(x)) - float64(Float8(code)))
		if d < least || d == least && code%2 == 0 {
			best, least = code, d
		}
	}
	if math.Signbit(float64(x)) {
		best |= 0x80
	}
	return best
}

func TestToFloat8(t *testing.T) {
	var xs []float32
	for code := range 256 { // the numbers themselves, what lies between two, and next to that
		if v := Float8(byte(code)); v == v {
			next := Float8(byte(min(code&0x7f+1, 0x7e) | code&0x80))
			half := (v + next) / 2
			xs = append(xs, v, half, math.Nextafter32(half, 1e9), math.Nextafter32(half, -1e9))
		}
	}
	xs = append(xs, 463, 464, 465, 480, 1e30, float32(math.Inf(1)), float32(math.Inf(-1)), 1e-30, -1e-45, 1.0/1024, 3.0/1024)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		xs = append(xs, float32(rng.NormFloat64()*math.Exp2(float64(rng.IntN(24)-14))))
	}
	for _, x := range xs {
		if got, want := ToFloat8(x), nearest8(x); got != want {
			t.Errorf("%v becomes %#x, which is %v; want %#x, %v", x, got, Float8(got), want, Float8(want))
		}
	}
	if got := ToFloat8(float32(math.NaN())); got&0x7f != 0x7f {
		t.Errorf("a NaN becomes %#x", got)
	}
}
