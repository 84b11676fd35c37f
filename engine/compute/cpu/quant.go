package cpu

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
)

// panels is a quantised matrix. Four rows are a panel: block after block of step
// columns, and in a block 16 bytes of each row (see place), so that a kernel
// reads one stream. A panel's scales lie together too, four rows side by side.
// Rows and columns that fill up the last panel and block are zero.
type panels struct {
	dtype   compute.DType
	out, in int
	step    int // columns in 16 bytes
	blocks  int // in a row
	group   int // columns that share a scale
	groups  int // in a row
	bytes   []byte
	scales  []float32
}

const (
	blockBytes = 64 // of a panel; a quarter of that is a row's
	// slack is how far kernels read beyond the last block: they load it from its
	// second, third and fourth byte on as well.
	slack = 3
)

// NewQuantized implements compute.Device. Codes are filled a few rows at a time.
func (d *Device) NewQuantized(q compute.Quant, out, in int, codes compute.Fill, scales compute.FillScales) (compute.Weight, error) {
	if out < 1 || in < 1 || q.Group < 1 || !q.DType.Quantised() {
		return nil, fault.Errorf(fault.Internal, "a quantised weight of %d × %d %s in groups of %d", out, in, q.DType, q.Group)
	}
	p := &panels{dtype: q.DType, out: out, in: in, step: 16, group: q.Group, groups: q.Groups(in)}
	if q.DType == compute.I4 {
		p.step = 32
	}
	p.blocks = (in + p.step - 1) / p.step
	count := (out + 3) / 4
	p.bytes = make([]byte, count*p.blocks*blockBytes+slack)
	p.scales = make([]float32, count*p.groups*4)

	rows := min(out, max(4, 1<<18/in))
	raw, factors := make([]byte, rows*q.DType.RowBytes(in)), make([]float32, rows*p.groups)
	for row := 0; row < out; row += rows {
		n := min(rows, out-row)
		raw, factors := raw[:n*q.DType.RowBytes(in)], factors[:n*p.groups]
		if err := codes(row, n, raw); err != nil {
			return nil, err
		}
		if err := scales(row, n, factors); err != nil {
			return nil, err
		}
		for r := range n {
			p.pack(row+r, raw[r*q.DType.RowBytes(in):(r+1)*q.DType.RowBytes(in)])
			if err := p.scale(row+r, factors[r*p.groups:(r+1)*p.groups]); err != nil {
				return nil, err
			}
		}
	}
	return &weight{dtype: q.DType, out: out, in: in, panels: p}, nil
}

// block is block b of row r's panel.
func (p *panels) block(r, b int) *[blockBytes]byte {
	return (*[blockBytes]byte)(p.bytes[(r/4*p.blocks+b)*blockBytes:])
}

// pack writes row r.
func (p *panels) pack(r int, raw []byte) {
	if p.dtype != compute.I4 {
		for b := range p.blocks {
			at, _ := place(p.dtype, r%4, 0)
			copy(p.block(r, b)[at:at+p.step], raw[b*p.step:])
		}
		return
	}
	for j := range p.in {
		code := raw[j/2] >> (4 * (j % 2)) & 15
		at, shift := place(p.dtype, r%4, j%p.step)
		p.block(r, j/p.step)[at] |= (code ^ 8) << shift // two's complement, so that 0 is zero
	}
}

// place is where in a block the code of column i of row r lies. The bytes of I8
// and F8E4M3 lie row after row. Those of I4 lie so that dword j has columns j and
// j+16 of row 0 in its lowest byte, of row 1 in the next one, and so on: a load
// that begins r bytes later brings the codes of row r to the lowest bits of their
// lanes, in the order of the columns, without a shift.
func place(dtype compute.DType, r, i int) (at, shift int) {
	if dtype == compute.I4 {
		return i%16*4 + r, i / 16 * 4
	}
	return r*16 + i, 0
}

// scale writes the scales of row r.
func (p *panels) scale(r int, factors []float32) error {
	for g, f := range factors {
		if p.dtype == compute.F8E4M3 {
			f *= f8Bias
		}
		if f-f != 0 {
			return fault.Errorf(fault.WeightsMismatch, "scale %d of row %d of a quantised weight is %v: it must be finite", g, r, factors[g])
		}
		p.scales[(r/4*p.groups+g)*4+r%4] = f
	}
	return nil
}

// f8Bias makes up for what float16 makes of float8's exponent; see unpackF8.
const f8Bias = 256

// even tells whether the kernels can take the groups: a scale's columns must be
// whole blocks.
func (p *panels) even() bool { return p.in >= p.step && (p.group%p.step == 0 || p.group >= p.in) }

// at is element (r, j) as float32.
func (p *panels) at(r, j int) float32 {
	var values [32]float32
	unpack(p.dtype, p.block(r, j/p.step), r%4, &values)
	return values[j%p.step] * p.scales[(r/4*p.groups+j/p.group)*4+r%4]
}

// unpack makes numbers of the codes of row r of a block. (It is no table
// of functions, since what those are handed would move to the heap.)
func unpack(dtype compute.DType, block *[blockBytes]byte, r int, dst *[32]float32) {
	switch dtype {
	case compute.I4:
		for i := range dst {
			at, shift := place(dtype, r, i)
			dst[i] = float32(int8(block[at]>>shift<<4) >> 4)
		}
	case compute.I8:
		for i, b := range block[16*r : 16*r+16] {
			dst[i] = float32(int8(b))
		}
	default:
		for i, b := range block[16*r : 16*r+16] {
			dst[i] = unpackF8(b)
		}
	}
}

// unpackF8 is a float8 e4m3 number divided by f8Bias: its bits are a float16
// number's with an exponent too small by 8.
func unpackF8(b byte) float32 { return compute.Half(uint16(b&0x80)<<8 | uint16(b&0x7f)<<7) }

// runPanels is run for a quantised weight.
func (t *linearTask) runPanels(part, parts int) {
	p, fns := t.w.panels, t.k.i4
	switch p.dtype {
	case compute.I8:
		fns = t.k.i8
	case compute.F8E4M3:
		fns = t.k.f8
	}
	n := p.in
	if t.k.lanes > 1 {
		n -= n % p.step
	}
	from, to := split((p.out+3)/4, part, parts)
	for i := 0; i < t.rows; i += rowBlock {
		end := min(i+rowBlock, t.rows)
		for panel := from; panel < to; panel++ {
			t.panel(fns, panel, n, i, end)
		}
		t.tail(n, 4*from, min(4*to, p.out), i, end)
	}
}

// panel computes the outputs of a panel's rows for activation rows [i, end).
func (t *linearTask) panel(fns []quantTileFunc, panel, n, i, end int) {
	p := t.w.panels
	w, scales := &p.bytes[panel*p.blocks*blockBytes], &p.scales[panel*p.groups*4]
	r := 4 * panel
	for i < end {
		m := min(end-i, len(fns))
		x, xstride := &t.x.row(i)[0], uintptr(4*t.x.stride)
		if rows := p.out - r; rows >= 4 {
			fns[m-1](w, scales, p.group, x, xstride, n, &t.dst.row(i)[r], uintptr(4*t.dst.stride))
		} else { // only one part has the last panel, so the memory is its own
			fns[m-1](w, scales, p.group, x, xstride, n, &t.spill[0], 4*4)
			for k := range m {
				copy(t.dst.row(i + k)[r:], t.spill[4*k:4*k+rows])
			}
		}
		i += m
	}
}

// genericQuantTile is a tile of one activation row, of any n and group. Like the
// dot products it keeps four sums.
func genericQuantTile(dtype compute.DType) quantTileFunc {
	step := 16
	if dtype == compute.I4 {
		step = 32
	}
	return func(w *byte, scales *float32, group int, x *float32, _ uintptr, n int, out *float32, _ uintptr) {
		xs := unsafe.Slice(x, n)
		var values [32]float32
		for r := range 4 {
			var sums [4]float32
			for from := 0; from < n; from += step {
				unpack(dtype, (*[blockBytes]byte)(unsafe.Pointer(advance(w, uintptr(from/step*blockBytes)))), r, &values)
				end := min(from+step, n)
				for j := from; j < end; {
					g := j / group
					scale := *(*float32)(unsafe.Add(unsafe.Pointer(scales), 4*(4*g+r)))
					for stop := min(end, (g+1)*group); j < stop; j++ {
						sums[j%4] += values[j-from] * scale * xs[j]
					}
				}
			}
			*(*float32)(unsafe.Add(unsafe.Pointer(out), 4*r)) = (sums[0] + sums[2]) + (sums[1] + sums[3])
		}
	}
}
