package model

import "github.com/outrider-dev/outrider/engine/compute"

// WorkspaceBytes is the memory that all ranks' workspaces take for the limits
// lim, caches not among it. element is the size in bytes of a number in one of
// the device's tensors; sums take four.
func WorkspaceBytes(spec Spec, lim Limits, element int64) int64 {
	m := &measure{element: element}
	features, _ := spec.featureLayers() // checked when the head's config was read
	for rank := range spec.Ranks {
		m.decoder(spec.Config, lim, rank, spec.Ranks, features)
		switch {
		case spec.DraftConfig == nil:
		case spec.DraftWhole:
			m.decoder(spec.DraftConfig, lim.ofDraftModel(), rank, spec.Ranks, nil)
		default:
			m.head(spec.DraftConfig, lim, rank, spec.Ranks)
		}
	}
	return m.bytes
}

// featureLayers are the target's layers whose inputs the draft head reads; none
// without a head.
func (s Spec) featureLayers() ([]int, error) {
	if s.DraftConfig == nil || s.DraftWhole {
		return nil, nil
	}
	return s.DraftConfig.FeatureLayers(s.Config)
}

// ofTarget are the limits of the target.
func (l Limits) ofTarget() Limits {
	l.Tops = 0
	return l
}

// ofDraftModel are the limits of a whole model that drafts.
func (l Limits) ofDraftModel() Limits {
	l.MaxLogits = l.MaxDrafts
	return l
}

// measure is a device that counts the memory of tensors instead of taking it:
// what the models ask it for is what they will ask a real one for.
type measure struct {
	compute.Device // nil: workspaces are all that is asked for
	element        int64
	bytes          int64
}

func (m *measure) decoder(c *Config, lim Limits, rank, ranks int, features []int) {
	d := &Decoder{cfg: c, dev: m, shape: attentionShape(c, rank, ranks), head: rowsOnly(vocabRows(c.Vocab, ranks))}
	d.workspace(lim, ranks, features)
}

func (m *measure) head(c *Config, lim Limits, rank, ranks int) {
	e := &Eagle3{cfg: c, dev: m, shape: attentionShape(c, rank, ranks), head: rowsOnly(vocabRows(c.DraftVocab, ranks))}
	switch {
	case c.EachFeature:
		e.featureNorms = make([]compute.Weight, features)
	case c.AllFeatures:
		e.featureNorms = make([]compute.Weight, 1)
	}
	e.workspace(lim, ranks, features*c.TargetHidden)
}

func (m *measure) NewTensor(rows, cols int) compute.Tensor {
	m.bytes += m.element * int64(rows) * int64(cols)
	return nil
}

func (m *measure) NewSums(rows, cols int) compute.Tensor {
	m.bytes += 4 * int64(rows) * int64(cols)
	return nil
}

func (m *measure) Columns(compute.Tensor, int, int) compute.Tensor { return nil }

// rowsOnly is a weight of which only the number of rows is known.
type rowsOnly int

func (w rowsOnly) Out() int           { return int(w) }
func (rowsOnly) In() int              { return 0 }
func (rowsOnly) DType() compute.DType { return compute.F32 }
