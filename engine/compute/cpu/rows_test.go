package cpu

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
)

// big makes a weight of random finite values, of any type, without a copy of them.
func big(b *testing.B, d *Device, dtype compute.DType, group, out, in int) compute.Weight {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 1))
	codes := func(_, _ int, dst []byte) error {
		and, or := ^uint64(0), uint64(0)
		switch dtype {
		case compute.BF16: // 0.5 to 2: products of denormals take far longer
			and, or = 0x80ff80ff80ff80ff, 0x3f003f003f003f00
		case compute.F16, compute.F8E4M3: // none that is not finite
			and = 0xbfbfbfbfbfbfbfbf
		}
		for i := 0; i+8 <= len(dst); i += 8 {
			binary.LittleEndian.PutUint64(dst[i:], rng.Uint64()&and|or)
		}
		return nil
	}
	var w compute.Weight
	var err error
	if dtype.Quantised() {
		w, err = d.NewQuantized(compute.Quant{DType: dtype, Group: group}, out, in, codes, func(_, _ int, dst []float32) error {
			for i := range dst {
				dst[i] = rng.Float32() / 64
			}
			return nil
		})
	} else {
		w, err = d.NewWeight(dtype, out, in, codes)
	}
	if err != nil {
		b.Fatal(err)
	}
	return w
}

var benchmarked = []struct {
	dtype compute.DType
	group int
}{{compute.BF16, 0}, {compute.F16, 0}, {compute.I8, 4096}, {compute.I8, 128}, {compute.F8E4M3, 128}, {compute.I4, 128}, {compute.I4, 32}}

// compareRows measures passes of the numbers of rows over a weight. They take
// turns, so that all see the same machine, and the fastest turn of each counts,
// since others' work on the machine only ever adds.
func compareRows(b *testing.B, d *Device, w compute.Weight, rows []int) []time.Duration {
	b.Helper()
	most := slices.Max(rows)
	x, y := d.NewTensor(most, w.In()), d.NewTensor(most, w.Out())
	fill(x, random(rand.New(rand.NewPCG(1, 1)), most*w.In())) // zeros and denormals could cost another time
	best := make([]time.Duration, len(rows))
	for b.Loop() {
		for i, m := range rows {
			start := time.Now()
			d.Linear(y, x, w, m)
			if took := time.Since(start); best[i] == 0 || took < best[i] {
				best[i] = took
			}
		}
	}
	return best
}

func onEachFast(b *testing.B, threads []int, f func(b *testing.B, d *Device)) {
	for _, k := range supportedKernels() {
		if k == genericKernels {
			continue
		}
		for _, n := range threads {
			b.Run(fmt.Sprintf("%s/threads=%d", k.name, n), func(b *testing.B) { f(b, device(b, k, n)) })
		}
	}
}

// BenchmarkVerifyRows reports what a pass of 2, 4 and 8 rows costs next to one of
// 1 row, for each weight type, on weights of 512 MiB, which no cache holds.
func BenchmarkVerifyRows(b *testing.B) {
	onEachFast(b, []int{1, 2}, func(b *testing.B, d *Device) {
		for _, c := range benchmarked {
			b.Run(fmt.Sprintf("%v-%d", c.dtype, c.group), func(b *testing.B) {
				const in = 4096
				out := 512 << 20 / c.dtype.RowBytes(in)
				rows := []int{1, 2, 4, 8}
				best := compareRows(b, d, big(b, d, c.dtype, c.group, out, in), rows)
				b.ReportMetric(float64(out*c.dtype.RowBytes(in))/best[0].Seconds()/1e9, "GB/s")
				for i, m := range rows[1:] {
					b.ReportMetric(float64(best[i+1])/float64(best[0]), fmt.Sprintf("x/rows=%d", m))
				}
			})
		}
	})
}

// BenchmarkManyRows reports what passes of many rows cost next to as many of 4.
func BenchmarkManyRows(b *testing.B) {
	onEachFast(b, []int{2}, func(b *testing.B, d *Device) {
		for _, c := range benchmarked {
			b.Run(fmt.Sprintf("%v-%d", c.dtype, c.group), func(b *testing.B) {
				const in, out = 4096, 4096
				rows := []int{4, 16, 64}
				best := compareRows(b, d, big(b, d, c.dtype, c.group, out, in), rows)
				b.ReportMetric(2*4*in*out/best[0].Seconds()/1e9, "GFLOP/s")
				for i, m := range rows[1:] {
					b.ReportMetric(float64(best[i+1])*4/float64(m)/float64(best[0]), fmt.Sprintf("x/rows=%d", m))
				}
			})
		}
	})
}
