package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A coding is a weight type whose codes are small integers. A panel is as many
// rows as a register has dwords; a block of it holds a dword of each row, and
// step j of a block is bits [16/pairs·j, 16/pairs·(j+1)) of both words of all
// dwords, which are columns 2j and 2j+1.
type coding struct {
	name  string
	pairs int // of columns in a block
}

var codings = []coding{{"I4", 4}, {"I8", 2}}

// dots are the instructions that multiply words: VNNI's, which add as well, or
// VPMADDWD and an addition.
type dots struct {
	isa
	vnni bool
	most int // activation rows of a tile
}

var dotSets = []dots{
	{isa{name: "VNNI", lanes: 16}, true, 8},
	{isa{name: "AVX512", lanes: 16}, false, 8},
	{isa{name: "AVX2", lanes: 8}, false, 4},
}

// chains is how many sums a row of outputs is spread over, so that additions do
// not wait for each other. They are sums of integers: the result is the same.
func (d dots) chains(m int) int {
	switch {
	case !d.vnni:
		return 1
	case m <= 2:
		return 4
	}
	return 2
}

// intTile multiplies a panel by m activation rows of words. Within a span of
// blocks the sums are of integers, hence exact; those of the spans are added in
// their order, so an output does not depend on m.
func intTile(d dots, c coding, m int) {
	name := fmt.Sprintf("int%sm%d%s", c.name, m, d.name)
	TEXT(name, NOSPLIT, "func(w *byte, scales *float32, x *int16, xstride uintptr, blocks, span int, out *float32, ostride uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes out[k][r] for the %d rows of a panel and %d of x; see intTileFunc.", name, d.lanes, m))
	xs := newActivations(m)
	w, scales := Load(Param("w"), GP64()), Load(Param("scales"), GP64())
	left, count := Load(Param("blocks"), GP64()), GP64()
	mask := d.reg()
	d.broadcast(codeMasks[c.name], mask)
	sums := make([]reg.VecVirtual, m)
	acc := make([][]reg.VecVirtual, m)
	for k := range acc {
		sums[k] = d.reg()
		d.zero(sums[k])
		for range d.chains(m) {
			acc[k] = append(acc[k], d.reg())
		}
	}
	Label("span_" + name)
	span := Load(Param("span"), GP64())
	MOVQ(left, count)
	CMPQ(count, span)
	CMOVQGT(span, count)
	SUBQ(count, left)
	for k := range acc {
		for _, a := range acc[k] {
			d.zero(a)
		}
	}
	Label("block_" + name)
	d.block(c, w, mask, acc, xs)
	DECQ(count)
	JNZ(LabelRef("block_" + name))
	d.endSpan(scales, acc, sums, xs)
	TESTQ(left, left)
	JNZ(LabelRef("span_" + name))

	out, ostride := Load(Param("out"), GP64()), Load(Param("ostride"), GP64())
	for k := range sums {
		if k > 0 {
			ADDQ(ostride, out)
		}
		VMOVUPS(sums[k], Mem{Base: out})
	}
	VZEROUPPER()
	RET()
}

// block adds the products of a block.
func (d dots) block(c coding, w reg.Register, mask reg.VecVirtual, acc [][]reg.VecVirtual, xs *activations) {
	PREFETCHT0(Mem{Base: w, Disp: prefetch})
	raw := d.reg()
	VMOVUPS(Mem{Base: w}, raw)
	for j := range c.pairs {
		t := raw
		if j > 0 {
			t = d.reg()
			VPSRLW(Imm(uint64(16/c.pairs*j)), raw, t)
		}
		if j < c.pairs-1 {
			u := d.reg()
			d.and(mask, t, u)
			t = u
		}
		for k := range acc {
			a, from := acc[k][j%len(acc[k])], xs.at(k, 4*j)
			if d.vnni {
				VPDPWSSD_BCST(from, t, a)
				continue
			}
			p := d.reg()
			d.broadcast(from, p)
			VPMADDWD(p, t, p)
			VPADDD(p, a, a)
		}
	}
	ADDQ(Imm(uint64(4*d.lanes)), w)
	xs.advance(4 * c.pairs)
}

// endSpan adds the products of a span, with their scales, to the outputs.
func (d dots) endSpan(scales reg.Register, acc [][]reg.VecVirtual, sums []reg.VecVirtual, xs *activations) {
	scale := d.reg()
	VMOVUPS(Mem{Base: scales}, scale)
	for k := range acc {
		a, t := acc[k][0], d.reg()
		for _, b := range acc[k][1:] {
			VPADDD(b, a, a)
		}
		d.broadcast(xs.at(k, 0), t)
		VPADDD(t, a, a)
		VCVTDQ2PS(a, a)
		VBROADCASTSS(xs.at(k, 4), t)
		VMULPS(scale, t, t)
		VFMADD231PS(a, t, sums[k])
	}
	ADDQ(Imm(uint64(4*d.lanes)), scales)
	xs.advance(8)
}

func (d dots) and(a, b, to reg.VecVirtual) {
	if d.lanes == 16 {
		VPANDD(a, b, to)
	} else {
		VPAND(a, b, to)
	}
}

func (d dots) broadcast(from Mem, to reg.VecVirtual) { VPBROADCASTD(from, to) }

// spanMax finds the greatest magnitude.
func spanMax(s isa) {
	name := "spanMax" + s.name
	TEXT(name, NOSPLIT, "func(x *float32, n int) uint32")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s is the greatest of the bits of |x[i]| for i < n, a multiple of %d.", name, s.lanes))
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	top, mask := s.reg(), s.reg()
	s.zero(top)
	VPBROADCASTD(signless, mask)
	Label("loop_" + name)
	t := s.reg()
	if s.lanes == 16 {
		VPANDD(Mem{Base: x}, mask, t)
	} else {
		VPAND(Mem{Base: x}, mask, t)
	}
	VPMAXUD(t, top, top)
	ADDQ(Imm(uint64(4*s.lanes)), x)
	SUBQ(Imm(uint64(s.lanes)), n)
	JNZ(LabelRef("loop_" + name))
	low := s.fold(top, func(a, b Op) { VPMAXUD(a, b, b) })
	VZEROUPPER()
	Store(low, ReturnIndex(0))
	RET()
}

// fold combines the dwords of a register into one.
func (s isa) fold(a reg.VecVirtual, onto func(a, b Op)) reg.GPVirtual {
	y := a.(reg.Vec).AsY()
	if s.lanes == 16 {
		h := YMM()
		VEXTRACTI64X4(Imm(1), a, h)
		onto(y, h)
		y = h.(reg.Vec).AsY()
	}
	x, h := XMM(), XMM()
	VEXTRACTI128(Imm(1), y, x)
	onto(y.(reg.Vec).AsX(), x)
	for _, order := range []uint64{0x4e, 0xb1} {
		VPSHUFD(Imm(order), x, h)
		onto(h, x)
	}
	low := GP32()
	VMOVD(x, low)
	return low
}

// spanWords rounds to words.
func spanWords(s isa) {
	name := "spanWords" + s.name
	TEXT(name, NOSPLIT, "func(x *float32, n int, factor float32, dst *int16) int32")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s sets dst[i] = min(x[i]·factor, 32767) for i < n, rounded to even, and returns their sum; n a multiple of %d, no product below −32768.", name, s.lanes))
	x, n, dst := Load(Param("x"), GP64()), Load(Param("n"), GP64()), Load(Param("dst"), GP64())
	factor, most, sum := s.reg(), s.reg(), s.reg()
	at, err := Param("factor").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(at.Addr, factor)
	VPBROADCASTD(mostWord, most)
	s.zero(sum)
	Label("loop_" + name)
	t := s.reg()
	VMULPS(Mem{Base: x}, factor, t)
	VCVTPS2DQ(t, t)
	VPMINSD(most, t, t)
	VPADDD(t, sum, sum)
	if s.lanes == 16 {
		VPMOVDW(t, Mem{Base: dst})
	} else {
		h := XMM()
		VEXTRACTI128(Imm(1), t, h)
		VPACKSSDW(h, t.(reg.Vec).AsX(), h)
		VMOVDQU(h, Mem{Base: dst})
	}
	ADDQ(Imm(uint64(4*s.lanes)), x)
	ADDQ(Imm(uint64(2*s.lanes)), dst)
	SUBQ(Imm(uint64(s.lanes)), n)
	JNZ(LabelRef("loop_" + name))
	low := s.fold(sum, func(a, b Op) { VPADDD(a, b, b) })
	VZEROUPPER()
	Store(low, ReturnIndex(0))
	RET()
}

var (
	signless Mem // a float32's bits but the sign
	mostWord Mem // the greatest int16
	// codeMasks are dwords with the bits of the lowest code of each word.
	codeMasks = map[string]Mem{}
)

func dotConstants() {
	signless = GLOBL("signless", RODATA|NOPTR)
	DATA(0, U32(0x7fffffff))
	mostWord = GLOBL("mostWord", RODATA|NOPTR)
	DATA(0, U32(0x7fff))
	for _, c := range codings {
		codeMasks[c.name] = GLOBL("codes"+c.name, RODATA|NOPTR)
		DATA(0, U32(uint32(1<<(16/c.pairs)-1)*0x10001))
	}
}
