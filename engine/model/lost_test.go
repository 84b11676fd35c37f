package model

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
)

// stuck is a device that reports a fault in its second pass, and never returns
// from it, as one whose driver waits for a GPU that is lost.
type stuck struct {
	compute.Device
	comm   collective.Communicator
	passes int
}

func (s *stuck) Run(p compute.Pass, body func(*compute.Rows, [2][]int32)) {
	if s.passes++; s.passes == 2 && s.comm.Rank() == 1 {
		s.comm.Abort(fault.OnRank(1, fault.Errorf(fault.DeviceFault, "the GPU is lost")))
		select {}
	}
	body(p.Rows, p.Lists)
}
func (s *stuck) Wait() {}

func (s *stuck) Join() error {
	x := []float32{1} // all ranks at once, or nobody comes back
	s.comm.AllReduce(x)
	if x[0] != float32(s.comm.Size()) {
		return fault.Errorf(fault.CollectiveFailed, "%v ranks have joined", x[0])
	}
	return nil
}
func (s *stuck) Links() string { return "for a test" }

func TestAPassEndsWithoutALostRank(t *testing.T) {
	source, config, golden := readFixture(t, "llama")
	r, err := Load(context.Background(), Spec{
		Target: source, Config: config, Ranks: 2,
		Plan: func(int64, int) (Limits, error) {
			return Limits{MaxRows: 160, MaxLogits: 160, Pages: 40, PageSize: 8}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) {
			d, err := cpu.New(comm, 1)
			return &stuck{Device: d, comm: comm}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Join(); err != nil || r.Links() != "for a test" {
		t.Fatalf("joined %q, %v", r.Links(), err)
	}
	pass(t, r, golden.Cases[0].IDs, 0)
	ended := make(chan error, 1)
	go func() {
		var rows compute.Rows
		rows.Add(rows.AddSequence(make([]int32, 20), 0), 1, 0, 8)
		ended <- r.Forward(&rows, []int32{0})
	}()
	select {
	case err := <-ended:
		var f *fault.Error
		if !errors.As(err, &f) || f.Reason != fault.DeviceFault || f.Rank != 1 {
			t.Errorf("%v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("the pass waits for a rank that does not come back")
	}
	if r.Err() == nil {
		t.Error("Err() is nil")
	}
}
