//go:build linux

package model

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
)

// bf16Device is the CPU's device with every result rounded to bfloat16 where a PyTorch
// model of that type rounds it: after each operation of Hugging Face's modules, the
// residual stream and the logits among them. What one operation sums is float32, attention
// from scores to weighted values included. Weights stay as they are stored.
type bf16Device struct {
	*cpu.Device
	shape    compute.AttentionShape
	cos, sin []float32 // of the pass, [rows, half of a head]
	ones     map[int]compute.Weight
	vectors  map[compute.Weight][]float32
}

func newBF16Device(comm collective.Communicator) (compute.Device, error) {
	d, err := cpu.New(comm, 1)
	return &bf16Device{Device: d, ones: map[int]compute.Weight{}, vectors: map[compute.Weight][]float32{}}, err
}

// bf16 rounds to the nearest bfloat16, ties to even.
func bf16(x float32) float32 {
	bits := math.Float32bits(x)
	return math.Float32frombits((bits + 0x7fff + bits>>16&1) &^ 0xffff)
}

func (d *bf16Device) round(t compute.Tensor, rows int) {
	for i := range rows {
		row := d.Floats(t, i) // the CPU's own memory
		for j, v := range row {
			row[j] = bf16(v)
		}
	}
}

// NewWeight implements compute.Device. It keeps the values of vectors.
func (d *bf16Device) NewWeight(dtype compute.DType, out, in int, fill compute.Fill) (compute.Weight, error) {
	var values []float32
	w, err := d.Device.NewWeight(dtype, out, in, func(row, rows int, dst []byte) error {
		err := fill(row, rows, dst)
		for at := 0; dtype == compute.F32 && at < len(dst); at += 4 {
			values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(dst[at:])))
		}
		return err
	})
	d.vectors[w] = values
	return w, err
}

func (d *bf16Device) NewCache(layers, pages, pageSize int, shape compute.AttentionShape, format compute.CacheFormat) compute.Cache {
	d.shape = shape
	return d.Device.NewCache(layers, pages, pageSize, shape, format)
}

// Prepare implements compute.Device. The CPU's device turns by no angle: RopeAndCache has
// turned what it gets.
func (d *bf16Device) Prepare(r *compute.Rows, freqs []float32, scale float32) {
	d.Device.Prepare(r, make([]float32, len(freqs)), 1)
	d.cos, d.sin = d.cos[:0], d.sin[:0]
	for _, p := range r.Positions {
		for _, f := range freqs {
			sin, cos := math.Sincos(float64(float32(p) * f))
			d.cos, d.sin = append(d.cos, bf16(float32(cos)*scale)), append(d.sin, bf16(float32(sin)*scale))
		}
	}
}

func (d *bf16Device) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	d.Device.Linear(dst, x, w, rows)
	d.round(dst, rows)
}

func (d *bf16Device) LinearBias(dst, x compute.Tensor, w, b compute.Weight, rows int) {
	d.Device.LinearBias(dst, x, w, b, rows)
	d.round(dst, rows)
}

func (d *bf16Device) AddBias(x compute.Tensor, b compute.Weight, rows int) {
	d.Device.AddBias(x, b, rows)
	d.round(x, rows)
}

func (d *bf16Device) AllReduce(x compute.Tensor, rows int) {
	d.Device.AllReduce(x, rows)
	d.round(x, rows)
}

// RMSNorm implements compute.Device: the quotient is rounded, and its product with w.
func (d *bf16Device) RMSNorm(dst, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.Device.RMSNorm(dst, x, d.one(x.Cols()), eps, rows)
	d.round(dst, rows)
	for i := range rows {
		row := d.Floats(dst, i)
		for j, f := range d.vectors[w] {
			row[j] = bf16(row[j] * f)
		}
	}
}

// one is a vector of n ones.
func (d *bf16Device) one(n int) compute.Weight {
	if d.ones[n] == nil {
		w, err := d.Device.NewWeight(compute.F32, 1, n, func(_, _ int, dst []byte) error {
			for at := 0; at < len(dst); at += 4 {
				binary.LittleEndian.PutUint32(dst[at:], math.Float32bits(1))
			}
			return nil
		})
		if err != nil {
			panic(err)
		}
		d.ones[n] = w
	}
	return d.ones[n]
}

func (d *bf16Device) AddRMSNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.Add(to.Sum, x, rows)
	d.round(to.Sum, rows)
	d.RMSNorm(dst, to.Sum, w, eps, rows)
}

func (d *bf16Device) AllReduceNorm(dst compute.Tensor, to compute.Residual, x compute.Tensor, w compute.Weight, eps float32, rows int) {
	d.AllReduce(x, rows)
	d.AddRMSNorm(dst, to, x, w, eps, rows)
}

func (d *bf16Device) LinearNorm(dst compute.Tensor, to compute.Residual, sum, x compute.Tensor, w, norm compute.Weight, eps float32, _ compute.Weight, rows int) {
	d.Linear(sum, x, w, rows)
	d.AllReduceNorm(dst, to, sum, norm, eps, rows)
}

func (d *bf16Device) QKNorm(qkv compute.Tensor, q, k compute.Weight, eps float32, shape compute.AttentionShape, rows int) {
	for h := range shape.Heads + shape.KVHeads {
		w := q
		if h >= shape.Heads {
			w = k
		}
		head := d.Columns(qkv, h*shape.HeadDim, shape.HeadDim)
		d.RMSNorm(head, head, w, eps, rows)
	}
}

// RopeAndCache implements compute.Device: each product is rounded, and their sum.
func (d *bf16Device) RopeAndCache(qkv compute.Tensor, c compute.Cache, layer int, r *compute.Rows) {
	dim, half := d.shape.HeadDim, d.shape.HeadDim/2
	for i := range r.Len() {
		row := d.Floats(qkv, i)
		for h := range d.shape.Heads + d.shape.KVHeads {
			for j := range half {
				x, y := &row[h*dim+j], &row[h*dim+half+j]
				cos, sin := d.cos[i*half+j], d.sin[i*half+j]
				*x, *y = bf16(bf16(*x*cos)-bf16(*y*sin)), bf16(bf16(*y*cos)+bf16(*x*sin))
			}
		}
	}
	d.Device.RopeAndCache(qkv, c, layer, r)
}

func (d *bf16Device) QKV(qkv, x compute.Tensor, w compute.Weight, c compute.Cache, layer int, r *compute.Rows) {
	d.Linear(qkv, x, w, r.Len())
	d.RopeAndCache(qkv, c, layer, r)
}

func (d *bf16Device) Attention(dst, qkv compute.Tensor, c compute.Cache, layer, window int, r *compute.Rows) {
	d.Device.Attention(dst, qkv, c, layer, window, r)
	d.round(dst, r.Len())
}

// SiluMul implements compute.Device: the gate is rounded, and its product.
func (d *bf16Device) SiluMul(dst, gateUp compute.Tensor, rows int) {
	for i := range rows {
		to, from := d.Floats(dst, i), d.Floats(gateUp, i)
		for j := range to {
			g := float64(from[j])
			to[j] = bf16(bf16(float32(g/(1+math.Exp(-g)))) * from[len(to)+j])
		}
	}
}

func (d *bf16Device) Gated(dst, products, x compute.Tensor, w compute.Weight, rows int) {
	d.Linear(products, x, w, rows)
	d.SiluMul(dst, products, rows)
}

// deviation is how far logits are from those of float32, over positions.
type deviation struct {
	rms, worst float64 // relative error of a position's logits: root of the mean square, and the most
	moved      float64 // the most by which the gap between a position's two highest logits is another
	tokens     int     // that differ
	gap        float64 // the most by which the float32 logit of one is below the highest
}

func (d deviation) String() string {
	return fmt.Sprintf("relative error %.2f %%, at most %.2f %%; %d tokens differ, at gaps up to %.3f; gaps are off by up to %.3f", 100*d.rms, 100*d.worst, d.tokens, d.gap, d.moved)
}

// deviationOf compares logits by position with those of float32.
func deviationOf(got, want [][]float32) (d deviation) {
	var sum float64
	for i, w := range want {
		e := relativeError(got[i], w)
		sum += e * e
		d.worst = max(d.worst, e)
		a, b := best(w), int32(-1)
		for j := range w {
			if j := int32(j); j != a && (b < 0 || w[j] > w[b]) {
				b = j
			}
		}
		d.moved = max(d.moved, math.Abs(float64(got[i][a]-got[i][b]-(w[a]-w[b]))))
		if g := best(got[i]); g != a {
			d.tokens++
			d.gap = max(d.gap, float64(w[a]-w[g]))
		}
	}
	d.rms = math.Sqrt(sum / float64(len(want)))
	return d
}

// relativeError is the magnitude of what got has too much or too little, to that of want.
func relativeError[T float32 | float64](got []float32, want []T) float64 {
	var diff, size float64
	for i, w := range want {
		diff += (float64(got[i]) - float64(w)) * (float64(got[i]) - float64(w))
		size += float64(w) * float64(w)
	}
	return math.Sqrt(diff / size)
}

// logits are those of a case's text: of all positions of the prompt, and of each token of
// the continuation, whatever r would say.
func (f fixture) logits(forward func(tokens []int32, from int), of func(i int) []float32) [][]float32 {
	var all [][]float32
	for _, c := range f.Cases {
		forward(c.IDs, 0)
		for i := range c.IDs {
			all = append(all, slices.Clone(of(i)))
		}
		for i, id := range c.Greedy {
			forward([]int32{id}, len(c.IDs)+i)
			all = append(all, slices.Clone(of(0)))
		}
	}
	return all
}
