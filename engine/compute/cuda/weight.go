//go:build linux

package cuda

import (
	"encoding/binary"
	"math"
	"math/bits"
	"runtime"
	"sync"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/fault"
)

// weight is a matrix in device memory, in its stored type.
type weight struct {
	dtype   compute.DType
	out, in int
	ptr     driver.Ptr

	// Of a quantised weight: see quant.cu for how codes lie.
	scales               driver.Ptr
	group, groups, tiles int
	perTile              int // groups that a tile lies in, if the product for few rows takes it; else 0
	shift                int // the tiles of a group are 1 << shift
}

func (w *weight) Out() int             { return w.out }
func (w *weight) In() int              { return w.in }
func (w *weight) DType() compute.DType { return w.dtype }

// staging is the most bytes of a weight that are in host memory at a time.
const staging = 32 << 20

// NewWeight implements compute.Device.
func (d *Device) NewWeight(dtype compute.DType, out, in int, fill compute.Fill) (compute.Weight, error) {
	if out < 1 || in < 1 {
		return nil, fault.Errorf(fault.WeightsMismatch, "a weight of %d × %d: both must be 1 or more", out, in)
	}
	if dtype.Quantised() {
		return nil, fault.Errorf(fault.Internal, "a weight of %s without scales", dtype)
	}
	size := dtype.RowBytes(in)
	w := &weight{dtype: dtype, out: out, in: in, ptr: d.alloc(out*size, "weights")}
	rows := min(out, max(1, staging/size))
	raw := make([]byte, rows*size)
	for row := 0; row < out && d.ok(); row += rows {
		n := min(rows, out-row)
		if err := fill(row, n, raw[:n*size]); err != nil {
			return nil, err
		}
		d.upload(w.ptr+driver.Ptr(row*size), raw[:n*size])
	}
	return w, d.err
}

// upload copies to the device, in the stream's order, and waits. (A copy outside
// the stream may reach the device after it returned, and so after a kernel that
// is queued next.)
func (d *Device) upload(dst driver.Ptr, src []byte) {
	if d.ok() {
		defer d.enter()()
		d.check(d.stream.Upload(dst, src))
		d.wait()
	}
}

const (
	// tileBytes is the size of a tile of a row's codes.
	tileBytes = 64
	// together is TOGETHER of the kernels: the rows whose tiles lie together.
	together = 8
)

// upTo8 is n, filled up to a multiple of together.
func upTo8(n int) int { return (n + together - 1) / together * together }

// tileCols is the columns of a tile, or of a step of a product with bfloat16 weights.
func tileCols(t compute.DType) int {
	if t == compute.I4 {
		return 128
	}
	return 64
}

// NewQuantized implements compute.Device.
func (d *Device) NewQuantized(q compute.Quant, out, in int, codes compute.Fill, scales compute.FillScales) (compute.Weight, error) {
	if out < 1 || in < 1 || q.Group < 1 || !q.DType.Quantised() {
		return nil, fault.Errorf(fault.Internal, "a quantised weight of %d × %d %s in groups of %d", out, in, q.DType, q.Group)
	}
	cols := tileCols(q.DType)
	w := &weight{dtype: q.DType, out: out, in: in, group: q.Group, groups: q.Groups(in), tiles: (in + cols - 1) / cols}
	w.perTile, w.shift = groupsOfTile(q, in)
	line := w.tiles * tileBytes
	w.ptr, w.scales = d.alloc(upTo8(out)*line, "weights"), d.alloc(4*upTo8(out)*w.groups, "weights")

	size := q.DType.RowBytes(in)
	rows := min(upTo8(out), upTo8(staging/line))
	raw, packed := make([]byte, rows*size), make([]byte, rows*line)
	factors, mixed := make([]float32, rows*w.groups), make([]float32, rows*w.groups)
	for row := 0; row < out && d.ok(); row += rows {
		n := min(rows, out-row)
		if err := codes(row, n, raw[:n*size]); err != nil {
			return nil, err
		}
		if err := scales(row, n, factors[:n*w.groups]); err != nil {
			return nil, err
		}
		for i, f := range factors[:n*w.groups] {
			if f-f != 0 {
				return nil, fault.Errorf(fault.WeightsMismatch, "scale %d of row %d of a quantised weight is %v: it must be finite", i%w.groups, row+i/w.groups, f)
			}
		}
		packRows(q.DType, packed, raw, n, in)
		mix(mixed, factors, n, w.groups)
		d.upload(w.ptr+driver.Ptr(row*line), packed[:upTo8(n)*line])
		d.upload(w.scales+driver.Ptr(4*row*w.groups), unsafe.Slice((*byte)(unsafe.Pointer(&mixed[0])), 4*upTo8(n)*w.groups))
	}
	return w, d.err
}

// groupsOfTile is how many groups a tile lies in, and the tiles of a group as a
// power of two, where the product for few rows can take them: a power of two of
// tiles, or 32-column blocks that divide a tile evenly. Otherwise perTile is 0.
func groupsOfTile(q compute.Quant, in int) (perTile, shift int) {
	cols := tileCols(q.DType)
	n := q.Group / cols
	switch {
	case in%alignment != 0:
		return 0, 0
	case q.Group >= in:
		return 1, 31
	case q.Group%cols == 0 && n&(n-1) == 0:
		return 1, bits.TrailingZeros(uint(n))
	case 2*q.Group == cols:
		return 2, 0
	case 4*q.Group == cols && q.DType == compute.I4:
		return 4, 0
	}
	return 0, 0
}

// mix writes the scales of n rows so that those of a group of 8 rows lie together.
func mix(dst, src []float32, n, groups int) {
	for r := range n {
		for g := range groups {
			dst[r/together*together*groups+g*together+r%together] = src[r*groups+g]
		}
	}
}

// packRows packs n rows, on all processors.
func packRows(t compute.DType, dst, src []byte, n, in int) {
	line, size := (in+tileCols(t)-1)/tileCols(t)*tileBytes, t.RowBytes(in)
	var wg sync.WaitGroup
	parts := min(runtime.GOMAXPROCS(0), n)
	for k := range parts {
		wg.Go(func() {
			for r := n * k / parts; r < n*(k+1)/parts; r++ {
				at := r/together*together*line + r%together*tileBytes
				pack(t, dst[at:], src[r*size:(r+1)*size], in)
			}
		})
	}
	wg.Wait()
}

// pack writes a row of codes as tiles, the first at the beginning of dst and the
// others each after the tiles of together rows. Of each 32 columns, of which there
// are four blocks in a tile of int4 and two in the others, a thread has 8: its
// pieces of all blocks lie together.
func pack(t compute.DType, dst, src []byte, in int) {
	piece, blocks := 8, 2 // bytes of 8 columns, blocks in a tile
	zero := byte(0)
	if t == compute.I4 {
		piece, blocks = 4, 4
		zero = 0x88
	}
	var tile [tileBytes]byte
	for at := 0; at < len(src); at += tileBytes {
		n := copy(tile[:], src[at:])
		for i := n; i < tileBytes; i++ {
			tile[i] = zero
		}
		if t == compute.I4 && in%2 == 1 && n > 0 && at+n == len(src) {
			tile[n-1] = tile[n-1]&0x0f | 0x80 // the half byte that no column has
		}
		for j := range blocks {
			for thread := range 4 {
				from, to := (j*4+thread)*piece, at*together+(thread*blocks+j)*piece
				copy(dst[to:to+piece], tile[from:])
				switch t {
				case compute.I4:
					word := binary.LittleEndian.Uint32(dst[to:])
					binary.LittleEndian.PutUint32(dst[to:], gather(word)|gather(word>>4)<<16)
				case compute.F8E4M3: // so that one mask takes two columns' bits
					for i := to; i < to+piece; i += 4 {
						c := [4]byte(dst[i : i+4])
						dst[i], dst[i+1], dst[i+2], dst[i+3] = c[2], c[0], c[3], c[1]
					}
				}
			}
		}
	}
}

// gather brings the even nibbles of a word together: even columns come to the
// lower half of a word of codes and odd ones to the upper, so that one mask takes
// two neighbours.
func gather(w uint32) uint32 {
	w &= 0x0f0f0f0f
	w = (w | w>>4) & 0x00ff00ff
	return (w | w>>8) & 0xffff
}

// vector is the address of a float32 vector.
func vector(w compute.Weight) driver.Ptr {
	v := w.(*weight)
	if v.dtype != compute.F32 {
		panic("cuda: a vector that is not float32") // a mistake in a model, not in its input
	}
	return v.ptr
}

// log2e turns a scale of exponents to base e into one to base 2.
const log2e = math.Log2E
