package model

import (
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

// decode sets c to what encode made; its memory is used again. What would not
// fit the limits is refused.
func (c *command) decode(b []byte, lim Limits) error {
	if len(b) < 2 || int(b[0]) >= len(passNames) || b[1] > 1 {
		return fmt.Errorf("%d bytes are no pass", len(b))
	}
	d := decoder{b: b[2:]}
	c.kind = passKind(b[0])
	c.features, c.want = d.list(c.features), d.list(c.want)
	if b[1] == 0 {
		c.rows = nil
		return d.finish()
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
	return checkRows(r, lim)
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
func checkRows(r *compute.Rows, lim Limits) error {
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
		s := r.Seqs[i]
		if s < 0 || int(s) >= len(r.Tables) || r.Slots[i] < 0 || int(r.Slots[i]) >= lim.Pages*lim.PageSize || r.Tokens[i] < 0 || r.Positions[i] < 0 {
			return fmt.Errorf("row %d: token %d, position %d, slot %d, sequence %d of %d: one of them cannot be", i, r.Tokens[i], r.Positions[i], r.Slots[i], s, len(r.Tables))
		}
		if r.Starts[s] < 0 || trees > 0 && r.Bases[i] < 0 {
			return fmt.Errorf("row %d: its first position or its tree's base is negative", i)
		}
		last := int(r.Positions[i])
		if trees > 0 && r.Masks[i] != 0 {
			last = int(r.Bases[i]) + bits.Len64(r.Masks[i]) - 1
		}
		if last < 0 || last/lim.PageSize >= len(r.Tables[s]) {
			return fmt.Errorf("row %d: position %d is beyond its table of %d pages", i, last, len(r.Tables[s]))
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
