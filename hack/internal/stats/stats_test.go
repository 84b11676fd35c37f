package stats

import (
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1, 2}, 2}, {[]float64{4, 3, 2, 1}, 3}} {
		before := slices.Clone(c.values)
		if got := Median(c.values); got != c.want || !slices.Equal(c.values, before) {
			t.Errorf("Median(%v) is %v, want %v; afterwards %v", before, got, c.want, c.values)
		}
	}
}
