package cpu

import (
	"encoding/binary"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

// panels is a quantised matrix. Some rows are a panel: block after block of step
// columns, with the codes of all its rows in each (see place), so that a kernel
// reads one stream. A panel's scales lie together too, the rows' side by side.
// Rows and columns that fill up the last panel and block have a scale of 0, or
// meet activations of 0.
//
// Panels of integer codes are multiplied with activations that are integers too
// (see words); a span is the blocks that are summed up as such.
type panels struct {
	dtype   compute.DType
	out, in int
	rows    int // of a panel
	size    int // bytes of a block
	step    int // columns of a block
	blocks  int // of a row
	group   int // columns that share a scale
	span    int // blocks that share a scale; 0 if groups are not whole blocks
	groups  int // scales of a row
	bytes   []byte
	scales  []float32
}

// maxSpan is the most columns of a span: twice as many products of a code of 8
// bits and a word could exceed 32 bits.
const maxSpan = 256

func newPanels(q compute.Quant, out, in, lanes int) *panels {
	p := &panels{dtype: q.DType, out: out, in: in, rows: 4, size: 64, step: 16, group: min(q.Group, in)}
	if q.DType != compute.F8E4M3 {
		p.rows = max(lanes, 4)
		p.size, p.step = 4*p.rows, 8
		if q.DType == compute.I8 {
			p.step = 4
		}
	}
	p.blocks = (in + p.step - 1) / p.step
	switch {
	case p.group == in:
		p.span = p.blocks
	case p.group%p.step == 0:
		p.span = p.group / p.step
	}
	if q.DType != compute.F8E4M3 && p.span > 0 {
		p.divide()
	}
	p.groups = (in + p.group - 1) / p.group
	count := (out + p.rows - 1) / p.rows
	p.bytes, p.scales = make([]byte, count*p.blocks*p.size), make([]float32, count*p.groups*p.rows)
	return p
}

// divide makes groups of integer codes no longer than maxSpan.
func (p *panels) divide() {
	most := maxSpan / p.step
	if p.span <= most {
		return
	}
	if p.group == p.in {
		p.span = most // the last one may be shorter
	} else {
		for parts := (p.span + most - 1) / most; ; parts++ {
			if p.span%parts == 0 {
				p.span /= parts
				break
			}
		}
	}
	p.group = p.span * p.step
}

// NewQuantized implements compute.Device. Codes are filled a few rows at a time.
func (d *Device) NewQuantized(q compute.Quant, out, in int, codes compute.Fill, scales compute.FillScales) (compute.Weight, error) {
	if out < 1 || in < 1 || q.Group < 1 || !q.DType.Quantised() {
		return nil, fault.Errorf(fault.Internal, "a quantised weight of %d × %d %s in groups of %d", out, in, q.DType, q.Group)
	}
	p, groups := newPanels(q, out, in, d.k.lanes), q.Groups(in)

	rows := min(out, max(p.rows, 1<<18/in))
	raw, factors := make([]byte, rows*q.DType.RowBytes(in)), make([]float32, rows*groups)
	for row := 0; row < out; row += rows {
		n := min(rows, out-row)
		raw, factors := raw[:n*q.DType.RowBytes(in)], factors[:n*groups]
		if err := codes(row, n, raw); err != nil {
			return nil, err
		}
		if err := scales(row, n, factors); err != nil {
			return nil, err
		}
		for r := range n {
			p.pack(row+r, raw[r*q.DType.RowBytes(in):(r+1)*q.DType.RowBytes(in)])
			if err := p.scale(row+r, q.Group, factors[r*groups:(r+1)*groups]); err != nil {
				return nil, err
			}
		}
	}
	return &weight{dtype: q.DType, out: out, in: in, panels: p}, nil
}

// block is block b of row r's panel.
func (p *panels) block(r, b int) []byte {
	at := (r/p.rows*p.blocks + b) * p.size
	return p.bytes[at : at+p.size]
}

// pack writes row r.
func (p *panels) pack(r int, raw []byte) {
	at, _ := p.place(r, 0)
	per := (p.step*p.dtype.RowBytes(2) + 1) / 2 // bytes of a row in a block
	for b := range p.blocks {
		codes, to := raw[min(b*per, len(raw)):min((b+1)*per, len(raw))], p.block(r, b)[at:]
		if p.dtype == compute.F8E4M3 {
			copy(to, codes)
			continue
		}
		var word [4]byte
		copy(word[:], codes)
		u := binary.LittleEndian.Uint32(word[:])
		if p.dtype == compute.I4 {
			u = nibbles(u) | nibbles(u>>4)<<16
		} else {
			u ^= 0x80808080
			u = u&0xff0000ff | u>>8&0xff00 | u&0xff00<<8
		}
		binary.LittleEndian.PutUint32(to, u)
	}
}

// nibbles puts the lower halves of four bytes together.
func nibbles(u uint32) uint32 {
	u &= 0x0f0f0f0f
	u = (u | u>>4) & 0x00ff00ff
	return (u | u>>8) & 0xffff
}

// place is where in a block the code of column i of row r lies. The bytes of
// F8E4M3 lie row after row. Integer codes, without a sign, lie so that a dword is
// a row's, and the same bits of its two words are two neighbouring columns: a
// shift and a mask make words of the codes that are multiplied with a dword of
// activations.
func (p *panels) place(r, i int) (at, shift int) {
	r %= p.rows
	switch p.dtype {
	case compute.I4:
		return 4*r + i%2*2 + i/4, i / 2 % 2 * 4
	case compute.I8:
		return 4*r + i%2*2 + i/2, 0
	}
	return 16*r + i, 0
}

// offset is what was added to an integer code's number.
func (p *panels) offset() int32 {
	switch p.dtype {
	case compute.I4:
		return 8
	case compute.I8:
		return 128
	}
	return 0
}

// scale writes the scales of row r, one for each group columns.
func (p *panels) scale(r, group int, factors []float32) error {
	for g, f := range factors {
		if f-f != 0 {
			return fault.Errorf(fault.WeightsMismatch, "scale %d of row %d of a quantised weight is %v: it must be finite", g, r, f)
		}
	}
	for g := range p.groups {
		f := factors[g*p.group/group]
		if p.dtype == compute.F8E4M3 {
			f *= f8Bias
		}
		p.scales[(r/p.rows*p.groups+g)*p.rows+r%p.rows] = f
	}
	return nil
}

// f8Bias makes up for what float16 makes of float8's exponent; see unpackF8.
const f8Bias = 256

// even tells whether the kernels can take the groups: a scale's columns must be
// whole blocks, and of float8 there must be one.
func (p *panels) even() bool {
	return p.span > 0 && (p.dtype != compute.F8E4M3 || p.in >= p.step)
}

// at is element (r, j) as float32.
func (p *panels) at(r, j int) float32 {
	var value [1]float32
	p.values(r, j, value[:])
	return value[0]
}

// values writes the elements of row r from column j on.
func (p *panels) values(r, j int, dst []float32) {
	scales := p.scales[r/p.rows*p.groups*p.rows+r%p.rows:]
	for i := range dst {
		at, shift := p.place(r, (j+i)%p.step)
		code := p.block(r, (j+i)/p.step)[at] >> shift
		var v float32
		switch p.dtype {
		case compute.I4:
			v = float32(int32(code&15) - 8)
		case compute.I8:
			v = float32(int32(code) - 128)
		default:
			v = unpackF8(code)
		}
		dst[i] = v * scales[(j+i)/p.group*p.rows]
	}
}

// unpackF8 is a float8 e4m3 number divided by f8Bias: its bits are a float16
// number's with an exponent too small by 8.
func unpackF8(b byte) float32 { return compute.Half(uint16(b&0x80)<<8 | uint16(b&0x7f)<<7) }

// runPanels is run for a quantised weight.
func (t *linearTask) runPanels(part, parts int) {
	p := t.w.panels
	from, to := split((p.out+p.rows-1)/p.rows, part, parts)
	n := p.in - p.in%p.step // columns that the kernels of float8 take
	for i := 0; i < t.rows; i += rowBlock {
		end := min(i+rowBlock, t.rows)
		switch {
		case t.k.lanes == 1 && (p.dtype == compute.F8E4M3 || !p.even()):
			t.plainPanels(p.rows*from, min(p.rows*to, p.out), i, end)
		case p.dtype != compute.F8E4M3:
			for panel := from; panel < to; panel++ {
				t.intPanel(panel, i, end)
			}
		default:
			for panel := from; panel < to; panel++ {
				t.floatPanel(panel, n, i, end)
			}
			t.tail(n, 4*from, min(4*to, p.out), i, end)
		}
	}
}

// intPanel computes the outputs of a panel of integer codes for activation rows
// [i, end).
func (t *linearTask) intPanel(panel, i, end int) {
	p, fns := t.w.panels, t.k.i4
	if p.dtype == compute.I8 {
		fns = t.k.i8
	}
	w, scales := &p.bytes[panel*p.blocks*p.size], &p.scales[panel*p.groups*p.rows]
	for i < end {
		m := min(end-i, len(fns))
		out, stride := t.outputs(panel, i)
		fns[m-1](w, scales, &t.words[i*t.wordStride], uintptr(2*t.wordStride), p.blocks, p.span, out, stride)
		t.collect(panel, i, m)
		i += m
	}
}

// floatPanel computes the outputs of a panel of float8 for activation rows
// [i, end).
func (t *linearTask) floatPanel(panel, n, i, end int) {
	p := t.w.panels
	w, scales := &p.bytes[panel*p.blocks*p.size], &p.scales[panel*p.groups*p.rows]
	for i < end {
		m := min(end-i, len(t.k.f8))
		out, stride := t.outputs(panel, i)
		t.k.f8[m-1](w, scales, p.group, &t.x.row(i)[0], uintptr(4*t.x.stride), n, out, stride)
		t.collect(panel, i, m)
		i += m
	}
}

// outputs is where a kernel writes the outputs of a panel from activation row i
// on, and the bytes from row to row: not in their place if the panel has more
// rows than the weight has left. Only one part has that panel.
func (t *linearTask) outputs(panel, i int) (*float32, uintptr) {
	p := t.w.panels
	if r := panel * p.rows; p.out-r >= p.rows {
		return &t.dst.row(i)[r], uintptr(4 * t.dst.stride)
	}
	return &t.spill[0], uintptr(4 * p.rows)
}

// collect moves outputs that are not in their place there.
func (t *linearTask) collect(panel, i, m int) {
	p := t.w.panels
	r := panel * p.rows
	rows := p.out - r
	if rows >= p.rows {
		return
	}
	for k := range m {
		copy(t.dst.row(i + k)[r:], t.spill[k*p.rows:k*p.rows+rows])
	}
}

// plainPanels computes weight rows [from, to) for activation rows [i, end) in
// plain Go, for any group and type.
func (t *linearTask) plainPanels(from, to, i, end int) {
	const columns = 256
	var values [columns]float32
	for r := from; r < to; r++ {
		for j := 0; j < t.w.in; j += columns {
			v := values[:min(columns, t.w.in-j)]
			t.w.panels.values(r, j, v)
			for k := i; k < end; k++ {
				sum := genericDotF32((*byte)(unsafe.Pointer(&v[0])), t.x.row(k)[j:j+len(v)])
				if j > 0 {
					sum += t.dst.row(k)[r]
				}
				t.dst.row(k)[r] = sum
			}
		}
	}
}
