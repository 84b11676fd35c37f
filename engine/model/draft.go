package model

import (
	"io/fs"

	"github.com/outrider-dev/outrider/engine/fault"
)

// ReadDraftConfig reads the config.json of a whole model that drafts for target,
// and checks that its tokens can be the target's.
func ReadDraftConfig(fsys fs.FS, name string, target *Config) (*Config, error) {
	c, err := ReadConfig(fsys, name)
	switch {
	case err != nil:
		return nil, err
	case c.Architecture == eagle3Architecture || c.HeadNorms != (HeadNorms{}):
		return nil, fault.Errorf(fault.Unsupported, "%s is an EAGLE-3 head, not a whole model: draft with it by --speculative-algorithm eagle3", name)
	case c.Vocab != target.Vocab:
		return nil, fault.Errorf(fault.DraftMismatch, "%s: config.json: vocab_size is %d, but the target's is %d: give a draft model with the target's vocabulary", name, c.Vocab, target.Vocab)
	}
	return c, nil
}
