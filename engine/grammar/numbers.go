package grammar

import (
	"math/big"
	"strconv"
	"strings"
)

// Limits of a bound: it is kept exactly, and its digits are states.
const (
	maxBoundDigits   = 64
	maxBoundExponent = 32
)

// readBound is the number of a keyword.
func readBound(d *document) (*big.Rat, error) {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(d.text), "e")
	e, err := strconv.Atoi(strings.TrimPrefix(exponent, "+"))
	if exponent == "" {
		e, err = 0, nil
	}
	if d.kind != '0' || err != nil || len(mantissa) > maxBoundDigits || e > maxBoundExponent || e < -maxBoundExponent {
		return nil, wrong(d, "", "it is %s: allowed is a number of at most %d digits with an exponent of at most %d", shown(d), maxBoundDigits, maxBoundExponent)
	}
	x, ok := new(big.Rat).SetString(d.text)
	if !ok {
		return nil, wrong(d, "", "it is %s: that is not a number", shown(d))
	}
	return x, nil
}

// limit is an end of a range of numbers; nil is none.
type limit struct {
	value   *big.Rat
	without bool // the value itself is not in the range
}

// bounds reads the range that the keywords of a schema give.
func bounds(d *document) (lo, hi *limit, err error) {
	read := func(name string, open bool, old *limit, sign int) *limit {
		v := d.members[name]
		if v == nil || err != nil {
			return old
		}
		var x *big.Rat
		if x, err = readBound(v); err != nil {
			return old
		}
		if old != nil {
			if c := sign * x.Cmp(old.value); c < 0 || c == 0 && !open {
				return old
			}
		}
		return &limit{x, open}
	}
	lo = read("minimum", false, nil, 1)
	lo = read("exclusiveMinimum", true, lo, 1)
	hi = read("maximum", false, nil, -1)
	hi = read("exclusiveMaximum", true, hi, -1)
	return lo, hi, err
}

// numeric is numbers.
func (r *schemaReader) numeric(d *document, whole bool) (expr, error) {
	if m := d.members["multipleOf"]; m != nil {
		x, err := readBound(m)
		if err != nil {
			return nil, err
		}
		if !whole || x.Cmp(big.NewRat(1, 1)) != 0 {
			return nil, wrong(d, "multipleOf", "it is %s: that is not supported: allowed is 1, with the type integer", shown(m))
		}
	}
	lo, hi, err := bounds(d)
	switch {
	case err != nil:
		return nil, err
	case lo == nil && hi == nil && whole:
		return r.b.integer(), nil
	case lo == nil && hi == nil:
		return r.b.number(), nil
	case whole:
		return integers(lo, hi), nil
	}
	return decimals(lo, hi), nil
}

var one = big.NewInt(1)

// floor is the largest whole number that is not above x.
func floor(x *big.Rat) *big.Int {
	return new(big.Int).Div(x.Num(), x.Denom()) // Euclidean: rounds down, since denominators are positive
}

// integers is the whole numbers of a range, in decimal.
func integers(lo, hi *limit) expr {
	var least, most *big.Int
	if lo != nil {
		least = floor(lo.value)
		if lo.without || !lo.value.IsInt() {
			least.Add(least, one)
		}
	}
	if hi != nil {
		most = floor(hi.value)
		if hi.without && hi.value.IsInt() {
			most.Sub(most, one)
		}
	}
	var all []expr
	if least == nil || least.Sign() < 0 { // -1 and below: the same with the ends changed
		from, to := one, (*big.Int)(nil)
		if most != nil && most.Sign() < 0 {
			from = new(big.Int).Neg(most)
		}
		if least != nil {
			to = new(big.Int).Neg(least)
		}
		all = append(all, concat(literal("-"), naturals(from, to)))
	}
	if most == nil || most.Sign() >= 0 {
		from := new(big.Int)
		if least != nil && least.Sign() > 0 {
			from = least
		}
		all = append(all, naturals(from, most))
	}
	return either(all...)
}

// naturals is the numbers from lo, which is not negative, to hi; nil is no end.
func naturals(lo, hi *big.Int) expr {
	if hi != nil && hi.Cmp(lo) < 0 {
		return nothing
	}
	least := lo.String()
	if hi == nil {
		longer := concat(byteRange('1', '9'), repeat(oneByte(digits), len(least), -1))
		return either(sameLength(least, strings.Repeat("9", len(least))), longer)
	}
	most := hi.String()
	var all []expr
	for n := len(least); n <= len(most); n++ {
		from, to := "1"+strings.Repeat("0", n-1), strings.Repeat("9", n)
		if n == len(least) {
			from = least
		}
		if n == len(most) {
			to = most
		}
		all = append(all, sameLength(from, to))
	}
	return either(all...)
}

// sameLength is the strings of digits from lo to hi, all as long as these.
func sameLength(lo, hi string) expr {
	n := len(lo)
	switch {
	case n == 0:
		return empty
	case strings.Trim(lo, "0") == "" && strings.Trim(hi, "9") == "":
		return repeat(oneByte(digits), n, n)
	case lo[0] == hi[0]:
		return concat(byteRange(lo[0], lo[0]), sameLength(lo[1:], hi[1:]))
	}
	all := []expr{
		concat(byteRange(lo[0], lo[0]), sameLength(lo[1:], strings.Repeat("9", n-1))),
		concat(byteRange(hi[0], hi[0]), sameLength(strings.Repeat("0", n-1), hi[1:])),
	}
	if lo[0]+1 < hi[0] {
		all = append(all, concat(byteRange(lo[0]+1, hi[0]-1), repeat(oneByte(digits), n-1, n-1)))
	}
	return either(all...)
}

// decimals is the numbers of a range, in decimal without an exponent.
func decimals(lo, hi *limit) expr {
	zero := new(big.Rat)
	negate := func(l *limit) *limit {
		if l == nil {
			return nil
		}
		return &limit{new(big.Rat).Neg(l.value), l.without}
	}
	var all []expr
	if lo == nil || lo.value.Sign() < 0 {
		from := &limit{zero, true}
		if hi != nil && hi.value.Sign() < 0 {
			from = negate(hi)
		}
		all = append(all, concat(literal("-"), magnitudes(from, negate(lo))))
	}
	if hi == nil || hi.value.Sign() >= 0 {
		from := &limit{zero, false}
		if lo != nil && lo.value.Sign() >= 0 {
			from = lo
		}
		all = append(all, magnitudes(from, hi))
	}
	return either(all...)
}

// magnitudes is decimals for a lo that is not negative.
func magnitudes(lo, hi *limit) expr {
	least, after := parts(lo.value)
	if hi == nil {
		return either(
			concat(naturals(least, least), (&fraction{lo: after, loOpen: lo.without, loOn: true}).expr()),
			concat(naturals(new(big.Int).Add(least, one), nil), (&fraction{}).expr()))
	}
	most, upTo := parts(hi.value)
	switch least.Cmp(most) {
	case 1:
		return nothing
	case 0:
		f := &fraction{lo: after, loOpen: lo.without, loOn: true, hi: upTo, hiOpen: hi.without, hiOn: true}
		return concat(naturals(least, least), f.expr())
	}
	return either(
		concat(naturals(least, least), (&fraction{lo: after, loOpen: lo.without, loOn: true}).expr()),
		concat(naturals(new(big.Int).Add(least, one), new(big.Int).Sub(most, one)), (&fraction{}).expr()),
		concat(naturals(most, most), (&fraction{hi: upTo, hiOpen: hi.without, hiOn: true}).expr()))
}

// parts are the digits before and after the decimal point of a number that is
// not negative, without zeros at the end.
func parts(x *big.Rat) (whole *big.Int, after string) {
	_, after, _ = strings.Cut(x.FloatString(maxBoundDigits+maxBoundExponent), ".")
	return floor(x), strings.TrimRight(after, "0")
}

// fraction is the digits after a decimal point that are not below lo and not
// above hi, where these are on.
type fraction struct {
	lo, hi                     string
	loOpen, hiOpen, loOn, hiOn bool
}

// compared is how many digits are the same as lo's and hi's so far; −1 where
// that end is out of reach already.
type compared struct{ lo, hi int }

func (f *fraction) expr() expr {
	return func(b *builder, from, to int32) {
		start := compared{-1, -1}
		if f.loOn {
			start.lo = 0
		}
		if f.hiOn {
			start.hi = 0
		}
		start = f.settle(start)
		if f.accepts(start) {
			b.free(from, to)
		}
		nodes := map[compared]int32{}
		due := []compared{start}
		node := func(c compared) int32 {
			n, ok := nodes[c]
			if !ok {
				n = b.node()
				nodes[c] = n
				due = append(due, c)
				if f.accepts(c) {
					b.free(n, to)
				}
			}
			return n
		}
		point := b.node()
		literal(".")(b, from, point)
		for i := 0; i < len(due) && !b.full; i++ {
			at := point
			if i > 0 {
				at = node(due[i])
			}
			for c := byte('0'); c <= '9'; c++ {
				if next, ok := f.digit(due[i], c); ok {
					b.edge(at, c, c, node(next))
				}
			}
		}
	}
}

// settle drops the lower end when it is reached: more digits only add to it.
func (f *fraction) settle(c compared) compared {
	if c.lo == len(f.lo) && !f.loOpen {
		c.lo = -1
	}
	return c
}

// accepts tells whether the digits may end here.
func (f *fraction) accepts(c compared) bool {
	return c.lo < 0 && (c.hi < 0 || !f.hiOpen || c.hi < len(f.hi))
}

// digit is what one more digit leads to.
func (f *fraction) digit(at compared, c byte) (next compared, ok bool) {
	of := func(s string, i int) byte {
		if i < len(s) {
			return s[i]
		}
		return '0'
	}
	next = at
	if at.lo >= 0 {
		switch d := of(f.lo, at.lo); {
		case c < d:
			return next, false
		case c > d:
			next.lo = -1
		default:
			next.lo = min(at.lo+1, len(f.lo))
		}
	}
	if at.hi >= 0 {
		switch d := of(f.hi, at.hi); {
		case c > d:
			return next, false
		case c < d:
			next.hi = -1
		default:
			next.hi = min(at.hi+1, len(f.hi))
		}
	}
	return f.settle(next), true
}
