package scheduler

import "github.com/outrider-dev/outrider/engine/sampling"

// Ahead makes the pass after the one in progress before the tokens of that are
// known: the same requests decode plainly, each a position further, from tokens
// that the rows have as 0. Row, Count and Logit of the requests are as in the pass
// in progress, which is settled next; a request that ends by it has a row in vain,
// in a slot that is still its own.
//
// It is nil where that cannot be, or is not to be: where something else is to do
// than to go on, where a request ends or lacks a page, or where a draw depends on
// the token before it.
func (s *Scheduler) Ahead() *Batch {
	b := &s.batches[s.turn]
	if s.givenUp.Load() || s.Pending() > 0 || len(b.Sequences) == 0 || b.Decodes != len(b.Sequences) || len(s.running) != len(b.Sequences) {
		return nil
	}
	for i, q := range b.Sequences {
		if s.running[i] != q || !s.foreseen(q) {
			return nil
		}
	}
	next := &s.batches[1-s.turn]
	next.reset()
	for _, q := range b.Sequences {
		next.Want = append(next.Want, int32(next.Rows.Len()))
		next.Rows.Add(next.Rows.AddSequence(q.Table, 0), 0, int32(len(q.Tokens)), q.pageSize)
		next.Sequences = append(next.Sequences, q)
		next.Decodes++
	}
	s.turn = 1 - s.turn
	return next
}

// foreseen tells whether the row after the one of q in the pass in progress is
// known but for its token, and gets a page for it.
func (s *Scheduler) foreseen(q *Sequence) bool {
	n := len(q.Tokens)
	if q.finished || q.Probe || q.Held || q.Count != 1 || q.Logit < 0 || len(q.Draft) > 0 || q.Computed != n-1 {
		return false
	}
	return n+1 < q.limit && q.Grammar == nil && !q.Sampling.Penalizes() && s.grow(q, n+1)
}

// Foreseen is Text and the position of the draw after a row that Ahead made. The
// answer lacks the token that is not known.
func (s *Sequence) Foreseen() (text sampling.Text, position int) {
	text = s.Text()
	if s.Generated()+1 >= s.MinTokens {
		text.Banned = nil
	}
	return text, len(s.Tokens) + 1
}
