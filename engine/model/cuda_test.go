//go:build linux

package model

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
)

const (
	// logitsAllowed is how far logits of bfloat16 may be from those of float32.
	logitsAllowed = 0.02
	// gapAllowed is the gap above which the most likely token is the same.
	gapAllowed = 0.02
	// rounded is how much more than the reference's is as good: the reference rounds at
	// other places, and by chance to one side or the other.
	rounded = 1.1
)

// Every dense fixture on the GPU, on one rank, on two that share it, and on as many
// joined GPUs as there are, each position with the text of the fixture before it. With
// float32 activations and cache the logits are within 0.1 % and the tokens the reference's.
// With bfloat16 they are within 2 %, and the tokens the same wherever the gap is above
// 0.02; or, since these models are so small that rounding alone moves them by more, as
// near as those of a reference that rounds where a PyTorch model does.
func TestFixturesOnGPU(t *testing.T) {
	if err := cuda.Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	for _, name := range fixtures {
		source, config, golden := readFixture(t, name)
		spec := fixtureSpec(source, config, 1)
		exact := logitsOf(t, spec, golden)
		references := map[int]deviation{} // by ranks
		for _, v := range []struct {
			name   string
			ranks  int
			joined bool // each on a GPU of its own
			o      cuda.Options
		}{
			{"exact", 1, false, cuda.Options{Exact: true}}, {"exact, tp=2", 2, false, cuda.Options{Exact: true}},
			{"recorded", 1, false, cuda.Options{}}, {"issued", 1, false, cuda.Options{NoGraphs: true}}, {"tp=2", 2, false, cuda.Options{}},
			{"joined, exact, tp=2", 2, true, cuda.Options{Exact: true}}, {"joined, tp=1", 1, true, cuda.Options{}},
			{"joined, tp=2", 2, true, cuda.Options{}}, {"joined, issued, tp=2", 2, true, cuda.Options{NoGraphs: true}},
			{"joined, tp=4", 4, true, cuda.Options{}},
		} {
			t.Run(name+"/"+v.name, func(t *testing.T) {
				if n, err := cuda.Count(); v.joined && (err != nil || n < v.ranks) {
					t.Skipf("NOT RUN: it wants %d GPUs, and there are %d", v.ranks, n)
				}
				if v.joined {
					v.o.Group = cuda.NewGroup(v.ranks, cuda.GroupOptions{Timeout: 20 * time.Second})
				}
				spec.Ranks = v.ranks
				spec.NewDevice = func(comm collective.Communicator) (compute.Device, error) {
					o := v.o
					if v.joined {
						o.Ordinal = comm.Rank()
					}
					return cuda.New(comm, o)
				}
				logits := logitsOf(t, spec, golden)
				got, allowed := deviationOf(logits, exact), deviation{rms: 1e-3, worst: 1e-3, gap: gapAllowed}
				t.Logf("%v", got)
				if !v.o.Exact {
					reference, ok := references[v.ranks]
					if !ok {
						spec.NewDevice = newBF16Device
						reference = deviationOf(logitsOf(t, spec, golden), exact)
						references[v.ranks] = reference
					}
					t.Logf("reference in bfloat16: %v", reference)
					// One position is a matter of chance more than all of them are.
					allowed = deviation{rms: max(logitsAllowed, rounded*reference.rms), worst: max(logitsAllowed, 2*reference.worst), gap: max(gapAllowed, rounded*reference.moved)}
				}
				if !(got.rms <= allowed.rms) || !(got.worst <= allowed.worst) || got.gap > allowed.gap {
					t.Errorf("logits and tokens: %v; allowed: %.2f %%, at most %.2f %%, and tokens that differ at gaps up to %.3f", got, 100*allowed.rms, 100*allowed.worst, allowed.gap)
				}
				at := 0
				for i, c := range golden.Cases {
					if e := relativeError(logits[at+len(c.IDs)-1], c.LastLogits); !(e <= allowed.worst) {
						t.Errorf("case %d: relative error of the last logits %.3g, allowed %.3g", i, e, allowed.worst)
					}
					at += len(c.IDs) + len(c.Greedy)
				}
			})
		}
	}
}

// logitsOf are those of a fixture's texts by the devices of a spec. Where a device finds
// the most likely tokens itself, they are those of its logits.
func logitsOf(t *testing.T, spec Spec, golden fixture) [][]float32 {
	t.Helper()
	r, err := Load(context.Background(), spec)
	if err == nil {
		defer r.Close()
		err = errors.Join(r.Join(), r.Build())
	}
	if err != nil {
		t.Fatal(err)
	}
	return golden.logits(func(tokens []int32, from int) { pass(t, r, tokens, from) }, func(i int) []float32 {
		logits := r.Logits(i)
		if _, finds := r.ranks[0].device.(compute.Chooser); finds {
			if token, ok := r.Best(i); !ok || token != best(logits) {
				t.Fatalf("the device's best token is %d, %t; the logits' is %d", token, ok, best(logits))
			}
		}
		return logits
	})
}
