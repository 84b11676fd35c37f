package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
)

// BenchmarkVerifyRows reports what a pass of 2, 4 and 8 rows costs next to one of
// 1 row, for each weight type. The numbers of rows take turns within an
// iteration, so that all of them see the same machine, and the fastest turns are
// compared, since others' work on the machine only ever adds.
func BenchmarkVerifyRows(b *testing.B) {
	const in, out = 4096, 8192
	rows := []int{1, 2, 4, 8}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, k := range supportedKernels() {
		if k == genericKernels {
			continue
		}
		for _, threads := range []int{1, 2} {
			d := device(b, k, threads)
			for _, c := range []struct {
				dtype compute.DType
				group int
			}{{compute.BF16, 0}, {compute.F16, 0}, {compute.I8, in}, {compute.I8, 128}, {compute.F8E4M3, 128}, {compute.I4, 128}, {compute.I4, 32}} {
				b.Run(fmt.Sprintf("%s/threads=%d/%v-%d", k.name, threads, c.dtype, c.group), func(b *testing.B) {
					var w compute.Weight
					switch c.dtype {
					case compute.BF16:
						w, _ = matrix(b, d, c.dtype, out, in, make([]float32, in*out))
					case compute.F16:
						w = halves(b, d, rng, out, in)
					default:
						w, _ = coded(b, d, rng, compute.Quant{DType: c.dtype, Group: c.group}, out, in)
					}
					x, y := d.NewTensor(8, in), d.NewTensor(8, out)
					fill(x, random(rng, 8*in)) // zeros and denormals could cost another time
					times := make([][]time.Duration, len(rows))
					for b.Loop() {
						for i, m := range rows {
							start := time.Now()
							d.Linear(y, x, w, m)
							times[i] = append(times[i], time.Since(start))
						}
					}
					one := slices.Min(times[0])
					b.ReportMetric(float64(out*c.dtype.RowBytes(in))/one.Seconds()/1e9, "GB/s")
					for i, m := range rows[1:] {
						b.ReportMetric(float64(slices.Min(times[i+1]))/float64(one), fmt.Sprintf("x/rows=%d", m))
					}
				})
			}
		}
	}
}
