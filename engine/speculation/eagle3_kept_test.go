package speculation

import (
	"slices"
	"testing"
)

// A head that comes to a text whose features nobody kept begins anew at the last
// pass's rows.
func TestEagle3BeginsAnewWithoutFeatures(t *testing.T) {
	head := &recorder{nan: -1}
	e := NewEagle3(head, Shape{TopK: 1}, 4, 2, 64)
	state := new(State)
	seqs := []Sequence{{Tokens: make([]int32, 12), Table: []int32{0, 1, 2, 3}, From: 10, Count: 1, Depth: 1, State: state}}
	if err := e.Draft(seqs, false); err != nil {
		t.Fatal(err)
	}
	if state.Start != 10 || state.Next != 11 || len(head.passes) == 0 {
		t.Fatalf("state %+v after %d passes, want a start of 10", *state, len(head.passes))
	}
	for _, p := range head.passes {
		if p.kept != nil || slices.Min(p.positions) < 10 {
			t.Errorf("a pass over positions %v with kept features %v", p.positions, p.kept)
		}
	}
}

// Features that the target's pass kept itself are not copied again: plain
// decoding has nothing left to do for the head.
func TestEagle3KeepsOnce(t *testing.T) {
	head := &recorder{nan: -1}
	e := NewEagle3(head, Shape{TopK: 1}, 4, 2, 64)
	state := new(State)
	kept := make([]int32, 1)
	e.Keep(state, 10, 1, kept)
	if kept[0] != 10%KeptWindow {
		t.Errorf("position 10 is kept in slot %d", kept[0])
	}
	seqs := []Sequence{{Tokens: make([]int32, 12), Table: []int32{0, 1, 2, 3}, From: 10, Count: 1, State: state}}
	if err := e.Draft(seqs, true); err != nil {
		t.Fatal(err)
	}
	if len(head.passes) != 0 {
		t.Errorf("the head was asked for %+v", head.passes)
	}
}
