//go:build linux

package model

import (
	"context"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
)

// A recorded decode of a target with a head that does not draft has as many parts as
// one of a target without a head, and one more where features are kept. The emulation's
// recordings take memory by their parts.
func TestFeaturesCostNoLaunchOnGPU(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	target, head, config, headConfig := bundled(t)
	parts := map[string]int64{}
	for _, c := range []struct {
		name string
		spec Spec
		kept []int32
	}{
		{"without a head", Spec{}, nil},
		{"with a head", Spec{Draft: Source{"head", head}, DraftConfig: headConfig}, nil},
		{"keeping", Spec{Draft: Source{"head", head}, DraftConfig: headConfig}, []int32{0}},
	} {
		c.spec.Target, c.spec.Config, c.spec.Ranks = Source{"target", target}, config, 1
		c.spec.Plan = func(int64, int) (Limits, error) {
			return Limits{MaxRows: 8, MaxLogits: 8, MaxDrafts: 8, Pages: 4, PageSize: 8, Kept: 8}, nil
		}
		c.spec.NewDevice = func(comm collective.Communicator) (compute.Device, error) { return cuda.New(comm, cuda.Options{}) }
		r, err := Load(context.Background(), c.spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Build(); err != nil {
			t.Fatal(err)
		}
		var free []int64 // after a pass
		for position := range int32(3) {
			var rows compute.Rows
			rows.Add(rows.AddSequence([]int32{0}, 0), 17, position, 8)
			rows.Kept = c.kept
			if err := r.ForwardWith(&rows, []int32{0}, nil); err != nil {
				t.Fatal(err)
			}
			n, _, err := cuda.Memory(0)
			if err != nil {
				t.Fatal(err)
			}
			free = append(free, n)
		}
		parts[c.name] = free[0] - free[1] // the first pass is issued, the second recorded
		if free[1] != free[2] || parts[c.name] <= 0 {
			t.Errorf("%s: free memory after passes is %v", c.name, free)
		}
		r.Close()
	}
	one := parts["keeping"] - parts["with a head"]
	if parts["with a head"] != parts["without a head"] || one <= 0 || parts["with a head"]%one != 0 || parts["with a head"]/one < 10 {
		t.Errorf("bytes of recordings are %v: with a head there must be as many as without, and one part more where features are kept", parts)
	}
}
