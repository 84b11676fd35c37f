package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// step is how many columns of float8 a block has. Four rows of a weight lie
// together as a panel: block after block of 64 bytes, which are 16 of each row,
// one row after the other.
const step = 16

// An unpacker makes float32 values of a block's bytes.
type unpacker struct {
	s     isa
	rows  []int // of the panel
	mask  reg.VecVirtual
	scale []reg.VecVirtual // the current scales of the rows
}

// floatTile multiplies a panel of float8 by m activation rows. Lane l of an accumulator
// sums elements l, l+lanes, …, as tile's do, so an output does not depend on m.
// More activation rows than there are accumulators for take the panel's rows two
// by two: the second pair reads the panel from the caches, and each code is
// unpacked once.
func floatTile(s isa, m int) {
	name := fmt.Sprintf("quantF8m%d%s", m, s.name)
	TEXT(name, NOSPLIT, "func(w *byte, scales *float32, group int, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes out[k][r] = Σ w[r][i]·scales[i/group][r]·x[k][i] for the 4 rows of a panel and %d of x; strides in bytes, n a multiple of %d, group too unless it is n or more.", name, m, step))
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
		quantRows(s, name, acc, r)
	}
	VZEROUPPER()
	RET()
}

// quantRows computes the outputs of 4 or 2 neighbouring rows of the panel.
func quantRows(s isa, name string, acc [][]reg.VecVirtual, rows []int) {
	label := fmt.Sprintf("%s_%d", name, rows[0])
	xs := newActivations(len(acc))
	w := Load(Param("w"), GP64())
	scales := Load(Param("scales"), GP64())
	for k := range acc {
		for _, a := range acc[k] {
			s.zero(a)
		}
	}
	u := newUnpacker(s, rows)
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
	for v := range step / s.lanes {
		block(s, u, acc, xs, w, v)
	}
	xs.advance(4 * step)
	ADDQ(Imm(64), w)
	ADDQ(Imm(uint64(step)), idx)
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

func newUnpacker(s isa, rows []int) *unpacker {
	u := &unpacker{s: s, rows: rows}
	if s.lanes == 16 {
		u.mask = YMM()
		VMOVDQU32(mask16, u.mask)
	} else {
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
		VBROADCASTSS(Mem{Base: scales, Disp: 4 * u.rows[r]}, scale)
	}
}

// unpack makes vector v of the columns in the part of the block at w that is the
// unpacker's row r, as float16 with the exponent's bias too small by 8: the
// scales make up for it.
func (u *unpacker) unpack(w reg.Register, r, v int) reg.VecVirtual {
	t := u.s.reg()
	from := Mem{Base: w, Disp: 16*u.rows[r] + u.s.lanes*v}
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
	VMULPS(u.scale[r], t, t)
	return t
}

// mask16 is words of all bits but the copy of the sign.
var mask16 Mem

// constants writes the table that the unpackers read.
func constants() {
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
