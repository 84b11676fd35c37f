package cpu

import (
	"fmt"
	"hash/fnv"
	"math"
	exact "math/big"
	"math/rand/v2"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// intCase is a product of integer codes: out rows of in columns, in groups, with
// rows activation rows.
type intCase struct {
	q             compute.Quant
	rows, in, out int
	codes         []byte // one a byte, as the type has them
	scales        []float32
	x             []float32
}

// hardIntCase is a random one, in many of which the sums are as large as they
// can be, or activations as large or small as float32 has them.
func hardIntCase(rng *rand.Rand) *intCase {
	c := &intCase{q: compute.Quant{DType: quantTypes[rng.IntN(2)]}, rows: 1 + rng.IntN(9), in: 1 + rng.IntN(1100), out: 1 + rng.IntN(40)}
	if rng.IntN(2) == 0 {
		c.in = 256 * (1 + rng.IntN(5))
	}
	c.q.Group = []int{8, 24, 32, 128, 256, 264, 512, 1024, c.in}[rng.IntN(9)]
	c.codes, c.scales = make([]byte, c.out*c.in), make([]float32, c.out*c.q.Groups(c.in))
	least, most := byte(0), byte(15)
	if c.q.DType == compute.I8 {
		least, most = 0x80, 0x7f
	}
	for r := range c.out {
		row, kind := c.codes[r*c.in:(r+1)*c.in], rng.IntN(4)
		for j := range row {
			switch kind {
			case 0:
				row[j] = least
			case 1:
				row[j] = most
			case 2:
				row[j] = []byte{least, most}[j%2]
			default:
				if row[j] = byte(rng.Uint32()); c.q.DType == compute.I4 {
					row[j] &= 15
				}
			}
		}
	}
	for i := range c.scales {
		c.scales[i] = float32(math.Ldexp(rng.NormFloat64(), -20))
	}
	for range c.rows {
		c.x = append(c.x, hardRow(rng, c.in)...)
	}
	return c
}

// hardRow is a row of n activations.
func hardRow(rng *rand.Rand, n int) []float32 {
	row, kind := random(rng, n), rng.IntN(9)
	huge := rng.IntN(n)
	for j := range row {
		switch kind {
		case 0:
			row[j] = math.MaxFloat32
		case 1:
			row[j] = -math.MaxFloat32
		case 2: // the word of this is −32768
			row[j] = -1.99999988
		case 3:
			row[j] = []float32{-1.99999988, 1.99999988}[j%2]
		case 4:
			row[j] = 0
		case 5:
			row[j] = math.Float32frombits(rng.Uint32() & 0x807fffff) // too small to be normal
		case 6:
			row[j] *= 0x1p-100
		}
	}
	switch kind {
	case 7:
		row[huge] = math.MaxFloat32
	case 8:
		if rng.IntN(3) == 0 {
			row[huge] = []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[rng.IntN(3)]
		}
	}
	return row
}

// weight makes the weight on a device.
func (c *intCase) weight(t testing.TB, d *Device) compute.Weight {
	t.Helper()
	bytes := c.q.DType.RowBytes(c.in)
	w, err := d.NewQuantized(c.q, c.out, c.in, func(row, rows int, dst []byte) error {
		clear(dst)
		for r := range rows {
			for j, code := range c.codes[(row+r)*c.in : (row+r+1)*c.in] {
				if c.q.DType == compute.I4 {
					dst[r*bytes+j/2] |= code << (4 * (j % 2))
				} else {
					dst[r*bytes+j] = code
				}
			}
		}
		return nil
	}, func(row, _ int, dst []float32) error {
		copy(dst, c.scales[row*c.q.Groups(c.in):])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run is the outputs, row by row, on a kernel set.
func (c *intCase) run(t testing.TB, k *kernels) []float32 {
	d := device(t, k, 1)
	x, y := d.NewTensor(c.rows, c.in), d.NewTensor(c.rows, c.out)
	fill(x, c.x)
	d.Linear(y, x, c.weight(t, d), c.rows)
	return y.(*tensor).data
}

// span is the columns that are summed up as integers: a group, or an equal part
// of one that is longer than maxSpan.
func (c *intCase) span() int {
	p := newPanels(c.q, 1, c.in, 1)
	return p.span * p.step
}

// want is output (i, r), by the definition of intTileFunc: integers that int64
// holds, and real numbers rounded where it says so.
func (c *intCase) want(t *testing.T, i, r, span int) float32 {
	offset := int64(8)
	if c.q.DType == compute.I8 {
		offset = 128
	}
	var out float32
	for from := 0; from < c.in; from += span {
		x, codes := c.x[i*c.in+from:i*c.in+min(from+span, c.in)], c.codes[r*c.in+from:]
		var top float64
		for _, v := range x {
			if v-v != 0 {
				return float32(math.NaN())
			}
			top = max(top, math.Abs(float64(v)))
		}
		shift := 14 - max(math.Ilogb(top), -112)
		var sum, unsigned int64
		for j, v := range x {
			word := int64(min(math.RoundToEven(math.Ldexp(float64(v), shift)), math.MaxInt16))
			code := int64(value(c.q.DType, codes[j]))
			sum += code * word
			unsigned += (code + offset) * word
		}
		if unsigned != int64(int32(unsigned)) {
			t.Fatalf("%d columns of %v sum up to %d: beyond 32 bits", span, c.q.DType, unsigned)
		}
		factor := c.scales[r*c.q.Groups(c.in)+from/c.q.Group] * float32(math.Ldexp(1, -shift))
		out = fused(float32(sum), factor, out)
	}
	return out
}

// fused is a·b + c, rounded once.
func fused(a, b, c float32) float32 {
	wide := func(v float32) *exact.Float { return new(exact.Float).SetPrec(1000).SetFloat64(float64(v)) }
	product := new(exact.Float).SetPrec(1000).Mul(wide(a), wide(b))
	sum, _ := product.Add(product, wide(c)).Float32()
	return sum
}

// sameBits tells whether two numbers are the same, NaN being one.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// Products of integer codes are the same bits on every kernel set, so on every
// processor, and what their definition says, with sums as large as they can get.
func TestIntegerProductsAreTheSameOnEverySet(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for n := range 150 {
		c := hardIntCase(rng)
		span := c.span()
		outputs := map[string][]float32{}
		for _, k := range supportedKernels() {
			outputs[k.name] = c.run(t, k)
		}
		about := fmt.Sprintf("case %d: %v, groups of %d, spans of %d, %d rows, %d × %d", n, c.q.DType, c.q.Group, span, c.rows, c.out, c.in)
		for i := range c.rows {
			for r := range c.out {
				want := c.want(t, i, r, span)
				for name, got := range outputs {
					if v := got[i*c.out+r]; !sameBits(v, want) && (v != 0 || want != 0) {
						t.Fatalf("%s: output (%d, %d) of %s is %v, want %v", about, i, r, name, v, want)
					}
					if v, plain := got[i*c.out+r], outputs["generic"][i*c.out+r]; !sameBits(v, plain) {
						t.Fatalf("%s: output (%d, %d) is %v with %s, and %v with plain Go", about, i, r, v, name, plain)
					}
				}
			}
		}
	}
}

// Groups that are no whole blocks of columns take plain Go on every set.
func TestUnevenGroupsAreTheSameOnEverySet(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for _, group := range []int{1, 3, 7, 50} {
		c := hardIntCase(rng)
		c.in, c.q.Group = 96, group
		c.x = random(rng, c.rows*c.in)
		c.codes, c.scales = make([]byte, c.out*c.in), random(rng, c.out*c.q.Groups(c.in))
		for i := range c.codes {
			c.codes[i] = byte(rng.IntN(16))
		}
		plain := c.run(t, genericKernels)
		for _, k := range supportedKernels() {
			for i, v := range c.run(t, k) {
				if !sameBits(v, plain[i]) {
					t.Fatalf("groups of %d: output %d is %v with %s, and %v with plain Go", group, i, v, k.name, plain[i])
				}
			}
		}
	}
}

func TestFma32RoundsOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	for range 300_000 {
		a, b := math.Float32frombits(rng.Uint32()), math.Float32frombits(rng.Uint32())
		product := float64(a) * float64(b)
		c := math.Float32frombits(rng.Uint32())
		switch rng.IntN(4) {
		case 0: // about as large as the product
			c = float32(math.Ldexp(product, rng.IntN(60)-30))
		case 1: // what is left is small
			c = -float32(product)
		case 2: // half a unit in the last place, and a little
			a = float32(rng.IntN(1<<24)) + 0.5
			b = 1 + float32(rng.IntN(3)-1)*0x1p-23
			c = float32(rng.IntN(1 << 24))
		}
		if a-a != 0 || b-b != 0 || c-c != 0 {
			continue
		}
		if got, want := fma32(a, b, c), fused(a, b, c); !sameBits(got, want) && (got != 0 || want != 0) {
			t.Fatalf("fma32(%v, %v, %v) is %v, want %v", a, b, c, got, want)
		}
	}
	for _, c := range [][4]float64{{math.Inf(1), 1, 1, math.Inf(1)}, {1, 1, math.Inf(-1), math.Inf(-1)}, {math.Inf(1), 1, math.Inf(-1), math.NaN()}, {0, math.Inf(1), 1, math.NaN()}, {1, 1, math.NaN(), math.NaN()}} {
		if got := fma32(float32(c[0]), float32(c[1]), float32(c[2])); !sameBits(got, float32(c[3])) {
			t.Errorf("fma32(%v, %v, %v) is %v, want %v", c[0], c[1], c[2], got, c[3])
		}
	}
}

// Weights of floats are summed up lane by lane, in an order that the width of a
// register gives: sets of the same width have the same bits, others are as far
// apart as rounding makes them.
func TestFloatProductsOfSetsOfOneWidth(t *testing.T) {
	for _, dtype := range []compute.DType{compute.BF16, compute.F16, compute.F32, compute.F8E4M3} {
		byLanes := map[int][]float32{}
		for _, k := range supportedKernels() {
			const rows, in, out = 5, 264, 37
			d := device(t, k, 1)
			rng := rand.New(rand.NewPCG(27, 28))
			var w compute.Weight
			switch dtype {
			case compute.F8E4M3:
				w, _ = coded(t, d, rng, compute.Quant{DType: dtype, Group: 128}, out, in)
			case compute.F16:
				w = halves(t, d, rng, out, in)
			default:
				w, _ = matrix(t, d, dtype, out, in, random(rng, out*in))
			}
			x, y := d.NewTensor(rows, in), d.NewTensor(rows, out)
			fill(x, random(rng, rows*in))
			d.Linear(y, x, w, rows)
			got, before := y.(*tensor).data, byLanes[k.lanes]
			byLanes[k.lanes] = got
			for i, v := range before {
				if !sameBits(v, got[i]) {
					t.Fatalf("%v: output %d is %v with %s, and %v with another set of %d lanes", dtype, i, got[i], k.name, v, k.lanes)
				}
			}
		}
	}
}

// intDigest tells the outputs of many products of integers apart, with the
// kernel set that this process chooses.
func intDigest(t *testing.T) string {
	k, err := chooseKernels()
	if err != nil {
		t.Fatal(err)
	}
	h, rng := fnv.New64a(), rand.New(rand.NewPCG(29, 30))
	for range 20 {
		for _, v := range hardIntCase(rng).run(t, k) {
			if v != v {
				v = 0 // which NaN it is does not matter
			}
			fmt.Fprintf(h, "%x ", math.Float32bits(v))
		}
	}
	return fmt.Sprintf("%x", h.Sum64())
}
