package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// estimate is a median and the interval that holds it with 95 % confidence, by
// resampling (Efron, "Bootstrap methods", 1979).
type estimate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	N      int     `json:"n"`
}

// estimateOf is the median of v, which has a value at least.
func estimateOf(v []float64) estimate {
	rng := rand.New(rand.NewPCG(1, 1))
	const draws = 2000
	medians, again := make([]float64, draws), make([]float64, len(v))
	for i := range medians {
		for k := range again {
			again[k] = v[rng.IntN(len(v))]
		}
		medians[i] = stats.Median(again)
	}
	slices.Sort(medians)
	return estimate{stats.Median(v), medians[draws*25/1000], medians[draws*975/1000], len(v)}
}

func (e estimate) String() string { return fmt.Sprintf("%.3f (%.3f-%.3f)", e.Median, e.Low, e.High) }

// over divides two series, turn by turn.
func over(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// order draws the order of the arms in a round, the same in each run.
var order = rand.New(rand.NewPCG(2, 2))

func shuffled(n int) []int { return order.Perm(n) }
