package compute

import "math"

// Decode writes the values of a row of quantised codes, as Fill gives them, to
// dst; scales are the row's.
func (q Quant) Decode(dst []float32, codes []byte, scales []float32) {
	for j := range dst {
		var v float32
		switch q.DType {
		case I4:
			v = float32(int(codes[j/2]>>(4*(j%2))&15) - 8)
		case I8:
			v = float32(int8(codes[j]))
		default:
			v = Float8(codes[j])
		}
		dst[j] = v * scales[j/q.Group]
	}
}

// Float8 converts the bits of a float8 e4m3 number (OCP 8-bit floating point
// specification, revision 1.0: no infinities); it is exact.
func Float8(b byte) float32 {
	if b&0x7f == 0x7f {
		return float32(math.NaN())
	}
	// Its exponent and fraction are a float16 number's whose bias is 8 larger.
	return Half(uint16(b&0x80)<<8|uint16(b&0x7f)<<7) * 256
}

// ToFloat8 is the float8 e4m3 number nearest to x, ties to even; what is beyond the
// largest, 448, becomes that, and a NaN stays one.
func ToFloat8(x float32) byte {
	bits := math.Float32bits(x)
	sign, magnitude := byte(bits>>24&0x80), bits&0x7fffffff
	const smallestNormal, largest = (127 - 6) << 23, 0x7e
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7f
	case magnitude < smallestNormal: // multiples of 2^-9; 8 of them are the code of 2^-6
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(magnitude))*(1<<9)))
	}
	// Four bits of exponent, whose bias is 120 less, and three of fraction.
	code := (magnitude+0x7ffff+magnitude>>20&1)>>20 - 120<<3
	return sign | byte(min(code, largest))
}

// Half converts the bits of an IEEE 754 binary16 number; it is exact.
func Half(h uint16) float32 {
	sign, magnitude := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case magnitude >= 0x7c00: // infinity and NaN
		return math.Float32frombits(sign | 0x7f800000 | magnitude<<13)
	case magnitude < 0x400: // zero and subnormal numbers: multiples of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(magnitude)/(1<<24)))
	}
	return math.Float32frombits(sign | (magnitude<<13 + (127-15)<<23))
}
