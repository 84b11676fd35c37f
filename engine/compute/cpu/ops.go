package cpu

import (
	"math"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Prepare implements compute.Device.
func (d *Device) Prepare(r *compute.Rows, freqs []float32, scale float32) {
	half := len(freqs)
	if need := r.Len() * half; cap(d.cos) < need {
		d.cos, d.sin = make([]float32, need), make([]float32, need)
	}
	d.cos, d.sin = d.cos[:r.Len()*half], d.sin[:r.Len()*half]
	for i, p := range r.Positions {
		for j, f := range freqs {
			// The angle is rounded to float32, as where the models were trained.
			sin, cos := math.Sincos(float64(float32(p) * f))
			d.sin[i*half+j], d.cos[i*half+j] = float32(sin)*scale, float32(cos)*scale
		}
	}
}

// Embed implements compute.Device.
func (d *Device) Embed(dst compute.Tensor, table compute.Weight, first int, r *compute.Rows) {
	t, w := dst.(*tensor), table.(*weight)
	for i, token := range r.Tokens {
		out, at := t.row(i), int(token)-first
		if at < 0 || at >= w.out {
			clear(out)
			continue
		}
		switch w.dtype {
		case compute.F32:
			copy(out, w.f32[at*w.in:])
		case compute.BF16:
			for j, h := range w.words(at) {
				out[j] = math.Float32frombits(uint32(h) << 16)
			}
		default:
			for j := range out {
				out[j] = w.at(at, j)
			}
		}
	}
}

// RMSNorm implements compute.Device.
func (d *Device) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	to, from, g := dst.(*tensor), x.(*tensor), w.(*weight).f32
	for i := range rows {
		rmsNorm(to.row(i), from.row(i), g, eps)
	}
}

func rmsNorm(dst, x, w []float32, eps float32) {
	var a, b, c, d float32
	j := 0
	for ; j+4 <= len(x); j += 4 {
		a += x[j] * x[j]
		b += x[j+1] * x[j+1]
		c += x[j+2] * x[j+2]
		d += x[j+3] * x[j+3]
	}
	for ; j < len(x); j++ {
		a += x[j] * x[j]
	}
	scale := 1 / float32(math.Sqrt(float64(((a+c)+(b+d))/float32(len(x))+eps)))
	for j, v := range x {
		dst[j] = v * scale * w[j]
	}
}

// AddRMSNorm implements compute.Device.
func (d *Device) AddRMSNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.Add(to.Sum, x, rows)
	if to.Copy != nil {
		d.Copy(to.Copy, to.Sum, rows)
	}
	d.RMSNorm(dst, to.Sum, w, eps, rows)
}

// AddBias implements compute.Device.
func (d *Device) AddBias(x compute.Tensor, b compute.Weight, rows int) {
	t, bias := x.(*tensor), b.(*weight).f32
	for i := range rows {
		row := t.row(i)
		for j, v := range bias[:len(row)] {
			row[j] += v
		}
	}
}

// LinearBias implements compute.Device.
func (d *Device) LinearBias(dst, x compute.Tensor, w, b compute.Weight, rows int) {
	d.Linear(dst, x, w, rows)
	d.AddBias(dst, b, rows)
}

// QKNorm implements compute.Device.
func (d *Device) QKNorm(qkv compute.Tensor, q, k compute.Weight, eps float32, shape compute.AttentionShape, rows int) {
	t, dim := qkv.(*tensor), shape.HeadDim
	for i := range rows {
		row := t.row(i)
		for h := range shape.Heads + shape.KVHeads {
			w := q.(*weight).f32
			if h >= shape.Heads {
				w = k.(*weight).f32
			}
			head := row[h*dim : (h+1)*dim]
			rmsNorm(head, head, w, eps)
		}
	}
}

// Add implements compute.Device.
func (d *Device) Add(dst, x compute.Tensor, rows int) {
	to, from := dst.(*tensor), x.(*tensor)
	for i := range rows {
		out, in := to.row(i), from.row(i)
		for j := range out {
			out[j] += in[j]
		}
	}
}

// Copy implements compute.Device.
func (d *Device) Copy(dst, x compute.Tensor, rows int) {
	to, from := dst.(*tensor), x.(*tensor)
	for i := range rows {
		copy(to.row(i), from.row(i))
	}
}

// Gather implements compute.Device.
func (d *Device) Gather(dst, x compute.Tensor, index []int32) {
	to, from := dst.(*tensor), x.(*tensor)
	for i, j := range index {
		copy(to.row(i), from.row(int(j)))
	}
}

// Scatter implements compute.Device.
func (d *Device) Scatter(dst, x compute.Tensor, to, from []int32) {
	t, src := dst.(*tensor), x.(*tensor)
	for i, j := range to {
		copy(t.row(int(j)), src.row(int(from[i])))
	}
}

// Keep implements compute.Device.
func (d *Device) Keep(dst, x compute.Tensor, r *compute.Rows) {
	t, src := dst.(*tensor), x.(*tensor)
	for i, to := range r.Kept {
		if to >= 0 {
			copy(t.row(int(to)), src.row(i))
		}
	}
}

// RopeAndCache implements compute.Device.
func (d *Device) RopeAndCache(qkv compute.Tensor, kv compute.Cache, layer int, r *compute.Rows) {
	t, c := qkv.(*tensor), kv.(*cache)
	dim, half := c.shape.HeadDim, c.shape.HeadDim/2
	for i, slot := range r.Slots {
		row := t.row(i)
		cos, sin := d.cos[i*half:(i+1)*half], d.sin[i*half:(i+1)*half]
		for h := range c.shape.Heads + c.shape.KVHeads {
			lo, hi := row[h*dim:h*dim+half], row[h*dim+half:(h+1)*dim]
			for j, a := range lo {
				b := hi[j]
				lo[j] = a*cos[j] - b*sin[j]
				hi[j] = b*cos[j] + a*sin[j]
			}
		}
		page, offset := int(slot)/c.pageSize, int(slot)%c.pageSize
		keys := row[c.shape.Heads*dim:]
		values := keys[c.shape.KVHeads*dim:]
		for h := range c.shape.KVHeads {
			c.put(layer, h, c.at(layer, page, h, offset), keys[h*dim:(h+1)*dim], values[h*dim:(h+1)*dim])
		}
	}
}

// MoveCache implements compute.Device.
func (d *Device) MoveCache(kv compute.Cache, to, from []int32) {
	c := kv.(*cache)
	for i, slot := range from {
		src, dst := int(slot), int(to[i])
		for layer := range c.layers {
			for h := range c.shape.KVHeads {
				c.move(c.at(layer, dst/c.pageSize, h, dst%c.pageSize), c.at(layer, src/c.pageSize, h, src%c.pageSize))
			}
		}
	}
}

// QKV implements compute.Device.
func (d *Device) QKV(qkv, x compute.Tensor, w compute.Weight, c compute.Cache, layer int, r *compute.Rows) {
	d.Linear(qkv, x, w, r.Len())
	d.RopeAndCache(qkv, c, layer, r)
}

// Gated implements compute.Device.
func (d *Device) Gated(dst, products, x compute.Tensor, w compute.Weight, rows int) {
	d.Linear(products, x, w, rows)
	d.SiluMul(dst, products, rows)
}

// siluTask is SiluMul, split by rows.
type siluTask struct {
	dst, gateUp *tensor
	rows        int
}

// SiluMul implements compute.Device.
func (d *Device) SiluMul(dst, gateUp compute.Tensor, rows int) {
	d.silu = siluTask{dst.(*tensor), gateUp.(*tensor), rows}
	d.fork(&d.silu, 8*rows*d.silu.dst.cols)
}

func (t *siluTask) run(part, parts int) {
	n := t.dst.cols
	from, to := split(t.rows*n, part, parts) // a row can be split between threads
	for at := from; at < to; {
		i, j := at/n, at%n
		end := min(n, j+to-at)
		out, in := t.dst.row(i), t.gateUp.row(i)
		for ; j < end; j++ {
			g := in[j]
			out[j] = g / (1 + exp32(-g)) * in[n+j]
			at++
		}
	}
}

// exp32 is e^x to within 2 units in the last place; 0 below −87.3 and the
// largest power of two that fits above 88.3. (The polynomial is that of expf
// in S. Moshier's Cephes library.)
func exp32(x float32) float32 {
	if x < -87.33654 {
		return 0
	}
	x = min(x, 88.3)
	const magic = 3 << 22 // adding and taking it away rounds to a whole number
	n := x*1.44269504088896341 + magic
	n -= magic
	x -= n * 0.693359375
	x -= n * -2.12194440e-4
	y := float32(1.9875691500e-4)
	y = y*x + 1.3981999507e-3
	y = y*x + 8.3334519073e-3
	y = y*x + 4.1665795894e-2
	y = y*x + 1.6666665459e-1
	y = y*x + 5.0000001201e-1
	y = y*x*x + x + 1
	return y * math.Float32frombits(uint32(int32(n)+127)<<23)
}

// minimumWork is the work, in multiply-adds, below which handing parts to
// other threads costs more than it saves.
const minimumWork = 1 << 15

// fork runs t on all threads when its work is worth it.
func (d *Device) fork(t task, work int) {
	if work < minimumWork {
		t.run(0, 1)
		return
	}
	d.pool.do(t)
}
