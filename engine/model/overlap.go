package model

import "github.com/outrider-dev/outrider/engine/compute"

// Overlap is what the host does while the devices compute a pass.
type Overlap struct {
	// Draws are made of the pass's logits.
	Draws func() []compute.Draw
	// Rest comes after they are on their way.
	Rest func()
}

// Overlaps tells whether the devices compute while the host goes on, and draw.
func (r *Ranks) Overlaps() bool {
	_, runs := r.ranks[0].device.(compute.Runner)
	_, draws := r.ranks[0].device.(compute.Drawer)
	return runs && draws
}

// ForwardWith is Forward with what the host does meanwhile, on devices that
// overlap; o is nil for others. The target's features of the rows that are Kept
// are, for Eagle3.CatchUp.
func (r *Ranks) ForwardWith(rows *compute.Rows, want []int32, o *Overlap) error {
	kind := passForward
	if len(rows.Kept) > 0 {
		kind = passForwardKeep
	}
	return r.run(command{kind: kind, rows: rows, want: want, overlap: o})
}

// overlap queues the draws of a pass that is under way.
func (k *rank) overlap(o *Overlap) {
	k.device.(compute.Drawer).Draw(k.target.logits, k.target.cfg.Vocab, o.Draws())
	o.Rest()
}

// Drawn is what draw i of the last ForwardWith gave; see compute.Drawer.
func (r *Ranks) Drawn(i int) (compute.Drawn, bool) {
	return r.ranks[0].device.(compute.Drawer).Drawn(i)
}

// DraftTops are the most likely tokens of row i as DraftLogits has it, Limits.Tops
// of them, if the device has found them.
func (r *Ranks) DraftTops(i int) (compute.Tops, bool) {
	k := r.ranks[0]
	switch {
	case r.limits.Tops == 0:
		return compute.Tops{}, false
	case k.small != nil:
		return topsOf(k.device, k.small.logits, i)
	}
	return topsOf(k.device, k.draft.logits, i)
}
