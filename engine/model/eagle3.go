package model

import (
	"fmt"
	"io/fs"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/weights"
)

// Eagle3 is one rank's part of an EAGLE-3 draft head (Li et al., "EAGLE-3:
// scaling up inference acceleration of large language models via training-time
// test", 2025): one layer that reads the target's features and the next token's
// embedding, and goes on from its own output for further tokens.
type Eagle3 struct {
	cfg    *Config
	dev    compute.Device
	target *Decoder
	shape  compute.AttentionShape

	fc                              compute.Weight   // [hidden part, features · target hidden]
	featureNorms                    []compute.Weight // of each feature, or of all together, before fc; usually none
	inputNorm, hiddenNorm, postNorm compute.Weight
	layer                           layer
	norm, head                      compute.Weight
	embed                           compute.Weight
	first                           int     // first token of this rank's part of embed
	ids                             []int32 // target token of each draft token
	cache                           compute.Cache
	tops                            int // Limits.Tops

	// kept are features of positions that the draft's cache does not have yet.
	kept compute.Tensor

	// Workspaces of MaxRows rows. cat is [embedding | hidden].
	feats, fcPart, x, e, cat, catE, catH compute.Tensor
	fcIn                                 compute.Tensor   // what fc reads: feats, or their norms
	normFrom, normTo                     []compute.Tensor // by feature norm: its columns of feats and fcIn
	h, qkv, attn, out, gateUp, act       compute.Tensor
	// Of MaxDrafts rows: the outputs whose logits were wanted, which are the
	// hidden inputs of the next step.
	last, normed, part, logits compute.Tensor
}

const eagle3Architecture = "LlamaForCausalLMEagle3"

// features is the number of the target's features that fc reads.
const features = 3

// ReadEagle3Config reads a draft head's config.json and checks that it fits
// the target.
func ReadEagle3Config(fsys fs.FS, name string, target *Config) (*Config, error) {
	c, err := ReadConfig(fsys, name)
	if err != nil {
		return nil, err
	}
	mismatch := func(what string, got, want int) error {
		return fault.Errorf(fault.DraftMismatch, "%s: config.json: %s is %d, but the target's is %d: give the head that was trained for this model", name, what, got, want)
	}
	switch {
	case c.Architecture != eagle3Architecture && c.Architecture != llamaArchitecture:
		return nil, fault.Errorf(fault.Unsupported, "%s: config.json: architecture %s is no EAGLE-3 head: supported is %s", name, c.Architecture, eagle3Architecture)
	case c.Layers != 1:
		return nil, fault.Errorf(fault.Unsupported, "%s: this is no EAGLE-3 draft head: config.json: num_hidden_layers is %d, and a head has 1", name, c.Layers)
	case c.QKVBias || c.OutBias || c.MLPBias:
		return nil, fault.Errorf(fault.Unsupported, "%s: config.json: attention_bias or mlp_bias is true: supported in a draft head is false", name)
	case c.Vocab != target.Vocab:
		return nil, mismatch("vocab_size", c.Vocab, target.Vocab)
	case c.TargetHidden != target.Hidden:
		return nil, mismatch("target_hidden_size (or hidden_size)", c.TargetHidden, target.Hidden)
	case c.EachFeature && c.AllFeatures:
		return nil, fault.Errorf(fault.Unsupported, "%s: config.json: fc_norm and norm_before_fc are both true: supported is one of them", name)
	}
	if _, err := c.FeatureLayers(target); err != nil {
		return nil, fault.Errorf(fault.DraftMismatch, "%s: config.json: %w", name, err)
	}
	return c, nil
}

// FeatureLayers are the target's layers whose input the head reads, low to
// high: 2, n/2 and n−3 of n layers, unless the config names layer outputs.
func (c *Config) FeatureLayers(target *Config) ([]int, error) {
	n := target.Layers
	layers := []int{2, n / 2, n - 3}
	if c.AuxLayers != nil {
		layers = nil
		for _, i := range c.AuxLayers {
			if i < 0 || i >= n { // before adding one, which could overflow
				return nil, fmt.Errorf("eagle_aux_hidden_state_layer_ids has %d: allowed is 0 to %d, since the target has %d layers", i, n-2, n)
			}
			layers = append(layers, i+1) // the output of a layer is the next one's input
		}
	}
	if len(layers) != features {
		return nil, fmt.Errorf("eagle_aux_hidden_state_layer_ids has %d layers: fc reads %d", len(layers), features)
	}
	for k, i := range layers {
		if i < 0 || i >= n || k > 0 && i <= layers[k-1] {
			return nil, fmt.Errorf("the head reads the inputs of layers %v of the target, which has %d: they must rise and lie within 0 to %d", layers, n, n-1)
		}
	}
	return layers, nil
}

// LoadEagle3 loads the rank's part of a draft head for target.
func LoadEagle3(l *Loader, c *Config, lim Limits, target *Decoder) (*Eagle3, error) {
	l.Mismatch = fault.DraftMismatch
	l.quantization = c.Quantization
	m := &Eagle3{cfg: c, dev: l.Device, target: target, shape: attentionShape(c, l.Rank, l.Size), tops: lim.Tops}
	prefix := "midlayer."
	if l.has("layers.0.self_attn.q_proj.weight") { // the layout of "speculators"
		prefix = "layers.0."
	}
	width := features * c.TargetHidden
	fc := l.rowsOf("fc.weight", c.Hidden, width)
	m.fc = l.matrix(fc.rows, fc)
	m.loadFeatureNorms(l)
	m.inputNorm = l.vector(prefix+"input_layernorm.weight", c.Hidden)
	m.hiddenNorm = l.vector(prefix+"hidden_norm.weight", c.Hidden)
	l.loadAttention(&m.layer, prefix+"self_attn.", c, 2*c.Hidden)
	m.postNorm = l.vector(prefix+"post_attention_layernorm.weight", c.Hidden)
	l.loadMLP(&m.layer, prefix+"mlp.", c)
	m.norm = l.vector("norm.weight", c.Hidden)
	m.loadVocabulary(l)
	format := l.cacheFormat(lim.Float8, c, prefix+"self_attn.")
	if err := l.finish(); err != nil {
		return nil, err
	}
	m.workspace(lim, l.Size, width)
	m.cache = m.dev.NewCache(1, lim.Pages, lim.PageSize, m.shape, format)
	return m, nil
}

// loadFeatureNorms loads the norms before fc, if the head has any.
func (m *Eagle3) loadFeatureNorms(l *Loader) {
	switch c := m.cfg; {
	case c.EachFeature:
		for k := range features {
			m.featureNorms = append(m.featureNorms, l.vector(fmt.Sprintf("fc_norm.%d.weight", k), c.TargetHidden))
		}
	case c.AllFeatures:
		m.featureNorms = append(m.featureNorms, l.vector("input_norm.weight", features*c.TargetHidden))
	}
}

// loadVocabulary loads the output head and the embedding, or takes the
// target's where the files have none, and the map from draft to target tokens.
func (m *Eagle3) loadVocabulary(l *Loader) {
	c := m.cfg
	if l.has("embed_tokens.weight") {
		table, rows := l.vocabOf("embed_tokens.weight", c.Vocab, c.Hidden)
		m.embed, m.first = l.table(rows, table), l.Rank*rows
	} else {
		m.embed, m.first = m.target.embed, m.target.first
		if c.Hidden != c.TargetHidden {
			l.fail("tensor embed_tokens.weight is missing, and the target's has %d columns where the head wants %d", c.TargetHidden, c.Hidden)
		}
	}
	if l.has("lm_head.weight") {
		part, rows := l.vocabOf("lm_head.weight", c.DraftVocab, c.Hidden)
		m.head = l.matrix(rows, part)
	} else {
		m.head = m.target.head
		if c.Hidden != c.TargetHidden || c.DraftVocab != c.Vocab {
			l.fail("tensor lm_head.weight is missing: the target's head would need hidden_size %d and draft_vocab_size %d", c.TargetHidden, c.Vocab)
		}
	}
	l.skip("t2d") // the inverse of d2t, for training
	m.ids = make([]int32, 0, 1)
	if l.err == nil {
		m.loadD2T(l)
	}
}

// loadD2T reads the offsets from draft to target tokens.
func (m *Eagle3) loadD2T(l *Loader) {
	n := m.cfg.DraftVocab
	info, ok := l.Set.Lookup("d2t")
	switch {
	case !ok && n == m.cfg.Vocab: // the same vocabulary
		for i := range n {
			m.ids = append(m.ids, int32(i))
		}
		return
	case !ok:
		l.fail("tensor d2t is missing: config.json says that draft_vocab_size is %d of %d tokens", n, m.cfg.Vocab)
		return
	case info.DType != weights.I64 || len(info.Shape) != 1 || info.Shape[0] != n:
		l.fail("tensor d2t has type %s and shape %v: config.json wants I64 and [%d]", info.DType, info.Shape, n)
		return
	}
	l.use("d2t")
	offsets := make([]int64, n)
	if err := l.Set.ReadI64("d2t", weights.Whole(info), offsets); err != nil {
		l.err = fault.OnRank(l.Rank, err)
		return
	}
	for i, offset := range offsets {
		if offset < int64(-i) || offset >= int64(m.cfg.Vocab-i) {
			l.fail("tensor d2t maps draft token %d by %d: the result must be 0 to %d", i, offset, m.cfg.Vocab-1)
			return
		}
		m.ids = append(m.ids, int32(int64(i)+offset))
	}
	l.loaded("d2t")
}

func (m *Eagle3) workspace(lim Limits, ranks, width int) {
	c, d := m.cfg, m.dev
	tensor := func(cols int) compute.Tensor { return d.NewTensor(lim.MaxRows, cols) }
	m.feats = tensor(width)
	m.fcPart, m.x = gathered(d, lim.MaxRows, c.Hidden/ranks, ranks)
	m.fcIn = m.feats
	if n := len(m.featureNorms); n > 0 {
		m.fcIn = tensor(width)
		for k := range n {
			m.normFrom = append(m.normFrom, d.Columns(m.feats, k*width/n, width/n))
			m.normTo = append(m.normTo, d.Columns(m.fcIn, k*width/n, width/n))
		}
	}
	m.e, m.h, m.out = tensor(c.Hidden), tensor(c.Hidden), tensor(c.Hidden)
	m.cat = tensor(2 * c.Hidden)
	m.catE, m.catH = d.Columns(m.cat, 0, c.Hidden), d.Columns(m.cat, c.Hidden, c.Hidden)
	m.qkv, m.attn = tensor(m.shape.QKVCols()), tensor(m.shape.Heads*m.shape.HeadDim)
	m.gateUp, m.act = tensor(2*c.Intermediate/ranks), tensor(c.Intermediate/ranks)
	m.kept = d.NewTensor(max(lim.Kept, 1), width)
	few := func(cols int) compute.Tensor { return d.NewSums(lim.MaxDrafts, cols) }
	m.last, m.normed = few(c.Hidden), d.NewTensor(lim.MaxDrafts, c.Hidden)
	m.part, m.logits = gathered(d, lim.MaxDrafts, m.head.Out(), ranks)
}

// Keep copies rows of the target's last Forward, its features, to slots of the
// kept ones: all that plain decoding does for a draft head.
func (m *Eagle3) Keep(slots, rows []int32) {
	m.dev.Scatter(m.kept, m.target.aux, slots, rows)
}

// KeepRows keeps the features of the target's last Forward, over r, of the rows
// that say where.
func (m *Eagle3) KeepRows(r *compute.Rows) { m.dev.Keep(m.kept, m.target.aux, r) }

// CatchUp brings the draft's cache up to date with kept features: row i of r
// carries the token after its position and joins kept slot slots[i].
func (m *Eagle3) CatchUp(r *compute.Rows, slots []int32) {
	m.dev.Gather(m.feats, m.kept, slots)
	m.extend(r)
}

// Extend brings the draft's cache up to date with true features: row i of r
// carries the token after its position and joins row features[i] of the
// target's last Forward. The logits of the rows named by want are there for
// Logits afterwards, and their outputs for Step.
func (m *Eagle3) Extend(r *compute.Rows, features, want []int32) {
	m.dev.Gather(m.feats, m.target.aux, features)
	m.extend(r)
	m.dev.Gather(m.last, m.x, want)
	m.predict(len(want))
}

// extend runs the rows of r over their features.
func (m *Eagle3) extend(r *compute.Rows) {
	d, n := m.dev, r.Len()
	for k, w := range m.featureNorms {
		d.RMSNorm(m.normTo[k], m.normFrom[k], w, m.cfg.Eps, n)
	}
	d.Linear(m.fcPart, m.fcIn, m.fc, n)
	if m.fcPart != m.x {
		d.AllGather(m.x, m.fcPart, n)
	}
	m.forward(r)
}

// Step drafts one token more: row i of r goes on from output from[i] of the
// Extend or Step before. Every row's logits are there afterwards.
func (m *Eagle3) Step(r *compute.Rows, from []int32) {
	d, n := m.dev, r.Len()
	if m.cfg.Output {
		d.Gather(m.x, m.normed, from)
	} else {
		d.Gather(m.x, m.last, from)
	}
	m.forward(r)
	d.Copy(m.last, m.x, n)
	m.predict(n)
}

// Chain is Step with the best token of output from[i] as the token of row i. The
// device keeps it, and those of the rest of from, as number keep[i].
func (m *Eagle3) Chain(r *compute.Rows, keep, from []int32) {
	m.dev.(compute.Chainer).Follow(m.logits, m.ids, keep, from)
	m.Step(r, from[:r.Len()])
}

// forward runs the layer over x, the hidden inputs of the rows, in place.
func (m *Eagle3) forward(r *compute.Rows) {
	c, d, n := m.cfg, m.dev, r.Len()
	d.Prepare(r, c.Rope.Freqs, c.Rope.Scale)
	d.Embed(m.e, m.embed, m.first, r)
	d.AllReduce(m.e, n)
	d.RMSNorm(m.catE, m.e, m.inputNorm, c.Eps, n)
	d.RMSNorm(m.catH, m.x, m.hiddenNorm, c.Eps, n)
	if c.Residual {
		d.Copy(m.x, m.catH, n)
	}
	d.QKV(m.qkv, m.cat, m.layer.qkv, m.cache, 0, r)
	d.Attention(m.attn, m.qkv, m.cache, 0, 0, r)
	d.LinearNorm(m.h, compute.Residual{Sum: m.x}, m.out, m.attn, m.layer.o, m.postNorm, c.Eps, m.layer.gateUp, n)
	d.Gated(m.act, m.gateUp, m.h, m.layer.gateUp, n)
	d.Linear(m.out, m.act, m.layer.down, n)
	d.AllReduce(m.out, n)
	d.Add(m.x, m.out, n)
}

// predict computes the logits of the first n rows of last.
func (m *Eagle3) predict(n int) {
	if n == 0 {
		return
	}
	d := m.dev
	d.RMSNorm(m.normed, m.last, m.norm, m.cfg.Eps, n)
	d.Linear(m.part, m.normed, m.head, n)
	if m.part != m.logits {
		d.AllGather(m.logits, m.part, n)
	}
	choose(d, m.logits, m.cfg.DraftVocab, n, m.tops)
}

// Best is the most likely draft token of a row as Logits has it, the lowest of
// equals, if the device has found it.
func (m *Eagle3) Best(i int) (int32, bool) { return chosen(m.dev, m.logits, i) }

// Logits are those of row want[i] of the last Extend, or of row i of the last
// Step, over the draft vocabulary; valid until the next call.
func (m *Eagle3) Logits(i int) []float32 { return m.dev.Floats(m.logits, i)[:m.cfg.DraftVocab] }

// TargetID is the target's id of a draft token.
func (m *Eagle3) TargetID(draft int32) int32 { return m.ids[draft] }
