// Package stats is for the benchmarks' figures.
package stats

import "slices"

// Median is the middle one of values, the upper of two; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
