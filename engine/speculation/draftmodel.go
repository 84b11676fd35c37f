package speculation

import "github.com/outrider-dev/outrider/engine/compute"

// Model runs passes of a small model with the target's vocabulary; model.Ranks
// is one.
type Model interface {
	// DraftForward runs rows through the model; the outputs of the rows named by
	// want are there for DraftLogits afterwards.
	DraftForward(rows *compute.Rows, want []int32) error
	DraftLogits(i int) []float32
}

// DraftModel drafts with a small model, whose cache has the target's pages. It
// depends on the tokens alone, so whatever its cache lacks is computed when it
// is needed: after plain decoding, or on pages of the prefix cache.
type DraftModel struct {
	model    Model
	pageSize int
	maxRows  int
	grower   grower

	rows   compute.Rows
	want   []int32
	active []int
}

// NewDraftModel makes a drafter of a shape over pages of pageSize positions, in
// passes of at most maxRows rows.
func NewDraftModel(m Model, shape Shape, pageSize, maxRows int) *DraftModel {
	return &DraftModel{model: m, pageSize: pageSize, maxRows: maxRows, grower: grower{model: &steps{Model: m}, shape: shape, pageSize: pageSize}}
}

// Forget implements Drafter.
func (d *DraftModel) Forget(s *State) { *s = State{} }

// Draft implements Drafter. One pass takes in tokens that are settled, so a
// request that lacks more than fits into it drafts later.
func (d *DraftModel) Draft(seqs []Sequence, plain bool) error {
	for i := range seqs {
		// Positions up to here hold what was accepted of the last proposal.
		s, st := &seqs[i], seqs[i].State
		st.Next = max(st.Next, min(st.ahead, s.From+s.Count))
		st.ahead = 0
	}
	if plain {
		return nil
	}
	d.rows.Reset()
	d.want, d.active = d.want[:0], d.active[:0]
	for i := range seqs {
		d.extend(&seqs[i], i)
	}
	if d.rows.Len() == 0 {
		return nil
	}
	if err := d.model.DraftForward(&d.rows, d.want); err != nil {
		return err
	}
	if err := d.grower.grow(seqs, d.active); err != nil {
		return err
	}
	for _, i := range d.active {
		s := &seqs[i]
		s.State.ahead = len(s.Tokens)
		if d.grower.shape.TopK == 1 { // a tree's rows do not lie in order; the last token of a chain has none
			s.State.ahead += max(0, len(s.Draft)-1)
		}
	}
	return nil
}

// extend adds rows for the tokens that the cache lacks; with the last one, from
// which the draft goes on, if it is wanted.
func (d *DraftModel) extend(s *Sequence, i int) {
	end := s.From + s.Count
	if s.Depth > 0 {
		end = len(s.Tokens)
	}
	end = min(end, s.State.Next+d.maxRows-d.rows.Len())
	if s.State.Next >= end {
		return
	}
	seq := d.rows.AddSequence(s.Table, s.State.Start)
	for ; s.State.Next < end; s.State.Next++ {
		d.rows.Add(seq, s.Tokens[s.State.Next], int32(s.State.Next), d.pageSize)
	}
	if s.Depth > 0 && end == len(s.Tokens) {
		d.want = append(d.want, int32(d.rows.Len()-1))
		d.active = append(d.active, i)
	}
	// The last token's row counts when the target has it too.
	s.State.Next = min(s.State.Next, len(s.Tokens)-1)
}

// steps runs a model as a Stepper: it needs no output of the pass before, since
// it has the tokens.
type steps struct {
	Model
	want []int32
}

func (s *steps) Step(rows *compute.Rows, _ []int32) error {
	for len(s.want) < rows.Len() {
		s.want = append(s.want, int32(len(s.want)))
	}
	return s.DraftForward(rows, s.want[:rows.Len()])
}

func (s *steps) TargetID(draft int32) int32 { return draft }

func (s *steps) DraftBest(i int) (int32, bool) {
	if m, ok := s.Model.(bester); ok {
		return m.DraftBest(i)
	}
	return 0, false
}

func (s *steps) DraftTops(i int) (compute.Tops, bool) {
	if m, ok := s.Model.(topper); ok {
		return m.DraftTops(i)
	}
	return compute.Tops{}, false
}
