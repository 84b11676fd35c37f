//go:build linux

// Package cuda is the compute device for NVIDIA GPUs. It needs no cgo and no
// toolkit: the driver, the run-time compiler and cuBLASLt are opened as shared
// libraries, and the kernels' sources are in the binary. Operations are queued
// on one stream of the device and done in their order; reading a result waits.
package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
	"github.com/outrider-dev/outrider/engine/compute/cuda/nccl"
	"github.com/outrider-dev/outrider/engine/fault"
)

// Options say which device and how.
type Options struct {
	Ordinal int // number of the device
	// CacheFolder keeps the compiled kernels; empty: kernels.DefaultFolder.
	CacheFolder string
	// Compiled, if set, hears of each source of kernels that is ready.
	Compiled func(done, of int)
	// Unkept, if set, hears why kernels that were compiled are not in CacheFolder.
	Unkept func(error)
	// Exact has float32 activations and cache and no tensor cores: slow, to tell
	// rounding from a mistake.
	Exact bool
	// NoGraphs has every pass issued anew instead of recorded once.
	NoGraphs bool
	// FirstPages, if above 0, is how many pages of each cache have memory before
	// Grow, where the driver can give memory to addresses later; otherwise all have.
	FirstPages int
	// Group, if set, joins the ranks' GPUs, which differ. Without one ranks meet
	// in the host's memory, and may share a GPU.
	Group *Group
}

// Device is one rank's GPU.
type Device struct {
	comm     collective.Communicator
	context  *driver.Context
	stream   driver.Stream
	launcher *driver.Launcher
	blas     *blas.Handle
	code     chan compiledCode
	built    bool
	fn       functions
	modules  []module
	options  Options

	group     *Group // nil until the device has joined
	member    *member
	sumState  driver.Ptr // the number of the next sum: see peers.cu
	recording bool       // what is queued becomes part of a graph
	absent    bool       // for tests: passes are left out
	unjoined  bool       // for measurements: see Rejoin

	codes bool         // the last product of few rows, such as QKV, was with a quantised weight
	often bool         // the pass in progress is of a shape that comes again and again
	idle  bool         // nothing was queued since the last wait
	err   error        // first fault
	owned []driver.Ptr // device memory
	held  int64        // bytes of it, and of the caches that grow
	hosts [][]byte     // page-locked memory

	pass    pass    // metadata of the pass in progress
	scratch scratch // memory that operations use within themselves
	sums    sums
	record  recorder
	chain   chain
	drawing drawing
	mark    mark
	times   passClock
	freqs   map[*float32]driver.Ptr // rotary frequencies, by where the host has them
	spare   int                     // a cache slot that no sequence has

	granularity int      // of the memory of caches that grow, in bytes; 0: none can
	growing     []*cache // those caches
	grown       bool     // they have what --mem-fraction-static leaves them
}

// New opens the device of the rank of comm, and begins to compile the kernels.
func New(comm collective.Communicator, o Options) (*Device, error) {
	n, err := Count()
	if err != nil {
		return nil, fault.OnRank(comm.Rank(), err)
	}
	if o.Ordinal >= n {
		return nil, fault.OnRank(comm.Rank(), fault.Errorf(fault.DeviceMissing, "rank %d wants GPU %d, and this process sees %d: --tp-size up to %d is allowed here", comm.Rank(), o.Ordinal, n, n))
	}
	if o.Group != nil {
		if err := library(nccl.Open); err != nil { // now, not when the weights are there
			return nil, fault.OnRank(comm.Rank(), err)
		}
	}
	context, err := openContext(o.Ordinal)
	if err != nil {
		return nil, fault.OnRank(comm.Rank(), err)
	}
	d := &Device{comm: comm, context: context, options: o, freqs: map[*float32]driver.Ptr{}}
	if err := d.open(); err != nil {
		d.Close()
		return nil, fault.OnRank(comm.Rank(), missing(err))
	}
	return d, nil
}

func (d *Device) open() error {
	if err := d.context.Enter(); err != nil {
		d.context.Leave()
		return err
	}
	defer d.context.Leave()
	i := d.context.Info
	err := supported(d.options.Ordinal, i)
	if err != nil {
		return err
	}
	if d.stream, err = driver.NewStream(); err != nil {
		return err
	}
	d.launcher = driver.NewLauncher(d.stream, i.Major >= 9)
	d.code = make(chan compiledCode, 1)
	go func() { d.code <- compile(i, d.options) }()
	if d.granularity, err = d.context.Granularity(); err != nil {
		return err
	}
	d.scratch.init(d)
	if d.err != nil {
		return d.err
	}
	if d.blas, err = blas.New(d.stream, d.scratch.blas); err != nil && !outOfMemory(err) {
		return fmt.Errorf("cuBLASLt does not start on GPU %d (%s): %w", d.options.Ordinal, i.Name, err)
	}
	return d.explain(err, 0, "cuBLASLt's own tables")
}

// Name implements compute.Device.
func (d *Device) Name() string {
	return fmt.Sprintf("cuda %s (%d.%d)", d.context.Info.Name, d.context.Info.Major, d.context.Info.Minor)
}

// Err implements compute.Device.
func (d *Device) Err() error {
	if err := d.comm.Err(); err != nil {
		return err // the first, which this device's own may follow from
	}
	return d.err
}

// Close frees everything that the device holds.
func (d *Device) Close() {
	if d.group != nil {
		d.leave()
	}
	if d.group != nil && (!d.ok() || d.comm.Err() != nil) {
		return // the process ends: its GPUs may be in kernels that wait for each other
	}
	if err := d.context.Enter(); err != nil {
		d.context.Leave()
		return // a context that is lost took everything with it
	}
	defer d.context.Leave()
	if d.stream != 0 {
		_ = d.stream.Wait() // a fault that was met before is met again
	}
	d.record.close()
	if d.blas != nil {
		d.blas.Close()
	}
	d.pass.close()
	d.drawing.close()
	d.mark.close()
	d.times.close()
	for _, p := range d.owned {
		_ = driver.FreeMemory(p)
	}
	for _, c := range d.growing {
		for _, r := range c.ranges {
			_ = r.Close()
		}
	}
	for _, b := range d.hosts {
		_ = driver.FreeHost(b)
	}
	for _, m := range d.modules {
		_ = m.code.Close()
	}
	if d.stream != 0 {
		_ = d.stream.Close()
	}
	_ = d.context.Close()
}

// fail keeps the first fault and releases the ranks that wait for this one.
func (d *Device) fail(err error) {
	if err == nil || d.err != nil {
		return
	}
	if !errors.As(err, new(*fault.Error)) {
		reason := fault.DeviceFault
		if outOfMemory(err) {
			reason = fault.OutOfMemory
		}
		err = &fault.Error{Reason: reason, Err: fmt.Errorf("GPU %d (%s): %w", d.options.Ordinal, d.context.Info.Name, err)}
	}
	d.err = fault.OnRank(d.comm.Rank(), err)
	d.comm.Abort(d.err)
	if d.group != nil {
		d.group.abort()
	}
}

// failCollective is fail for a call's error that concerns all ranks.
func (d *Device) failCollective(err error) {
	if err != nil {
		d.fail(fault.Errorf(fault.CollectiveFailed, "GPU %d: %w", d.options.Ordinal, err))
	}
}

// check is fail for a call's error.
func (d *Device) check(err error) { d.fail(err) }

// ok tells whether work can be queued. After a fault every operation is void.
func (d *Device) ok() bool { return d.err == nil }

// enter makes the device current for the calling goroutine until the result is called.
func (d *Device) enter() func() {
	if err := d.context.Enter(); err != nil {
		d.fail(err)
	}
	return d.context.Leave
}

// wait waits for all queued work.
func (d *Device) wait() {
	if d.group == nil {
		d.check(d.stream.Wait())
	} else {
		d.await(d.stream.Done)
	}
	d.idle = true
}

// waitFor waits until the stream has passed an event.
func (d *Device) waitFor(e driver.Event) {
	if d.group == nil {
		d.check(e.Wait())
	} else {
		d.await(e.Done)
	}
}

// alloc allocates device memory, for what the error calls what.
func (d *Device) alloc(n int, what string) driver.Ptr {
	return d.allocOr(n, func(err error) error { return d.explain(err, n, what) })
}

// allocOr is alloc where explain words the error.
func (d *Device) allocOr(n int, explain func(error) error) driver.Ptr {
	if !d.ok() {
		return 0
	}
	defer d.enter()()
	p, err := driver.Alloc(max(n, 16))
	if err != nil {
		d.fail(explain(err))
		return 0
	}
	d.owned, d.held = append(d.owned, p), d.held+int64(n)
	return p
}

// allocHost allocates page-locked memory of the host; nil after a fault.
func (d *Device) allocHost(n int) []byte {
	if !d.ok() {
		return nil
	}
	b, err := driver.AllocHost(max(n, 16))
	if outOfMemory(err) {
		err = fault.Errorf(fault.OutOfMemory, "the host has no %d KiB of page-locked memory for GPU %d: give it more memory (resources.limits.memory of a server): %w", (n+1023)>>10, d.options.Ordinal, err)
	}
	if err != nil {
		d.fail(err)
		return nil
	}
	d.hosts = append(d.hosts, b)
	return b
}

// Build implements compute.Builder: the kernels are compiled while weights are
// loaded. The devices of a group then measure together.
func (d *Device) Build() error {
	if d.built || !d.ok() {
		return d.err
	}
	defer d.enter()()
	code := <-d.code
	d.built = true
	if code.err != nil {
		d.fail(missing(code.err))
		return d.err
	}
	for i, image := range code.images {
		source := kernels.Sources()[i]
		m, err := driver.LoadModule(image)
		if err != nil {
			d.fail(d.unloaded(err, source.Name, len(image)))
			return d.err
		}
		d.modules = append(d.modules, module{source, m})
	}
	d.fail(d.fn.find(d.modules, d.context.Info))
	if d.group != nil {
		d.tune()
	}
	return d.err
}

// launch queues a kernel with its parameter, a struct as the kernel's source
// has it. Without blocks there is nothing to do.
func launch[T any](d *Device, f driver.Function, grid, block driver.Dim, parameter *T) {
	launchShared(d, f, grid, block, 0, parameter)
}

// launchShared is launch with shared bytes of dynamic shared memory a block.
func launchShared[T any](d *Device, f driver.Function, grid, block driver.Dim, shared int, parameter *T) {
	if !d.ok() || grid.X == 0 || grid.Y == 0 || grid.Z == 0 {
		return
	}
	if !d.built {
		panic("cuda: an operation before Build") // a mistake in a program, not in its input
	}
	d.idle = false
	d.check(d.launcher.Launch(f, grid, block, shared, unsafe.Pointer(parameter), unsafe.Sizeof(*parameter)))
}
