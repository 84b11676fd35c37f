package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// cycles are so many of so many milliseconds and tokens each.
func cycles(count int, ms, tokens float64) telemetry.Cycles {
	return telemetry.Cycles{Count: count, Seconds: float64(count) * ms / 1e3, Tokens: int(float64(count) * tokens)}
}

// Where few cycles have prompts a rate is that of the others, which the luck of when
// requests end is no part of; where most have, it is what requests get.
func TestRateWithPrompts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		depths []telemetry.DepthTime
		crowd  bool
		want   float64
	}{
		{"no prompts", []telemetry.DepthTime{{Steady: cycles(100, 1, 2)}}, false, 2000},
		{"few prompts", []telemetry.DepthTime{{Steady: cycles(100, 1, 2), Mixed: cycles(40, 3, 1)}}, false, 2000},
		{"as many as others", []telemetry.DepthTime{{Steady: cycles(30, 1, 2), Probe: cycles(10, 1, 2), Mixed: cycles(40, 3, 2)}}, false, 2000},
		{"prompts in most", []telemetry.DepthTime{{Steady: cycles(30, 1, 2), Mixed: cycles(60, 4, 2)}}, true, 180e3 / 270},
		{"of two depths", []telemetry.DepthTime{{Steady: cycles(20, 1, 2), Mixed: cycles(30, 2, 2)}, {Mixed: cycles(10, 4, 3)}}, true, 130e3 / 120},
	} {
		crowd := crowded(tt.depths)
		if got := rate(tt.depths, crowd); crowd != tt.crowd || math.Abs(got/tt.want-1) > 1e-9 {
			t.Errorf("%s: a crowd is %v, the rate %.1f; want %v, %.1f", tt.name, crowd, got, tt.crowd, tt.want)
		}
	}
}

// A turn of a crowd says the same again: of 180 cycles with 128 streams 7 have no prompts.
func TestRatesOfACrowdAreAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	spread := func(crowd bool) float64 {
		var sum, square float64
		const turns = 400
		for range turns {
			var d telemetry.DepthTime
			for i := range 180 {
				c := &d.Mixed
				if i < 7 {
					c = &d.Steady
				}
				tokens := 128.0
				for range 128 {
					for k := 0; k < 3 && rng.Float64() < 0.9; k++ {
						tokens++
					}
				}
				c.Add(1.3e-3*math.Exp(0.1*rng.NormFloat64()), int(tokens))
			}
			r := math.Log(rate([]telemetry.DepthTime{d}, crowd))
			sum, square = sum+r, square+r*r
		}
		return math.Sqrt(square/turns - sum*sum/turns/turns)
	}
	few, all := spread(false), spread(true)
	t.Logf("spread of a turn by the few without prompts %.4f, by all %.4f", few, all)
	if all > 0.015 || few < 3*all {
		t.Errorf("the spread of a turn is %.4f by all cycles, %.4f by the few without prompts: want 0.015 at most, and a third", all, few)
	}
}
