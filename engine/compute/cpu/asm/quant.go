package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A format is a quantised weight type. Four rows of a weight lie together as a
// panel: block after block of 64 bytes, which are 16 of each row, one row after
// the other; with I4 byte r of each dword is row r's.
type format struct {
	name string
	step int // columns in a block
}

var formats = []format{{"I4", 32}, {"I8", 16}, {"F8", 16}}

// most is how many activation rows a tile takes. Rows two by two read the
// activations twice, which costs more than AVX-512's unpacking of I4 again.
func (f format) most(s isa) int {
	if f.name == "I4" && s.lanes == 16 {
		return s.vecs
	}
	return 2 * s.vecs
}

// An unpacker makes float32 values of a block's bytes.
type unpacker struct {
	s    isa
	f    format
	rows []int // of the panel
	// Constants and the current scales of the rows. With AVX-512, 4-bit codes
	// look their product with the scale up in a table of 16 instead.
	table reg.VecVirtual
	mask  reg.VecVirtual
	scale []reg.VecVirtual
	raw   []reg.VecVirtual // a block's I4 codes by row, the next ones lowest
}

// quantTile multiplies a panel by m activation rows. Lane l of an accumulator
// sums elements l, l+lanes, …, as tile's do, so an output does not depend on m.
// More activation rows than there are accumulators for take the panel's rows two
// by two: the second pair reads the panel from the caches, and each code is
// unpacked once.
func quantTile(s isa, f format, m int) {
	name := fmt.Sprintf("quant%sm%d%s", f.name, m, s.name)
	TEXT(name, NOSPLIT, "func(w *byte, scales *float32, group int, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes out[k][r] = Σ w[r][i]·scales[i/group][r]·x[k][i] for the 4 rows of a panel and %d of x; strides in bytes, n a multiple of %d, group too unless it is n or more.", name, m, f.step))
	rows := [][]int{{0, 1, 2, 3}}
	if m > s.vecs {
		rows = [][]int{{0, 1}, {2, 3}}
	}
	acc := make([][]reg.VecVirtual, m)
	for k := range acc {
		for range rows[0] {
			acc[k] = append(acc[k], s.reg())
		}
	}
	for _, r := range rows {
		quantRows(s, f, name, acc, r)
	}
	VZEROUPPER()
	RET()
}

// quantRows computes the outputs of 4 or 2 neighbouring rows of the panel.
func quantRows(s isa, f format, name string, acc [][]reg.VecVirtual, rows []int) {
	label := fmt.Sprintf("%s_%d", name, rows[0])
	xs := newActivations(len(acc))
	w := Load(Param("w"), GP64())
	scales := Load(Param("scales"), GP64())
	for k := range acc {
		for _, a := range acc[k] {
			s.zero(a)
		}
	}
	u := newUnpacker(s, f, rows)
	idx, end := GP64(), GP64()
	XORQ(idx, idx)
	Label("group_" + label)
	MOVQ(idx, end)
	ADDQ(Load(Param("group"), GP64()), end)
	n := Load(Param("n"), GP64())
	CMPQ(end, n)
	CMOVQGT(n, end)
	u.load(scales)
	ADDQ(Imm(16), scales)
	Label("block_" + label)
	if rows[0] == 0 {
		PREFETCHT0(Mem{Base: w, Disp: prefetch})
	}
	for v := range f.step / s.lanes {
		block(s, u, acc, xs, w, v)
	}
	xs.advance(4 * f.step)
	ADDQ(Imm(64), w)
	ADDQ(Imm(uint64(f.step)), idx)
	CMPQ(idx, end)
	JL(LabelRef("block_" + label))
	CMPQ(idx, Load(Param("n"), GP64()))
	JL(LabelRef("group_" + label))

	out := Load(Param("out"), GP64())
	ostride := Load(Param("ostride"), GP64())
	for k := range acc {
		if k > 0 {
			ADDQ(ostride, out)
		}
		q := make([]reg.VecVirtual, len(rows))
		for r := range q {
			q[r] = s.quarter(acc[k][r])
		}
		if len(rows) == 4 {
			sum4(q, Mem{Base: out})
		} else {
			sum2(q, Mem{Base: out, Disp: 4 * rows[0]})
		}
	}
}

// block adds the products of vector v of the block's columns.
func block(s isa, u *unpacker, acc [][]reg.VecVirtual, xs *activations, w reg.Register, v int) {
	from := func(k int) Mem { return xs.at(k, 4*v*s.lanes) }
	if len(u.rows) == 2 { // the codes of both rows first: registers for activations are few
		a, b := u.unpack(w, 0, v), u.unpack(w, 1, v)
		for k := range acc {
			y := s.reg()
			VMOVUPS(from(k), y)
			VFMADD231PS(y, a, acc[k][0])
			VFMADD231PS(y, b, acc[k][1])
		}
		return
	}
	y := make([]reg.VecVirtual, len(acc))
	for k := range y {
		y[k] = s.reg()
		VMOVUPS(from(k), y[k])
	}
	for r := range u.rows {
		t := u.unpack(w, r, v)
		for k := range acc {
			VFMADD231PS(y[k], t, acc[k][r])
		}
	}
}

// activations are pointers to every other activation row, and the stride that
// leads from each to the next row: a pointer a row would be too many registers.
type activations struct {
	even   []reg.Register
	stride reg.Register
}

func newActivations(m int) *activations {
	p, stride := Load(Param("x"), GP64()), Load(Param("xstride"), GP64())
	a := &activations{even: []reg.Register{p}, stride: stride}
	for i := 2; i < m; i += 2 {
		q := GP64()
		LEAQ(Mem{Base: a.even[i/2-1], Index: stride, Scale: 2}, q)
		a.even = append(a.even, q)
	}
	return a
}

// at is what lies disp bytes from row k's pointer on.
func (a *activations) at(k, disp int) Mem {
	from := Mem{Base: a.even[k/2], Disp: disp}
	if k%2 == 1 {
		from.Index, from.Scale = a.stride, 1
	}
	return from
}

func (a *activations) advance(bytes int) {
	for _, p := range a.even {
		ADDQ(U32(uint32(bytes)), p)
	}
}

func newUnpacker(s isa, f format, rows []int) *unpacker {
	u := &unpacker{s: s, f: f, rows: rows, raw: make([]reg.VecVirtual, len(rows))}
	switch {
	case f.name == "I4" && s.lanes == 16:
		u.table = ZMM()
		VMOVUPS(nibbles, u.table)
	case f.name == "F8" && s.lanes == 16:
		u.mask = YMM()
		VMOVDQU32(mask16, u.mask)
	case f.name == "F8":
		u.mask = XMM()
		VMOVDQU(mask16, u.mask)
	}
	for range rows {
		u.scale = append(u.scale, s.reg())
	}
	return u
}

// load takes the scales of the next group.
func (u *unpacker) load(scales reg.Register) {
	for r, scale := range u.scale {
		from := Mem{Base: scales, Disp: 4 * u.rows[r]}
		if u.table != nil {
			VMULPS_BCST(from, u.table, scale)
		} else {
			VBROADCASTSS(from, scale)
		}
	}
}

// unpack makes vector v of the columns in the part of the block at w that is the
// unpacker's row r; the vectors of a block are asked for in order.
func (u *unpacker) unpack(w reg.Register, r, v int) reg.VecVirtual {
	t, row := u.s.reg(), u.rows[r]
	switch u.f.name {
	case "I4": // dword j has columns j and j+16 of row 0 in its lowest byte, of row 1 in the next, …
		if u.s.lanes == 16 {
			if v == 0 { // the load shifts by whole bytes; the last dword's other bytes are of no row
				u.raw[r] = ZMM()
				VMOVDQU32(Mem{Base: w, Disp: row}, u.raw[r])
			} else {
				VPSRLD(Imm(4), u.raw[r], u.raw[r])
			}
			VPERMPS(u.scale[r], u.raw[r], t) // looks at the lowest 4 bits only
			return t
		}
		VMOVDQU(Mem{Base: w, Disp: 32 * (v % 2)}, t)
		if up := 28 - 8*row - 4*(v/2); up > 0 { // to the highest bits, and back down with the sign
			VPSLLD(Imm(uint64(up)), t, t)
		}
		VPSRAD(Imm(28), t, t)
		VCVTDQ2PS(t, t)
	case "I8":
		VPMOVSXBD(Mem{Base: w, Disp: 16*row + u.s.lanes*v}, t)
		VCVTDQ2PS(t, t)
	case "F8": // as float16 with the exponent's bias too small by 8: the scales make up for it
		from := Mem{Base: w, Disp: 16*row + u.s.lanes*v}
		if u.s.lanes == 16 {
			h := YMM()
			VPMOVSXBW(from, h)
			VPSLLW(Imm(7), h, h)
			VPANDD(u.mask, h, h)
			VCVTPH2PS(h, t)
		} else {
			h := XMM()
			VPMOVSXBW(from, h)
			VPSLLW(Imm(7), h, h)
			VPAND(u.mask, h, h)
			VCVTPH2PS(h, t)
		}
	}
	VMULPS(u.scale[r], t, t)
	return t
}

var (
	nibbles Mem // the values of the 16 codes, as float32
	mask16  Mem // of words: all bits but the copy of the sign
)

// constants writes the tables that the unpackers read.
func constants() {
	nibbles = GLOBL("nibbles", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, F32(float32(i-i/8*16)))
	}
	mask16 = GLOBL("mask16", RODATA|NOPTR)
	for i := range 8 {
		DATA(4*i, U32(0xbfffbfff))
	}
}

// f16c asks the processor, since golang.org/x/sys/cpu does not say.
func f16c() {
	TEXT("hasF16C", NOSPLIT, "func() bool")
	Doc("hasF16C tells whether the processor converts float16: bit 29 of CPUID leaf 1's ECX.")
	MOVL(U32(1), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	SHRL(Imm(29), reg.ECX)
	ANDL(Imm(1), reg.ECX)
	Store(reg.CL, ReturnIndex(0))
	RET()
}
