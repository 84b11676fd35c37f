package cpu

import (
	"math"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Integer codes are multiplied with activations of 16 bits. That takes a quarter
// of the instructions that unpacking codes to float32 takes, and sums of integers
// are exact in any order, so an output cannot depend on how many rows it was
// computed with. A span's activations share a scale, a power of two such that the
// greatest of them has 15 bits: none is off by more than 2⁻¹⁵ of the greatest
// in its span.

// trailer is how many words follow a span's: its correction and its scale.
const trailer = 4

// wordStride is how many words an activation row has for a weight: of each span,
// one after the other, the activations as words, filled up with zeros; the int32
// that makes up for the codes' offset; and the float32 scale.
func (p *panels) wordStride() int {
	return p.blocks*p.step + (p.blocks+p.span-1)/p.span*trailer
}

// wordsTask makes words of activations, split by rows.
type wordsTask struct{ linear *linearTask }

// prepare makes the words of all activation rows, for a weight of integer codes.
func (d *Device) prepare(t *linearTask) {
	p := t.w.panels
	if p == nil || p.dtype == compute.F8E4M3 || !p.even() {
		return
	}
	t.wordStride = p.wordStride()
	if need := t.rows * t.wordStride; cap(d.words) < need {
		d.words = make([]int16, need)
	}
	t.words = d.words[:t.rows*t.wordStride]
	d.wordsTask.linear = t
	d.fork(&d.wordsTask, t.rows*t.w.in)
}

func (w *wordsTask) run(part, parts int) {
	t := w.linear
	from, to := split(t.rows, part, parts)
	for i := from; i < to; i++ {
		t.w.panels.words(t.k, t.x.row(i), t.words[i*t.wordStride:(i+1)*t.wordStride])
	}
}

// words makes the words of an activation row; see wordStride.
func (p *panels) words(k *kernels, x []float32, dst []int16) {
	for width := p.span * p.step; len(dst) > 0; {
		n := min(width, len(dst)-trailer)
		have := min(n, len(x))
		sum, scale := k.round(x[:have], dst[:n])
		*(*int32)(unsafe.Pointer(&dst[n])) = -p.offset() * sum
		*(*float32)(unsafe.Pointer(&dst[n+2])) = scale
		x, dst = x[have:], dst[n+trailer:]
	}
}

// round makes words of the activations of a span and fills dst up with zeros. An
// activation is about its word times scale, which is NaN if one is not finite.
func (k *kernels) round(x []float32, dst []int16) (sum int32, scale float32) {
	whole := len(x) - len(x)%k.lanes
	top := greatest(x[whole:])
	if whole > 0 {
		top = max(top, k.spanMax(&x[0], whole))
	}
	const bias, least, special = 127, 15, 255
	exponent := int(top >> 23) // of float32, biased
	if exponent == special {
		clear(dst)
		return 0, float32(math.NaN())
	}
	exponent = max(exponent, least) // what is less than that is nothing
	power := func(e int) float32 { return math.Float32frombits(uint32(e+bias) << 23) }
	factor := power(14 - (exponent - bias))
	sum = rounded(x[whole:], factor, dst[whole:])
	if whole > 0 {
		sum += k.spanWords(&x[0], whole, factor, &dst[0])
	}
	clear(dst[len(x):])
	return sum, power(exponent - bias - 14)
}
