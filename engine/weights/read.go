package weights

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
)

// A Slice is a part of a tensor seen as a matrix of shape[0] rows and as many
// columns as the other dimensions' product: rows [Row, Row+Rows) and columns
// [Col, Col+Cols). So a vector has as many rows as elements and one column, and
// a scalar is 1 × 1.
type Slice struct {
	Row, Rows int
	Col, Cols int
}

// Whole is all of a tensor.
func Whole(info Info) Slice {
	rows, cols := info.rowsCols()
	return Slice{Rows: rows, Cols: cols}
}

// Sizes of reads in bytes: a row's part of at least directRead is read by
// itself; shorter ones are picked out of a buffer of at most bufferSize.
const (
	directRead = 16 << 10
	bufferSize = 1 << 20
)

// Read reads a part of a tensor: its elements as they are stored,
// little-endian, row after row. len(dst) must be Rows × Cols × the size of an
// element. The error's reason is WeightsMismatch, unless reading failed.
func (s *Set) Read(name string, sel Slice, dst []byte) error {
	t, err := s.find(name, sel)
	if err != nil {
		return err
	}
	if want := sel.Rows * sel.Cols * t.DType.Size(); len(dst) != want {
		return s.tensorError(t, "a part of %d × %d elements of %s takes %d bytes, not %d", sel.Rows, sel.Cols, t.DType, want, len(dst))
	}
	return s.read(t, sel, dst)
}

// ReadF32 reads a part of a tensor of BF16, F16 or F32 as float32, which holds
// each of their values exactly. len(dst) must be Rows × Cols.
func (s *Set) ReadF32(name string, sel Slice, dst []float32) error {
	return readAs(s, name, sel, dst, []DType{BF16, F16, F32}, func(d DType, raw []byte, dst []float32) {
		switch d {
		case BF16:
			for i := range dst {
				dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
			}
		case F16:
			for i := range dst {
				dst[i] = halfToFloat(binary.LittleEndian.Uint16(raw[2*i:]))
			}
		default:
			for i := range dst {
				dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
		}
	})
}

// ReadBF16 reads a part of a tensor of BF16 as its bits. len(dst) must be
// Rows × Cols.
func (s *Set) ReadBF16(name string, sel Slice, dst []uint16) error {
	return readAs(s, name, sel, dst, []DType{BF16}, func(_ DType, raw []byte, dst []uint16) {
		for i := range dst {
			dst[i] = binary.LittleEndian.Uint16(raw[2*i:])
		}
	})
}

// ReadI64 reads a part of a tensor of I64. len(dst) must be Rows × Cols.
func (s *Set) ReadI64(name string, sel Slice, dst []int64) error {
	return readAs(s, name, sel, dst, []DType{I64}, func(_ DType, raw []byte, dst []int64) {
		for i := range dst {
			dst[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
		}
	})
}

// readAs reads a part of a tensor that has one of the types, block by block,
// through convert.
func readAs[T any](s *Set, name string, sel Slice, dst []T, types []DType, convert func(DType, []byte, []T)) error {
	t, err := s.find(name, sel)
	if err != nil {
		return err
	}
	var names []string
	ok := false
	for _, d := range types {
		ok = ok || t.DType == d
		names = append(names, d.String())
	}
	if !ok {
		return s.tensorError(t, "is stored as %s; wanted is %s", t.DType, strings.Join(names, ", "))
	}
	if want := sel.Rows * sel.Cols; len(dst) != want {
		return s.tensorError(t, "a part of %d × %d has %d elements, not %d", sel.Rows, sel.Cols, want, len(dst))
	}
	size := t.DType.Size()
	buf := make([]byte, min(len(dst)*size, bufferSize))
	for block := range sel.blocks(bufferSize / size) {
		n := block.Rows * block.Cols
		if err := s.read(t, block, buf[:n*size]); err != nil {
			return err
		}
		convert(t.DType, buf[:n*size], dst[:n])
		dst = dst[n:]
	}
	return nil
}

// blocks cuts a slice into pieces of at most most elements, in storage order.
func (sel Slice) blocks(most int) iter.Seq[Slice] {
	return func(yield func(Slice) bool) {
		if sel.Rows == 0 || sel.Cols == 0 {
			return
		}
		rows, cols := max(1, most/sel.Cols), min(most, sel.Cols)
		for r := 0; r < sel.Rows; r += rows {
			for c := 0; c < sel.Cols; c += cols {
				b := Slice{sel.Row + r, min(rows, sel.Rows-r), sel.Col + c, min(cols, sel.Cols-c)}
				if !yield(b) {
					return
				}
			}
		}
	}
}

// find finds a tensor and checks that it has the part.
func (s *Set) find(name string, sel Slice) (*tensor, error) {
	i, ok := s.byName[name]
	if !ok {
		return nil, fault.Errorf(fault.WeightsMismatch, "%s: tensor %s is in none of the model's files", s.name, quote(name))
	}
	t := &s.tensors[i]
	rows, cols := t.rowsCols()
	if !within(sel.Row, sel.Rows, rows) || !within(sel.Col, sel.Cols, cols) {
		return nil, s.tensorError(t, "rows [%d, +%d) and columns [%d, +%d) are outside its %d × %d", sel.Row, sel.Rows, sel.Col, sel.Cols, rows, cols)
	}
	if s.shards == nil {
		return nil, fault.Errorf(fault.Internal, "%s: tensor %s is read after the files were closed", s.name, quote(name))
	}
	return t, nil
}

// within tells whether [from, from+n) lies in [0, size).
func within(from, n, size int) bool {
	return from >= 0 && n >= 0 && from <= size && n <= size-from
}

func (s *Set) tensorError(t *tensor, format string, args ...any) error {
	return s.mismatch(t.File, fmt.Errorf("tensor %s %s", quote(t.Name), fmt.Sprintf(format, args...)))
}

// read reads a checked part of a tensor.
func (s *Set) read(t *tensor, sel Slice, dst []byte) error {
	if len(dst) == 0 {
		return nil
	}
	_, cols := t.rowsCols()
	size := t.DType.Size()
	file := &s.shards[t.Shard]
	stride, width := cols*size, sel.Cols*size
	start := t.offset + int64(sel.Row)*int64(stride) + int64(sel.Col)*int64(size)
	var err error
	switch {
	case t.rowStride > 0 || t.colStride > 0:
		err = readSparse(file, t, sel, dst)
	case width == stride || sel.Rows == 1:
		err = readFull(file.reader, dst, start)
	case width >= directRead || stride > bufferSize/2:
		for ; err == nil && len(dst) > 0; dst = dst[width:] {
			err = readFull(file.reader, dst[:width], start)
			start += int64(stride)
		}
	default:
		err = readStrided(file, start, stride, width, dst)
	}
	if err != nil {
		return s.readError(file.path, fmt.Errorf("tensor %s: %w", quote(t.Name), err))
	}
	return nil
}

// readStrided reads width bytes every stride bytes, several rows at a time.
func readStrided(file *shard, start int64, stride, width int, dst []byte) error {
	rows := len(dst) / width
	most := bufferSize / stride
	buf := make([]byte, min(rows, most)*stride)
	for rows > 0 {
		n := min(rows, most)
		span := (n-1)*stride + width // the last row's rest may be beyond the file
		if err := readFull(file.reader, buf[:span], start); err != nil {
			return err
		}
		for i := range n {
			copy(dst[i*width:(i+1)*width], buf[i*stride:])
		}
		dst = dst[n*width:]
		start += int64(n) * int64(stride)
		rows -= n
	}
	return nil
}

// readSparse reads a part of a tensor with strides, along the dimension whose
// elements are closer together.
func readSparse(file *shard, t *tensor, sel Slice, dst []byte) error {
	size := t.DType.Size()
	start := t.offset + (int64(sel.Row)*int64(t.rowStride)+int64(sel.Col)*int64(t.colStride))*int64(size)
	// Of the outer and the inner dimension: count, bytes to the next in the
	// file, and in dst.
	n, step, to := sel.Rows, t.rowStride*size, sel.Cols*size
	in, inStep, inTo := sel.Cols, t.colStride*size, size
	if sel.Rows > 1 && (sel.Cols == 1 || step < inStep) {
		n, step, to, in, inStep, inTo = in, inStep, inTo, n, step, to
	}
	most := max(1, bufferSize/max(inStep, 1)) // elements in a read
	buf := make([]byte, (min(in, most)-1)*inStep+size)
	for i := range n {
		for j := 0; j < in; j += most {
			count := min(most, in-j)
			b := buf[:(count-1)*inStep+size]
			if err := readFull(file.reader, b, start+int64(i)*int64(step)+int64(j)*int64(inStep)); err != nil {
				return err
			}
			for k := range count {
				copy(dst[i*to+(j+k)*inTo:][:size], b[k*inStep:])
			}
		}
	}
	return nil
}

// halfToFloat converts the bits of an IEEE 754 binary16 number; it is exact.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 0x1f
	frac := uint32(h & 0x3ff)
	switch exp {
	case 0x1f: // infinity, or a NaN whose payload is kept
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case 0: // zero, or a subnormal number: frac × 2^-24
		f := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}
