//go:build linux

package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/outrider-dev/outrider/internal/seed"
)

func TestSizesOfMessages(t *testing.T) {
	for _, c := range []struct{ bytes, want int }{
		{1, 0}, {leastMessage, 0}, {leastMessage + 1, 1}, {2 * leastMessage, 1}, {2*leastMessage + 1, 2}, {mostMessage, sizes - 1},
	} {
		if got, ok := sizeOf(c.bytes); !ok || got != c.want {
			t.Errorf("%d bytes: entry %d, %t, want %d", c.bytes, got, ok, c.want)
		}
	}
	if _, ok := sizeOf(mostMessage + 1); ok {
		t.Error("there is an entry for what is beyond the table")
	}
	var zero table
	if zero.of(100) != byNCCL || zero.fuses(100) || zero.of(mostMessage+1) != byNCCL {
		t.Error("without measurements, sums are NCCL's")
	}
}

// measured is what a machine might give: push wins small, read in the middle.
func measured() times {
	var m times
	for i := range sizes {
		bytes := float64(int(leastMessage) << i)
		m.sum[byNCCL][i], m.sum[byPush][i], m.sum[byRead][i] = 10e-6+bytes*5e-12, 3e-6+bytes*1e-10, 6e-6+bytes*1e-11
		if bytes <= pushMost {
			m.norms[i], m.fused[i] = 2e-6, m.sum[byPush][i]+0.5e-6
		} else {
			m.sum[byPush][i] = 0
		}
	}
	return m
}

func TestTableTakesTheFastest(t *testing.T) {
	m := measured()
	got := choose(m)
	if want := "sums by push to 32 KiB, then read to 512 KiB, then NCCL; one kernel with the norm at 4 KiB, 8 KiB, 16 KiB, 32 KiB"; got.String() != want {
		t.Errorf("got  %s\nwant %s", got.String(), want)
	}
	for _, c := range []struct {
		bytes int
		want  way
	}{{100, byPush}, {32 << 10, byPush}, {32<<10 + 1, byRead}, {512 << 10, byRead}, {512<<10 + 1, byNCCL}, {mostMessage, byNCCL}, {mostMessage + 1, byNCCL}} {
		if w := got.of(c.bytes); w != c.want {
			t.Errorf("%d bytes by %s, want %s", c.bytes, wayNames[w], wayNames[c.want])
		}
	}
	// What is only as good does not displace NCCL.
	var even times
	for i := range sizes {
		even.sum[byNCCL][i], even.sum[byRead][i] = 1e-5, 0.99e-5
	}
	if got := choose(even); got != (table{}) {
		t.Errorf("ways that are as good: %s", got.String())
	}
}

// Whatever was measured, the way that is taken is at most a little slower than
// the fastest, and one that takes that size.
func TestTableIsNeverMuchSlower(t *testing.T) {
	rng := seed.Numbers(t)
	for range 500 {
		var m times
		for i := range sizes {
			m.sum[byNCCL][i] = 1e-6 + rng.Float64()*1e-5
			for w := byPush; w < ways; w++ {
				if rng.IntN(4) > 0 {
					m.sum[w][i] = 1e-6 + rng.Float64()*1e-5
				}
			}
			if rng.IntN(2) > 0 {
				m.norms[i], m.fused[i] = rng.Float64()*1e-5, 1e-6+rng.Float64()*1e-5
			}
		}
		got := choose(m)
		for i := range sizes {
			taken := m.sum[got.sum[i]][i]
			for w := range ways {
				if s := m.sum[w][i]; s > 0 && taken*better*better > s {
					t.Fatalf("size %d: %s takes %v, %s %v", i, wayNames[got.sum[i]], taken, wayNames[w], s)
				}
			}
			if taken == 0 || got.fused[i] && (m.fused[i] == 0 || m.fused[i] > taken+m.norms[i]) {
				t.Fatalf("size %d: %s, fused %t: %+v", i, wayNames[got.sum[i]], got.fused[i], m)
			}
		}
	}
}

func TestGroupGoesByItsSlowest(t *testing.T) {
	random := func(rng *rand.Rand) (m times) {
		for i := range sizes {
			for w := range ways {
				m.sum[w][i] = rng.Float64()
			}
			m.norms[i], m.fused[i] = rng.Float64(), rng.Float64()
		}
		return m
	}
	rng := seed.Numbers(t)
	a, b := random(rng), random(rng)
	got := slower(a, b)
	for i := range sizes {
		for w := range ways {
			if got.sum[w][i] != max(a.sum[w][i], b.sum[w][i]) {
				t.Fatalf("%s, size %d: %v of %v and %v", wayNames[w], i, got.sum[w][i], a.sum[w][i], b.sum[w][i])
			}
		}
		if got.norms[i] != max(a.norms[i], b.norms[i]) || got.fused[i] != max(a.fused[i], b.fused[i]) {
			t.Fatalf("norms and fused of size %d: %v, %v", i, got.norms[i], got.fused[i])
		}
	}
}
