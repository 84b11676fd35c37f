package engine

import (
	"os"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// Faults that Config.SimulateFault can bring about, by where they happen.
var (
	fetchFaults = []fault.Reason{fault.InvalidConfig, fault.ModelNotFound, fault.Unauthorized, fault.FetchFailed, fault.NoSpace}
	loadFaults  = []fault.Reason{fault.WeightsMismatch, fault.DraftMismatch, fault.Unsupported, fault.OutOfMemory, fault.DeviceMissing}
	stepFaults  = []fault.Reason{fault.DeviceFault, fault.CollectiveFailed, fault.Stalled, fault.Internal}
)

// SimulatedFaults are the values of Config.SimulateFault.
func SimulatedFaults() []fault.Reason { return slices.Concat(fetchFaults, loadFaults, stepFaults) }

// breaks is the fault to bring about here, if it is one of those that happen here.
func (e *Engine) breaks(here []fault.Reason) error {
	if r := e.cfg.SimulateFault; slices.Contains(here, r) {
		return fault.Errorf(r, "--simulate-fault %s", r)
	}
	return nil
}

// breakStep is breaks for a pass. It waits for a client's request, so that
// the server becomes ready first.
func (e *Engine) breakStep(b *scheduler.Batch) error {
	if e.cfg.SimulateFault == "" || !slices.ContainsFunc(b.Sequences, func(s *scheduler.Sequence) bool { return !s.Probe }) {
		return nil
	}
	return e.breakPass()
}

// breakPass brings about the fault of a pass.
func (e *Engine) breakPass() error {
	switch e.cfg.SimulateFault {
	case fault.Stalled:
		select {} // for ever: the watch must end the process
	case fault.Internal:
		panic("--simulate-fault Internal")
	}
	last := e.cfg.localRanks() - 1
	if e.ranks.Break(last, e.cfg.SimulateFault) {
		return nil // the pass will meet it
	}
	return fault.OnRank(e.cfg.Node*e.cfg.localRanks()+last, e.breaks(stepFaults))
}

// hang keeps a pass waiting while there is a file of the name Config.SimulateHang:
// the process answers, and its model does not.
func (e *Engine) hang() {
	for name := e.cfg.SimulateHang; name != ""; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(name); err != nil {
			return
		}
	}
}
