package speculation

import "github.com/outrider-dev/outrider/engine/compute"

// Head runs passes of an EAGLE-3 head; model.Ranks is one.
type Head interface {
	Stepper
	Extend(rows *compute.Rows, features, want []int32) error
	Keep(slots, rows []int32) error
	CatchUp(rows *compute.Rows, slots []int32) error
}

// KeptWindow is the number of positions of a request whose features are kept
// while decoding is plain. On the way back to speculation the head catches up
// with as many; of a longer stretch it sees the end only, which costs
// acceptance and never changes a text.
const KeptWindow = 32

// Window is the number of tokens at a prompt's end whose entries in the head's
// cache are worth a prefill, if pages of the prefix cache lack them because they
// were computed while decoding was plain. What lies before hardly matters:
// docs/benchmarks.md has the figures.
const Window = 64

// Eagle3 drafts with an EAGLE-3 head: after each pass it recomputes its cache
// for the settled positions from the target's true features, then goes on from
// its own output, one level a step.
type Eagle3 struct {
	head     Head
	pageSize int
	maxRows  int
	free     slots // of kept features
	grower   grower

	rows           compute.Rows
	features, want []int32
	active         []int // sequences that draft, by wanted row of the last pass
}

// NewEagle3 makes a drafter of a shape over pages of pageSize positions, for as
// many as requests requests at once, in passes of at most maxRows rows. The head
// has room for KeptRows(requests) kept features.
func NewEagle3(head Head, shape Shape, pageSize, requests, maxRows int) *Eagle3 {
	return &Eagle3{
		head: head, pageSize: pageSize, maxRows: maxRows, free: newSlots(requests),
		// The row of a token lies one position before it: it joins the feature there.
		grower: grower{model: head, shape: shape, pageSize: pageSize, behind: 1},
	}
}

// KeptRows is the number of kept features for requests requests.
func KeptRows(requests int) int { return requests * KeptWindow }

// Forget implements Drafter.
func (e *Eagle3) Forget(s *State) { e.free.forget(s) }

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
	return e.grower.grow(seqs, e.active)
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
		e.free.hold(s.State)
		for k := max(0, s.Count-KeptWindow, s.State.held-s.From); k < s.Count; k++ {
			e.want = append(e.want, s.State.kept(s.From+k))
			e.features = append(e.features, s.row(k))
		}
	}
	if len(e.want) == 0 {
		return nil
	}
	return e.head.Keep(e.want, e.features)
}

// Keep implements Keeper.
func (e *Eagle3) Keep(s *State, from, count int, kept []int32) {
	e.free.hold(s)
	for k := max(0, count-KeptWindow); k < count; k++ {
		kept[k] = s.kept(from + k)
	}
	s.held = from + count
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
		e.features = append(e.features, s.row(k))
	}
	s.State.Next = s.From + s.Count
	if s.Depth > 0 && s.Count > 0 {
		e.want = append(e.want, int32(e.rows.Len()-1))
		e.active = append(e.active, i)
	}
}
