package model

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
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

	quantization *Quantization // of the model being loaded

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
	format    *weightFormat // of a quantised linear weight; otherwise nil
}

// bias is the same part of the vector that goes with a matrix: one value a row.
func (p part) bias() part {
	return part{strings.TrimSuffix(p.name, "weight") + "bias", 1, p.out, 0, 1, p.row, p.rows, nil}
}

// whole is all of a stored matrix.
func whole(name string, out, in int) part { return part{name, out, in, 0, out, 0, in, nil} }

// rowsOf is the rank's share of a matrix's rows (column-parallel).
func (l *Loader) rowsOf(name string, out, in int) part {
	n := out / l.Size
	return part{name, out, in, l.Rank * n, n, 0, in, nil}
}

// colsOf is the rank's share of a matrix's columns (row-parallel): the ranks'
// products are added.
func (l *Loader) colsOf(name string, out, in int) part {
	n := in / l.Size
	return part{name, out, in, 0, out, l.Rank * n, n, nil}
}

// kvRowsOf is the rank's key or value heads: its share, or, with more ranks
// than heads, the one head that its query heads need.
func (l *Loader) kvRowsOf(name string, heads, dim, in int) part {
	n, first := kvHeads(heads, l.Rank, l.Size)
	return part{name, heads * dim, in, first * dim, n * dim, 0, in, nil}
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
	return part{name, vocab, in, first, min(rows, vocab-first), 0, in, nil}, rows
}

// fail keeps the first error.
func (l *Loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = l.damaged(format, args...)
	}
}

// damaged is the error for files that are not what they should be.
func (l *Loader) damaged(format string, args ...any) error {
	return &fault.Error{Reason: l.Mismatch, Rank: l.Rank, Err: fmt.Errorf("%s: %w", l.Name, fmt.Errorf(format, args...))}
}

// has tells whether the files have a tensor.
func (l *Loader) has(name string) bool {
	_, ok := l.Set.Lookup(name)
	return ok
}

// floats are the types of tensors that are not quantised.
var floats = []weights.DType{weights.BF16, weights.F16, weights.F32}

// lookup finds a floating-point tensor of the expected shape and marks it used.
func (l *Loader) lookup(p part) (weights.Info, bool) {
	if p.out == 1 {
		return l.expect(p.name, floats, []int{p.out, p.in}, []int{p.in})
	}
	return l.expect(p.name, floats, []int{p.out, p.in})
}

// expect finds a tensor of one of the types and shapes and marks it used.
func (l *Loader) expect(name string, types []weights.DType, shapes ...[]int) (weights.Info, bool) {
	if err := l.Context.Err(); err != nil && l.err == nil {
		l.err = err
	}
	want := strings.ReplaceAll(fmt.Sprint(shapes[0]), " ", ", ")
	info, ok := l.Set.Lookup(name)
	if !ok {
		l.fail("tensor %s is missing: config.json wants it with shape %s", name, want)
		return info, false
	}
	l.use(name)
	if !slices.ContainsFunc(shapes, func(s []int) bool { return slices.Equal(s, info.Shape) }) {
		l.fail("tensor %s has shape %v: config.json wants %s", name, info.Shape, want)
		return info, false
	}
	if !slices.Contains(types, info.DType) {
		l.fail("tensor %s has type %s: supported here are %s", name, info.DType, joined(types))
		return info, false
	}
	return info, true
}

func joined(types []weights.DType) string {
	var names []string
	for _, d := range types {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
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

// matrix puts parts of linear weights below each other as one weight of rows
// rows; rows beyond the parts are zero. Weights that are all quantised in one
// way stay so; see table for the others.
func (l *Loader) matrix(rows int, parts ...part) compute.Weight {
	coded := 0
	for i := range parts {
		parts[i].format = l.format(parts[i].name)
		if parts[i].format != nil {
			coded++
		}
	}
	if coded == len(parts) && parts[0].alike(parts[1:]) {
		return l.quantised(rows, parts)
	}
	return l.table(rows, parts...)
}

// table is matrix for weights that are not multiplied by, as embeddings.
// Weights that are all stored as bfloat16 or all as float16 stay so, others
// become float32.
func (l *Loader) table(rows int, parts ...part) compute.Weight {
	dtype, cols := compute.F32, parts[0].cols
	for i, p := range parts {
		if !l.findPart(p) {
			return nil
		}
		stored := compute.F32
		if p.format == nil {
			info, _ := l.Set.Lookup(p.name)
			stored = deviceType(info.DType)
		}
		if i == 0 {
			dtype = stored
		} else if stored != dtype {
			dtype = compute.F32
		}
	}
	if l.err != nil {
		return nil
	}
	w, err := l.Device.NewWeight(dtype, rows, cols, func(row, n int, dst []byte) error {
		size := dtype.RowBytes(cols)
		return eachPart(parts, row, n, func(p part, from, n, at int) error {
			return l.read(dtype, p, from, n, dst[at*size:(at+n)*size])
		}, func(at int) { clear(dst[at*size:]) })
	})
	return l.made(w, err, parts)
}

// deviceType is how a plain tensor is kept.
func deviceType(d weights.DType) compute.DType {
	switch d {
	case weights.BF16:
		return compute.BF16
	case weights.F16:
		return compute.F16
	}
	return compute.F32
}

// made ends the making of a weight: it keeps the error or reports the tensors.
func (l *Loader) made(w compute.Weight, err error, parts []part) compute.Weight {
	if err != nil {
		if l.err == nil {
			l.err = fault.OnRank(l.Rank, err)
		}
		return nil
	}
	for _, p := range parts {
		for _, name := range p.tensors() {
			l.loaded(name)
		}
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

// eachPart calls f for the rows [from, from+n) of each part that are among the
// rows [row, row+n) of the weight made of parts, where they are rows at … of
// those; and rest with the first row that no part has, if there is one.
func eachPart(parts []part, row, n int, f func(p part, from, n, at int) error, rest func(at int)) error {
	at := 0
	for _, p := range parts {
		from, to := max(row, 0), min(row+n-at, p.rows)
		if from < to {
			if err := f(p, from, to-from, at); err != nil {
				return err
			}
			at += to - from
			row = to
		}
		row -= p.rows
	}
	if at < n {
		rest(at)
	}
	return nil
}

// read reads rows [from, from+n) of a part.
func (l *Loader) read(dtype compute.DType, p part, from, n int, dst []byte) error {
	sel := weights.Slice{Row: p.row + from, Rows: n, Col: p.col, Cols: p.cols}
	info, _ := l.Set.Lookup(p.name)
	if len(info.Shape) == 1 { // a vector's elements are its rows
		sel = weights.Slice{Row: p.col, Rows: p.cols, Col: 0, Cols: 1}
	}
	if dtype != compute.F32 {
		return l.Set.Read(p.name, sel, dst)
	}
	values := make([]float32, n*p.cols)
	var err error
	if p.format != nil {
		err = l.decode(p, from, n, values)
	} else {
		err = l.Set.ReadF32(p.name, sel, values)
	}
	if err != nil {
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
			size := compute.F32.RowBytes(p.cols)
			if err := l.read(compute.F32, p, 0, 1, dst[:size]); err != nil {
				return err
			}
			dst = dst[size:]
		}
		return nil
	})
	return l.made(w, err, parts)
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
