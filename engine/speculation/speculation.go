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
	Depth            int     // draft tokens wanted
	Draft            []int32 // the proposal, up to Depth tokens; the drafter appends
	State            *State  // what the drafter knows of the request; the same one each time
	Key              uint64  // equal for requests that are sampled alike; for Simulated
}

// State is what a drafter keeps for a request.
type State struct {
	// Rows of the draft's cache are there for positions Start … Next−1. A new
	// request that begins at a later position, on shared pages, says so here.
	Start, Next int

	slot int  // index of the request's kept features, plus one; 0 is none
	text text // of Simulated
}

// Drafter proposes draft tokens. It is called after every target pass with all
// sequences that were in it and go on.
type Drafter interface {
	// Draft proposes for each sequence up to its Depth. With depth 0 for all of
	// them and plain set, no draft work is done.
	Draft(seqs []Sequence, plain bool) error
	// Forget ends a request.
	Forget(s *State)
}

// Head runs passes of an EAGLE-3 head; model.Ranks is one.
type Head interface {
	Extend(rows *compute.Rows, features, want []int32) error
	Step(rows *compute.Rows, from []int32) error
	Keep(slots, rows []int32) error
	CatchUp(rows *compute.Rows, slots []int32) error
	DraftLogits(i int) []float32
	TargetID(draft int32) int32
}

// KeptWindow is the number of positions of a request whose features are kept
// while decoding is plain. On the way back to speculation the head catches up
// with as many; of a longer stretch it sees the end only, which costs
// acceptance and never changes a text.
const KeptWindow = 128

// Eagle3 drafts chains with an EAGLE-3 head: after each pass it recomputes its
// cache for the settled positions from the target's true features, then goes
// on from its own output, one token a step.
type Eagle3 struct {
	head     Head
	pageSize int
	maxRows  int
	free     []int // slots of kept features that no request has

	rows           compute.Rows
	features, want []int32
	active         []int // sequences that draft, by row of the last pass
	from           []int32
}

// NewEagle3 makes a drafter over pages of pageSize positions, for as many as
// requests requests at once, in passes of at most maxRows rows. The head has
// room for KeptRows(requests) kept features.
func NewEagle3(head Head, pageSize, requests, maxRows int) *Eagle3 {
	e := &Eagle3{head: head, pageSize: pageSize, maxRows: maxRows, free: make([]int, requests)}
	for i := range e.free {
		e.free[i] = requests - i
	}
	return e
}

// KeptRows is the number of kept features for requests requests.
func KeptRows(requests int) int { return requests * KeptWindow }

// Forget implements Drafter.
func (e *Eagle3) Forget(s *State) {
	if s.slot > 0 {
		e.free = append(e.free, s.slot)
	}
	*s = State{}
}

// Draft implements Drafter.
func (e *Eagle3) Draft(seqs []Sequence, plain bool) error {
	if plain {
		return e.keep(seqs)
	}
	if err := e.catchUp(seqs); err != nil {
		return err
	}
	e.reset()
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

func (e *Eagle3) reset() {
	e.rows.Reset()
	e.features, e.want, e.active = e.features[:0], e.want[:0], e.active[:0]
}

// keep copies the pass's features, the last KeptWindow of each request, and
// does no work of the head.
func (e *Eagle3) keep(seqs []Sequence) error {
	e.reset()
	for i := range seqs {
		s := &seqs[i]
		if s.State.slot == 0 {
			last := len(e.free) - 1
			s.State.slot, e.free = e.free[last], e.free[:last]
		}
		for k := max(0, s.Count-KeptWindow); k < s.Count; k++ {
			e.want = append(e.want, s.State.kept(s.From+k))
			e.features = append(e.features, int32(s.Row+k))
		}
	}
	if len(e.want) == 0 {
		return nil
	}
	return e.head.Keep(e.want, e.features)
}

// kept is the slot of the features of a position.
func (s *State) kept(position int) int32 {
	return int32((s.slot-1)*KeptWindow + position%KeptWindow)
}

// catchUp computes the rows that plain decoding left out, from kept features.
func (e *Eagle3) catchUp(seqs []Sequence) error {
	e.reset()
	for i := range seqs {
		s := &seqs[i]
		st := s.State
		if st.Next >= s.From {
			continue
		}
		first := max(st.Next, s.From-KeptWindow)
		if first > st.Next || st.slot == 0 {
			// What lies between is lost: the head begins anew.
			if st.slot == 0 {
				first = s.From
			}
			st.Start = first
		}
		seq := e.rows.AddSequence(s.Table, st.Start)
		for p := first; p < s.From; p++ {
			if e.rows.Len() == e.maxRows {
				if err := e.head.CatchUp(&e.rows, e.features); err != nil {
					return err
				}
				e.reset()
				seq = e.rows.AddSequence(s.Table, st.Start)
			}
			e.rows.Add(seq, s.Tokens[p+1], int32(p), e.pageSize)
			e.features = append(e.features, st.kept(p))
		}
		st.Next = s.From
	}
	if e.rows.Len() == 0 {
		return nil
	}
	return e.head.CatchUp(&e.rows, e.features)
}

// extend adds the rows that pair each new feature with the token after it.
func (e *Eagle3) extend(s *Sequence, i int) {
	seq := e.rows.AddSequence(s.Table, s.State.Start)
	for k := range s.Count {
		p := s.From + k
		e.rows.Add(seq, s.Tokens[p+1], int32(p), e.pageSize)
		e.features = append(e.features, int32(s.Row+k))
	}
	s.State.Next = s.From + s.Count
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
		seq := e.rows.AddSequence(s.Table, s.State.Start)
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
