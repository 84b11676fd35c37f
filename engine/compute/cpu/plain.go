package cpu

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// The products of integer codes in plain Go, the same bits as those of the other
// kernel sets.

const stepI4, stepI8 = 8, 4 // columns of a block

// genericIntI4 is the intTileFunc of 4 rows of int4 codes and one activation row.
func genericIntI4(w *byte, scales *float32, x *int16, _ uintptr, blocks, span int, out *float32, _ uintptr) {
	genericInt(w, scales, x, blocks, span, stepI4, out)
}

// genericIntI8 is the intTileFunc of 4 rows of int8 codes and one activation row.
func genericIntI8(w *byte, scales *float32, x *int16, _ uintptr, blocks, span int, out *float32, _ uintptr) {
	genericInt(w, scales, x, blocks, span, stepI8, out)
}

// genericInt goes over the spans of a panel of 4 rows, whose blocks have step
// columns.
func genericInt(w *byte, scales *float32, x *int16, blocks, span, step int, out *float32) {
	const rows = 4
	spans := (blocks + span - 1) / span
	codes, factors, words := unsafe.Slice(w, blocks*4*rows), unsafe.Slice(scales, spans*rows), unsafe.Slice(x, blocks*step+spans*trailer)
	outputs := (*[rows]float32)(unsafe.Pointer(out))
	clear(outputs[:])
	for blocks > 0 {
		var sums [rows]int32
		count := min(span, blocks)
		for range count {
			if step == stepI4 {
				addI4(&sums, codes, words)
			} else {
				addI8(&sums, codes, words)
			}
			codes, words = codes[4*rows:], words[step:]
		}
		correction, scale := *(*int32)(unsafe.Pointer(&words[0])), *(*float32)(unsafe.Pointer(&words[2]))
		for r, sum := range sums {
			outputs[r] = fma32(float32(sum+correction), float32(factors[r]*scale), outputs[r])
		}
		words, factors, blocks = words[trailer:], factors[rows:], blocks-count
	}
}

// addI4 adds the products of a block of int4 codes; see panels.place.
func addI4(sums *[4]int32, codes []byte, x []int16) {
	x = x[:stepI4]
	for r := range sums {
		u := binary.LittleEndian.Uint32(codes[4*r:])
		sums[r] += int32(u&15)*int32(x[0]) + int32(u>>16&15)*int32(x[1]) + int32(u>>4&15)*int32(x[2]) + int32(u>>20&15)*int32(x[3]) +
			int32(u>>8&15)*int32(x[4]) + int32(u>>24&15)*int32(x[5]) + int32(u>>12&15)*int32(x[6]) + int32(u>>28)*int32(x[7])
	}
}

// addI8 adds the products of a block of int8 codes.
func addI8(sums *[4]int32, codes []byte, x []int16) {
	x = x[:stepI8]
	for r := range sums {
		u := binary.LittleEndian.Uint32(codes[4*r:])
		sums[r] += int32(u&255)*int32(x[0]) + int32(u>>16&255)*int32(x[1]) + int32(u>>8&255)*int32(x[2]) + int32(u>>24)*int32(x[3])
	}
}

// fma32 is a·b + c, rounded once. The product is exact in float64. The sum is
// rounded to odd there: of the two numbers beside what is not one, the odd one,
// which no further rounding to half the digits takes for a tie. (S. Boldo and
// G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms
// using rounding to odd", 2008.)
func fma32(a, b, c float32) float32 {
	product, addend := float64(a)*float64(b), float64(c)
	sum := product + addend
	added := sum - product
	off := (product - (sum - added)) + (addend - added) // what sum lacks, exactly
	if off != 0 && sum-sum == 0 {
		if u := math.Float64bits(sum); u&1 == 0 {
			if (off > 0) == (sum > 0) {
				u++
			} else {
				u--
			}
			sum = math.Float64frombits(u)
		}
	}
	return float32(sum)
}

func genericSpanMax(x *float32, n int) uint32 { return greatest(unsafe.Slice(x, n)) }

func genericSpanWords(x *float32, n int, factor float32, dst *int16) int32 {
	return rounded(unsafe.Slice(x, n), factor, unsafe.Slice(dst, n))
}

// greatest is the greatest of the bits of |x[i]|; see kernels.
func greatest(x []float32) (top uint32) {
	for _, v := range x {
		top = max(top, math.Float32bits(v)&^(1<<31))
	}
	return top
}

// rounded sets dst[i] = min(x[i]·factor, 32767) and returns their sum; see kernels.
func rounded(x []float32, factor float32, dst []int16) (sum int32) {
	for i, v := range x {
		w := min(int32(math.RoundToEven(float64(v*factor))), math.MaxInt16)
		dst[i] = int16(w)
		sum += w
	}
	return sum
}
