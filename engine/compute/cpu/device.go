// Package cpu is the compute device for processors: SIMD kernels chosen at run
// time, and one fixed order of summation for every result, so that a row's
// result depends neither on the other rows of its pass nor on the number of
// threads.
package cpu

import (
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

// Device is one rank's share of the processor.
type Device struct {
	k    *kernels
	pool *pool
	comm collective.Communicator

	// Of the pass in progress: cosines and sines, [rows, HeadDim/2].
	cos, sin []float32

	// Tasks, kept so that an operation allocates nothing.
	linear    linearTask
	wordsTask wordsTask
	words     []int16 // for linear
	attention attentionTask
	silu      siluTask
}

// New makes the device of the rank of comm, with threads threads.
func New(comm collective.Communicator, threads int) (*Device, error) {
	k, err := chooseKernels()
	if err != nil {
		return nil, err
	}
	return newDevice(comm, threads, k), nil
}

func newDevice(comm collective.Communicator, threads int, k *kernels) *Device {
	return &Device{k: k, pool: newPool(max(threads, 1), k.pause), comm: comm}
}

// Threads is the number of threads for each of ranks ranks on this machine.
func Threads(ranks int) int { return max(1, runtime.GOMAXPROCS(0)/ranks) }

// Kernels is the name of the kernel set in use.
func (d *Device) Kernels() string { return d.k.name }

// Name implements compute.Device.
func (d *Device) Name() string {
	return fmt.Sprintf("cpu %s, %d threads a rank", d.k.name, d.pool.threads())
}

// Err implements compute.Device.
func (d *Device) Err() error { return d.comm.Err() }

// Close ends the device's threads.
func (d *Device) Close() { d.pool.close() }

// tensor is rows of cols values, stride values apart.
type tensor struct {
	data         []float32
	rows, cols   int
	stride, from int
}

func (t *tensor) MaxRows() int { return t.rows }
func (t *tensor) Cols() int    { return t.cols }

func (t *tensor) row(i int) []float32 {
	at := i*t.stride + t.from
	return t.data[at : at+t.cols : at+t.cols]
}

// contiguous is the first rows rows as one slice.
func (t *tensor) contiguous(rows int) []float32 {
	if t.stride != t.cols {
		panic("cpu: a view of columns is not contiguous") // a mistake in a model, not in its input
	}
	return t.data[:rows*t.cols]
}

// NewTensor implements compute.Device.
func (d *Device) NewTensor(rows, cols int) compute.Tensor {
	return &tensor{data: make([]float32, rows*cols), rows: rows, cols: cols, stride: cols}
}

// NewSums implements compute.Device.
func (d *Device) NewSums(rows, cols int) compute.Tensor { return d.NewTensor(rows, cols) }

// Columns implements compute.Device.
func (d *Device) Columns(t compute.Tensor, from, n int) compute.Tensor {
	p := t.(*tensor)
	if from < 0 || n < 1 || from+n > p.cols {
		panic(fmt.Sprintf("cpu: columns %d to %d of %d", from, from+n, p.cols))
	}
	return &tensor{data: p.data, rows: p.rows, cols: n, stride: p.stride, from: p.from + from}
}

// weight is a matrix in its stored type.
type weight struct {
	dtype   compute.DType
	out, in int
	bytes   []byte
	f32     []float32 // the same memory, for F32
	panels  *panels   // of a quantised weight, which has no bytes
}

func (w *weight) Out() int             { return w.out }
func (w *weight) In() int              { return w.in }
func (w *weight) DType() compute.DType { return w.dtype }

func (w *weight) stride() uintptr { return uintptr(w.dtype.RowBytes(w.in)) }

// ptr is the address of row r.
func (w *weight) ptr(r int) *byte { return &w.bytes[r*int(w.stride())] }

// words is row r of a BF16 or F16 weight.
func (w *weight) words(r int) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(w.ptr(r))), w.in)
}

// at is element (r, j) as float32.
func (w *weight) at(r, j int) float32 {
	switch w.dtype {
	case compute.BF16:
		return math.Float32frombits(uint32(w.words(r)[j]) << 16)
	case compute.F16:
		return compute.Half(w.words(r)[j])
	case compute.F32:
		return w.f32[r*w.in+j]
	}
	return w.panels.at(r, j)
}

// NewWeight implements compute.Device. The weight is filled with one call.
func (d *Device) NewWeight(dtype compute.DType, out, in int, fill compute.Fill) (compute.Weight, error) {
	if out < 1 || in < 1 {
		return nil, fault.Errorf(fault.WeightsMismatch, "a weight of %d × %d: both must be 1 or more", out, in)
	}
	if dtype.Quantised() {
		return nil, fault.Errorf(fault.Internal, "a weight of %s without scales", dtype)
	}
	w := &weight{dtype: dtype, out: out, in: in}
	// Backed by float32 so that the memory is aligned for every type.
	size := out * dtype.RowBytes(in)
	words := make([]float32, (size+3)/4)
	w.bytes = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)
	if dtype == compute.F32 {
		w.f32 = words
	}
	if err := fill(0, out, w.bytes); err != nil {
		return nil, err
	}
	return w, nil
}

// cache holds keys and values as [layer][page][KV head][offset][HeadDim]: a
// head's keys of one page lie together, so scores are a small product.
type cache struct {
	k, v             []float32
	k8, v8           []byte    // instead of them, of float8
	kScales, vScales []float32 // [layers · KV heads]
	layers           int
	pages, pageSize  int
	shape            compute.AttentionShape
}

func (c *cache) Pages() int    { return c.pages }
func (c *cache) PageSize() int { return c.pageSize }

// at is the index of the first value of (layer, page, head, offset).
func (c *cache) at(layer, page, head, offset int) int {
	return (((layer*c.pages+page)*c.shape.KVHeads+head)*c.pageSize + offset) * c.shape.HeadDim
}

// float8 tells whether numbers are codes.
func (c *cache) float8() bool { return c.k8 != nil }

// put writes the key and value of a head at an index that at gave.
func (c *cache) put(layer, head, at int, key, value []float32) {
	if !c.float8() {
		copy(c.k[at:at+len(key)], key)
		copy(c.v[at:at+len(value)], value)
		return
	}
	i := layer*c.shape.KVHeads + head
	encode(c.k8[at:at+len(key)], key, c.kScales[i])
	encode(c.v8[at:at+len(value)], value, c.vScales[i])
}

// move copies the key and value of a head from one index to another.
func (c *cache) move(to, from int) {
	dim := c.shape.HeadDim
	if c.float8() {
		copy(c.k8[to:to+dim], c.k8[from:from+dim])
		copy(c.v8[to:to+dim], c.v8[from:from+dim])
		return
	}
	copy(c.k[to:to+dim], c.k[from:from+dim])
	copy(c.v[to:to+dim], c.v[from:from+dim])
}

func encode(dst []byte, x []float32, scale float32) {
	for i, v := range x {
		dst[i] = compute.ToFloat8(v / scale)
	}
}

func decode(dst []float32, codes []byte, scale float32) {
	for i, c := range codes {
		dst[i] = float8s[c] * scale
	}
}

// float8s are the numbers of all codes.
var float8s = func() (all [256]float32) {
	for i := range all {
		all[i] = compute.Float8(byte(i))
	}
	return all
}()

// NewCache implements compute.Device. Its memory is touched only when used.
func (d *Device) NewCache(layers, pages, pageSize int, shape compute.AttentionShape, format compute.CacheFormat) compute.Cache {
	format.Check(layers, shape)
	n := layers * pages * pageSize * shape.KVHeads * shape.HeadDim
	c := &cache{layers: layers, pages: pages, pageSize: pageSize, shape: shape}
	if !format.Float8 {
		c.k, c.v = make([]float32, n), make([]float32, n)
		return c
	}
	c.k8, c.v8 = make([]byte, n), make([]byte, n)
	c.kScales, c.vScales = scales(format.KeyScales, layers*shape.KVHeads), scales(format.ValueScales, layers*shape.KVHeads)
	return c
}

// scales are given, or n ones.
func scales(given []float32, n int) []float32 {
	if given != nil {
		return given
	}
	ones := make([]float32, n)
	for i := range ones {
		ones[i] = 1
	}
	return ones
}

// Floats implements compute.Device.
func (d *Device) Floats(t compute.Tensor, i int) []float32 { return t.(*tensor).row(i) }

// AllReduce implements compute.Device.
func (d *Device) AllReduce(x compute.Tensor, rows int) {
	d.comm.AllReduce(x.(*tensor).contiguous(rows))
}

// AllReduceNorm implements compute.Device.
func (d *Device) AllReduceNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.AllReduce(x, rows)
	d.AddRMSNorm(dst, to, x, w, eps, rows)
}

// LinearNorm implements compute.Device.
func (d *Device) LinearNorm(dst compute.Tensor, to compute.Residual, sum, x compute.Tensor, w, norm compute.Weight, eps float32, _ compute.Weight, rows int) {
	d.Linear(sum, x, w, rows)
	d.AllReduceNorm(dst, to, sum, norm, eps, rows)
}

// AllGather implements compute.Device.
func (d *Device) AllGather(dst, x compute.Tensor, rows int) {
	t, from := dst.(*tensor), x.(*tensor)
	d.comm.AllGather(t.contiguous(rows), from.contiguous(rows), rows, from.cols)
}

var _ compute.Device = (*Device)(nil)
