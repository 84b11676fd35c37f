//go:build linux

package cuda

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nccl"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/tick"
)

// GroupOptions say how the GPUs of a group meet.
type GroupOptions struct {
	Timeout time.Duration // a wait for the other GPUs that is longer is a fault
	// NCCLOnly has NCCL make all sums.
	NCCLOnly bool
	// Barred, if not empty, is why the GPUs shall not reach into each other's
	// memory; NCCL then makes all sums.
	Barred string
}

// Group joins GPUs of one process, one a rank: NCCL, or kernels that reach into
// the other GPUs' memory, sum and gather on the devices' own streams. All ranks
// call the same operations in the same order.
//
// A kernel that sums waits on its GPU for those of the other ranks. So nothing
// that a rank does between the others' launch and its own may itself wait for
// the GPUs, as allocations and the loading of code can: where operations are
// issued one by one, the ranks meet on the host before each sum.
type Group struct {
	o       GroupOptions
	members []*member
	reach   string // why sums are NCCL's alone; empty: they need not be
	stop    []byte // page-locked, 4 bytes: not 0 after an abort, for kernels
	table   table  // who makes a sum of which size
	took    times  // what table was made of

	arrived atomic.Int64 // at meets
	aborted atomic.Bool
	closing chan struct{}
	closed  sync.Once
}

// member is one rank's part of a group.
type member struct {
	device  *Device
	comm    nccl.Comm
	calling sync.Mutex   // held while comm is in a call
	freed   bool         // comm is no more
	area    driver.Ptr   // of peers.cu
	waiting atomic.Int64 // tick since when the host waits for the others; 0: it does not
	passes  atomic.Int64 // that have begun
	took    times
}

// NewGroup makes a group of ranks that are still to join: see Options.Group.
func NewGroup(ranks int, o GroupOptions) *Group {
	g := &Group{o: o, closing: make(chan struct{})}
	for range ranks {
		g.members = append(g.members, &member{})
	}
	return g
}

// initTimeout is the longest that NCCL may take to make a group.
const initTimeout = 3 * time.Minute

// Join implements compute.Joiner.
func (d *Device) Join() error {
	g := d.options.Group
	if g == nil || !d.ok() {
		return d.Err()
	}
	d.group, d.member = g, g.members[d.comm.Rank()]
	d.member.device = d
	defer d.enter()()
	d.openArea()
	d.meet()
	if d.ok() && d.first() {
		d.fail(g.connect())
	}
	d.meet()
	d.enter()() // NCCL may have left another context
	if d.ok() && g.reach == "" {
		for _, m := range g.members {
			if m != d.member {
				d.check(d.context.Reach(m.device.context))
			}
		}
	}
	d.meet()
	return d.Err()
}

// connect makes the group of NCCL, and finds out whether the GPUs reach each other.
func (g *Group) connect() error {
	ordinals := make([]int, len(g.members))
	for i, m := range g.members {
		ordinals[i] = m.device.options.Ordinal
	}
	type made struct {
		comms []nccl.Comm
		err   error
	}
	ready := make(chan made, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: NCCL changes the thread's context, so it ends with the goroutine
		comms, err := nccl.InitAll(ordinals)
		ready <- made{comms, err}
	}()
	select {
	case r := <-ready:
		if r.err != nil {
			return fault.Errorf(fault.CollectiveFailed, "NCCL cannot join GPUs %v (NCCL_DEBUG=INFO says more): %w", ordinals, r.err)
		}
		for i, c := range r.comms {
			g.members[i].comm = c
		}
	case <-time.After(initTimeout):
		return fault.Errorf(fault.CollectiveFailed, "NCCL has not joined GPUs %v in %s: --nccl-debug INFO says what it waits for", ordinals, initTimeout)
	}
	var err error
	if g.reach, err = g.barred(); err != nil {
		return err
	}
	go g.monitor()
	return nil
}

// barred is why the GPUs cannot or shall not use each other's memory.
func (g *Group) barred() (string, error) {
	switch {
	case len(g.members) == 1:
		return "there is one GPU", nil
	case g.o.NCCLOnly:
		return "as asked", nil
	case g.o.Barred != "":
		return g.o.Barred, nil
	case len(g.members) > mostRanks:
		return fmt.Sprintf("more than %d GPUs", mostRanks), nil
	}
	for i, a := range g.members {
		for k, b := range g.members {
			if i == k {
				continue
			}
			if can, err := a.device.context.Reaches(b.device.context); err != nil || !can {
				return fmt.Sprintf("GPU %d cannot reach the memory of GPU %d", a.device.options.Ordinal, b.device.options.Ordinal), err
			}
		}
	}
	return "", nil
}

// meet returns when every rank has called it as often, or after an abort.
func (d *Device) meet() {
	g, size := d.group, int64(len(d.group.members))
	d.member.waiting.Store(tick.Of(time.Now()))
	defer d.member.waiting.Store(0)
	want := (g.arrived.Add(1) + size - 1) / size * size
	for i := 0; g.arrived.Load() < want; i++ {
		if g.aborted.Load() || d.comm.Err() != nil {
			d.lost()
			return
		}
		pause(i)
	}
}

// pause lets time pass before the next look at something that is awaited. Ranks
// are within microseconds of each other as a rule, and a step takes milliseconds,
// which a thread that slept would wake up too late for: only after spins of it,
// some tens of milliseconds if it is the GPU that is asked, it sleeps.
func pause(tries int) {
	const spins = 1 << 17
	switch {
	case tries >= spins:
		time.Sleep(20 * time.Microsecond)
	case tries%64 == 63:
		runtime.Gosched()
	}
}

// await returns when the device has come to what done asks for, after a fault of
// the device or of any rank.
func (d *Device) await(done func() (bool, error)) {
	d.member.waiting.Store(tick.Of(time.Now()))
	defer d.member.waiting.Store(0)
	for i := 0; d.ok(); i++ {
		ended, err := done()
		if ended {
			return
		}
		d.check(err)
		if d.group.aborted.Load() || d.comm.Err() != nil {
			d.lost()
		}
		pause(i)
	}
}

// lost ends this rank for what happened to another.
func (d *Device) lost() {
	if d.err == nil {
		d.err = d.comm.Err()
	}
	if d.err == nil {
		d.err = fault.Errorf(fault.CollectiveFailed, "the group of GPUs has ended")
	}
	d.group.abort()
}

// abort has what waits on the host or on a GPU for other ranks go on.
func (g *Group) abort() {
	if g.aborted.Swap(true) {
		return
	}
	if len(g.stop) > 0 {
		g.stop[0] = 1
	}
	for _, m := range g.members {
		go m.free(nccl.Comm.Abort)
	}
}

// free ends the communicator of a rank, unless it is in a call: then only the
// end of the process does.
func (m *member) free(end func(nccl.Comm) error) {
	if !m.calling.TryLock() {
		return
	}
	c := m.comm
	if m.freed {
		c = 0
	}
	m.freed = true
	m.calling.Unlock()
	if c != 0 {
		_ = end(c) // the group is at its end, for a cause that is known
	}
}

// call has the rank's communicator do something, unless it is freed.
func (m *member) call(f func(nccl.Comm) error) error {
	m.calling.Lock()
	defer m.calling.Unlock()
	if m.freed {
		return nil // for a cause that is known
	}
	return f(m.comm)
}

// watching is how often the monitor looks.
const watching = 100 * time.Millisecond

// monitor ends the group for a fault that no rank's own call reports.
func (g *Group) monitor() {
	tick := time.NewTicker(watching)
	defer tick.Stop()
	for {
		select {
		case <-g.closing:
			return
		case <-tick.C:
		}
		comm := g.members[0].device.comm
		if err := g.fault(time.Now()); err != nil {
			comm.Abort(err)
		}
		if comm.Err() != nil {
			g.abort()
			return
		}
	}
}

// fault is what NCCL met, or a wait that takes too long.
func (g *Group) fault(now time.Time) error {
	for rank, m := range g.members {
		if !m.calling.TryLock() {
			continue // it is in a call, whose error is its own
		}
		var err error
		if !m.freed {
			err = m.comm.AsyncError()
		}
		m.calling.Unlock()
		if err != nil {
			return fault.OnRank(rank, fault.Errorf(fault.CollectiveFailed, "GPU %d: %w", m.device.options.Ordinal, err))
		}
	}
	return g.stalled(now)
}

// stalled names the rank that others wait for too long: one of those that are in
// the earliest pass, and best one that waits for nobody.
func (g *Group) stalled(now time.Time) error {
	waits, behind := -1, -1
	for rank, m := range g.members {
		if since := m.waiting.Load(); since != 0 && time.Duration(tick.Of(now)-since) > g.o.Timeout {
			waits = rank
		}
	}
	if waits < 0 {
		return nil
	}
	pass := g.members[waits].passes.Load()
	for rank, m := range g.members {
		if n := m.passes.Load(); n < pass || n == pass && m.waiting.Load() == 0 && behind < 0 {
			pass, behind = n, rank
		}
	}
	if behind < 0 {
		return fault.OnRank(waits, fault.Errorf(fault.CollectiveFailed, "the GPUs have not ended pass %d in %s: the limit is --collective-timeout", pass, g.o.Timeout))
	}
	return fault.OnRank(behind, fault.Errorf(fault.CollectiveFailed, "rank %d has waited for rank %d longer than %s, which is --collective-timeout: rank %d is in pass %d, rank %d in pass %d",
		waits, behind, g.o.Timeout, waits, g.members[waits].passes.Load(), behind, pass))
}

// leave is the end of a device in its group. After a fault nothing is freed:
// kernels of other ranks may still use it until the process ends.
func (d *Device) leave() {
	g := d.group
	g.closed.Do(func() { close(g.closing) })
	if d.ok() && d.comm.Err() == nil {
		defer d.enter()()
		d.wait()
		d.record.close() // NCCL waits for the graphs that have its work
		d.member.free(nccl.Comm.Close)
	}
}

// first tells whether this rank does what one must do for all.
func (d *Device) first() bool { return d.comm.Rank() == 0 }

// Links says how the ranks meet, for logs; "" if there is one.
func (d *Device) Links() string {
	g := d.group
	switch {
	case g == nil && d.comm.Size() == 1:
		return ""
	case g == nil:
		return "in the host's memory"
	}
	version, err := nccl.Version()
	if err != nil {
		version = "of unknown version"
	}
	s := fmt.Sprintf("NCCL %s on %d GPUs", version, len(g.members))
	if g.reach != "" {
		return s + ", which makes all sums: " + g.reach
	}
	return s + "; " + g.table.String()
}
