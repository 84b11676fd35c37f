// Package speculation proposes the tokens that the target then verifies. A
// proposal never changes a text, only how many of its tokens one pass settles.
package speculation

import (
	"math"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Sequence is what a drafter sees of a request after a target pass.
type Sequence struct {
	Tokens []int32 // settled tokens: the prompt and what was generated
	Table  []int32 // block table, for the draft's cache too
	// Rows [Row, Row+Count) of the target's pass computed the positions from
	// From on; the token after each of them is settled.
	Row, From, Count int
	Depth            int     // draft tokens wanted; 0 only keeps the drafter's state in step
	Draft            []int32 // the proposal, up to Depth tokens; the drafter appends
}

// Drafter proposes draft tokens. It is called after every target pass with all
// sequences that were in it and go on.
type Drafter interface {
	Draft(seqs []Sequence) error
}

// Head runs passes of an EAGLE-3 head; model.Ranks is one.
type Head interface {
	Extend(rows *compute.Rows, features, want []int32) error
	Step(rows *compute.Rows, from []int32) error
	DraftLogits(i int) []float32
	TargetID(draft int32) int32
}

// Eagle3 drafts chains with an EAGLE-3 head: after each pass it recomputes its
// cache for the settled positions from the target's true features, then goes
// on from its own output, one token a step.
type Eagle3 struct {
	head     Head
	pageSize int

	rows           compute.Rows
	features, want []int32
	active         []int // sequences that draft, by row of the last pass
	from           []int32
}

// NewEagle3 makes a drafter over pages of pageSize positions.
func NewEagle3(head Head, pageSize int) *Eagle3 {
	return &Eagle3{head: head, pageSize: pageSize}
}

// Draft implements Drafter.
func (e *Eagle3) Draft(seqs []Sequence) error {
	e.rows.Reset()
	e.features, e.want, e.active = e.features[:0], e.want[:0], e.active[:0]
	for i := range seqs {
		e.extend(&seqs[i], i)
	}
	if e.rows.Len() == 0 {
		return nil
	}
	if err := e.head.Extend(&e.rows, e.features, e.want); err != nil {
		return err
	}
	e.propose(seqs)
	for len(e.active) > 0 {
		e.step(seqs)
		if e.rows.Len() == 0 {
			return nil
		}
		if err := e.head.Step(&e.rows, e.from); err != nil {
			return err
		}
		e.propose(seqs)
	}
	return nil
}

// extend adds the rows that pair each new feature with the token after it.
func (e *Eagle3) extend(s *Sequence, i int) {
	seq := e.rows.AddSequence(s.Table)
	for k := range s.Count {
		p := s.From + k
		e.rows.Add(seq, s.Tokens[p+1], int32(p), e.pageSize)
		e.features = append(e.features, int32(s.Row+k))
	}
	if s.Depth > 0 && s.Count > 0 {
		e.want = append(e.want, int32(e.rows.Len()-1))
		e.active = append(e.active, i)
	}
}

// step adds a row for each sequence that wants another token: its last
// proposal, one position further, going on from its output of the last pass.
func (e *Eagle3) step(seqs []Sequence) {
	e.rows.Reset()
	e.from = e.from[:0]
	kept := e.active[:0]
	for k, i := range e.active {
		s := &seqs[i]
		n := len(s.Draft)
		if n == 0 || n >= s.Depth {
			continue
		}
		seq := e.rows.AddSequence(s.Table)
		e.rows.Add(seq, s.Draft[n-1], int32(s.From+s.Count-1+n), e.pageSize)
		e.from = append(e.from, int32(k))
		kept = append(kept, i)
	}
	e.active = kept
}

// propose takes the most likely token of each active sequence. Logits that are
// no numbers end a proposal: the target decides alone.
func (e *Eagle3) propose(seqs []Sequence) {
	for k, i := range e.active {
		s := &seqs[i]
		if best, ok := argmax(e.head.DraftLogits(k)); ok {
			s.Draft = append(s.Draft, e.head.TargetID(best))
		} else {
			s.Depth = len(s.Draft)
		}
	}
}

func argmax(logits []float32) (int32, bool) {
	best, top := int32(-1), float32(math.Inf(-1))
	for i, v := range logits {
		if v != v {
			return 0, false
		}
		if v > top {
			best, top = int32(i), v
		}
	}
	return best, best >= 0
}
