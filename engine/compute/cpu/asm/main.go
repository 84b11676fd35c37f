// Command asm generates the CPU device's assembly kernels:
//
//	go run . -out ../kernels_amd64.s -stubs ../kernels_amd64.go -pkg cpu
//
// It is a module of its own so that the product does not depend on avo.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// An isa is an instruction set, told apart by its vector width.
type isa struct {
	name  string
	lanes int // float32 in a register
	vecs  int // most activation rows a 4-row tile has registers for; a 2-row tile: twice that
}

var isas = []isa{{"AVX512", 16, 4}, {"AVX2", 8, 2}}

func (s isa) reg() reg.VecVirtual {
	if s.lanes == 16 {
		return ZMM()
	}
	return YMM()
}

func (s isa) zero(r reg.VecVirtual) {
	if s.lanes == 16 {
		VPXORD(r, r, r)
	} else {
		VXORPS(r, r, r)
	}
}

// prefetch is how far ahead of the loads weights are prefetched, in bytes.
const prefetch = 1024

func main() {
	constants()
	dotConstants()
	for _, d := range dotSets {
		for _, c := range codings {
			for m := 1; m <= d.most; m++ {
				intTile(d, c, m)
			}
		}
	}
	for _, s := range isas {
		spanMax(s)
		spanWords(s)
		for _, w := range []string{"BF16", "F16", "F32"} {
			for _, rows := range []int{4, 1} {
				for m := 1; m <= s.vecs; m++ {
					tile(s, w, rows, m)
				}
			}
		}
		for m := 1; m <= 2*s.vecs; m++ {
			floatTile(s, m)
		}
		weighted(s)
	}
	f16c()
	pause()
	Generate()
}

// tile multiplies rows weight rows by m activation rows. Lane l of an
// accumulator sums elements l, l+lanes, … and the lanes are added in one fixed
// order, so an output does not depend on which tile computed it.
func tile(s isa, wtype string, rows, m int) {
	name := fmt.Sprintf("tile%sr%dm%d%s", wtype, rows, m, s.name)
	TEXT(name, NOSPLIT, "func(w *byte, wstride uintptr, x *float32, xstride uintptr, n int, out *float32, ostride uintptr)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes out[k][r] = Σ w[r][i]·x[k][i] for %d rows of w and %d of x; strides in bytes, n a multiple of %d.", name, rows, m, s.lanes))
	size := 4
	if wtype != "F32" {
		size = 2
	}
	ws := pointers(Load(Param("w"), GP64()), Load(Param("wstride"), GP64()), rows)
	xs := pointers(Load(Param("x"), GP64()), Load(Param("xstride"), GP64()), m)
	n := Load(Param("n"), GP64())
	acc := make([][]reg.VecVirtual, m)
	for k := range acc {
		acc[k] = make([]reg.VecVirtual, rows)
		for r := range acc[k] {
			acc[k][r] = s.reg()
			s.zero(acc[k][r])
		}
	}
	idx := GP64()
	XORQ(idx, idx)
	Label("loop_" + name)
	t := make([]reg.VecVirtual, rows)
	for r := range t {
		t[r] = s.reg()
		PREFETCHT0(Mem{Base: ws[r], Index: idx, Scale: uint8(size), Disp: prefetch})
		from := Mem{Base: ws[r], Index: idx, Scale: uint8(size)}
		switch wtype {
		case "BF16": // the upper half of a float32
			VPMOVZXWD(from, t[r])
			VPSLLD(Imm(16), t[r], t[r])
		case "F16":
			VCVTPH2PS(from, t[r])
		default:
			VMOVUPS(from, t[r])
		}
	}
	for k := range acc {
		y := s.reg()
		VMOVUPS(Mem{Base: xs[k], Index: idx, Scale: 4}, y)
		for r := range t {
			VFMADD231PS(y, t[r], acc[k][r])
		}
	}
	ADDQ(Imm(uint64(s.lanes)), idx)
	CMPQ(idx, n)
	JL(LabelRef("loop_" + name))

	out := Load(Param("out"), GP64())
	ostride := Load(Param("ostride"), GP64())
	for k := range acc {
		if k > 0 {
			ADDQ(ostride, out)
		}
		q := make([]reg.VecVirtual, rows)
		for r := range q {
			q[r] = s.quarter(acc[k][r])
		}
		if rows == 4 {
			sum4(q, Mem{Base: out})
		} else {
			sum1(q[0], Mem{Base: out})
		}
	}
	VZEROUPPER()
	RET()
}

// pointers are p, p+stride, … for n rows.
func pointers(p, stride reg.Register, n int) []reg.Register {
	ps := []reg.Register{p}
	for i := 1; i < n; i++ {
		q := GP64()
		MOVQ(ps[i-1], q)
		ADDQ(stride, q)
		ps = append(ps, q)
	}
	return ps
}

// quarter adds the upper halves of a register onto the lower until 4 lanes are left.
func (s isa) quarter(a reg.VecVirtual) reg.VecVirtual {
	y := a.(reg.Vec).AsY()
	if s.lanes == 16 {
		h := YMM()
		VEXTRACTF64X4(Imm(1), a, h)
		VADDPS(h, y, h)
		y = h.(reg.Vec).AsY()
	}
	h, x := XMM(), XMM()
	if s.lanes == 16 {
		VEXTRACTF32X4(Imm(1), y, h)
	} else {
		VEXTRACTF128(Imm(1), y, h)
	}
	VADDPS(h, y.(reg.Vec).AsX(), x)
	return x
}

// sum4 stores the four sums (a0+a2)+(a1+a3) of four registers.
func sum4(q []reg.VecVirtual, to Mem) {
	u, v := halves(q[0], q[1]), halves(q[2], q[3])
	lo, hi := XMM(), XMM()
	VUNPCKLPD(v, u, lo)
	VUNPCKHPD(v, u, hi)
	VADDPS(hi, lo, lo)
	VMOVUPS(lo, to)
}

// halves makes a0+a2, b0+b2, a1+a3, b1+b3.
func halves(a, b reg.VecVirtual) reg.VecVirtual {
	lo, hi := XMM(), XMM()
	VUNPCKLPS(b, a, lo)
	VUNPCKHPS(b, a, hi)
	VADDPS(hi, lo, lo)
	return lo
}

// sum2 stores (a0+a2)+(a1+a3) of two registers, the same sums as sum4's.
func sum2(q []reg.VecVirtual, to Mem) {
	u, h := halves(q[0], q[1]), XMM()
	VUNPCKHPD(u, u, h)
	VADDPS(h, u, u)
	VMOVSD(u, to)
}

// sum1 stores (a0+a2)+(a1+a3), the same sum as sum4's.
func sum1(a reg.VecVirtual, to Mem) {
	h := XMM()
	VPERMILPS(Imm(0x4e), a, h)
	VADDPS(h, a, a)
	VPERMILPS(Imm(0xb1), a, h)
	VADDPS(h, a, a)
	VMOVSS(a, to)
}

// weighted adds weighted rows onto out, position by position, so the result
// does not depend on how the positions are split over calls.
func weighted(s isa) {
	name := "weighted" + s.name
	TEXT(name, NOSPLIT, "func(p *float32, v *float32, vstride uintptr, count int, out *float32, n int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s adds Σ p[i]·v[i][:n] to out[:n] over count rows of v; vstride in bytes, n a multiple of %d.", name, s.lanes))
	p := Load(Param("p"), GP64())
	v := Load(Param("v"), GP64())
	stride := Load(Param("vstride"), GP64())
	count := Load(Param("count"), GP64())
	out := Load(Param("out"), GP64())
	n := Load(Param("n"), GP64())
	block := func(vecs int) {
		width := vecs * s.lanes
		label := fmt.Sprintf("%s_%d", name, vecs)
		Label("cols_" + label)
		CMPQ(n, Imm(uint64(width)))
		JL(LabelRef("done_" + label))
		acc := make([]reg.VecVirtual, vecs)
		for j := range acc {
			acc[j] = s.reg()
			VMOVUPS(Mem{Base: out, Disp: j * s.lanes * 4}, acc[j])
		}
		row, i := GP64(), GP64()
		MOVQ(v, row)
		XORQ(i, i)
		Label("rows_" + label)
		b := s.reg()
		VBROADCASTSS(Mem{Base: p, Index: i, Scale: 4}, b)
		for j := range acc {
			VFMADD231PS(Mem{Base: row, Disp: j * s.lanes * 4}, b, acc[j])
		}
		ADDQ(stride, row)
		INCQ(i)
		CMPQ(i, count)
		JL(LabelRef("rows_" + label))
		for j := range acc {
			VMOVUPS(acc[j], Mem{Base: out, Disp: j * s.lanes * 4})
		}
		ADDQ(U32(uint32(width*4)), v)
		ADDQ(U32(uint32(width*4)), out)
		SUBQ(U32(uint32(width)), n)
		JMP(LabelRef("cols_" + label))
		Label("done_" + label)
	}
	block(4)
	block(1)
	VZEROUPPER()
	RET()
}

// pause tells the processor that the caller spins.
func pause() {
	TEXT("pause", NOSPLIT, "func()")
	Doc("pause waits some tens of cycles, leaving the core to its other thread.")
	for range 4 {
		PAUSE()
	}
	RET()
}
