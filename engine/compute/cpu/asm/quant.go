package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A format is a quantised weight type. Four rows of a weight lie together as a
// panel: block after block, and in a block 16 bytes of each of the four rows.
type format struct {
	name string
	step int // columns in a block
}

var formats = []format{{"I4", 32}, {"I8", 16}, {"F8", 16}}

// An unpacker makes float32 values of a block's bytes.
type unpacker struct {
	s isa
	f format
	// Constants and the current scales of the four rows. With AVX-512, 4-bit
	// codes look their product with the scale up in a table of 16 instead.
	table reg.VecVirtual
	shift []reg.VecVirtual
	mask  reg.VecVirtual
	scale []reg.VecVirtual
}

// quantTile multiplies a panel by m activation rows. Lane l of an accumulator
// sums elements l, l+lanes, …, as tile's do, so an output does not depend on m.
func quantTile(s isa, f format, m int) {
	name := fmt.Sprintf("quant%sm%d%s", f.name, m, s.name)
	TEXT(name, NOSPLIT, "func(w *byte, scales *float32, group int, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes out[k][r] = Σ w[r][i]·scales[i/group][r]·x[k][i] for the 4 rows of a panel and %d of x; strides in bytes, n a multiple of %d, group too unless it is n or more.", name, m, f.step))
	w := Load(Param("w"), GP64())
	scales := Load(Param("scales"), GP64())
	group := Load(Param("group"), GP64())
	xs := pointers(Load(Param("x"), GP64()), Load(Param("xstride"), GP64()), m)
	n := Load(Param("n"), GP64())
	acc := make([][4]reg.VecVirtual, m)
	for k := range acc {
		for r := range acc[k] {
			acc[k][r] = s.reg()
			s.zero(acc[k][r])
		}
	}
	u := newUnpacker(s, f)
	idx, end := GP64(), GP64()
	XORQ(idx, idx)
	Label("group_" + name)
	MOVQ(idx, end)
	ADDQ(group, end)
	CMPQ(end, n)
	CMOVQGT(n, end)
	u.load(scales)
	ADDQ(Imm(16), scales)
	Label("block_" + name)
	PREFETCHT0(Mem{Base: w, Disp: prefetch})
	for v := range f.step / s.lanes {
		y := make([]reg.VecVirtual, m)
		for k := range y {
			y[k] = s.reg()
			VMOVUPS(Mem{Base: xs[k], Index: idx, Scale: 4, Disp: 4 * v * s.lanes}, y[k])
		}
		for r := range 4 {
			t := u.unpack(w, r, v)
			for k := range acc {
				VFMADD231PS(y[k], t, acc[k][r])
			}
		}
	}
	ADDQ(Imm(64), w)
	ADDQ(Imm(uint64(f.step)), idx)
	CMPQ(idx, end)
	JL(LabelRef("block_" + name))
	CMPQ(idx, n)
	JL(LabelRef("group_" + name))

	out := Load(Param("out"), GP64())
	ostride := Load(Param("ostride"), GP64())
	for k := range acc {
		if k > 0 {
			ADDQ(ostride, out)
		}
		q := make([]reg.VecVirtual, 4)
		for r := range q {
			q[r] = s.quarter(acc[k][r])
		}
		sum4(q, Mem{Base: out})
	}
	VZEROUPPER()
	RET()
}

func newUnpacker(s isa, f format) *unpacker {
	u := &unpacker{s: s, f: f}
	switch {
	case f.name == "I4" && s.lanes == 16:
		u.table = ZMM()
		VMOVUPS(nibbles, u.table)
		for v := range 2 {
			u.shift = append(u.shift, ZMM())
			VMOVDQU32(counts512[v], u.shift[v])
		}
	case f.name == "F8" && s.lanes == 16:
		u.mask = YMM()
		VMOVDQU32(mask16, u.mask)
	case f.name == "F8":
		u.mask = XMM()
		VMOVDQU(mask16, u.mask)
	}
	for range 4 {
		u.scale = append(u.scale, s.reg())
	}
	return u
}

// load takes the scales of the next group.
func (u *unpacker) load(scales reg.Register) {
	for r, scale := range u.scale {
		from := Mem{Base: scales, Disp: 4 * r}
		if u.table != nil {
			VMULPS_BCST(from, u.table, scale)
		} else {
			VBROADCASTSS(from, scale)
		}
	}
}

// unpack makes vector v of the columns in row r's part of the block at w.
func (u *unpacker) unpack(w reg.Register, r, v int) reg.VecVirtual {
	t := u.s.reg()
	switch u.f.name {
	case "I4": // dword j of the 16 bytes has columns j, j+4, …, j+28 from its lowest bits on
		from := Mem{Base: w, Disp: 16 * r}
		if u.s.lanes == 16 {
			VBROADCASTI32X4(from, t)
			VPSRLVD(u.shift[v], t, t)
			VPERMPS(u.scale[r], t, t) // looks at the lowest 4 bits only
			return t
		}
		VBROADCASTI128(from, t)
		VPSLLVD(counts256[v], t, t) // to the highest bits, and back down with the sign
		VPSRAD(Imm(28), t, t)
		VCVTDQ2PS(t, t)
	case "I8":
		VPMOVSXBD(Mem{Base: w, Disp: 16*r + u.s.lanes*v}, t)
		VCVTDQ2PS(t, t)
	case "F8": // as float16 with the exponent's bias too small by 8: the scales make up for it
		from := Mem{Base: w, Disp: 16*r + u.s.lanes*v}
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
	nibbles   Mem    // the values of the 16 codes, as float32
	counts512 [2]Mem // right shifts that bring a column's code to a lane's lowest bits
	counts256 [4]Mem // left shifts that bring it to the highest
	mask16    Mem    // of words: all bits but the copy of the sign
)

// constants writes the tables that the unpackers read.
func constants() {
	nibbles = GLOBL("nibbles", RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, F32(float32(i-i/8*16)))
	}
	for v := range counts512 {
		counts512[v] = GLOBL(fmt.Sprintf("counts512v%d", v), RODATA|NOPTR)
		for l := range 16 {
			DATA(4*l, U32(uint32(4*(4*v+l/4))))
		}
	}
	for v := range counts256 {
		counts256[v] = GLOBL(fmt.Sprintf("counts256v%d", v), RODATA|NOPTR)
		for l := range 8 {
			DATA(4*l, U32(uint32(28-4*(2*v+l/4))))
		}
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
