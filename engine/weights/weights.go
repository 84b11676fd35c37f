// Package weights reads a model's tensors from safetensors files.
package weights

import (
	"fmt"
	"math"
	"math/bits"
)

// DType is the element type of a stored tensor.
type DType uint8

// The types of the format (huggingface/safetensors, safetensors/src/tensor.rs)
// whose elements are whole bytes.
const (
	Bool DType = iota
	U8
	I8
	F8_E5M2
	F8_E4M3
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	F64
	I64
	U64
	dtypes // their number
)

var dtypeNames = [dtypes]string{"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64"}

func (d DType) String() string {
	if d < dtypes {
		return dtypeNames[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Size is an element's size in bytes.
func (d DType) Size() int {
	switch {
	case d <= F8_E4M3:
		return 1
	case d <= BF16:
		return 2
	case d <= F32:
		return 4
	}
	return 8
}

// Info describes a stored tensor.
type Info struct {
	Name  string
	DType DType
	Shape []int
	File  string // the file that has it
	Shard int    // index of that file, in order

	offset int64 // of its first byte in the file
}

// Elements is the number of elements: the product of the shape, which fits.
func (i Info) Elements() int {
	n := 1
	for _, d := range i.Shape {
		n *= d
	}
	return n
}

// Bytes is the tensor's size.
func (i Info) Bytes() int64 { return int64(i.Elements()) * int64(i.DType.Size()) }

// matrix is the shape seen as rows × columns: the first dimension, and the
// product of the others. A vector has one column, a scalar is 1 × 1.
func (i Info) matrix() (rows, cols int) {
	if len(i.Shape) == 0 {
		return 1, 1
	}
	cols = 1
	for _, d := range i.Shape[1:] {
		cols *= d
	}
	return i.Shape[0], cols
}

// Slice is a part of a tensor seen as a matrix [first dimension, product of the
// others]: Rows rows from Row on, and of these Cols columns from Col on.
type Slice struct{ Row, Rows, Col, Cols int }

// Whole is all of a tensor.
func Whole(i Info) Slice {
	rows, cols := i.matrix()
	return Slice{0, rows, 0, cols}
}

// within tells whether s is a part of rows × cols.
func (s Slice) within(rows, cols int) bool {
	return s.Row >= 0 && s.Rows >= 0 && s.Rows <= rows-s.Row && s.Col >= 0 && s.Cols >= 0 && s.Cols <= cols-s.Col
}

// size is the number of bytes of a tensor of the shape; false when a dimension
// is negative or the product does not fit an int.
func size(shape []int, d DType) (int64, bool) {
	n := uint64(d.Size())
	zero := false
	for _, dim := range shape {
		if dim < 0 {
			return 0, false
		}
		if dim == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		n = lo
	}
	if zero {
		return 0, true
	}
	return int64(n), true
}
