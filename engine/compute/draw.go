package compute

import (
	"math"
	"math/bits"
)

// A token is drawn in whole numbers, so that every device draws the same one of
// the same logits, in whatever order it sums. The weight of a logit is
// 2^MassBits · 2^(−y), rounded, where y is how far it lies below the highest
// one, over the temperature and in octaves: a number with 32 bits after its
// point, of which Decay says how it comes about. 2^(−y) is interpolated between
// 1,024 points an octave, which is at most 6e-8 of it too much; it never rises
// with y.

// MassBits is the logarithm of the weight of the most likely token: the weights
// of two million tokens add up without an overflow.
const MassBits = 42

// Octaves is from where on a token has no weight.
const Octaves = MassBits + 2

// DecayPoints are 2^31 · 2^(−i/1024), of which Mass interpolates.
var DecayPoints = func() (t [1025]uint32) {
	for i := range t {
		t[i] = uint32(math.Round(math.Exp2(31 - float64(i)/1024)))
	}
	return t
}()

// Decay turns distances of logits into octaves: one over the temperature. A
// distance of m · 2^(e−150), m of 24 bits and e the exponent of a float32, is
// m · Factor / 2^(Shift−e) octaves of 32 bits after the point.
type Decay struct {
	Factor uint64 // 40 bits
	Shift  int32
}

// NewDecay is the decay of a temperature above 0. Below 1e-30 all are alike.
func NewDecay(temperature float64) Decay {
	f, e := math.Frexp(math.Log2E / max(temperature, 1e-30))
	return Decay{Factor: uint64(math.Ldexp(f, 40)), Shift: int32(118 + 40 - e)}
}

// At is how far below the highest logit one lies that is less by distance, which
// is not negative.
func (d Decay) At(distance float32) uint64 {
	b := math.Float32bits(distance)
	exponent := int32(b >> 23)
	if exponent == 0 {
		return 0 // a denormal number is as good as none
	}
	shift := d.Shift - exponent
	if shift <= 0 {
		return math.MaxUint64
	}
	return uint64(b&0x7fffff|0x800000) * d.Factor >> uint32(shift) // 0 from 64 on
}

// Mass is the weight of a logit that lies y below the highest one.
func Mass(y uint64) uint64 {
	octave := y >> 32
	if octave >= Octaves {
		return 0
	}
	i, part := y>>22&1023, y&(1<<22-1)
	at := uint64(DecayPoints[i])
	shift := 53 - MassBits + octave
	return (at<<22 - (at-uint64(DecayPoints[i+1]))*part + 1<<(shift-1)) >> shift
}

// ShareBits are the bits after the point of shares of a mass.
const ShareBits = 53

// Part is share · mass, rounded down, of a share up to 1.
func Part(share, mass uint64) uint64 {
	hi, lo := bits.Mul64(share, mass)
	return hi<<(64-ShareBits) | lo>>ShareBits
}

// Needed is the least mass that is at least share · mass, and at least 1.
func Needed(share, mass uint64) uint64 {
	hi, lo := bits.Mul64(share, mass)
	n := hi<<(64-ShareBits) | lo>>ShareBits
	if lo<<(64-ShareBits) != 0 {
		n++
	}
	return max(n, 1)
}

// Draw is how the token after one row of logits is drawn. In this order: Edits
// change logits, and Allowed leaves some out; the highest is the token if it is
// Greedy; else the others get their weights, and those lighter than Least none;
// of those with a weight the TopK highest logits stay, and of these the highest
// that have TopP of their mass together. Of equal logits the lower token comes
// first. The token is the one at which the sum of what is left, in the order of
// tokens, passes Uniform of the whole.
type Draw struct {
	Row int

	Edits      []Edit // no token twice
	Repetition float32
	Allowed    []uint64 // a bit a token; nil: all

	Greedy  bool
	Decay   Decay
	Least   uint64
	TopK    int    // 0: all
	TopP    uint64 // share
	Uniform uint64 // share, below 1

	// Tops asks for the sum of the weights of the unchanged logits at temperature
	// 1 and as many of the highest ones; −1 asks for neither.
	Tops int
}

// MaxTops is the most of Draw.Tops.
const MaxTops = 20

// Edit changes the logit of a token: Add is added, then it is divided by the
// row's repetition if it is above 0 and multiplied by that if not, where Repeats
// is set, and Minus is taken away. Each result is rounded to float32. With Never
// the token is left out instead.
type Edit struct {
	ID             int32
	Add, Minus     float32
	Repeats, Never bool
}

// Drawn is what became of a Draw.
type Drawn struct {
	Token int32
	Tops
	Logit float32 // of the token, unchanged
}

// Tops are the highest logits of a row, the first of equals first, and the sum
// of all weights at temperature 1.
type Tops struct {
	IDs     []int32
	Logits  []float32
	Highest float32
	Mass    uint64
}

// Norm is the logarithm of the sum of all exponentials of the row.
func (t *Tops) Norm() float64 {
	return float64(t.Highest) + math.Log(math.Ldexp(float64(t.Mass), -MassBits))
}

// Drawer is a Chooser that draws tokens, so that logits need not be read.
type Drawer interface {
	Chooser
	// Draw draws from rows of x, whose first cols values are logits and of which
	// ArgMax was called. No row is named twice. x is as before afterwards.
	Draw(x Tensor, cols int, draws []Draw)
	// Drawn is what draw i of the last Draw gave; what it refers to is valid until
	// the next. It is not ok where the logits must be read instead: a row with a NaN
	// or an infinity, without a token that is left, or with too many equal logits.
	Drawn(i int) (Drawn, bool)
	// FindTops finds the n highest values, and the mass, of each of the first rows
	// rows of x. n is at most MaxTops; ArgMax was called of x.
	FindTops(x Tensor, cols, rows, n int)
	// TopsOf is what the last FindTops of x found in row i; ok as Drawn, and not where
	// there are less than n values with a weight.
	TopsOf(x Tensor, i int) (Tops, bool)
}

// Ahead is a Drawer that may be given a pass before the tokens of the one before it
// are known to the host, and takes them by itself.
type Ahead interface {
	Drawer
	// Mark keeps what ArgMax over the first rows rows of x, and Draw, gave in the
	// passes so far, for Marked and MarkedDrawn: later ones do not change it. There
	// is one mark at a time.
	Mark(x Tensor, rows int)
	// Await waits for what the mark keeps.
	Await()
	// Marked is Best, and MarkedDrawn is Drawn, of what the mark keeps.
	Marked(i int) (column int32, ok bool)
	MarkedDrawn(i int) (Drawn, bool)
	// Take makes the token of row i of the pass in progress what draw from[i] of the
	// last Draw gave, or, where from[i] is negative, the best of row −1 − from[i] of
	// the last ArgMax over x; 0 where there is none. It comes first in a pass.
	Take(x Tensor, from []int32)
}
