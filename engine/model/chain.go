package model

import "github.com/outrider-dev/outrider/engine/compute"

// Records tells whether the device repeats passes from recordings.
func (r *Ranks) Records() bool {
	_, ok := r.ranks[0].device.(compute.Runner)
	return ok
}

// Chains tells whether Chain can be used.
func (r *Ranks) Chains() bool {
	_, ok := r.ranks[0].device.(compute.Chainer)
	return ok && r.comms[0].Size() == 1 && r.ranks[0].draft != nil
}

// Chain is Step for the tokens that the pass before found most likely: row i goes
// on from output from[i], with that output's best token. Chained knows that of each
// of from, which may be more than the rows, as number keep[i]. It returns before it
// is done.
func (r *Ranks) Chain(rows *compute.Rows, keep, from []int32) error {
	return r.run(command{kind: passChain, rows: rows, features: keep, want: from})
}

// Chained waits for the passes before it and is the token kept as number i. It is
// not ok where the device found none.
func (r *Ranks) Chained(i int) (id int32, ok bool) {
	return r.ranks[0].device.(compute.Chainer).Followed(i)
}
