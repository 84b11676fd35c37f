package model

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/weights"
)

// Loader reads one rank's share of a model's weights onto its device.
type Loader struct {
	Device compute.Device
	Set    *weights.Set
	Name   string // the folder, for errors
	Rank   int
	Size   int // ranks
	// Mismatch is the reason of errors about the files: WeightsMismatch or DraftMismatch.
	Mismatch fault.Reason
	// Context ends the reading between two tensors.
	Context context.Context
	// Loaded, if set, hears of each tensor once: the bytes of the whole tensor,
	// and whether it was the last of its file.
	Loaded func(rank int, bytes int64, lastOfShard bool)

	used map[string]bool
	left []int // tensors to read of each file
	err  error // first error; later calls do nothing
}

// A part is a piece of a stored matrix that becomes rows of a weight.
type part struct {
	name      string
	out, in   int // the stored shape that is expected
	row, rows int
	col, cols int
}

// bias is the same part of the vector that goes with a matrix: one value a row.
func (p part) bias() part {
	return part{strings.TrimSuffix(p.name, "weight") + "bias", 1, p.out, 0, 1, p.row, p.rows}
}

// whole is all of a stored matrix.
func whole(name string, out, in int) part { return part{name, out, in, 0, out, 0, in} }

// rowsOf is the rank's share of a matrix's rows (column-parallel).
func (l *Loader) rowsOf(name string, out, in int) part {
	n := out / l.Size
	return part{name, out, in, l.Rank * n, n, 0, in}
}

// colsOf is the rank's share of a matrix's columns (row-parallel): the ranks'
// products are added.
func (l *Loader) colsOf(name string, out, in int) part {
	n := in / l.Size
	return part{name, out, in, 0, out, l.Rank * n, n}
}

// kvRowsOf is the rank's key or value heads: its share, or, with more ranks
// than heads, the one head that its query heads need.
func (l *Loader) kvRowsOf(name string, heads, dim, in int) part {
	n, first := kvHeads(heads, l.Rank, l.Size)
	return part{name, heads * dim, in, first * dim, n * dim, 0, in}
}

// kvHeads is the number of key-value heads of a rank, and the first of them.
func kvHeads(heads, rank, size int) (n, first int) {
	if heads >= size {
		n = heads / size
		return n, rank * n
	}
	return 1, rank * heads / size
}

// vocabRows is the length of a rank's part of a vocabulary: the same for all
// ranks, the last one's being filled up with zeros.
func vocabRows(vocab, size int) int { return (vocab + size - 1) / size }

// vocabOf is the rank's part of a table with one row a token, and the number of
// its rows with the filling.
func (l *Loader) vocabOf(name string, vocab, in int) (p part, rows int) {
	rows = vocabRows(vocab, l.Size)
	first := min(l.Rank*rows, vocab)
	return part{name, vocab, in, first, min(rows, vocab-first), 0, in}, rows
}

// fail keeps the first error.
func (l *Loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = &fault.Error{Reason: l.Mismatch, Rank: l.Rank, Err: fmt.Errorf("%s: %w", l.Name, fmt.Errorf(format, args...))}
	}
}

// has tells whether the files have a tensor.
func (l *Loader) has(name string) bool {
	_, ok := l.Set.Lookup(name)
	return ok
}

// lookup finds a floating-point tensor of the expected shape and marks it used.
func (l *Loader) lookup(p part) (weights.Info, bool) {
	if err := l.Context.Err(); err != nil && l.err == nil {
		l.err = err
	}
	info, ok := l.Set.Lookup(p.name)
	if !ok {
		l.fail("tensor %s is missing: config.json wants it with shape [%d, %d]", p.name, p.out, p.in)
		return info, false
	}
	l.use(p.name)
	matrix := len(info.Shape) == 2 && info.Shape[0] == p.out && info.Shape[1] == p.in
	vector := len(info.Shape) == 1 && p.out == 1 && info.Shape[0] == p.in
	if !matrix && !vector {
		l.fail("tensor %s has shape %v: config.json wants [%d, %d]", p.name, info.Shape, p.out, p.in)
		return info, false
	}
	switch info.DType {
	case weights.BF16, weights.F16, weights.F32:
		return info, true
	}
	l.fail("tensor %s has type %s: supported are BF16, F16 and F32", p.name, info.DType)
	return info, false
}

func (l *Loader) use(name string) {
	if l.used == nil {
		l.used = map[string]bool{}
	}
	l.used[name] = true
}

// skip marks a tensor that a model's files may have and that is not computed with.
func (l *Loader) skip(name string) {
	if l.has(name) {
		l.use(name)
		l.loaded(name)
	}
}

// matrix puts parts below each other as one weight of rows rows; rows beyond
// the parts are zero. Weights stored as bfloat16 stay so, others become float32.
func (l *Loader) matrix(rows int, parts ...part) compute.Weight {
	dtype, cols := compute.BF16, parts[0].cols
	for _, p := range parts {
		info, ok := l.lookup(p)
		if !ok {
			return nil
		}
		if info.DType != weights.BF16 {
			dtype = compute.F32
		}
	}
	if l.err != nil {
		return nil
	}
	w, err := l.Device.NewWeight(dtype, rows, cols, func(row, n int, dst []byte) error {
		return l.fill(dtype, parts, row, n, dst)
	})
	if err != nil {
		l.err = fault.OnRank(l.Rank, err)
		return nil
	}
	for _, p := range parts {
		l.loaded(p.name)
	}
	return w
}

// loaded reports a tensor that was read, or that the model has no use for.
func (l *Loader) loaded(name string) {
	info, ok := l.Set.Lookup(name)
	if !ok || l.Loaded == nil {
		return
	}
	if l.left == nil {
		l.left = make([]int, l.Set.Shards())
		for _, info := range l.Set.Infos() {
			l.left[info.Shard]++
		}
	}
	l.left[info.Shard]--
	l.Loaded(l.Rank, info.Bytes(), l.left[info.Shard] == 0)
}

// fill writes rows [row, row+n) of the weight made of parts.
func (l *Loader) fill(dtype compute.DType, parts []part, row, n int, dst []byte) error {
	for _, p := range parts {
		from, to := max(row, 0), min(row+n, p.rows)
		if from < to {
			size := (to - from) * p.cols * dtype.Size()
			if err := l.read(dtype, p, from, to-from, dst[:size]); err != nil {
				return err
			}
			dst = dst[size:]
			n -= to - max(row, 0)
			row = to
		}
		row -= p.rows
	}
	clear(dst)
	return nil
}

// read reads rows [from, from+n) of a part.
func (l *Loader) read(dtype compute.DType, p part, from, n int, dst []byte) error {
	sel := weights.Slice{Row: p.row + from, Rows: n, Col: p.col, Cols: p.cols}
	info, _ := l.Set.Lookup(p.name)
	if len(info.Shape) == 1 { // a vector's elements are its rows
		sel = weights.Slice{Row: p.col, Rows: p.cols, Col: 0, Cols: 1}
	}
	if dtype == compute.BF16 {
		return l.Set.Read(p.name, sel, dst)
	}
	values := make([]float32, n*p.cols)
	if err := l.Set.ReadF32(p.name, sel, values); err != nil {
		return err
	}
	for i, v := range values {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return nil
}

// vector reads a vector as float32.
func (l *Loader) vector(name string, n int) compute.Weight { return l.vectors(whole(name, 1, n)) }

// vectors reads parts of vectors, one after the other, as one of float32.
func (l *Loader) vectors(parts ...part) compute.Weight {
	n := 0
	for _, p := range parts {
		if _, ok := l.lookup(p); !ok {
			return nil
		}
		n += p.cols
	}
	if l.err != nil {
		return nil
	}
	w, err := l.Device.NewWeight(compute.F32, 1, n, func(_, _ int, dst []byte) error {
		for _, p := range parts {
			size := p.cols * compute.F32.Size()
			if err := l.read(compute.F32, p, 0, 1, dst[:size]); err != nil {
				return err
			}
			dst = dst[size:]
		}
		return nil
	})
	if err != nil {
		l.err = fault.OnRank(l.Rank, err)
		return nil
	}
	for _, p := range parts {
		l.loaded(p.name)
	}
	return w
}

// finish reports the first error, or tensors that nothing used: a file with
// more than the model computes would be served wrongly.
func (l *Loader) finish() error {
	if l.err != nil {
		return l.err
	}
	var unknown []string
	for _, info := range l.Set.Infos() {
		if !l.used[info.Name] && !strings.HasSuffix(info.Name, "rotary_emb.inv_freq") {
			unknown = append(unknown, info.Name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	sort.Strings(unknown)
	shown := unknown[:min(len(unknown), 3)]
	l.fail("tensor %s not known to this architecture (%d in all): give the model's original files", strings.Join(shown, ", "), len(unknown))
	return l.err
}
