package engine

import (
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// loadAndWatch loads an engine while it looks at its progress, which never goes back,
// and at the end has done all parts of kernels and captures that it spoke of. A pass
// of the captures is an advance, however long the part that it belongs to takes. seen
// are the snapshots, one for each change.
func loadAndWatch(t *testing.T, e *Engine) (seen []telemetry.Snapshot) {
	t.Helper()
	loaded := make(chan error, 1)
	go func() { loaded <- e.load(t.Context(), func() {}) }()
	last := e.Progress()
	for over := false; !over; {
		select {
		case err := <-loaded:
			if err != nil {
				t.Fatal(err)
			}
			over = true
		case <-time.After(time.Millisecond):
		}
		s := e.Progress()
		if s.LastAdvance.Before(last.LastAdvance) || s.KernelsDone < last.KernelsDone || s.KernelsTotal < last.KernelsTotal ||
			s.CapturesDone < last.CapturesDone || s.CapturesTotal < last.CapturesTotal || s.Phase == last.Phase && s.Percent < last.Percent {
			t.Errorf("the progress goes back: %+v after %+v", s, last)
		}
		if at := s.Ranks[0].LastStep; s.Phase == telemetry.PhaseCapture && at != nil && s.LastAdvance.Before(*at) {
			t.Errorf("a pass of the captures ended at %s, and the last advance was at %s", at, s.LastAdvance)
		}
		if s.KernelsDone != last.KernelsDone || s.CapturesDone != last.CapturesDone || s.Phase != last.Phase {
			seen = append(seen, s)
		}
		last = s
	}
	t.Cleanup(e.ranks.Close)
	if last.Phase != telemetry.PhaseWarmup || last.Percent != 100 || last.KernelsDone != last.KernelsTotal || last.CapturesDone != last.CapturesTotal || e.captured.done != e.captured.of {
		t.Errorf("at the end: %+v, %d of %d captures", last, e.captured.done, e.captured.of)
	}
	return seen
}

// progressOf are the settings whose captures differ: with a draft they are of each depth.
var progressOf = map[string]Config{
	"eagle3":        {Algorithm: AlgorithmEagle3, MaxRunningRequests: 4, NumSteps: 2, Mode: "auto"},
	"fixed depth":   {Algorithm: AlgorithmEagle3, MaxRunningRequests: 4, NumSteps: 2},
	"none":          {Algorithm: AlgorithmNone, MaxRunningRequests: 4, Mode: "auto"},
	"one at a time": {Algorithm: AlgorithmNGram, MaxRunningRequests: 1, NumSteps: 2},
}

// What a start measures and, on devices whose caches grow, tries out shows as progress.
func TestProgressOfCaptures(t *testing.T) {
	for name, c := range progressOf {
		for _, grows := range []bool{false, true} {
			e := newEngine(t, c)
			if grows {
				e.wrap = (&memory{free: 1 << 30, fits: 100}).wrap
			}
			loadAndWatch(t, e)
			batches, shapes := len(e.batches()), e.recordedShapes()
			want := 0
			if e.drafter != nil {
				want += batches + 1
			}
			if grows {
				want += 1 + shapes
			}
			if got := e.Progress().CapturesTotal; got != want {
				t.Errorf("%s, a cache that grows: %v: %d parts, want %d", name, grows, got, want)
			}
		}
	}
}
