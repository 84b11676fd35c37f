//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// pass is what the kernels need to know of the rows of the pass in progress. It
// is put together in page-locked memory and copied with one call.
type pass struct {
	buffers [4]buffer // by turns: those before may still be being copied
	turn    int
	dev     driver.Ptr
	words   int // capacity

	rows        int // of the pass, with those that fill it up
	short, long items
	lists       [2][]int32 // of the pass, to be known again

	// Addresses.
	masks, tokens, positions, slots, starts, ends, kept, tables driver.Ptr
	indices                                                     [2]driver.Ptr
	cos, sin                                                    driver.Ptr
	angles                                                      int // capacity of cos and of sin
}

// items are runs of rows of one sequence, three words each: first row, rows,
// and where the sequence's table begins.
type items struct {
	ptr  driver.Ptr
	n    int
	most int // rows of one
}

type buffer struct {
	host   []int32
	copied driver.Event
}

// longItem is the rows from which on a run is long: a prompt's.
const longItem = 17

// maxHalf is the most rotary frequencies.
const maxHalf = maxHeadDim / 2

// shapeOf is all that decides what a pass's kernels are launched with.
type shapeOf struct {
	kind        int
	rows        int
	short, long int // runs
	shortest    int // rows of a short run, at most
	longest     int
	lists       [2]int
}

// fillUp is the number of rows (or of anything) that a recorded pass of n has.
func fillUp(n int) int {
	to := func(step int) int { return (n + step - 1) / step * step }
	switch {
	case n <= 8:
		return n
	case n <= 16:
		return to(2)
	case n <= 64:
		return to(8)
	case n <= 256:
		return to(16)
	case n <= maxRecorded:
		return to(32)
	}
	return n
}

// measure is the shape of a pass.
func measure(kind int, r *compute.Rows, lists [2][]int32) shapeOf {
	s := shapeOf{kind: kind, lists: [2]int{len(lists[0]), len(lists[1])}}
	if r == nil {
		return s
	}
	s.rows = r.Len()
	eachRun(r, func(_, n int) {
		if n < longItem {
			s.short++
			s.shortest = max(s.shortest, n)
		} else {
			s.long++
			s.longest = max(s.longest, n)
		}
	})
	return s
}

// filled is the shape with everything filled up, for a recording.
func (s shapeOf) filled() shapeOf {
	s.rows, s.short = fillUp(s.rows), fillUp(s.short)
	for k := 1; k <= longItem; k *= 2 {
		if s.shortest <= k {
			s.shortest = k
			break
		}
	}
	for i, n := range s.lists {
		s.lists[i] = fillUp(n)
	}
	return s
}

// eachRun calls f for the runs of rows of one sequence.
func eachRun(r *compute.Rows, f func(first, n int)) {
	for first := 0; first < r.Len(); {
		n := 1
		for first+n < r.Len() && r.Seqs[first+n] == r.Seqs[first] {
			n++
		}
		f(first, n)
		first += n
	}
}

// begin copies the rows and lists of a pass of shape s, filled up if it is
// larger than they are, to the device.
func (d *Device) begin(s shapeOf, r *compute.Rows, lists [2][]int32) {
	if r == nil {
		r = &compute.Rows{}
	}
	p := &d.pass
	words := 8*s.rows + 3*(s.short+s.long) + s.lists[0] + s.lists[1]
	tables := 0
	eachRun(r, func(first, _ int) { tables += len(r.Tables[r.Seqs[first]]) })
	if !d.reserve(words+tables+16, s.rows) {
		return
	}
	p.turn = (p.turn + 1) % len(p.buffers)
	b := &p.buffers[p.turn]
	d.waitFor(b.copied)
	p.rows = s.rows
	at := 0
	take := func(n int) ([]int32, driver.Ptr) {
		part, ptr := b.host[at:at+n:at+n], p.dev+driver.Ptr(4*at)
		at += n
		return part, ptr
	}
	masks, ptr := take(2 * s.rows)
	p.masks = ptr
	var tokens, positions, slots, starts, ends, kept []int32
	for _, v := range []struct {
		to  *[]int32
		ptr *driver.Ptr
	}{{&tokens, &p.tokens}, {&positions, &p.positions}, {&slots, &p.slots}, {&starts, &p.starts}, {&ends, &p.ends}, {&kept, &p.kept}} {
		*v.to, *v.ptr = take(s.rows)
	}
	n := copy(tokens, r.Tokens)
	copy(positions, r.Positions)
	copy(slots, r.Slots)
	for i := copy(kept, r.Kept); i < s.rows; i++ {
		kept[i] = -1
	}
	for i := range n {
		starts[i], ends[i] = r.Starts[r.Seqs[i]], r.Positions[i]+1
		var mask uint64
		if r.Trees() && r.Masks[i] != 0 {
			ends[i], mask = r.Bases[i], r.Masks[i]
		}
		masks[2*i], masks[2*i+1] = int32(uint32(mask)), int32(uint32(mask>>32))
	}
	for i := n; i < s.rows; i++ {
		tokens[i], positions[i], slots[i], starts[i], ends[i], masks[2*i], masks[2*i+1] = 0, 0, int32(d.spare), 0, 0, 0, 0
	}
	short, shortPtr := take(3 * s.short)
	long, longPtr := take(3 * s.long)
	p.short, p.long = items{shortPtr, s.short, s.shortest}, items{longPtr, s.long, s.longest}
	for i, list := range lists {
		var to []int32
		to, p.indices[i] = take(s.lists[i])
		for k := copy(to, list); k < len(to); k++ {
			to[k] = list[0] // again: reading twice, or writing the same twice, does no harm
		}
	}
	p.lists = lists
	rest := b.host[at:]
	p.tables = p.dev + driver.Ptr(4*at)
	used := 0
	eachRun(r, func(first, n int) {
		to := &long
		if n < longItem {
			to = &short
		}
		(*to)[0], (*to)[1], (*to)[2] = int32(first), int32(n), int32(used)
		*to = (*to)[3:]
		used += copy(rest[used:], r.Tables[r.Seqs[first]])
	})
	clear(short) // runs of no rows
	at += used
	if d.ok() {
		d.check(d.stream.Upload(p.dev, bytesOf(b.host[:at])))
		d.check(d.stream.Record(b.copied))
	}
}

func bytesOf(x []int32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}

// reserve makes room for words of metadata and for the angles of rows. When it
// moves them, what was recorded is void.
func (d *Device) reserve(words, rows int) bool {
	p := &d.pass
	if words > p.words {
		d.record.close()
		n := max(2*words, 1<<16)
		p.dev = d.alloc(4*n, "the rows of a pass")
		for i := range p.buffers {
			b := d.allocHost(4 * n)
			if b == nil {
				return false
			}
			p.buffers[i].host = unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), n)
			if p.buffers[i].copied == 0 {
				e, err := driver.NewEvent()
				d.check(err)
				p.buffers[i].copied = e
			}
		}
		p.words = n
	}
	if need := rows * maxHalf; need > p.angles {
		d.record.close()
		n := max(2*need, 1<<16)
		p.cos, p.sin = d.alloc(4*n, "the rows of a pass"), d.alloc(4*n, "the rows of a pass")
		p.angles = n
	}
	return d.ok()
}

func (p *pass) close() {
	for _, b := range p.buffers {
		if b.copied != 0 {
			_ = b.copied.Close()
		}
	}
}

// index is where a list of rows lies on the device: one of the pass's, or the
// beginning of one, or else it is copied now.
func (d *Device) index(list []int32) driver.Ptr {
	for i, l := range d.pass.lists {
		if len(l) >= len(list) && len(list) > 0 && &l[0] == &list[0] {
			return d.pass.indices[i]
		}
	}
	ptr := d.scratch.get(d, scratchIndex, 4*len(list))
	d.upload(ptr, bytesOf(list))
	return ptr
}

// has tells whether a list is one of the pass's.
func (p *pass) has(list []int32) bool {
	for _, l := range p.lists {
		if len(l) >= len(list) && len(list) > 0 && &l[0] == &list[0] {
			return true
		}
	}
	return false
}
