package scheduler

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/grammar"
	"github.com/outrider-dev/outrider/engine/sampling"
)

// form is how far a text has come in its grammar; the zero form has none.
type form struct {
	at   grammar.State
	ends []int32 // tokens that are not text but end it

	place  []int32 // of SetDraft
	states []grammar.State
}

func (f *form) begin(r *Request, eos []int32) {
	if r.Grammar != nil {
		f.at = r.Grammar.Start()
		f.ends = slices.Concat(r.StopIDs, eos)
	}
}

// push goes on by a token. whole tells that nothing may follow it. The error is
// of a grammar that cannot be followed.
func (f *form) push(id int32) (whole bool, err error) {
	if f.at.IsZero() {
		return false, nil
	}
	next, ok, err := f.at.Next(id)
	if err != nil {
		return false, err
	}
	if !ok { // one that ends the text, though MinTokens is not reached: nothing else was left
		return true, nil
	}
	f.at = next
	return next.Complete(), nil
}

// Form completes t with what the form of the text lets through. The error is of
// a grammar that cannot be followed.
func (s *Sequence) Form(t *sampling.Text) error {
	if s.Grammar == nil {
		return nil
	}
	return s.form.complete(t, s.form.at)
}

// complete is Form where the text has come to a state.
func (f *form) complete(t *sampling.Text, at grammar.State) error {
	mask, err := at.Mask()
	if err != nil {
		return err
	}
	t.Allowed, t.Ends, t.MayEnd = mask, f.ends, at.Accepting()
	return nil
}

// after completes t for a text that goes on by some tokens; false where it
// cannot, or has ended by then.
func (f *form) after(t *sampling.Text, tokens []int32) bool {
	if f.at.IsZero() {
		return true
	}
	at := f.at
	for _, id := range tokens {
		next, ok, err := at.Next(id)
		if err != nil || !ok || next.Complete() {
			return false
		}
		at = next
	}
	return f.complete(t, at) == nil
}

// SetDraft sets Draft and Parents, without the tokens that the form of the text
// forbids after those before them, and what comes after such: it would be
// computed in vain.
func (s *Sequence) SetDraft(draft, parents []int32) {
	s.Draft, s.Parents = draft, parents
	if s.Grammar == nil {
		return
	}
	// By node, after one for the text's end: where it is now, and the state after it.
	s.form.place, s.form.states = append(s.form.place[:0], -1), append(s.form.states[:0], s.form.at)
	s.Draft, s.Parents = draft[:0], parents[:0]
	for i, id := range draft {
		parent := i - 1
		if len(parents) > 0 {
			parent = int(parents[i])
		}
		s.form.place, s.form.states = append(s.form.place, cut), append(s.form.states, grammar.State{})
		from := s.form.place[parent+1]
		if from == cut {
			continue
		}
		after, ok, err := s.form.states[parent+1].Next(id)
		if err != nil || !ok {
			continue
		}
		s.form.place[i+1], s.form.states[i+1] = int32(len(s.Draft)), after
		s.Draft = append(s.Draft, id)
		if len(parents) > 0 {
			s.Parents = append(s.Parents, from)
		}
	}
}

// cut is the place of a node that is not in the draft.
const cut = -2
