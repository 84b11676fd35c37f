package model

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/weights"
)

// format is how the linear weight of that name is stored; nil if it is not
// quantised.
func (l *Loader) format(name string) *weightFormat {
	module, ok := strings.CutSuffix(name, ".weight")
	if l.quantization == nil || !ok {
		return nil
	}
	info, _ := l.Set.Lookup(name)
	if !l.quantization.is(module, info.DType) {
		return nil
	}
	f := l.quantization.format
	if l.quantization.byType && f.blockRows == 0 && !l.has(module+f.scale) && l.has(module+".weight_scale_inv") {
		f.scale = ".weight_scale_inv" // the older name for one scale a tensor
	}
	return &f
}

// Names of a part's tensors.
func (p part) module() string { return strings.TrimSuffix(p.name, ".weight") }
func (p part) codes() string  { return p.module() + p.format.codes }
func (p part) scale() string  { return p.module() + p.format.scale }
func (p part) shape() string  { return p.module() + ".weight_shape" }

// tensors are the names of all of them.
func (p part) tensors() []string {
	switch {
	case p.format == nil:
		return []string{p.name}
	case p.format.packed:
		return []string{p.codes(), p.scale(), p.shape()}
	}
	return []string{p.codes(), p.scale()}
}

// alike tells whether parts are coded alike, so that they can be one weight.
func (p part) alike(others []part) bool {
	return !slices.ContainsFunc(others, func(o part) bool { return *o.format != *p.format || o.in != p.in })
}

// group is how many columns of the part's rows share a scale. Where a rank's
// columns do not begin with a block's, it is less than the block's width: the
// greatest that divides both, so that each group is within one block.
func (p part) group() int {
	block := p.format.blockCols
	if block == 0 || block >= p.in {
		return p.cols
	}
	if p.cols == p.in {
		return block
	}
	for a := p.cols; a != 0; {
		a, block = block%a, a
	}
	return block
}

// quant is the part's coding in the device's memory.
func (p part) quant() compute.Quant {
	return compute.Quant{DType: p.format.dtype, Group: p.group()}
}

// scaleShape is the shape of the part's scales in the files.
func (p part) scaleShape() (rows, cols int) {
	rows, cols = 1, 1
	if b := p.format.blockRows; b > 0 {
		rows = (p.out + b - 1) / b
	}
	if b := p.format.blockCols; b > 0 {
		cols = (p.in + b - 1) / b
	}
	return rows, cols
}

// findPart checks that the files have the part as config.json describes it, and
// marks its tensors used.
func (l *Loader) findPart(p part) bool {
	f := p.format
	if f == nil {
		_, ok := l.lookup(p)
		return ok
	}
	types, width := map[compute.DType][]weights.DType{compute.I8: {weights.I8}, compute.F8E4M3: {weights.F8E4M3}}[f.dtype], p.in
	if f.packed {
		types, width = []weights.DType{weights.I32}, (f.dtype.RowBytes(p.in)+3)/4
	}
	if _, ok := l.expect(p.codes(), types, []int{p.out, width}); !ok {
		return false
	}
	if f.packed && !l.checkShape(p) {
		return false
	}
	if f.blockRows == 1 && f.blockCols > 0 && p.in%f.blockCols != 0 {
		l.fail("tensor %s has rows of %d weights: quantization_config's group_size %d does not divide them", p.codes(), p.in, f.blockCols)
		return false
	}
	rows, cols := p.scaleShape()
	shapes := [][]int{{rows, cols}}
	if cols == 1 {
		shapes = append(shapes, []int{rows})
	}
	if rows == 1 && cols == 1 {
		shapes = append(shapes, []int{})
	}
	if _, ok := l.expect(p.scale(), floats, shapes...); !ok {
		return false
	}
	l.skip(p.module() + ".input_scale") // activations are not quantised
	return true
}

// checkShape compares the shape that was stored beside packed codes.
func (l *Loader) checkShape(p part) bool {
	info, ok := l.expect(p.shape(), []weights.DType{weights.I32, weights.I64}, []int{2})
	if !ok {
		return false
	}
	raw := make([]byte, info.Bytes())
	if err := l.Set.Read(p.shape(), weights.Whole(info), raw); err != nil {
		l.err = err
		return false
	}
	for i, want := range []int{p.out, p.in} {
		got := int64(int32(binary.LittleEndian.Uint32(raw[i*len(raw)/2:])))
		if info.DType == weights.I64 {
			got = int64(binary.LittleEndian.Uint64(raw[8*i:]))
		}
		if got != int64(want) {
			l.fail("tensor %s says that dimension %d of the weight is %d: config.json wants %d", p.shape(), i, got, want)
			return false
		}
	}
	return true
}

// quantised puts parts that are coded alike below each other as one weight of
// rows rows; rows beyond the parts are zero.
func (l *Loader) quantised(rows int, parts []part) compute.Weight {
	for _, p := range parts {
		if !l.findPart(p) {
			return nil
		}
	}
	if l.err != nil {
		return nil
	}
	q, cols := parts[0].quant(), parts[0].cols
	size, groups := q.DType.RowBytes(cols), q.Groups(cols)
	w, err := l.Device.NewQuantized(q, rows, cols, func(row, n int, dst []byte) error {
		return eachPart(parts, row, n, func(p part, from, n, at int) error {
			return l.readCodes(p, from, n, dst[at*size:(at+n)*size])
		}, func(at int) { clear(dst[at*size:]) })
	}, func(row, n int, dst []float32) error {
		return eachPart(parts, row, n, func(p part, from, n, at int) error {
			return l.readScales(p, from, n, dst[at*groups:(at+n)*groups])
		}, func(at int) { clear(dst[at*groups:]) })
	})
	return l.made(w, err, parts)
}

// readCodes reads the codes of rows [from, from+n) of a part, as compute.Fill
// wants them.
func (l *Loader) readCodes(p part, from, n int, dst []byte) error {
	sel := weights.Slice{Row: p.row + from, Rows: n, Col: p.col, Cols: p.cols}
	if p.format.packed {
		return l.unpackCodes(p, sel, dst)
	}
	if err := l.Set.Read(p.codes(), sel, dst); err != nil {
		return err
	}
	if p.format.dtype == compute.F8E4M3 {
		for i, code := range dst {
			if code&0x7f == 0x7f {
				return l.damaged("tensor %s has a value that is not a number in row %d, column %d: fetch the model again", p.codes(), sel.Row+i/p.cols, sel.Col+i%p.cols)
			}
		}
	}
	return nil
}

// unpackCodes reads codes that are packed in I32s.
func (l *Loader) unpackCodes(p part, sel weights.Slice, dst []byte) error {
	per := 8 // codes in an I32
	if p.format.dtype == compute.I8 {
		per = 4
	}
	words := weights.Slice{Row: sel.Row, Rows: sel.Rows, Col: sel.Col / per, Cols: (sel.Col+sel.Cols+per-1)/per - sel.Col/per}
	raw := make([]byte, words.Rows*words.Cols*4)
	if err := l.Set.Read(p.codes(), words, raw); err != nil {
		return err
	}
	skip, size := sel.Col%per, p.format.dtype.RowBytes(sel.Cols)
	for r := range sel.Rows {
		from, to := raw[r*words.Cols*4:(r+1)*words.Cols*4], dst[r*size:(r+1)*size]
		switch {
		case p.format.dtype == compute.I8:
			for j := range to {
				to[j] = from[skip+j] ^ 0x80 // 128 was added
			}
		case skip%2 == 0: // little-endian words are bytes with the first column in the lower half
			copy(to, from[skip/2:])
		default:
			clear(to)
			for j := range sel.Cols {
				to[j/2] |= from[(skip+j)/2] >> (4 * ((skip + j) % 2)) & 15 << (4 * (j % 2))
			}
		}
	}
	return nil
}

// readScales reads the scales of rows [from, from+n) of a part, one for each
// group of each row.
func (l *Loader) readScales(p part, from, n int, dst []float32) error {
	first, last := 0, 0 // rows of scales
	if b := p.format.blockRows; b > 0 {
		first, last = (p.row+from)/b, (p.row+from+n-1)/b
	}
	_, cols := p.scaleShape()
	stored := make([]float32, (last-first+1)*cols)
	if err := l.Set.ReadF32(p.scale(), weights.Slice{Row: first, Rows: last - first + 1, Cols: cols}, stored); err != nil {
		return err
	}
	for i, v := range stored {
		if v-v != 0 {
			return l.damaged("tensor %s has the scale %v in row %d, column %d: fetch the model again", p.scale(), v, first+i/cols, i%cols)
		}
	}
	group := p.group()
	groups := p.quant().Groups(p.cols)
	for i := range n {
		row := 0
		if b := p.format.blockRows; b > 0 {
			row = (p.row+from+i)/b - first
		}
		for g := range groups {
			col := 0
			if b := p.format.blockCols; b > 0 {
				col = (p.col + g*group) / b
			}
			dst[i*groups+g] = stored[row*cols+col]
		}
	}
	return nil
}

// decode reads rows [from, from+n) of a quantised part as float32: for weights
// whose parts are not coded alike.
func (l *Loader) decode(p part, from, n int, dst []float32) error {
	q := p.quant()
	size, groups := q.DType.RowBytes(p.cols), q.Groups(p.cols)
	codes, scales := make([]byte, n*size), make([]float32, n*groups)
	if err := l.readCodes(p, from, n, codes); err != nil {
		return err
	}
	if err := l.readScales(p, from, n, scales); err != nil {
		return err
	}
	for i := range n {
		q.Decode(dst[i*p.cols:(i+1)*p.cols], codes[i*size:(i+1)*size], scales[i*groups:(i+1)*groups])
	}
	return nil
}
