package weights

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/outrider-dev/outrider/engine/fault"
)

// bufferSize is the most that is read at once where only some columns are wanted.
const bufferSize = 1 << 20

// Read reads a part of a tensor: raw little-endian elements, row-major.
// len(dst) must be sel.Rows · sel.Cols · the element size.
func (s *Set) Read(name string, sel Slice, dst []byte) error {
	info, ok := s.Lookup(name)
	if !ok {
		return fault.Errorf(fault.WeightsMismatch, "%s: tensor %s is missing", s.name, quote(name))
	}
	fail := func(format string, args ...any) error {
		return fault.Errorf(fault.WeightsMismatch, "%s: %s: tensor %s: %w", s.name, info.File, quote(name), fmt.Errorf(format, args...))
	}
	rows, cols := info.matrix()
	if !sel.within(rows, cols) {
		return fail("there is no part %+v of %d rows and %d columns", sel, rows, cols)
	}
	if want := sel.Rows * sel.Cols * info.DType.Size(); len(dst) != want {
		return fail("the part %+v has %d bytes, not %d", sel, want, len(dst))
	}
	if len(dst) == 0 {
		return nil
	}
	if err := s.read(info, sel, cols, dst); err != nil {
		return fail("%w", err)
	}
	return nil
}

func (s *Set) read(info Info, sel Slice, cols int, dst []byte) error {
	r, size := s.files[info.Shard].reader, info.DType.Size()
	stride, width := int64(cols*size), sel.Cols*size
	at := info.offset + int64(sel.Row)*stride
	if sel.Cols == cols {
		return readFull(r, dst, at)
	}
	// Some columns: whole rows go through a buffer, as many as fit; a row that
	// does not fit is read in place, only its wanted part.
	n := int(min(int64(sel.Rows), bufferSize/stride))
	if n < 2 {
		for i := range sel.Rows {
			if err := readFull(r, dst[i*width:(i+1)*width], at+int64(i)*stride+int64(sel.Col*size)); err != nil {
				return err
			}
		}
		return nil
	}
	buffer := make([]byte, int64(n)*stride)
	for i := 0; i < sel.Rows; i += n {
		m := min(n, sel.Rows-i)
		b := buffer[:int64(m)*stride]
		if err := readFull(r, b, at+int64(i)*stride); err != nil {
			return err
		}
		for k := range m {
			copy(dst[(i+k)*width:(i+k+1)*width], b[int64(k)*stride+int64(sel.Col*size):])
		}
	}
	return nil
}

// ReadF32 reads a part of a BF16, F16 or F32 tensor as float32, which holds
// each of their values exactly. len(dst) must be sel.Rows · sel.Cols.
func (s *Set) ReadF32(name string, sel Slice, dst []float32) error {
	info, raw, err := s.readAll(name, sel, len(dst))
	if err != nil {
		return err
	}
	switch info.DType {
	case BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
		}
	case F16:
		for i := range dst {
			dst[i] = fromF16(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	default:
		return fault.Errorf(fault.WeightsMismatch, "%s: %s: tensor %s has type %s: supported here are BF16, F16 and F32", s.name, info.File, quote(name), info.DType)
	}
	return nil
}

// ReadI64 reads a part of an I64 tensor. len(dst) must be sel.Rows · sel.Cols.
func (s *Set) ReadI64(name string, sel Slice, dst []int64) error {
	info, raw, err := s.readAll(name, sel, len(dst))
	if err != nil {
		return err
	}
	if info.DType != I64 {
		return fault.Errorf(fault.WeightsMismatch, "%s: %s: tensor %s has type %s: supported here is I64", s.name, info.File, quote(name), info.DType)
	}
	for i := range dst {
		dst[i] = int64(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return nil
}

// readAll reads the raw bytes of n elements.
func (s *Set) readAll(name string, sel Slice, n int) (Info, []byte, error) {
	info, ok := s.Lookup(name)
	if !ok {
		return info, nil, fault.Errorf(fault.WeightsMismatch, "%s: tensor %s is missing", s.name, quote(name))
	}
	raw := make([]byte, n*info.DType.Size()) // n is the length of memory that is there
	return info, raw, s.Read(name, sel, raw)
}

// fromF16 widens an IEEE 754 half-precision number.
func fromF16(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero or subnormal: fraction · 2⁻²⁴
		v := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}
