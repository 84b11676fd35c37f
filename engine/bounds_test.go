package engine

import (
	"testing"

	"github.com/outrider-dev/outrider/engine/speculation"
)

// Bounds hold from the next cycle on, however good or bad drafts are, and are what
// the engine says of itself.
func TestBoundsHoldAtOnce(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	for name, c := range map[string]Config{
		"head":          {Algorithm: AlgorithmEagle3, DraftModel: m.head},
		"never right":   {Algorithm: AlgorithmEagle3, DraftModel: m.head, SimulateAccept: "0"},
		"always right":  {Algorithm: AlgorithmDraft, DraftModel: m.target},
		"trees":         {Algorithm: AlgorithmDraft, DraftModel: m.small, TopK: 3, NumDraftTokens: 10},
		"another start": {Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: speculation.ModeOff},
	} {
		t.Run(name, func(t *testing.T) {
			c.Model, c.MaxRunningRequests, c.NumSteps = m.target, 4, 4
			e := loaded(t, c)
			for _, r := range steadyRequests() {
				if _, err := e.scheduler.Submit(r); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				if _, err := e.step(); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range []struct {
				mode            speculation.Mode
				least, most     int
				lowest, deepest int // draft tokens after each other
			}{
				{speculation.ModeAuto, 2, 4, 2, 4},
				{speculation.ModeAuto, 0, 1, 0, 1},
				{speculation.ModeFixed, 0, 3, 3, 3},
				{speculation.ModeAuto, 4, 4, 4, 4},
				{speculation.ModeFixed, 1, 2, 2, 2},
				{speculation.ModeOff, 0, 4, 0, 0},
				{speculation.ModeAuto, 1, 3, 1, 3},
				{speculation.ModeAuto, 0, 0, 0, 0},
				{speculation.ModeFixed, 0, 4, 4, 4},
			} {
				if err := e.SetSpeculation(b.mode, b.least, b.most); err != nil {
					t.Fatal(err)
				}
				for range 4 {
					if worked, err := e.step(); err != nil || !worked {
						t.Fatal(worked, err)
					}
					for _, s := range e.scheduler.Running() {
						if s.Asked < min(b.lowest, s.Room()) || s.Asked > b.deepest {
							t.Fatalf("%+v: a draft of %d steps was asked for, with room for %d", b, s.Asked, s.Room())
						}
					}
				}
				said := e.Speculation()
				if said.Mode != string(b.mode) || said.MinSteps != b.least || said.MaxSteps != b.most || said.NumSteps < b.lowest || said.NumSteps > b.deepest {
					t.Fatalf("%+v: the engine says %+v", b, said)
				}
			}
			if n := len(e.scheduler.Running()); n != len(steadyRequests()) {
				t.Errorf("%d requests still run", n)
			}
		})
	}
}
