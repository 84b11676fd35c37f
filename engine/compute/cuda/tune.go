//go:build linux

package cuda

import (
	"math"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// tune measures the ways to sum at every size, and makes the group's table of
// them. All ranks call it at once.
func (d *Device) tune() {
	g := d.group
	if len(g.members) == 1 || !d.ok() {
		return
	}
	d.loadSums()
	x, y := d.newTensor(1, mostMessage/2, false), d.newTensor(1, mostMessage/2, false)
	residual, w := d.newTensor(1, pushMost/2, true), d.alloc(4*widestNorm, "workspaces")
	if d.ok() {
		launch(d, d.fn.noise, driver.Dim{X: 64, Y: 1, Z: 1}, driver.Dim{X: 256, Y: 1, Z: 1}, &struct {
			p     driver.Ptr
			n     uint64
			seed  uint32
			scale float32
		}{x.ptr, mostMessage / 2, uint32(d.comm.Rank()), 1})
		d.check(d.stream.Fill(w, 0, 4*widestNorm))
		d.check(d.stream.Fill(residual.ptr, 0, 4*residual.cols))
	}
	m := &d.member.took
	for i := range sizes {
		bytes := leastMessage << i
		part := func(t *tensor) *tensor { v := *t; v.cols, v.stride = bytes/2, bytes/2; return &v }
		for w := range ways {
			if a, b := part(y), part(x); d.takes(w, a, b, 1) {
				m.sum[w][i] = d.clock(func() { d.sumBy(w, a, b, 1) })
			}
		}
		cols := min(widestNorm, bytes/2)
		rows := bytes / 2 / cols
		row := func(t *tensor) *tensor { v := *t; v.rows, v.cols, v.stride = rows, cols, cols; return &v }
		if d.canFuse(row(x), rows) && bytes <= pushMost {
			m.norms[i] = d.clock(func() { d.normBy(row(y), residualStream{sum: row(residual)}, row(x), w, 1e-5, rows) })
			m.fused[i] = d.clock(func() { d.sumNorm(row(y), residualStream{sum: row(residual)}, row(x), w, 1e-5, rows) })
		}
	}
	d.meet()
	if d.first() && d.ok() {
		all := g.members[0].took
		for _, other := range g.members[1:] {
			all = slower(all, other.took)
		}
		g.took, g.table = all, choose(all)
	}
	d.meet()
}

// widestNorm is the columns of the rows that a sum with a norm is measured with.
const widestNorm = 4096

// loadSums runs the kernels of sums on this GPU alone, since loading their code
// may wait for the GPU.
func (d *Device) loadSums() {
	x := d.newTensor(1, 64, false)
	for _, f := range []driver.Function{d.fn.sumPush, d.fn.sumPushWide, d.fn.sumRead, d.fn.sumReadWide, d.fn.sumNorm} {
		if !d.ok() {
			return
		}
		p := d.message(x, x, 1)
		p.cols, p.residual, p.w = 16, x.view(), x.ptr
		p.rank, p.ranks, p.areas[0] = 0, 1, d.member.area
		d.sumPeers(f, 1, 32, p)
	}
	d.wait()
	d.clearArea()
	d.meet()
}

// Repetitions of clock.
const (
	sumsOfGraph = 20
	runsOfGraph = 5
)

// clock is the time in seconds of f, which queues one sum, as it is in a
// recorded pass: the least of some runs, by the device's clock.
func (d *Device) clock(f func()) float64 {
	d.meet()
	f() // makes what it needs
	d.wait()
	d.meet()
	if !d.ok() {
		return 0
	}
	g, err := d.capture(func() {
		for range sumsOfGraph {
			f()
		}
	})
	if err != nil {
		d.fail(err)
		return 0
	}
	best := time.Duration(math.MaxInt64)
	for range runsOfGraph {
		d.meet()
		best = min(best, d.Elapsed(func() { d.check(d.stream.Launch(g)) }))
	}
	d.meet()
	d.check(g.Close())
	d.meet()
	return best.Seconds() / sumsOfGraph
}

// SumTime is what sums of one size took, in microseconds; 0 in ways that do not
// take it.
type SumTime struct {
	Bytes int     `json:"bytes"`
	NCCL  float64 `json:"nccl_us"`
	Push  float64 `json:"push_us"`
	Read  float64 `json:"read_us"`
	Norm  float64 `json:"norm_us"`  // of add and norm, after a sum
	Fused float64 `json:"fused_us"` // of push, add and norm in one kernel
}

// SumTimes are the figures that the group's choice was made from.
func (g *Group) SumTimes() []SumTime {
	var all []SumTime
	for i := range sizes {
		us := func(s float64) float64 { return s * 1e6 }
		all = append(all, SumTime{leastMessage << i, us(g.took.sum[byNCCL][i]), us(g.took.sum[byPush][i]), us(g.took.sum[byRead][i]), us(g.took.norms[i]), us(g.took.fused[i])})
	}
	return all
}

// Joining is how the ranks of a group are joined.
type Joining uint8

// The ways to be joined.
const (
	AsMeasured Joining = iota // for each size the fastest way
	ByNCCL                    // all sums are NCCL's
	Unjoined                  // not at all, which gives wrong results
)

// Rejoin changes how the device is joined to the others of its group, to measure
// what that takes of a pass. No pass may be running, and all ranks must do so
// before the next.
func (d *Device) Rejoin(j Joining) {
	defer d.enter()()
	d.wait()
	d.record.close()
	d.unjoined = j == Unjoined
	if d.first() {
		d.group.table = table{}
		if j == AsMeasured {
			d.group.table = choose(d.group.took)
		}
	}
}
