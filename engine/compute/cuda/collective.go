//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nccl"
)

// AllReduce implements compute.Device.
func (d *Device) AllReduce(x compute.Tensor, rows int) {
	if rows == 0 || d.comm.Size() == 1 && d.group == nil || d.unjoined {
		return
	}
	defer d.enter()()
	t := x.(*tensor)
	if d.group == nil {
		d.hostAllReduce(t, rows)
		return
	}
	d.beforeSum()
	d.sum(t, t, rows)
}

// AllReduceNorm implements compute.Device.
func (d *Device) AllReduceNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	t, s, y := x.(*tensor), residualOf(to), dst.(*tensor)
	if d.group == nil || rows == 0 || d.unjoined || !d.fuses(t, rows) || !s.by(4) || !y.by(4) {
		d.AllReduce(x, rows)
		d.AddRMSNorm(dst, to, x, w, eps, rows)
		return
	}
	defer d.enter()()
	d.beforeSum()
	d.sumNorm(y, s, t, vector(w), eps, rows)
}

// beforeSum has the ranks meet where they issue operation by operation: see Group.
func (d *Device) beforeSum() {
	if !d.recording && len(d.group.members) > 1 {
		d.meet()
	}
}

// sum sets dst to the sum of all ranks' x, in the way that was fastest.
func (d *Device) sum(dst, x *tensor, rows int) {
	w := d.group.table.of(x.bytes(rows))
	if !d.takes(w, dst, x, rows) {
		w = byNCCL
	}
	d.sumBy(w, dst, x, rows)
}

// bytes is the size of a message of rows.
func (t *tensor) bytes(rows int) int { return rows * t.cols * t.size() }

// takes tells whether a way can make a sum.
func (d *Device) takes(w way, dst, x *tensor, rows int) bool {
	per := 8 / x.size() // columns of a pair
	switch {
	case w == byNCCL:
		return true
	case d.group.reach != "" || dst.wide != x.wide || !x.by(per) || !dst.by(per):
		return false
	case w == byPush:
		return x.bytes(rows) <= pushMost
	}
	return x.bytes(rows) <= mostMessage && x.bytes(rows)%16 == 0 && x.stride == x.cols && dst.stride == dst.cols
}

func (d *Device) fuses(x *tensor, rows int) bool {
	return d.group.table.fuses(x.bytes(rows)) && d.canFuse(x, rows)
}

// canFuse tells whether sum_norm takes rows of x.
func (d *Device) canFuse(x *tensor, rows int) bool {
	return !x.wide && x.cols <= 4*4*1024 && d.takes(byPush, x, x, rows)
}

func (d *Device) sumBy(w way, dst, x *tensor, rows int) {
	switch w {
	case byNCCL:
		d.sumNCCL(dst, x, rows)
	case byPush:
		f := d.fn.sumPush
		if x.wide {
			f = d.fn.sumPushWide
		}
		const threads = 256
		pairs := x.bytes(rows) / 8
		d.sumPeers(f, d.sumBlocks((pairs+threads-1)/threads), threads, d.message(dst, x, rows))
	case byRead:
		f := d.fn.sumRead
		if x.wide {
			f = d.fn.sumReadWide
		}
		const threads = 512
		d.sumPeers(f, d.sumBlocks((x.bytes(rows)/16+threads-1)/threads), threads, d.message(dst, x, rows))
	}
}

// sumNorm is sum and AddRMSNorm in one kernel.
func (d *Device) sumNorm(dst *tensor, to residualStream, x *tensor, w driver.Ptr, eps float32, rows int) {
	p := d.message(dst, x, rows)
	p.residual, p.feature = to.views()
	p.w, p.eps = w, eps
	threads := min((x.cols/4+31)/32*32, 1024)
	d.sumPeers(d.fn.sumNorm, d.sumBlocks(rows), threads, p)
}

// sumNCCL has NCCL make the sum. What fills up the rows is summed too, and not read.
func (d *Device) sumNCCL(dst, x *tensor, rows int) {
	n := rows * x.stride
	if rows == 1 {
		n = x.cols
	}
	if rows > 1 && (x.from != 0 || dst.from != 0 || dst.stride != x.stride) || dst.wide != x.wide {
		panic("cuda: a sum of some columns of a tensor") // a mistake in a model, not in its input
	}
	d.byNCCL(func(c nccl.Comm) error { return c.AllReduce(dst.at(0), x.at(0), n, x.nccl(), d.stream) })
}

// nccl is the type of a tensor's elements.
func (t *tensor) nccl() nccl.Type {
	if t.wide {
		return nccl.F32
	}
	return nccl.BF16
}

func (d *Device) byNCCL(f func(nccl.Comm) error) {
	if d.ok() {
		d.idle = false
		d.failCollective(d.member.call(f))
	}
}

// AllGather implements compute.Device.
func (d *Device) AllGather(dst, x compute.Tensor, rows int) {
	switch {
	case rows == 0 || d.unjoined:
		return
	case d.comm.Size() == 1:
		d.Copy(dst, x, rows)
		return
	}
	defer d.enter()()
	to, t := dst.(*tensor), x.(*tensor)
	if d.group == nil {
		d.hostAllGather(to, t, rows)
		return
	}
	if t.from != 0 {
		panic("cuda: a gathering of some columns of a tensor") // a mistake in a model, not in its input
	}
	d.beforeSum()
	if rows == 1 && to.wide == t.wide {
		d.byNCCL(func(c nccl.Comm) error { return c.AllGather(to.at(0), t.at(0), t.cols, t.nccl(), d.stream) })
		return
	}
	part := rows * t.stride
	all := d.scratch.get(d, scratchOthers, d.comm.Size()*part*t.size())
	d.byNCCL(func(c nccl.Comm) error { return c.AllGather(all, t.at(0), part, t.nccl(), d.stream) })
	for r := range d.comm.Size() {
		from, place := t.view(), *to
		from.data = all + driver.Ptr(r*part*t.size())
		place.from += r * t.cols
		d.convert(place.view(), from, t.cols, rows, false)
	}
}

// pushMost is the largest message of push.
const pushMost = 1 << 20

// mostRanks is MOST_RANKS of peers.cu.
const mostRanks = 16

// pushLines is Sum.lines: a line for every 8 bytes.
const pushLines = pushMost / 8

// maxSumBlocks is the most blocks of a sum, each of which has flags.
const maxSumBlocks = 1024

// areaBytes is the memory of a rank that the others write to and read from.
func areaBytes(ranks int) int { return 2*ranks*pushLines*16 + 2*mostMessage + 4*mostRanks*maxSumBlocks }

// message is Sum of peers.cu.
type message struct {
	x, dst, residual, feature view
	w                         driver.Ptr
	eps                       float32
	rows, cols                int32
	rank, ranks               int32
	lines, stage              int32
	_                         int32
	state, stop               driver.Ptr
	areas                     [mostRanks]driver.Ptr
}

func (d *Device) message(dst, x *tensor, rows int) *message {
	g := d.group
	p := &message{x: x.view(), dst: dst.view(), rows: int32(rows), cols: int32(x.cols), rank: int32(d.comm.Rank()), ranks: int32(len(g.members)),
		lines: pushLines, stage: mostMessage, state: d.sumState, stop: driver.Ptr(uintptr(unsafe.Pointer(&g.stop[0])))}
	for i, m := range g.members {
		p.areas[i] = m.area
	}
	return p
}

// sumBlocks bounds the blocks of a sum to what is on every GPU at once, since
// they wait for each other's.
func (d *Device) sumBlocks(n int) uint32 {
	for _, m := range d.group.members {
		n = min(n, m.device.context.Info.Processors)
	}
	return uint32(min(n, maxSumBlocks))
}

func (d *Device) sumPeers(f driver.Function, blocks uint32, threads int, p *message) {
	launch(d, f, driver.Dim{X: blocks, Y: 1, Z: 1}, driver.Dim{X: uint32(threads), Y: 1, Z: 1}, p)
}

// openArea makes what the others reach. Rank 0 makes the sign to stop.
func (d *Device) openArea() {
	n := areaBytes(len(d.group.members))
	d.member.area, d.sumState = d.alloc(n, "the exchange between GPUs"), d.alloc(8, "the exchange between GPUs")
	if d.first() {
		if d.group.stop = d.allocHost(4); d.group.stop != nil {
			clear(d.group.stop[:4])
		}
	}
	d.clearArea()
}

// clearArea sets the number of the next sum to 1. No sum may be under way.
func (d *Device) clearArea() {
	if d.ok() {
		d.check(d.stream.Fill(d.member.area, 0, areaBytes(len(d.group.members))))
		d.upload(d.sumState, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}
