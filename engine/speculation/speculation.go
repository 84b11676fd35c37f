// Package speculation proposes the tokens that the target then verifies. A
// proposal never changes a text, only how many of its tokens one pass settles.
package speculation

// Sequence is what a drafter sees of a request after a target pass.
type Sequence struct {
	Tokens []int32 // settled tokens: the prompt and what was generated
	Table  []int32 // block table, for the draft's cache too
	// The target's pass computed Count positions from From on, in its rows from
	// Row on; the token after each of them is settled. Nodes are the accepted
	// nodes of a tree, if there was one: the last len(Nodes) positions are not of
	// the rows that follow, but of these numbers among the rows of the tree.
	Row, From, Count int
	Nodes            []int32

	Depth int // draft tokens after each other that are wanted
	Room  int // positions after Tokens that Table covers; at least Depth

	// The proposal, to which the drafter appends: up to Depth tokens after each
	// other, or a tree in which Parents[j] is the node before token j of Draft, −1
	// for the text's end. A node comes after its parent.
	Draft, Parents []int32

	State *State // what the drafter knows of the request; the same one each time
	Key   uint64 // equal for requests that are sampled alike; for Simulated
}

// row is the row of the target's pass that computed position From + k.
func (s *Sequence) row(k int) int32 {
	if j := k - (s.Count - len(s.Nodes)); j >= 0 {
		return int32(s.Row+s.Count-len(s.Nodes)) + s.Nodes[j]
	}
	return int32(s.Row + k)
}

// parent is the node before token k of Draft, −1 for the text's end.
func (s *Sequence) parent(k int) int {
	if len(s.Parents) == 0 {
		return k - 1
	}
	return int(s.Parents[k])
}

// Keeper is a Drafter that wants something of each plain decoding's rows, which the
// target's pass may put aside itself.
type Keeper interface {
	// Keep sets kept, of count rows of a pass to come from position from on of a
	// request, none of them a draft's, to where the features of each go; they are
	// −1. The request's next Draft then need not keep them.
	Keep(s *State, from, count int, kept []int32)
}

// State is what a drafter keeps for a request.
type State struct {
	// Rows of the draft's cache are there for positions Start … Next−1. A new
	// request that begins at a later position, on shared pages, says so here.
	Start, Next int

	// ahead is a position that a draft model's own proposal reached: what of it
	// became text need not be computed again.
	ahead int
	held  int  // the features of positions before this need not be kept by Draft
	slot  int  // of what a drafter has as many of as there may be requests, from 1 on; 0 is none
	text  text // of Simulated
}

// slots are handed out to requests.
type slots []int

// newSlots makes the slots 1 … n.
func newSlots(n int) slots {
	free := make(slots, n)
	for i := range free {
		free[i] = n - i
	}
	return free
}

// hold gives the request a slot, unless it has one; the answer tells whether it is new.
func (f *slots) hold(s *State) bool {
	if s.slot > 0 {
		return false
	}
	last := len(*f) - 1
	s.slot, *f = (*f)[last], (*f)[:last]
	return true
}

// forget ends a request's state.
func (f *slots) forget(s *State) {
	if s.slot > 0 {
		*f = append(*f, s.slot)
	}
	*s = State{}
}

// Drafter proposes draft tokens. It is called after every target pass with all
// sequences that were in it and go on.
type Drafter interface {
	// Draft proposes for each sequence up to its Depth, or less if it has no
	// better idea. With depth 0 for all of them and plain set, no draft work is
	// done.
	Draft(seqs []Sequence, plain bool) error
	// Forget ends a request.
	Forget(s *State)
}
