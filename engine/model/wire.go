package model

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

// A command goes to other nodes as its kind, whether it has rows (one byte each),
// then lists: the number of elements and the elements, little-endian, four bytes
// each, masks eight. In order: features, want; of rows also tokens, positions,
// slots, sequences, starts, bases, kept, masks, and a table for each start.

// encode appends c to b.
func (c *command) encode(b []byte) []byte {
	b = append(b, byte(c.kind), 0)
	b = appendList(appendList(b, c.features), c.want)
	if c.rows == nil {
		return b
	}
	b[1] = 1
	r := c.rows
	for _, list := range [][]int32{r.Tokens, r.Positions, r.Slots, r.Seqs, r.Starts, r.Bases, r.Kept} {
		b = appendList(b, list)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Masks)))
	for _, m := range r.Masks {
		b = binary.LittleEndian.AppendUint64(b, m)
	}
	for _, t := range r.Tables {
		b = appendList(b, t)
	}
	return b
}

func appendList(b []byte, list []int32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	b = slices.Grow(b, 4*len(list))
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// bounds are what a rank can compute: a command of another process must keep
// within them.
type bounds struct {
	Limits
	vocab       int  // tokens of the target, and of what drafts for it
	head, small bool // whether there is a draft head, and a draft model
}

// bounds are those of every rank.
func (r *Ranks) bounds() bounds {
	k := r.ranks[0]
	return bounds{Limits: r.limits, vocab: k.target.cfg.Vocab, head: k.draft != nil, small: k.small != nil}
}

// decode sets c to what encode made; its memory is used again. What a rank could
// not compute is refused.
func (c *command) decode(b []byte, lim bounds) error {
	if len(b) < 2 || int(b[0]) >= len(passNames) || b[1] > 1 {
		return fmt.Errorf("%d bytes are no pass", len(b))
	}
	d := decoder{b: b[2:]}
	c.kind = passKind(b[0])
	c.features, c.want = d.list(c.features), d.list(c.want)
	if b[1] == 0 {
		c.rows = nil
		if err := d.finish(); err != nil {
			return err
		}
		return c.check(lim)
	}
	if c.rows == nil {
		c.rows = &compute.Rows{}
	}
	r := c.rows
	for _, list := range []*[]int32{&r.Tokens, &r.Positions, &r.Slots, &r.Seqs, &r.Starts, &r.Bases, &r.Kept} {
		*list = d.list(*list)
	}
	r.Masks = r.Masks[:0]
	for range d.count(8) {
		r.Masks = append(r.Masks, binary.LittleEndian.Uint64(d.take(8)))
	}
	r.Tables = slices.Grow(r.Tables[:0], min(len(r.Starts), len(d.b)/4))
	for range r.Starts {
		if d.bad {
			break
		}
		r.Tables = append(r.Tables, d.list(nil))
	}
	if err := d.finish(); err != nil {
		return err
	}
	if err := checkRows(r, lim); err != nil {
		return err
	}
	return c.check(lim)
}

// listBounds are what a list of a command may be: most numbers at most, or
// exactly as many, each from 0 up to below.
type listBounds struct {
	what        string
	below, most int
	exactly     bool
}

func (b listBounds) check(list []int32) error {
	switch n := len(list); {
	case b.exactly && n != b.most:
		return fmt.Errorf("%d %s: allowed are exactly %d", n, b.what, b.most)
	case n > b.most:
		return fmt.Errorf("%d %s: allowed are %d", n, b.what, b.most)
	}
	for _, v := range list {
		if v < 0 || int(v) >= b.below {
			return fmt.Errorf("%s: %d is among them: allowed is 0 to %d", b.what, v, b.below-1)
		}
	}
	return nil
}

// check refuses a pass that there is no model for, and lists that name what is
// not there: rows, features, slots.
func (c *command) check(lim bounds) error {
	n, rows, there := 0, true, true
	if c.rows != nil {
		n = c.rows.Len()
	}
	features, want := listBounds{what: "features"}, listBounds{what: "wanted rows"}
	switch c.kind {
	case passForward, passForwardKeep:
		there, want = lim.head || c.kind == passForward, listBounds{"wanted rows", n, lim.MaxLogits, false}
	case passDraft:
		there, want = lim.small, listBounds{"wanted rows", n, lim.MaxDrafts, false}
	case passExtend:
		there = lim.head
		features, want = listBounds{"features", lim.MaxRows, n, true}, listBounds{"wanted rows", n, lim.MaxDrafts, false}
	case passCatchUp:
		there, features = lim.head, listBounds{"kept features", lim.Kept, n, true}
	case passStep:
		there, want = lim.head && n <= lim.MaxDrafts, listBounds{"outputs to go on from", lim.MaxDrafts, n, true}
	case passKeep:
		there, rows = lim.head, false
		features, want = listBounds{"features", lim.MaxRows, lim.Kept, false}, listBounds{"kept features", lim.Kept, len(c.features), true}
	case passMove:
		rows, features = false, listBounds{"slots to copy", lim.Pages * lim.PageSize, lim.MaxRows, false}
		want = listBounds{"slots to copy to", features.below, len(c.features), true}
	default:
		there = false // for ranks of one process
	}
	if !there || rows != (c.rows != nil) {
		return fmt.Errorf("a pass %q with %d rows: this node has no such pass", passNames[c.kind], n)
	}
	if err := cmp.Or(features.check(c.features), want.check(c.want)); err != nil {
		return fmt.Errorf("a pass %q with %d rows: %w", passNames[c.kind], n, err)
	}
	return nil
}

// decoder reads lists off the front of b.
type decoder struct {
	b   []byte
	bad bool // b was too short
}

// take is the next n bytes, or zeros once b is too short.
func (d *decoder) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, 8)[:n]
	}
	t := d.b[:n]
	d.b = d.b[n:]
	return t
}

// count is the length of a list of elements of size bytes that are there.
func (d *decoder) count(size int) int {
	n := binary.LittleEndian.Uint32(d.take(4))
	if d.bad || uint64(n)*uint64(size) > uint64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) list(into []int32) []int32 {
	n := d.count(4)
	into = slices.Grow(into[:0], n)
	for range n {
		into = append(into, int32(binary.LittleEndian.Uint32(d.take(4))))
	}
	return into
}

func (d *decoder) finish() error {
	if d.bad || len(d.b) > 0 {
		return fmt.Errorf("its lists do not end where it does, %d bytes are left", len(d.b))
	}
	return nil
}

// checkRows refuses rows that a device would read or write out of bounds with.
func checkRows(r *compute.Rows, lim bounds) error {
	n := r.Len()
	trees := len(r.Masks)
	switch {
	case n > lim.MaxRows:
		return fmt.Errorf("%d rows: allowed are %d", n, lim.MaxRows)
	case len(r.Kept) != 0 && len(r.Kept) != n:
		return fmt.Errorf("%d rows, of which %d say where they are kept: allowed are all or none", n, len(r.Kept))
	case len(r.Positions) != n || len(r.Slots) != n || len(r.Seqs) != n || trees != len(r.Bases) || trees != 0 && trees != n:
		return fmt.Errorf("%d tokens, %d positions, %d slots, %d sequences, %d bases and %d masks: they must be as many", n, len(r.Positions), len(r.Slots), len(r.Seqs), len(r.Bases), trees)
	}
	for i := range n {
		if err := checkRow(r, i, lim); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
	}
	for i, to := range r.Kept {
		if to < -1 || int(to) >= lim.Kept {
			return fmt.Errorf("row %d is kept as %d: allowed is up to %d", i, to, lim.Kept-1)
		}
	}
	for _, t := range r.Tables {
		for _, page := range t {
			if page < 0 || int(page) >= lim.Pages {
				return fmt.Errorf("page %d: allowed is 0 to %d", page, lim.Pages-1)
			}
		}
	}
	return nil
}

// checkRow is checkRows for row i: what it is, and that it sees the entries of
// its sequence from the first one that is there up to its own, all in its table.
func checkRow(r *compute.Rows, i int, lim bounds) error {
	s, position := r.Seqs[i], r.Positions[i]
	switch {
	case r.Tokens[i] < 0 || int(r.Tokens[i]) >= lim.vocab:
		return fmt.Errorf("token %d: allowed is 0 to %d", r.Tokens[i], lim.vocab-1)
	case r.Slots[i] < 0 || int(r.Slots[i]) >= lim.Pages*lim.PageSize:
		return fmt.Errorf("slot %d: allowed is 0 to %d", r.Slots[i], lim.Pages*lim.PageSize-1)
	case s < 0 || int(s) >= len(r.Tables):
		return fmt.Errorf("sequence %d of %d", s, len(r.Tables))
	case position < 0:
		return fmt.Errorf("position %d: allowed is 0 or more", position)
	}
	latest, last := int(position), int(position) // what it sees begins here at the latest, and ends there
	if len(r.Masks) > 0 && r.Masks[i] != 0 {
		latest = int(r.Bases[i])
		last = latest + bits.Len64(r.Masks[i]) - 1
	}
	switch {
	case r.Starts[s] < 0 || int(r.Starts[s]) > latest:
		return fmt.Errorf("its sequence's first position is %d, and its tree's base or its position %d: allowed is 0 to that", r.Starts[s], latest)
	case last/lim.PageSize >= len(r.Tables[s]):
		return fmt.Errorf("position %d is beyond its table of %d pages", last, len(r.Tables[s]))
	}
	return nil
}

// digest tells passes apart; equal ones have the same on every node.
func (c *command) digest() uint64 {
	h := fnv.New64a()
	h.Write(c.encode(nil))
	return h.Sum64()
}

// compare has all ranks compare what they are about to compute. If it is not the
// same the group ends: a wrong text, or ranks that wait for each other for ever,
// would be what comes next.
func (r *Ranks) compare(i int, c command) bool {
	id, comm := r.first+i, r.comms[i]
	digest := c.digest()
	mine := []float32{math.Float32frombits(uint32(digest)), math.Float32frombits(uint32(digest >> 32))}
	all := make([]float32, 2*comm.Size())
	comm.Communicator.AllGather(all, mine, 1, len(mine))
	if comm.Err() != nil {
		return false
	}
	for other := range comm.Size() {
		if math.Float32bits(all[2*other]) != math.Float32bits(mine[0]) || math.Float32bits(all[2*other+1]) != math.Float32bits(mine[1]) {
			rows := 0
			if c.rows != nil {
				rows = c.rows.Len()
			}
			comm.Abort(&fault.Error{Reason: fault.CollectiveFailed, Rank: other, Err: fmt.Errorf(
				"--check-ranks: ranks %d and %d were about to compute different passes; rank %d's is %q over %d rows: report this as a bug", other, id, id, passNames[c.kind], rows)})
			return false
		}
	}
	return true
}
