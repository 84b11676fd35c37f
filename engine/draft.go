package engine

import (
	"bytes"
	"context"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// algorithm is a way to draft.
type algorithm struct {
	name  string
	files bool // it needs a draft head or model
	whole bool // which is a whole model
	// certain tells that it proposes whenever it is asked to: a probe that saw no
	// draft has found a fault.
	certain bool
	// trees tells that it drafts trees where --speculative-eagle-topk is above 1.
	trees bool
	// window is scheduler.Config.DraftWindow.
	window int
	// config reads the config.json of its files.
	config func(draft model.Source, target *model.Config) (*model.Config, error)
	// drafter is for as many as slots sequences at once.
	drafter func(c Config, slots int, ranks *model.Ranks) speculation.Drafter
}

// The algorithms of Config.Algorithm.
const (
	AlgorithmEagle3 = "eagle3"
	AlgorithmNGram  = "ngram"
	AlgorithmDraft  = "draft"
	AlgorithmNone   = "none"
)

// Algorithms are the values of Config.Algorithm, in the order of messages.
var Algorithms = []string{AlgorithmEagle3, AlgorithmNGram, AlgorithmDraft, AlgorithmNone}

var algorithms = map[string]*algorithm{
	AlgorithmEagle3: {
		name: AlgorithmEagle3, files: true, certain: true, trees: true, window: speculation.Window,
		config: func(draft model.Source, target *model.Config) (*model.Config, error) {
			return model.ReadEagle3Config(draft.Files, draft.Name, target)
		},
		drafter: func(c Config, slots int, ranks *model.Ranks) speculation.Drafter {
			return speculation.NewEagle3(ranks, c.shape(), c.PageSize, slots, ranks.Limits().MaxRows)
		},
	},
	AlgorithmDraft: {
		name: AlgorithmDraft, files: true, whole: true, certain: true, trees: true,
		config: func(draft model.Source, target *model.Config) (*model.Config, error) {
			return model.ReadDraftConfig(draft.Files, draft.Name, target)
		},
		drafter: func(c Config, _ int, ranks *model.Ranks) speculation.Drafter {
			return speculation.NewDraftModel(ranks, c.shape(), c.PageSize, ranks.Limits().MaxRows)
		},
	},
	AlgorithmNGram: {
		name: AlgorithmNGram,
		drafter: func(c Config, slots int, _ *model.Ranks) speculation.Drafter {
			return speculation.NewNGram(c.NGramMin, c.NGramMax, slots)
		},
	},
}

// shape is what proposals look like.
func (c Config) shape() speculation.Shape {
	return speculation.Shape{TopK: c.TopK, Nodes: c.NumDraftTokens - 1}
}

// treeRoom is the number of positions after a text that a tree uses: those of
// its nodes, or those that the drafter expands while it makes it.
func (c Config) treeRoom() int {
	if c.TopK == 1 {
		return 0
	}
	return max(c.NumDraftTokens-1, c.TopK*(c.NumSteps-1))
}

// openDraft settles the algorithm and finds its files, if it has any. tok is the
// target's tokenizer, or nil.
func (e *Engine) openDraft(ctx context.Context, spec *model.Spec, tok *tokenizer.Tokenizer) error {
	ref, name := e.cfg.DraftModel, e.cfg.Algorithm
	if name == "" {
		name = AlgorithmEagle3
	}
	own, ok := fetch.DefaultDraft(e.cfg.Model)
	if ok && ref == "" && name == AlgorithmEagle3 {
		ref = own
	}
	a := algorithms[name]
	switch {
	case a == nil:
		return nil // none
	case !a.files:
		e.algorithm = a
		return nil
	case ref == "" && e.cfg.Algorithm == "":
		return nil
	case ref == "":
		return fault.Errorf(fault.InvalidConfig, "--speculative-algorithm %s needs --draft-model: %s brings no draft of that kind", name, e.cfg.Model)
	}
	draft, err := e.open(ctx, ref)
	if err != nil {
		return err
	}
	e.algorithm, spec.Draft, spec.DraftWhole = a, model.Source(draft), a.whole
	if spec.DraftConfig, err = a.config(spec.Draft, spec.Config); err != nil || !a.whole {
		return err
	}
	// A draft's tokenizer is not used: one that cannot be read says nothing.
	if own, err := loadTokenizer(draft); err == nil && own != nil && tok != nil {
		return sameTokens(draft.Name, own, tok)
	}
	return nil
}

// sameTokens reports a token that is another one in the draft's vocabulary: all
// drafts would be wrong, and nobody would notice.
func sameTokens(name string, draft, target *tokenizer.Tokenizer) error {
	for id := range int32(min(draft.VocabSize(), target.VocabSize())) {
		if a, b := draft.TokenBytes(id), target.TokenBytes(id); !bytes.Equal(a, b) {
			return fault.Errorf(fault.DraftMismatch, "%s: tokenizer.json: token %d is %q, but the target's is %q: give a draft model with the target's vocabulary", name, id, a, b)
		}
	}
	return nil
}
