package model

import (
	"fmt"
	"math"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Limits size a model's workspaces and caches.
type Limits struct {
	MaxRows   int // rows of the largest pass
	MaxLogits int // rows of a pass whose logits are wanted
	MaxDrafts int // rows of a draft's pass whose logits are wanted; 0 without a draft
	Tops      int // of these logits as many of the highest ones are wanted, for trees; 0: the best one only
	Pages     int // pages of the KV pool
	PageSize  int // positions in a page
	// Float8 has the caches keep keys and values as float8.
	Float8 bool
	Kept   int // rows of target features that a draft head keeps for later; 0 without one
}

// Decoder is one rank's part of a dense decoder-only transformer: what Llama,
// Mistral and Qwen have in common. What tells them apart is in the Config, which
// each family's file fills in.
type Decoder struct {
	cfg    *Config
	dev    compute.Device
	shape  compute.AttentionShape
	first  int            // first token of this rank's part of the vocabulary
	embed  compute.Weight // [vocab part, hidden]
	head   compute.Weight // the same, or a weight of its own
	norm   compute.Weight
	layers []layer
	cache  compute.Cache
	// features[i] is where the residual stream at the input of layer i goes,
	// for a draft head; nil for most layers.
	features []compute.Tensor

	tops int // of each row of logits so many of the highest ones are wanted

	// Workspaces of MaxRows rows.
	x, h, qkv, attn, out, gateUp, act, aux compute.Tensor
	// Of MaxLogits rows.
	picked, part, logits compute.Tensor
}

// layer is one transformer layer: attention and a gated feed-forward part.
type layer struct {
	inputNorm, postNorm compute.Weight
	qkv, o              compute.Weight
	gateUp, down        compute.Weight
	// Of some families; otherwise nil.
	qkvBias, oBias, gateUpBias, downBias compute.Weight
	qNorm, kNorm                         compute.Weight
}

// attentionShape is the rank's part of the attention.
func attentionShape(c *Config, rank, size int) compute.AttentionShape {
	kv, _ := kvHeads(c.KVHeads, rank, size)
	return compute.AttentionShape{
		Heads: c.Heads / size, KVHeads: kv, HeadDim: c.HeadDim,
		Scale: float32(1 / math.Sqrt(float64(c.HeadDim))),
	}
}

// loadAttention loads the projections of one attention under prefix, for
// inputs of width in.
func (l *Loader) loadAttention(y *layer, prefix string, c *Config, in int) {
	q := l.rowsOf(prefix+"q_proj.weight", c.Heads*c.HeadDim, in)
	k := l.kvRowsOf(prefix+"k_proj.weight", c.KVHeads, c.HeadDim, in)
	v := l.kvRowsOf(prefix+"v_proj.weight", c.KVHeads, c.HeadDim, in)
	y.qkv = l.matrix(q.rows+k.rows+v.rows, q, k, v)
	y.o = l.matrix(c.Hidden, l.colsOf(prefix+"o_proj.weight", c.Hidden, c.Heads*c.HeadDim))
	if c.QKVBias {
		y.qkvBias = l.vectors(q.bias(), k.bias(), v.bias())
	}
	if c.OutBias {
		y.oBias = l.vector(prefix+"o_proj.bias", c.Hidden)
	}
	if c.QKNorm {
		y.qNorm, y.kNorm = l.vector(prefix+"q_norm.weight", c.HeadDim), l.vector(prefix+"k_norm.weight", c.HeadDim)
	}
}

// loadMLP loads one gated feed-forward part under prefix.
func (l *Loader) loadMLP(y *layer, prefix string, c *Config) {
	gate := l.rowsOf(prefix+"gate_proj.weight", c.Intermediate, c.Hidden)
	up := l.rowsOf(prefix+"up_proj.weight", c.Intermediate, c.Hidden)
	y.gateUp = l.matrix(gate.rows+up.rows, gate, up)
	y.down = l.matrix(c.Hidden, l.colsOf(prefix+"down_proj.weight", c.Hidden, c.Intermediate))
	if c.MLPBias {
		y.gateUpBias = l.vectors(gate.bias(), up.bias())
		y.downBias = l.vector(prefix+"down_proj.bias", c.Hidden)
	}
}

// LoadDecoder loads the rank's part of a target. features names the layers whose
// inputs a draft head wants, in order; none without a head.
func LoadDecoder(l *Loader, c *Config, lim Limits, features []int) (*Decoder, error) {
	m := &Decoder{cfg: c, dev: l.Device, shape: attentionShape(c, l.Rank, l.Size), tops: lim.Tops}
	l.quantization = c.Quantization
	table, rows := l.vocabOf("model.embed_tokens.weight", c.Vocab, c.Hidden)
	m.first = l.Rank * rows
	m.embed = l.table(rows, table)
	m.layers = make([]layer, 0, 1) // grows as tensors are found: the count is the config's word
	var attentions []string
	for i := 0; i < c.Layers && l.err == nil; i++ {
		prefix := fmt.Sprintf("model.layers.%d.", i)
		var y layer
		y.inputNorm = l.vector(prefix+"input_layernorm.weight", c.Hidden)
		l.loadAttention(&y, prefix+"self_attn.", c, c.Hidden)
		attentions = append(attentions, prefix+"self_attn.")
		y.postNorm = l.vector(prefix+"post_attention_layernorm.weight", c.Hidden)
		l.loadMLP(&y, prefix+"mlp.", c)
		m.layers = append(m.layers, y)
	}
	m.norm = l.vector("model.norm.weight", c.Hidden)
	if c.TiedHead {
		m.head = m.embed
		l.skip("lm_head.weight") // some files repeat the table
	} else {
		part, rows := l.vocabOf("lm_head.weight", c.Vocab, c.Hidden)
		m.head = l.matrix(rows, part)
	}
	format := l.cacheFormat(lim.Float8, c, attentions...)
	if err := l.finish(); err != nil {
		return nil, err
	}
	m.workspace(lim, l.Size, features)
	m.cache = m.dev.NewCache(c.Layers, lim.Pages, lim.PageSize, m.shape, format)
	return m, nil
}

func (m *Decoder) workspace(lim Limits, ranks int, features []int) {
	c, d := m.cfg, m.dev
	m.x, m.h, m.out = d.NewSums(lim.MaxRows, c.Hidden), d.NewTensor(lim.MaxRows, c.Hidden), d.NewTensor(lim.MaxRows, c.Hidden)
	m.qkv = d.NewTensor(lim.MaxRows, m.shape.QKVCols())
	m.attn = d.NewTensor(lim.MaxRows, m.shape.Heads*m.shape.HeadDim)
	m.gateUp, m.act = d.NewTensor(lim.MaxRows, 2*c.Intermediate/ranks), d.NewTensor(lim.MaxRows, c.Intermediate/ranks)
	m.picked = d.NewTensor(lim.MaxLogits, c.Hidden)
	m.part, m.logits = gathered(d, lim.MaxLogits, m.head.Out(), ranks)
	m.features = make([]compute.Tensor, c.Layers)
	if len(features) > 0 {
		m.aux = d.NewTensor(lim.MaxRows, len(features)*c.Hidden)
		for k, i := range features {
			m.features[i] = d.Columns(m.aux, k*c.Hidden, c.Hidden)
		}
	}
}

// Forward runs the rows r through the model: their keys and values go to the
// cache, and the logits of the rows named by want, at most MaxLogits, are there
// for Logits afterwards.
func (m *Decoder) Forward(r *compute.Rows, want []int32) {
	d, n := m.dev, r.Len()
	d.Prepare(r, m.cfg.Rope.Freqs, m.cfg.Rope.Scale)
	d.Embed(m.x, m.embed, m.first, r)
	d.AllReduce(m.x, n)
	for i := range m.layers {
		y := &m.layers[i]
		if i == 0 {
			d.RMSNorm(m.h, m.x, y.inputNorm, m.cfg.Eps, n)
			if m.features[0] != nil {
				d.Copy(m.features[0], m.x, n)
			}
		}
		m.attention(y, i, r)
		m.join(m.attn, y.o, y.postNorm, y.oBias, y.gateUp, nil, n)
		m.mlp(y, n)
		if i+1 < len(m.layers) {
			m.join(m.act, y.down, m.layers[i+1].inputNorm, y.downBias, m.layers[i+1].qkv, m.features[i+1], n)
		} else {
			m.join(m.act, y.down, m.norm, y.downBias, nil, nil, n)
		}
	}
	if len(want) == 0 {
		return
	}
	d.Gather(m.picked, m.h, want)
	d.Linear(m.part, m.picked, m.head, len(want))
	if m.part != m.logits {
		d.AllGather(m.logits, m.part, len(want))
	}
	choose(d, m.logits, m.cfg.Vocab, len(want), m.tops)
}

// gathered makes a tensor of a rank's columns and one for those of all ranks,
// which are the same with one rank.
func gathered(d compute.Device, rows, cols, ranks int) (part, whole compute.Tensor) {
	whole = d.NewSums(rows, ranks*cols)
	if ranks == 1 {
		return whole, whole
	}
	return d.NewSums(rows, cols), whole
}

// choose has the device find the most likely tokens, and of each row the tops
// most likely ones, if it can.
func choose(d compute.Device, logits compute.Tensor, vocab, rows, tops int) {
	if c, ok := d.(compute.Chooser); ok {
		c.ArgMax(logits, vocab, rows)
	}
	if c, ok := d.(compute.Drawer); ok && tops > 0 {
		c.FindTops(logits, vocab, rows, tops)
	}
}

// topsOf is what choose found in a row; not ok if the logits must be read.
func topsOf(d compute.Device, logits compute.Tensor, i int) (compute.Tops, bool) {
	if c, ok := d.(compute.Drawer); ok {
		return c.TopsOf(logits, i)
	}
	return compute.Tops{}, false
}

// chosen is what choose found in a row; not ok if the logits must be read.
func chosen(d compute.Device, logits compute.Tensor, i int) (int32, bool) {
	if c, ok := d.(compute.Chooser); ok {
		return c.Best(logits, i)
	}
	return 0, false
}

// Best is the most likely token of row want[i] of the last Forward, the lowest
// of equals, if the device has found it.
func (m *Decoder) Best(i int) (int32, bool) { return chosen(m.dev, m.logits, i) }

// join adds the products of x and w over all ranks to the residual stream, whose norm
// becomes h, and before it a bias, which is no rank's part, unless that is nil.
// next is the weight that h is for, or nil if it is for anything else. feature, if not
// nil, is where the residual stream goes too, for a draft head: a pass with a head that
// does not draft has no operation more than one without.
func (m *Decoder) join(x compute.Tensor, w, norm, bias, next compute.Weight, feature compute.Tensor, n int) {
	d, to := m.dev, compute.Residual{Sum: m.x, Copy: feature}
	if bias != nil {
		d.AddBias(m.x, bias, n) // to the stream itself, whose sums are float32
	}
	if next != nil {
		d.LinearNorm(m.h, to, m.out, x, w, norm, m.cfg.Eps, next, n)
		return
	}
	d.Linear(m.out, x, w, n)
	d.AllReduceNorm(m.h, to, m.out, norm, m.cfg.Eps, n)
}

// attention sets attn to the rank's heads of the attention of layer i over h.
func (m *Decoder) attention(y *layer, i int, r *compute.Rows) {
	d, n := m.dev, r.Len()
	if y.qkvBias == nil && y.qNorm == nil {
		d.QKV(m.qkv, m.h, y.qkv, m.cache, i, r)
	} else {
		if y.qkvBias == nil {
			d.Linear(m.qkv, m.h, y.qkv, n)
		} else {
			d.LinearBias(m.qkv, m.h, y.qkv, y.qkvBias, n)
		}
		if y.qNorm != nil {
			d.QKNorm(m.qkv, y.qNorm, y.kNorm, m.cfg.Eps, m.shape, n)
		}
		d.RopeAndCache(m.qkv, m.cache, i, r)
	}
	d.Attention(m.attn, m.qkv, m.cache, i, m.cfg.window(i), r)
}

// mlp sets act to the rank's part of the gated feed-forward part over h.
func (m *Decoder) mlp(y *layer, n int) {
	d := m.dev
	if y.gateUpBias == nil {
		d.Gated(m.act, m.gateUp, m.h, y.gateUp, n)
	} else {
		d.LinearBias(m.gateUp, m.h, y.gateUp, y.gateUpBias, n)
		d.SiluMul(m.act, m.gateUp, n)
	}
}

// Move copies cache entries, in order; see compute.Device's MoveCache.
func (m *Decoder) Move(to, from []int32) { m.dev.MoveCache(m.cache, to, from) }

// Logits are those of row want[i] of the last Forward, [vocab], valid until the next.
func (m *Decoder) Logits(i int) []float32 { return m.dev.Floats(m.logits, i)[:m.cfg.Vocab] }
