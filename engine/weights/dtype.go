package weights

import "strings"

// DType is the type of a stored element. The zero value is none of them.
type DType uint8

// The element types that can be read, by their names in the files.
const (
	BF16 DType = iota + 1
	F16
	F32
	F64
	I8
	I16
	I32
	I64
	U8
	U16
	U32
	U64
	Bool
	F8E4M3
	F8E5M2
	F8E8M0
)

var dtypes = [...]struct {
	name string
	size int
}{
	BF16:   {"BF16", 2},
	F16:    {"F16", 2},
	F32:    {"F32", 4},
	F64:    {"F64", 8},
	I8:     {"I8", 1},
	I16:    {"I16", 2},
	I32:    {"I32", 4},
	I64:    {"I64", 8},
	U8:     {"U8", 1},
	U16:    {"U16", 2},
	U32:    {"U32", 4},
	U64:    {"U64", 8},
	Bool:   {"BOOL", 1},
	F8E4M3: {"F8_E4M3", 1},
	F8E5M2: {"F8_E5M2", 1},
	F8E8M0: {"F8_E8M0", 1},
}

// String is the type's name in a safetensors header.
func (d DType) String() string {
	if d == 0 || int(d) >= len(dtypes) {
		return "invalid"
	}
	return dtypes[d].name
}

// Size is the size of one element in bytes; 0 for an invalid type.
func (d DType) Size() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].size
}

// parseDType finds a type by its name in a header.
func parseDType(name string) (DType, bool) {
	for d := BF16; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, true
		}
	}
	return 0, false
}

// dtypeNames lists the supported types, for errors.
func dtypeNames() string {
	var names []string
	for _, d := range dtypes[BF16:] {
		names = append(names, d.name)
	}
	return strings.Join(names, ", ")
}
