//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// recorder keeps recorded passes by their shapes. A shape's first pass is
// issued operation by operation, which makes whatever it needs; the second one
// is recorded, and from then on each costs one launch.
type recorder struct {
	graphs map[shapeOf]driver.Graph // 0: seen once
	rows   compute.Rows             // stands for the rows of a pass that is filled up
	lists  [2][]int32
	ready  *compute.Rows // rows that begin has copied
	last   driver.Graph  // of the last pass; 0 if that was issued
	full   int           // memory ran out with so many kept; 0: it did not
	refuse int           // for tests: so many recordings fail for lack of memory
}

// maxGraphs bounds what is kept; then all of it is made anew.
const maxGraphs = 1024

// most is how many are kept: half of what there was no memory for.
func (c *recorder) most() int {
	if c.full > 0 {
		return c.full / 2
	}
	return maxGraphs
}

// recorded is how many there are.
func (c *recorder) recorded() int {
	n := 0
	for _, g := range c.graphs {
		if g != 0 {
			n++
		}
	}
	return n
}

// prepared tells whether r's rows are on the device.
func (c *recorder) prepared(r *compute.Rows) bool { return c.ready != nil && c.ready == r }

func (c *recorder) close() {
	c.last = 0
	for s, g := range c.graphs {
		if g != 0 {
			_ = g.Close()
		}
		delete(c.graphs, s)
	}
}

// recordable tells whether passes of that shape are recorded: those that come again,
// decode and verify, and what the draft does. Prompts come in all lengths, as do the
// texts with which a head catches up; and ranks that meet on the host cannot be recorded.
func (d *Device) recordable(s shapeOf) bool {
	return !d.options.NoGraphs && (d.comm.Size() == 1 || d.group != nil) && s.comesAgain()
}

// comesAgain tells whether passes of that shape do.
func (s shapeOf) comesAgain() bool { return s.long == 0 && s.rows > 0 && s.rows <= maxRecorded }

// maxRecorded is the most rows of a recorded pass: 128 sequences that verify 5 drafts each.
const maxRecorded = 768

// Run implements compute.Runner.
func (d *Device) Run(p compute.Pass, body func(r *compute.Rows, lists [2][]int32)) {
	if d.Build() != nil || d.absent {
		return
	}
	defer d.enter()()
	c := &d.record
	if d.group != nil {
		d.member.passes.Add(1)
	}
	d.idle = false
	d.passBegins()
	defer d.passEnds()
	defer func() { c.ready, d.pass.lists = nil, [2][]int32{} }()
	shape := measure(p.Kind, p.Rows, p.Lists)
	d.often = shape.comesAgain()
	d.sums.begun = false
	defer func() { d.often, d.sums.begun = false, false }()
	if !d.recordable(shape) || c.most() == 0 {
		d.endGraphs()
		c.last = 0
		d.begin(shape, p.Rows, p.Lists)
		c.ready = p.Rows
		body(p.Rows, p.Lists)
		return
	}
	shape = shape.filled()
	d.begin(shape, p.Rows, p.Lists)
	if !d.ok() {
		return
	}
	g, seen := c.graphs[shape]
	c.last = g
	if g != 0 {
		d.check(d.stream.Launch(g))
		return
	}
	rows, lists := c.standIn(shape, p.Rows != nil)
	d.pass.lists = lists
	c.ready = rows
	if !seen {
		if len(c.graphs) >= c.most() {
			c.close()
		}
		if c.graphs == nil {
			c.graphs = map[shapeOf]driver.Graph{}
		}
		c.graphs[shape] = 0
		d.endGraphs()
		body(rows, lists)
		return
	}
	g, err := d.capture(func() { body(rows, lists) })
	if outOfMemory(err) && d.group == nil && d.ok() {
		// What was recorded gives its memory back, and fewer are kept from now on.
		// Slower, but requests go on.
		c.full = max(c.recorded(), 1)
		d.wait()
		c.close()
		body(rows, lists)
		return
	}
	if err != nil {
		d.fail(err)
		return
	}
	c.graphs[shape], c.last = g, g
	d.check(d.stream.Launch(g))
}

// endGraphs waits for recorded passes before operations that are issued one by
// one, where both have work of NCCL: see nccl.InitAll.
func (d *Device) endGraphs() {
	if d.group != nil {
		d.wait()
		d.idle = false
	}
}

// capture makes a graph of what f queues, ready to be launched. The devices of a
// group meet when they have theirs, since what makes a graph may wait for the GPUs.
func (d *Device) capture(f func()) (driver.Graph, error) {
	if d.record.refuse > 0 {
		d.record.refuse--
		return 0, &driver.Error{Call: "cuGraphInstantiate", Code: driver.OutOfMemory, Text: "as a test wants it"}
	}
	d.recording = true
	g, err := d.stream.Capture(func() error { f(); return d.err })
	d.recording = false
	if err == nil && d.group != nil {
		if err = d.stream.UploadGraph(g); err == nil {
			d.wait()
			d.idle = false
		}
		d.meet()
	}
	return g, err
}

// standIn are rows and lists of a shape's lengths. What is in them does not
// matter: the device has them.
func (c *recorder) standIn(s shapeOf, any bool) (*compute.Rows, [2][]int32) {
	grow := func(x []int32, n int) []int32 {
		if cap(x) < n {
			x = make([]int32, n)
		}
		return x[:n]
	}
	for i := range c.lists {
		c.lists[i] = grow(c.lists[i], s.lists[i])
	}
	if !any {
		return nil, c.lists
	}
	c.rows.Tokens = grow(c.rows.Tokens, s.rows)
	return &c.rows, c.lists
}

// Wait implements compute.Runner.
func (d *Device) Wait() {
	if d.ok() {
		defer d.enter()()
		d.wait()
	}
}
