//go:build linux

package cuda

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// joined opens n GPUs as a group, or reports the test as not run. Each of the
// functions that it returns runs f on all ranks at once.
func joined(t *testing.T, n int) (g *Group, all []*Device, each func(f func(rank int, d *Device))) {
	t.Helper()
	have, err := Count()
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	if have < n {
		t.Skipf("NOT RUN: it wants %d GPUs, and there are %d", n, have)
	}
	g = NewGroup(n, GroupOptions{Timeout: 20 * time.Second})
	for i, c := range collective.NewLocal(n, 1<<20) {
		d, err := New(c, Options{Ordinal: i, Group: g})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	each = func(f func(rank int, d *Device)) {
		t.Helper()
		var wg sync.WaitGroup
		for i, d := range all {
			wg.Go(func() { f(i, d) })
		}
		wg.Wait()
		if err := all[0].Err(); err != nil {
			t.Fatal(err)
		}
	}
	each(func(_ int, d *Device) { _ = d.Join() })
	each(func(_ int, d *Device) { _ = d.Build() })
	t.Logf("%s", all[0].Links())
	t.Cleanup(func() {
		for _, d := range all {
			d.Wait()
		}
		for _, d := range all {
			d.Close()
		}
	})
	return g, all, each
}

// groups are the sizes of groups that this machine has the GPUs for; one alone
// is NCCL with itself.
func groups(t *testing.T, f func(t *testing.T, n int)) {
	for _, n := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprintf("%d GPUs", n), func(t *testing.T) { f(t, n) })
	}
}

// Every way to sum gives the sum, to every rank the same bits, many times over
// and in recordings too.
func TestSumsOnGPUs(t *testing.T) {
	groups(t, func(t *testing.T, n int) {
		_, all, each := joined(t, n)
		rng := seed.Numbers(t)
		for _, c := range []struct {
			rows, cols int
			wide       bool
		}{
			{1, 8, false}, {1, 64, true}, {1, 4096, false}, {3, 1000, false}, {5, 8192, false}, {64, 8192, false}, {64, 4096, true}, {200, 8192, false}, {7, 13, false},
		} {
			for w := range ways {
				sumsBy(t, n, all, each, w, c.rows, c.cols, c.wide, func(k int) []float32 { return normals(rng, k) })
			}
		}
	})
}

func sumsBy(t *testing.T, n int, all []*Device, each func(func(int, *Device)), w way, rows, cols int, wide bool, random func(int) []float32) {
	t.Helper()
	xs, ys := make([]*tensor, n), make([]*tensor, n)
	want, held := make([]float64, rows*cols), make([][]float32, n)
	for i, d := range all {
		xs[i], ys[i] = d.newTensor(rows, cols, wide), d.newTensor(rows, cols, wide)
		held[i] = random(rows * cols)
	}
	if !all[0].takes(w, ys[0], xs[0], rows) {
		return
	}
	what := fmt.Sprintf("%s, %d × %d, wide %t", wayNames[w], rows, cols, wide)
	each(func(i int, d *Device) {
		held[i] = put(d, xs[i], held[i])
		poison(d, ys[i])
	})
	for _, h := range held {
		for k, v := range h {
			want[k] += float64(v)
		}
	}
	check := func(what string) {
		t.Helper()
		for i, d := range all {
			// Of many ranks the sums of NCCL are rounded on their way.
			compare(t, fmt.Sprintf("%s, rank %d", what, i), d, ys[i], rows, want, float64(n)*tolerance(ys[i]))
			for r := range rows {
				if a, b := all[0].Floats(ys[0], r), slices.Clone(d.Floats(ys[i], r)); !slices.Equal(a, b) {
					t.Fatalf("%s: ranks 0 and %d differ in row %d", what, i, r)
				}
			}
		}
	}
	each(func(i int, d *Device) {
		defer d.enter()()
		d.meet()
		d.sumBy(w, ys[i], xs[i], rows)
		d.wait()
	})
	check(what)
	each(func(i int, d *Device) {
		defer d.enter()()
		d.meet()
		for range 50 { // the halves of the exchange, by turns
			d.sumBy(w, ys[i], xs[i], rows)
		}
		d.wait()
		poison(d, ys[i])
		g, err := d.capture(func() {
			for range 10 {
				d.sumBy(w, ys[i], xs[i], rows)
			}
		})
		d.check(err)
		for range 5 {
			d.check(d.stream.Launch(g))
		}
		d.wait()
		d.meet()
		d.check(g.Close())
	})
	check(what + ", recorded")
}

// One kernel for a sum and the norm that follows gives the bits that two give.
func TestSumWithNormOnGPUs(t *testing.T) {
	groups(t, func(t *testing.T, n int) {
		_, _, each := joined(t, n)
		rng := seed.Numbers(t)
		for _, c := range []struct{ rows, cols int }{{1, 64}, {1, 4096}, {4, 8192}, {6, 7168}, {64, 8192}, {300, 1024}} {
			differs := make([]string, n)
			in, res, weights := make([][]float32, n), normals(rng, c.rows*c.cols), normals(rng, c.cols)
			for i := range in {
				in[i] = normals(rng, c.rows*c.cols)
			}
			each(func(i int, d *Device) {
				x := d.newTensor(c.rows, c.cols, false)
				if !d.canFuse(x, c.rows) {
					return
				}
				w, _ := plain(t, d, compute.F32, 1, c.cols, slices.Clone(weights))
				var dst, residual [2]*tensor
				for k := range dst {
					dst[k], residual[k] = d.newTensor(c.rows, c.cols, false), d.newTensor(c.rows, c.cols, true)
					put(d, residual[k], res)
					poison(d, dst[k])
				}
				put(d, x, in[i])
				leave := d.enter()
				d.meet()
				features := newCopied(d, c.rows, c.cols)
				for range 4 {
					d.sumNorm(dst[0], residualOf(compute.Residual{Sum: residual[0], Copy: features.of}), x, vector(w), 1e-5, c.rows)
				}
				y := d.newTensor(c.rows, c.cols, false)
				for range 4 {
					d.sumBy(byPush, y, x, c.rows)
					d.normBy(dst[1], residualStream{sum: residual[1]}, y, vector(w), 1e-5, c.rows)
				}
				d.wait()
				leave()
				features.check(t, fmt.Sprintf("%d × %d, rank %d", c.rows, c.cols, i), d, residual[0], c.rows)
				for r := range c.rows {
					a, b := slices.Clone(d.Floats(residual[0], r)), d.Floats(residual[1], r)
					if !slices.Equal(a, b) {
						differs[i] = fmt.Sprintf("the residual of row %d", r)
					}
					a, b = slices.Clone(d.Floats(dst[0], r)), d.Floats(dst[1], r)
					for k := range a {
						// The squares are added in another order.
						if !(math.Abs(float64(a[k]-b[k])) <= 0.01*math.Abs(float64(b[k]))) {
							differs[i] = fmt.Sprintf("row %d, column %d: %v and %v", r, k, a[k], b[k])
						}
					}
				}
			})
			for i, s := range differs {
				if s != "" {
					t.Errorf("%d × %d, rank %d: %s", c.rows, c.cols, i, s)
				}
			}
		}
	})
}

func TestGatherOnGPUs(t *testing.T) {
	groups(t, func(t *testing.T, n int) {
		_, all, each := joined(t, n)
		rng := seed.Numbers(t)
		for _, c := range []struct {
			rows, cols int
			wide       bool
		}{{1, 8, true}, {1, 16064, true}, {5, 1000, true}, {64, 513, true}, {3, 24, false}} {
			want := make([]float64, c.rows*c.cols*n)
			in := make([][]float32, n)
			for i := range in {
				in[i] = normals(rng, c.rows*c.cols)
			}
			dst := make([]*tensor, n)
			each(func(i int, d *Device) {
				x := d.newTensor(c.rows, c.cols, c.wide)
				dst[i] = d.newTensor(c.rows, c.cols*n, c.wide)
				in[i] = put(d, x, in[i])
				poison(d, dst[i])
				d.AllGather(dst[i], x, c.rows)
			})
			for i := range in {
				for r := range c.rows {
					for k := range c.cols {
						want[(r*n+i)*c.cols+k] = float64(in[i][r*c.cols+k])
					}
				}
			}
			for i, d := range all {
				compare(t, fmt.Sprintf("%d × %d, wide %t, rank %d", c.rows, c.cols, c.wide, i), d, dst[i], c.rows, want, 0)
			}
		}
	})
}

// A rank that stays away is named, and the others come back.
func TestAbsentRankOnGPUs(t *testing.T) {
	have, err := Count()
	if err != nil || have < 2 {
		t.Skipf("NOT RUN: it wants two GPUs: %v", err)
	}
	g := NewGroup(2, GroupOptions{Timeout: 2 * time.Second})
	var wg sync.WaitGroup
	comms := collective.NewLocal(2, 1)
	errs, took := make([]error, 2), make([]time.Duration, 2)
	for i, c := range comms {
		wg.Go(func() {
			d, err := New(c, Options{Ordinal: i, Group: g})
			if err == nil {
				err = d.Join()
			}
			if err == nil {
				err = d.Build()
			}
			if err != nil {
				errs[i] = err
				return
			}
			x := d.newTensor(1, 4096, false)
			d.AllReduce(x, 1)
			d.Wait()
			if i == 1 {
				return // for good
			}
			start := time.Now()
			defer d.enter()()
			d.sum(x, x, 1) // without a meeting, as a recording does
			d.wait()
			took[i], errs[i] = time.Since(start), d.Err()
		})
	}
	wg.Wait()
	t.Logf("after %s: %v", took[0], errs[0])
	if errs[0] == nil || took[0] > 10*time.Second {
		t.Errorf("a rank without the other came back after %s with %v", took[0], errs[0])
	}
}
