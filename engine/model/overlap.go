package model

import (
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Overlap is what the host does while the devices compute a pass.
type Overlap struct {
	// Draws are made of the pass's logits.
	Draws func() []compute.Draw
	// Rest comes after they are on their way. It may call Ahead.
	Rest func()
}

// Overlaps tells whether the devices compute while the host goes on, and draw.
func (r *Ranks) Overlaps() bool {
	_, runs := r.ranks[0].device.(compute.Runner)
	_, draws := r.ranks[0].device.(compute.Drawer)
	return runs && draws
}

// Aheads tells whether Ahead can be used.
func (r *Ranks) Aheads() bool {
	_, ok := r.ranks[0].device.(compute.Ahead)
	return ok && r.Overlaps() && r.nodes == nil && r.comms[0].Size() == 1
}

// ForwardWith is Forward with what the host does meanwhile, on devices that
// overlap; o is nil for others. The target's features of the rows that are Kept
// are, for Eagle3.CatchUp.
func (r *Ranks) ForwardWith(rows *compute.Rows, want []int32, o *Overlap) error {
	r.ranks[0].marked = false
	return r.run(command{kind: keeping(passForward, passForwardKeep, rows), rows: rows, want: want, overlap: o})
}

// keeping is the kind of a pass, which may keep features.
func keeping(plain, keeps passKind, rows *compute.Rows) passKind {
	if len(rows.Kept) > 0 {
		return keeps
	}
	return plain
}

// Ahead queues a pass after that of ForwardWith, or Resume, whose Overlap calls it:
// the token of row i is what draw from[i] of that pass gives, or, where from[i] is
// negative, the best one of its wanted row −1 − from[i]. draws are made of its
// logits. Results are those of the pass before until Resume.
func (r *Ranks) Ahead(rows *compute.Rows, want, from []int32, draws func() []compute.Draw) error {
	k := r.ranks[0]
	device := k.device.(compute.Ahead)
	device.Mark(k.target.logits, len(from))
	c := command{kind: keeping(passAhead, passAheadKeep, rows), rows: rows, features: from, want: want}
	k.device.(compute.Runner).Run(compute.Pass{Kind: int(c.kind), Rows: rows, Lists: [2][]int32{from, want}}, func(rows *compute.Rows, lists [2][]int32) {
		k.compute(c.kind, rows, lists[0], lists[1])
	})
	device.Draw(k.target.logits, k.target.cfg.Vocab, draws())
	k.marked = true
	return k.device.Err()
}

// Resume is ForwardWith for the pass of the last Ahead, which has its draws.
func (r *Ranks) Resume(rows *compute.Rows, o *Overlap) error {
	k, start := r.ranks[0], time.Now()
	k.marked = false
	o.Rest()
	if k.marked {
		k.device.(compute.Ahead).Await()
	} else {
		k.device.(compute.Runner).Wait()
	}
	end := time.Now()
	r.passes[0].Add(int64(end.Sub(start)))
	if r.timed != nil {
		r.timed(r.first, PassForward, start, end, rows.Len())
	}
	if r.stepped != nil && k.device.Err() == nil {
		r.stepped(r.first)
	}
	return k.device.Err()
}

// forward is a pass of the target: from is where its tokens come from, in a pass
// of Ahead.
func (k *rank) forward(kind passKind, rows *compute.Rows, from, want []int32) {
	if kind == passAhead || kind == passAheadKeep {
		k.device.(compute.Ahead).Take(k.target.logits, from)
	}
	k.target.Forward(rows, want)
	if kind == passForwardKeep || kind == passAheadKeep {
		k.draft.KeepRows(rows)
	}
}

// overlap queues the draws of a pass that is under way.
func (k *rank) overlap(o *Overlap) {
	k.device.(compute.Drawer).Draw(k.target.logits, k.target.cfg.Vocab, o.Draws())
	o.Rest()
	if k.marked {
		k.device.(compute.Ahead).Await()
	}
}

// Drawn is what draw i of the last pass gave; see compute.Drawer.
func (r *Ranks) Drawn(i int) (compute.Drawn, bool) {
	k := r.ranks[0]
	if k.marked {
		return k.device.(compute.Ahead).MarkedDrawn(i)
	}
	return k.device.(compute.Drawer).Drawn(i)
}

// Best is the most likely token of wanted row i of the last Forward, the lowest
// of equals, if the device has found it; see compute.Chooser.
func (r *Ranks) Best(i int) (id int32, ok bool) {
	k := r.ranks[0]
	if k.marked {
		return k.device.(compute.Ahead).Marked(i)
	}
	return k.target.Best(i)
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

// StartClocks starts the devices' clocks, where they have one.
func (r *Ranks) StartClocks() {
	for _, k := range r.ranks {
		if c, ok := k.device.(compute.Clock); ok {
			c.StartClock()
		}
	}
}

// Clock is what the clock of rank First + i says; 0 without one. See compute.Clock.
func (r *Ranks) Clock(i int) (busy, idle time.Duration) {
	if c, ok := r.ranks[i].device.(compute.Clock); ok {
		return c.Clock()
	}
	return 0, 0
}
