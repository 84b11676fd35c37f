// Package compute defines the operations that a transformer's forward pass
// needs, so that a model family is written once and runs on any device. It
// knows no models: shapes and weights come from its callers.
package compute

import (
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
)

// DType is the element type of a weight in a device's memory.
type DType uint8

const (
	BF16 DType = iota
	F32
	F16
	// Of quantised weights: their codes.
	I4     // −8 to 7, stored as 0 to 15; two columns a byte, the even one in the lower half
	I8     // two's complement
	F8E4M3 // without infinities; 0x7f and 0xff are NaN
)

var dtypes = [...]struct {
	name string
	bits int
}{BF16: {"bfloat16", 16}, F32: {"float32", 32}, F16: {"float16", 16}, I4: {"int4", 4}, I8: {"int8", 8}, F8E4M3: {"float8 e4m3", 8}}

// RowBytes is the size in bytes of a row of n elements, filled up to a whole byte.
func (d DType) RowBytes(n int) int { return (n*dtypes[d].bits + 7) / 8 }

// Quantised tells whether elements are codes, which need scales.
func (d DType) Quantised() bool { return d == I4 || d == I8 || d == F8E4M3 }

func (d DType) String() string { return dtypes[d].name }

// Quant is how a quantised weight is coded: element (i, j) is code (i, j) times
// scale (i, j / Group).
type Quant struct {
	DType DType // one that is Quantised
	Group int   // columns of a row that share a scale
}

// Groups is the number of scales of a row of n columns.
func (q Quant) Groups(n int) int { return (n + q.Group - 1) / q.Group }

// FillScales writes the scales of rows [row, row+rows) of a quantised weight of
// in columns, Groups(in) a row, into dst. They must be finite.
type FillScales func(row, rows int, dst []float32) error

// Tensor is a matrix of activations, [rows, columns], on one rank's device. An
// operation on it names how many of its first rows it works on.
type Tensor interface {
	MaxRows() int
	Cols() int
}

// Weight is a matrix [out, in], or a vector [1, in], on one rank's device. It
// does not change after it was loaded.
type Weight interface {
	Out() int
	In() int
	DType() DType
}

// Cache holds the keys and values of some layers for a pool of pages, each of
// pageSize positions. A slot is page · pageSize + offset.
type Cache interface {
	PageSize() int
	Pages() int
}

// CacheFormat is how a cache keeps its numbers. The zero CacheFormat is the type
// of the device's activations.
type CacheFormat struct {
	// Float8 keeps them as F8E4M3: the nearest code to number / scale, the largest
	// where that is beyond it; what attention reads is code · scale.
	Float8 bool
	// Scales of Float8, of layer i's KV head h number i · KVHeads + h: finite and
	// above 0. Nil: all are 1.
	KeyScales, ValueScales []float32
}

// Check panics unless there is a scale for each head: a mistake in a model, not in
// its input.
func (f CacheFormat) Check(layers int, s AttentionShape) {
	for _, scales := range [][]float32{f.KeyScales, f.ValueScales} {
		if n := layers * s.KVHeads; scales != nil && len(scales) != n {
			panic(fmt.Sprintf("compute: %d scales for a cache of %d heads", len(scales), n))
		}
	}
}

// Fill writes rows [row, row+rows) of a weight, in its DType, little-endian and
// row-major, RowBytes(in) a row, into dst.
type Fill func(row, rows int, dst []byte) error

// Rows describes the rows of one forward pass: decode is one row a sequence,
// verify 1 + k rows, a prefill chunk many. Row i attends to the cache entries
// of positions Starts[Seqs[i]] … Positions[i] of its sequence, its own among them.
//
// A row of a tree is node j of up to MaxNodes that follow the Base positions of
// its sequence: its entry lies at position Base + j, and its rotary position is
// Base + the node's depth, 0 without a parent. It attends to the entries of
// positions Starts[Seqs[i]] … Base−1 and then of Base + k for each bit k of its
// mask, lowest first: its ancestors and itself. A parent has a lower number than
// its children, so these are in the order of their rotary positions.
type Rows struct {
	Tokens    []int32 // token id
	Positions []int32 // rotary position: the place in the sequence
	Slots     []int32 // cache slot that gets the row's key and value
	Seqs      []int32 // index of the row's sequence in Tables
	Tables    [][]int32
	Starts    []int32 // by sequence: its first position that is in the cache, usually 0

	// Empty in a pass without trees. Otherwise by row; Masks[i] is 0 where row
	// i is none of a tree.
	Bases []int32
	Masks []uint64

	// Kept is where Keep puts what belongs to a row; −1: nowhere. Empty: to nowhere
	// for all.
	Kept []int32
}

// MaxNodes is the largest number of nodes of a tree.
const MaxNodes = 64

// Len is the number of rows.
func (r *Rows) Len() int { return len(r.Tokens) }

// Trees tells whether there are rows of trees.
func (r *Rows) Trees() bool { return len(r.Masks) > 0 }

// Reset empties r and keeps its memory.
func (r *Rows) Reset() {
	r.Tokens, r.Positions, r.Slots, r.Seqs = r.Tokens[:0], r.Positions[:0], r.Slots[:0], r.Seqs[:0]
	r.Tables, r.Starts = r.Tables[:0], r.Starts[:0]
	r.Bases, r.Masks, r.Kept = r.Bases[:0], r.Masks[:0], r.Kept[:0]
}

// AddSequence adds a sequence by its block table: entry j is the page that
// holds positions j·pageSize … of it, and start is the first position that its
// rows see. The answer is its index for Add.
func (r *Rows) AddSequence(table []int32, start int) int32 {
	r.Tables = append(r.Tables, table)
	r.Starts = append(r.Starts, int32(start))
	return int32(len(r.Tables) - 1)
}

// Add appends a row for the sequence seq, whose table must cover position.
func (r *Rows) Add(seq, token, position int32, pageSize int) {
	r.add(seq, token, position, Slot(r.Tables[seq], position, pageSize))
	if r.Trees() {
		r.Bases, r.Masks = append(r.Bases, 0), append(r.Masks, 0)
	}
}

// AddNode appends a row for node number node of a tree that follows base
// positions of the sequence seq. mask has the bits of its ancestors, of which
// there are depth, and of itself; the table must cover position base + node.
func (r *Rows) AddNode(seq, token, base int32, node, depth int, mask uint64, pageSize int) {
	for len(r.Masks) < r.Len() { // the rows before the first of a tree
		r.Bases, r.Masks = append(r.Bases, 0), append(r.Masks, 0)
	}
	r.add(seq, token, base+int32(depth), Slot(r.Tables[seq], base+int32(node), pageSize))
	r.Bases, r.Masks = append(r.Bases, base), append(r.Masks, mask)
}

func (r *Rows) add(seq, token, position, slot int32) {
	r.Tokens = append(r.Tokens, token)
	r.Positions = append(r.Positions, position)
	r.Slots = append(r.Slots, slot)
	r.Seqs = append(r.Seqs, seq)
}

// Slot is the cache slot of a position that table covers.
func Slot(table []int32, position int32, pageSize int) int32 {
	return table[int(position)/pageSize]*int32(pageSize) + position%int32(pageSize)
}

// AttentionShape is the part of an attention layer that one rank computes.
type AttentionShape struct {
	Heads   int     // query heads
	KVHeads int     // key and value heads; divides Heads
	HeadDim int     // even
	Scale   float32 // of the scores, before the softmax
}

// QKVCols is the width of the fused [query | key | value] rows.
func (s AttentionShape) QKVCols() int { return (s.Heads + 2*s.KVHeads) * s.HeadDim }

// Residual is the residual stream, Sum, which an operation adds to. What is in Sum then
// goes to Copy too, as Device.Copy would bring it there, if Copy is not nil.
type Residual struct{ Sum, Copy Tensor }

// Device runs one rank's share of a forward pass. Every rank calls the same
// operations in the same order. Operations may return before they are done;
// Floats waits for all of them. The operations take no errors: their arguments
// are checked when tensors and weights are made, and a fault of the device is
// reported by Err after the pass.
//
// A result must not depend on the other rows of its pass.
type Device interface {
	// Name says what computes, for logs and /server_info: "cpu avx512, 2 threads".
	Name() string
	// Err is the first fault of the device or of a collective, or nil.
	Err() error

	// NewTensor makes activations in the type that the device multiplies.
	NewTensor(rows, cols int) Tensor
	// NewSums makes activations of float32: for what is summed up over the
	// layers, and for logits.
	NewSums(rows, cols int) Tensor
	// Columns is a view of columns [from, from+n) of t.
	Columns(t Tensor, from, n int) Tensor
	// NewWeight makes a weight of a DType that is not Quantised.
	NewWeight(dtype DType, out, in int, fill Fill) (Weight, error)
	// NewQuantized makes a weight that Linear multiplies by as it is coded.
	NewQuantized(q Quant, out, in int, codes Fill, scales FillScales) (Weight, error)
	// NewCache makes a cache of layers × pages; shape gives a rank's heads.
	NewCache(layers, pages, pageSize int, shape AttentionShape, format CacheFormat) Cache

	// Prepare readies the device for a pass over r. freqs are the rotary
	// inverse frequencies, HeadDim/2 of them; sines and cosines are multiplied by scale.
	Prepare(r *Rows, freqs []float32, scale float32)
	// Embed sets dst[i] = table[token of row i − first], or zero where the
	// table, a rank's part of the vocabulary, does not have the token.
	Embed(dst Tensor, table Weight, first int, r *Rows)
	// RMSNorm sets dst = x / sqrt(mean(x²) + eps) · w, row by row.
	RMSNorm(dst, x Tensor, w Weight, eps float32, rows int)
	// AddRMSNorm adds x to the residual stream, then sets dst = RMSNorm of that.
	AddRMSNorm(dst Tensor, to Residual, x Tensor, w Weight, eps float32, rows int)
	// Add adds x to dst.
	Add(dst, x Tensor, rows int)
	// Copy sets dst = x.
	Copy(dst, x Tensor, rows int)
	// Gather sets dst[i] = x[index[i]].
	Gather(dst, x Tensor, index []int32)
	// Scatter sets dst[to[i]] = x[from[i]]; no row of dst is named twice.
	Scatter(dst, x Tensor, to, from []int32)
	// Keep sets dst[Kept of row i] = x[i], for the rows that have one; no row of dst
	// is named twice.
	Keep(dst, x Tensor, r *Rows)
	// Linear sets dst = x · wᵀ.
	Linear(dst, x Tensor, w Weight, rows int)
	// AddBias adds the vector b to each row of x.
	AddBias(x Tensor, b Weight, rows int)
	// LinearBias is Linear and then AddBias, but rounded once.
	LinearBias(dst, x Tensor, w, b Weight, rows int)
	// QKNorm sets each query and key head of qkv to its RMSNorm, with the
	// weights q and k of HeadDim values.
	QKNorm(qkv Tensor, q, k Weight, eps float32, shape AttentionShape, rows int)
	// RopeAndCache turns the queries and keys of qkv to the rows' rotary
	// positions (halves: dimension i is paired with i + HeadDim/2) and writes
	// keys and values to the rows' slots.
	RopeAndCache(qkv Tensor, c Cache, layer int, r *Rows)
	// Attention sets dst [rows, Heads·HeadDim] to softmax(q·kᵀ·Scale)·v over
	// each row's visible cache entries (see Rows): the last window of them, its
	// own among these, or all if window is 0. The sums are in the order of the
	// entries, so that a row of a tree gets what it would get as one of a chain.
	Attention(dst, qkv Tensor, c Cache, layer, window int, r *Rows)
	// QKV is Linear and then RopeAndCache: of a layer without biases and norms of
	// heads. What becomes of the keys and values in qkv is not said.
	QKV(qkv, x Tensor, w Weight, c Cache, layer int, r *Rows)
	// MoveCache copies the keys and values of slot from[i] to slot to[i], in all
	// layers of c, for i = 0, 1, …: the accepted nodes of trees to where the text
	// goes on. No to[i] is a from[k] of a later k > i; it may be one of an
	// earlier k, whose copy must have been made.
	MoveCache(c Cache, to, from []int32)
	// SiluMul sets dst = silu(gateUp[:, :n]) · gateUp[:, n:], n = dst's columns.
	SiluMul(dst, gateUp Tensor, rows int)
	// Gated is Linear and then SiluMul. products has room for what Linear gives;
	// what is in it afterwards is not said.
	Gated(dst, products, x Tensor, w Weight, rows int)

	// AllReduce adds x over all ranks; every rank gets the same sum.
	AllReduce(x Tensor, rows int)
	// AllReduceNorm is AllReduce of x and then AddRMSNorm. What is in x afterwards
	// is not said.
	AllReduceNorm(dst Tensor, to Residual, x Tensor, w Weight, eps float32, rows int)
	// LinearNorm is Linear of x and w into sum, which is one rank's part, and then
	// AllReduceNorm of that with the weight norm. The next operation that reads dst is
	// a Linear, LinearBias, Gated or QKV with the weight next, and the only one that does;
	// no norm and no other LinearNorm comes between the two.
	// What is in sum afterwards is not said.
	LinearNorm(dst Tensor, to Residual, sum, x Tensor, w, norm Weight, eps float32, next Weight, rows int)
	// AllGather sets dst = the x of rank 0, 1, …, side by side.
	AllGather(dst, x Tensor, rows int)
	// Floats is row i of t in host memory, valid until the next operation on t.
	Floats(t Tensor, i int) []float32
}

// Pass is the input of a whole forward pass: rows, or nil, and lists of rows.
type Pass struct {
	Kind  int // passes of one kind are the same operations
	Rows  *Rows
	Lists [2][]int32
}

// Runner is a device that runs whole passes: it may record what the passes of a
// kind do and repeat that. Then body is not called, or with as many rows and as
// long lists as the recording shall have, which the device fills up. body must
// do the same operations whatever the values in them are, and read no result.
type Runner interface {
	Run(p Pass, body func(r *Rows, lists [2][]int32))
	// Wait waits for the passes before it.
	Wait()
}

// Clock is a device with a clock of its own, which may be started and asked from any
// goroutine.
type Clock interface {
	// StartClock has passes timed from now on, at some microseconds each.
	StartClock()
	// Clock is how long the device has computed passes since then, and how long it
	// had nothing to compute between them. The last ones are still to come.
	Clock() (busy, idle time.Duration)
}

// Builder is a device that has kernels to make before its first pass. Weights
// may be loaded meanwhile. The ranks' devices are built at the same time.
type Builder interface {
	Build() error
}

// Grower is a device whose caches may have memory for their first pages only, until
// it is known how much everything else takes.
type Grower interface {
	// Grows tells whether there are such caches.
	Grows() bool
	// Free is the device's free memory, in bytes, after all passes so far.
	Free() (int64, error)
	// Fits is how many pages all caches can have, at most those that they were made
	// for, with n bytes more than they hold now.
	Fits(n int64) int
	// Grow gives all caches that grow memory for pages pages; what is in them stays.
	Grow(pages int) error
}

// Joiner is a device that joins those of the other ranks, at the same time as
// they do, before it is built.
type Joiner interface {
	Join() error
	// Links says how the ranks meet, for logs.
	Links() string
}

// Breaker is a device on which a fault can be brought about, for tests: it tells
// whether it can. DeviceFault is one of the device itself; with CollectiveFailed
// it does not take part in the next pass, so that the other ranks' wait for it.
type Breaker interface {
	Break(reason fault.Reason) bool
}

// Chainer is a Chooser that goes on from what it found by itself: the tokens need
// not come to the host between the passes that draft them.
type Chainer interface {
	Chooser
	// Follow makes ids[best] of row from[i] of the last ArgMax over x the token of
	// row i of the pass in progress. It keeps that of each of from, which may be more,
	// as number keep[i] for Followed, below MaxNodes times x's rows. It comes first in
	// a pass, and x is the same each time.
	Follow(x Tensor, ids []int32, keep, from []int32)
	// Followed is the token that was kept as number i; it is not ok where Best would
	// not be.
	Followed(i int) (token int32, ok bool)
}

// Chooser is a device that finds the most likely tokens itself, so that the
// logits need not be read.
type Chooser interface {
	// ArgMax finds the first of the highest of the first cols values of each row of x.
	ArgMax(x Tensor, cols, rows int)
	// Best is what the last ArgMax over x found in row i; it is not ok if the
	// row has a NaN or an infinity, or no finite value.
	Best(x Tensor, i int) (column int32, ok bool)
}
