package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// hearing is a choice of the depth that notes what it hears.
type hearing struct {
	*speculation.Chooser
	heard []string
}

func (h *hearing) Observe(l speculation.Load, depth int, seconds float64, accepted int) {
	h.heard = append(h.heard, fmt.Sprintf("%d at depth %d accept %d", l.Batch, depth, accepted))
	h.Chooser.Observe(l, depth, seconds, accepted)
}

func (h *hearing) Mixed(l speculation.Load, depth int, seconds float64, accepted, rows int) {
	h.heard = append(h.heard, fmt.Sprintf("%d beside %d rows at depth %d accept %d", l.Batch, rows, depth, accepted))
	h.Chooser.Mixed(l, depth, seconds, accepted, rows)
}

func (h *hearing) CaughtUp(l speculation.Load, seconds float64) {
	h.heard = append(h.heard, fmt.Sprintf("%d catch up", l.Batch))
	h.Chooser.CaughtUp(l, seconds)
}

func (h *hearing) Verified(drafted, accepted int) {
	h.heard = append(h.heard, fmt.Sprintf("verified %d", drafted))
	h.Chooser.Verified(drafted, accepted)
}

// heardBy is an engine that is stepped by hand, and what the choice of its depth
// hears of each step.
type heardBy struct {
	t *testing.T
	e *Engine
	h *hearing
}

func newHeard(t *testing.T, c Config) *heardBy {
	t.Helper()
	e := loaded(t, c)
	h := &hearing{Chooser: e.depth.chooser.(*speculation.Chooser)}
	e.depth.chooser = h
	return &heardBy{t, e, h}
}

func (x *heardBy) set(mode speculation.Mode, most int) {
	x.t.Helper()
	if err := x.e.SetSpeculation(mode, 0, most); err != nil {
		x.t.Fatal(err)
	}
}

func (x *heardBy) ask(prompt []int32, more scheduler.Request) {
	x.t.Helper()
	r := scheduler.Request{PromptIDs: prompt, MaxTokens: 150, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs, Sampling: sampling.Params{TopP: 1}, Probe: more.Probe}
	if r.Probe {
		r.MaxTokens = 12
	}
	if _, err := x.e.scheduler.Submit(&r); err != nil {
		x.t.Fatal(err)
	}
}

// step is what is heard of one.
func (x *heardBy) step() []string {
	x.t.Helper()
	x.h.heard = nil
	if worked, err := x.e.step(); err != nil || !worked {
		x.t.Fatal(worked, err)
	}
	return x.h.heard
}

// starting is how many of heard begin so.
func starting(heard []string, with string) (n int) {
	for _, s := range heard {
		if strings.HasPrefix(s, with) {
			n++
		}
	}
	return n
}

// What the choice of the depth learns: the time and the accepted tokens of cycles of
// one depth in which clients' requests decode and nothing else, how long catching up
// takes, and each draft that was asked for, be it empty. Of cycles with prompts it hears
// how many rows these had, and of those of two depths or with a probe nothing.
func TestWhatTheChoiceHears(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	x := newHeard(t, Config{Model: m.target, Algorithm: AlgorithmDraft, DraftModel: m.small, NumSteps: 3, MaxRunningRequests: 4, ChunkedPrefillSize: 4})
	usage := func() (n int) {
		for _, s := range x.e.scheduler.Running() {
			n += s.Usage().Accepted
		}
		return n
	}
	x.ask([]int32{3, 4, 5}, scheduler.Request{})
	x.ask([]int32{6, 7}, scheduler.Request{})
	for range 3 {
		x.step()
	}
	for range 4 {
		before := usage()
		heard := x.step()
		if want := fmt.Sprintf("2 at depth 3 accept %d", usage()-before); starting(heard, want) != 1 || starting(heard, "verified 3") != 2 || len(heard) != 3 {
			t.Errorf("of a cycle it hears %q, want %q and two drafts", heard, want)
		}
	}
	x.ask(slices.Repeat([]int32{9, 10, 11}, 8), scheduler.Request{}) // six chunks
	for i := range 6 {
		before := usage()
		heard := x.step()
		if want := fmt.Sprintf("2 beside 4 rows at depth 3 accept %d", usage()-before); starting(heard, want) != 1 || starting(heard, "verified 3") != 2 || len(heard) != 3 {
			t.Errorf("of cycle %d with a prompt it hears %q, want %q and the drafts", i, heard, want)
		}
	}
	if heard := x.step(); starting(heard, "3 at depth 3 ") != 1 {
		t.Errorf("of the first cycle without a prompt it hears %q", heard)
	}
	x.set(speculation.ModeFixed, 1)
	if heard := x.step(); starting(heard, "3 ") != 0 {
		t.Errorf("of a cycle that verifies drafts of 3 and makes some of 1 it hears %q", heard)
	}
	if heard := x.step(); starting(heard, "3 at depth 1 ") != 1 {
		t.Errorf("of the cycle after it, it hears %q", heard)
	}
	x.set(speculation.ModeOff, 3)
	x.step()
	if heard := x.step(); !slices.Equal(heard, []string{"3 at depth 0 accept 0"}) {
		t.Errorf("of plain decoding it hears %q", heard)
	}
	x.set(speculation.ModeFixed, 3)
	if heard := x.step(); !slices.Equal(heard, []string{"3 catch up"}) {
		t.Errorf("of the cycle back from plain decoding it hears %q", heard)
	}
	if heard := x.step(); starting(heard, "3 at depth 3 ") != 1 || len(heard) != 4 {
		t.Errorf("of the cycle after it, it hears %q", heard)
	}
	x.ask([]int32{8}, scheduler.Request{Probe: true})
	for x.step(); len(x.e.scheduler.Running()) == 4; {
		if heard := x.step(); starting(heard, "verified 3") != 3 || len(heard) != 3 {
			t.Errorf("of a cycle with a probe it hears %q, want the clients' drafts alone", heard)
		}
	}
}

// A probe on an idle engine, which is there every few seconds, teaches nothing.
func TestProbesTeachNothing(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	for _, mode := range []speculation.Mode{speculation.ModeFixed, speculation.ModeOff, speculation.ModeAuto} {
		x := newHeard(t, Config{Model: m.target, Algorithm: AlgorithmEagle3, DraftModel: m.head, Mode: mode})
		for range 40 {
			x.ask([]int32{8}, scheduler.Request{Probe: true})
			for x.step(); len(x.e.scheduler.Running()) > 0; {
				if heard := x.step(); len(heard) != 0 {
					t.Fatalf("%s: it hears %q", mode, heard)
				}
			}
		}
		if switches, tried := x.h.Counts(); switches != 0 || tried != 0 {
			t.Errorf("%s: %d switches and %d trials of other depths without a client", mode, switches, tried)
		}
	}
}

// A draft that found nothing to propose counts as one of which nothing was right; and
// with LearnInAuto other modes teach nothing.
func TestEmptyDraftsAndOtherModes(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	x := newHeard(t, Config{Model: m.target, Algorithm: AlgorithmNGram, NGramMin: 8, NGramMax: 9, NumSteps: 3})
	x.ask([]int32{3, 4, 5}, scheduler.Request{})
	x.step()
	x.step()
	if heard := x.step(); !slices.Equal(heard, []string{"verified 3", "1 at depth 3 accept 0"}) {
		t.Errorf("of a cycle without a proposal it hears %q", heard)
	}
	x = newHeard(t, Config{Model: m.target, Algorithm: AlgorithmEagle3, DraftModel: m.head, LearnInAuto: true})
	x.ask([]int32{3, 4, 5}, scheduler.Request{})
	for _, mode := range []speculation.Mode{speculation.ModeFixed, speculation.ModeOff, speculation.ModeFixed} {
		x.set(mode, 3)
		for range 4 {
			if heard := x.step(); len(heard) != 0 {
				t.Errorf("mode %s teaches %q", mode, heard)
			}
		}
	}
	x.set(speculation.ModeAuto, 3)
	x.step()
	x.step()
	if heard := x.step(); len(heard) == 0 {
		t.Error("mode auto teaches nothing")
	}
}
