// Package model has the transformer families, one file each, written once over
// compute.Device, and reads their configurations and weights.
package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Config is what a model's config.json says, checked and with the format's
// defaults filled in (huggingface transformers, configuration_llama.py).
type Config struct {
	Architecture string
	Layers       int
	Hidden       int
	Intermediate int
	Heads        int
	KVHeads      int
	HeadDim      int
	Vocab        int
	MaxPositions int     // longest sequence it was trained for
	Eps          float32 // of the RMS norms
	Rope         Rope
	TiedHead     bool    // the output head is the embedding table
	BOS          int32   // −1 when there is none
	EOS          []int32 // tokens that end a text

	// What tells the families apart.
	QKVBias, OutBias, MLPBias bool  // the projections have biases
	QKNorm                    bool  // query and key heads are normed before they are turned
	Windows                   []int // by layer: positions that a row sees, its own among them; 0 is all. Nil: all, everywhere

	Quantization *Quantization // of the linear weights; nil: none is quantised

	// Of an EAGLE-3 draft head only.
	DraftVocab   int
	TargetHidden int
	AuxLayers    []int // the target's layers whose outputs are its features; nil for the usual three
	HeadNorms
}

// HeadNorms are the norms that some EAGLE-3 heads have beside the usual ones.
type HeadNorms struct {
	EachFeature bool // fc_norm: each of the target's features has a norm before fc
	AllFeatures bool // norm_before_fc: the features together have one
	Residual    bool // norm_before_residual: the layer adds to the normed hidden input
	Output      bool // norm_output: the normed output is the next step's hidden input
}

// limits keep a hostile config from sizing anything absurd, far above any model.
const (
	maxDim    = 1 << 20
	maxVocab  = 1 << 24
	maxLayers = 1 << 12
	maxConfig = 1 << 20 // bytes of a config file
)

// rawConfig is config.json; a pointer tells absent from zero.
type rawConfig struct {
	Architectures    []string        `json:"architectures"`
	HiddenAct        string          `json:"hidden_act"`
	AttentionBias    bool            `json:"attention_bias"`
	MLPBias          bool            `json:"mlp_bias"`
	Layers           int             `json:"num_hidden_layers"`
	Hidden           int             `json:"hidden_size"`
	Intermediate     int             `json:"intermediate_size"`
	Heads            int             `json:"num_attention_heads"`
	KVHeads          *int            `json:"num_key_value_heads"`
	HeadDim          *int            `json:"head_dim"`
	Vocab            int             `json:"vocab_size"`
	MaxPositions     *int            `json:"max_position_embeddings"`
	Eps              *float64        `json:"rms_norm_eps"`
	RopeTheta        *float64        `json:"rope_theta"`
	RopeScaling      *rawRope        `json:"rope_scaling"`
	RopeParameters   *rawRope        `json:"rope_parameters"`
	PartialShare     *float64        `json:"partial_rotary_factor"`
	TiedHead         bool            `json:"tie_word_embeddings"`
	BOS              *int32          `json:"bos_token_id"`
	EOS              tokenIDs        `json:"eos_token_id"`
	Quantization     json.RawMessage `json:"quantization_config"`
	DraftVocab       *int            `json:"draft_vocab_size"`
	TargetHidden     *int            `json:"target_hidden_size"`
	EagleConfig      *rawEagle       `json:"eagle_config"`
	AuxLayers        []int           `json:"eagle_aux_hidden_state_layer_ids"`
	PretrainingTP    *int            `json:"pretraining_tp"`
	ResidualScale    *float64        `json:"residual_multiplier"`
	LogitsScale      *float64        `json:"logits_scaling"`
	AttentionScale   *float64        `json:"attention_multiplier"`
	EmbeddingScale   *float64        `json:"embedding_multiplier"`
	SlidingWindow    *int            `json:"sliding_window"`
	UseSlidingWindow *bool           `json:"use_sliding_window"`
	MaxWindowLayers  *int            `json:"max_window_layers"`
	LayerTypes       []string        `json:"layer_types"`
	rawNorms
}

// rawEagle is eagle_config. The layers, as the norms, may stand beside it.
type rawEagle struct {
	AuxLayers []int `json:"eagle_aux_hidden_state_layer_ids"`
	UseAux    *bool `json:"use_aux_hidden_state"`
	rawNorms
}

// auxLayers are eagle_aux_hidden_state_layer_ids of either place, nil without.
func (raw *rawConfig) auxLayers() ([]int, error) {
	layers, eagle := raw.AuxLayers, raw.EagleConfig
	switch {
	case eagle == nil:
		return layers, nil
	case !or(eagle.UseAux, true):
		return nil, errors.New("eagle_config: use_aux_hidden_state is false: supported is true, a head that reads three of the target's layers")
	case layers == nil:
		return eagle.AuxLayers, nil
	case eagle.AuxLayers != nil && !slices.Equal(layers, eagle.AuxLayers):
		return nil, fmt.Errorf("eagle_aux_hidden_state_layer_ids is %v, and %v in eagle_config: leave one of them out", layers, eagle.AuxLayers)
	}
	return layers, nil
}

// rawNorms stand in config.json itself or in its eagle_config.
type rawNorms struct {
	FCNorm             bool `json:"fc_norm"`
	NormBeforeFC       bool `json:"norm_before_fc"`
	NormBeforeResidual bool `json:"norm_before_residual"`
	NormOutput         bool `json:"norm_output"`
}

func (raw *rawConfig) norms() HeadNorms {
	a, b := raw.rawNorms, rawNorms{}
	if raw.EagleConfig != nil {
		b = raw.EagleConfig.rawNorms
	}
	return HeadNorms{
		EachFeature: a.FCNorm || b.FCNorm, AllFeatures: a.NormBeforeFC || b.NormBeforeFC,
		Residual: a.NormBeforeResidual || b.NormBeforeResidual, Output: a.NormOutput || b.NormOutput,
	}
}

// tokenIDs is one id or a list of them; null is none.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	if b[0] == '[' {
		return json.Unmarshal(b, (*[]int32)(t))
	}
	var id int32
	if err := json.Unmarshal(b, &id); err != nil {
		return err
	}
	*t = tokenIDs{id}
	return nil
}

// readJSON decodes a file of at most maxConfig bytes.
func readJSON(fsys fs.FS, file string, v any) error {
	info, err := fs.Stat(fsys, file)
	if err != nil {
		return err
	}
	if info.Size() > maxConfig {
		return fmt.Errorf("%s has %d bytes: allowed are %d", file, info.Size(), maxConfig)
	}
	b, err := fs.ReadFile(fsys, file)
	if err != nil {
		return err
	}
	err = json.Unmarshal(b, v)
	switch said := wrongType(err); {
	case said != nil:
		return fmt.Errorf("%s: %w", file, said)
	case err != nil:
		return fmt.Errorf("%s is not JSON, or is cut off: %w", file, err)
	}
	return nil
}

// wrongType says which member of a JSON object has another type than it must
// have, or that it is no object; nil if that is not what err is about.
func wrongType(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return nil
	case wrong.Field == "":
		return fmt.Errorf("a JSON %.60s: it must be an object", wrong.Value)
	}
	return fmt.Errorf("%s is a JSON %.60s, which is not its type", wrong.Field, wrong.Value)
}

// ReadConfig reads config.json, and generation_config.json for the tokens that
// end a text, from a model folder called name in errors.
func ReadConfig(fsys fs.FS, name string) (*Config, error) {
	var raw rawConfig
	if err := readJSON(fsys, "config.json", &raw); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Errorf(fault.ModelNotFound, "%s has no config.json: give a model folder in Hugging Face layout", name)
	} else if err != nil {
		return nil, fault.Errorf(fault.WeightsMismatch, "%s: %w", name, err)
	}
	var generation struct {
		EOS tokenIDs `json:"eos_token_id"`
	}
	if err := readJSON(fsys, "generation_config.json", &generation); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Errorf(fault.WeightsMismatch, "%s: %w", name, err)
	}
	if generation.EOS != nil {
		raw.EOS = generation.EOS
	}
	c, err := raw.config()
	if err != nil {
		return nil, fault.Errorf(fault.Unsupported, "%s: config.json: %w", name, err)
	}
	return c, nil
}

// config checks raw and fills in what it leaves out.
func (raw *rawConfig) config() (*Config, error) {
	if err := raw.understood(); err != nil {
		return nil, err
	}
	c := &Config{
		Architecture: raw.Architectures[0],
		Layers:       raw.Layers, Hidden: raw.Hidden, Intermediate: raw.Intermediate,
		Heads: raw.Heads, KVHeads: or(raw.KVHeads, raw.Heads), Vocab: raw.Vocab,
		MaxPositions: or(raw.MaxPositions, 2048), Eps: float32(or(raw.Eps, 1e-6)),
		TiedHead: raw.TiedHead, BOS: or(raw.BOS, -1), EOS: raw.EOS,
		DraftVocab: or(raw.DraftVocab, raw.Vocab), TargetHidden: or(raw.TargetHidden, raw.Hidden),
		HeadNorms: raw.norms(),
	}
	aux, err := raw.auxLayers()
	if err != nil {
		return nil, err
	}
	c.AuxLayers = aux
	if raw.HeadDim != nil {
		c.HeadDim = *raw.HeadDim
	} else if c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	if err := c.checkShape(); err != nil {
		return nil, err
	}
	quant, err := readQuantization(raw.Quantization)
	if err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	c.Quantization = quant
	rope, err := raw.rope(c.HeadDim)
	if err != nil {
		return nil, err
	}
	c.Rope = rope
	if rope.MaxPositions > 0 {
		c.MaxPositions = min(c.MaxPositions, rope.MaxPositions)
	}
	if err := families[c.Architecture](raw, c); err != nil {
		return nil, err
	}
	for _, id := range c.EOS {
		if id < 0 || int(id) >= c.Vocab {
			return nil, fmt.Errorf("eos_token_id is %d: allowed is 0 to %d (vocab_size - 1)", id, c.Vocab-1)
		}
	}
	return c, nil
}

// understood refuses, by name, settings that would change the arithmetic.
func (raw *rawConfig) understood() error {
	switch {
	case len(raw.Architectures) != 1:
		return fmt.Errorf("architectures has %d names: give exactly one", len(raw.Architectures))
	case raw.HiddenAct != "" && raw.HiddenAct != "silu":
		return fmt.Errorf("hidden_act is %.100q: supported is \"silu\"", raw.HiddenAct)
	case families[raw.Architectures[0]] == nil:
		return fmt.Errorf("architecture %.100q is not supported: supported are %s", raw.Architectures[0], strings.Join(slices.Sorted(maps.Keys(families)), ", "))
	case or(raw.PretrainingTP, 1) > 1:
		return fmt.Errorf("pretraining_tp is %d: supported is 1", *raw.PretrainingTP)
	}
	for name, scale := range map[string]*float64{
		"residual_multiplier": raw.ResidualScale, "logits_scaling": raw.LogitsScale,
		"attention_multiplier": raw.AttentionScale, "embedding_multiplier": raw.EmbeddingScale,
	} {
		if scale != nil && *scale != 1 {
			return fmt.Errorf("%s is %v: supported is 1", name, *scale)
		}
	}
	return nil
}

// families are the architectures: each fills in what is its own.
var families = map[string]func(raw *rawConfig, c *Config) error{
	llamaArchitecture:   llama,
	eagle3Architecture:  llama,
	mistralArchitecture: mistral,
	qwen2Architecture:   qwen2,
	qwen3Architecture:   qwen3,
}

// window is the number of positions that a row of layer i sees; 0 is all.
func (c *Config) window(i int) int {
	if c.Windows == nil {
		return 0
	}
	return c.Windows[i]
}

// windows gives each layer its window: by layer_types where the config has
// them, otherwise by the family's rule.
func (raw *rawConfig) windows(c *Config, slides func(layer int) bool) error {
	if raw.LayerTypes != nil {
		if len(raw.LayerTypes) != c.Layers {
			return fmt.Errorf("layer_types has %d entries: num_hidden_layers is %d", len(raw.LayerTypes), c.Layers)
		}
		for i, kind := range raw.LayerTypes {
			if kind != "full_attention" && kind != "sliding_attention" {
				return fmt.Errorf("layer_types has %.100q for layer %d: supported are \"full_attention\" and \"sliding_attention\"", kind, i)
			}
		}
		slides = func(layer int) bool { return raw.LayerTypes[layer] == "sliding_attention" }
	}
	size := or(raw.SlidingWindow, 0)
	for i := range c.Layers {
		if !slides(i) {
			continue
		}
		if size < 1 {
			return fmt.Errorf("sliding_window is %d, but layer %d slides: it must be 1 or more", size, i)
		}
		if c.Windows == nil {
			c.Windows = make([]int, c.Layers)
		}
		c.Windows[i] = size
	}
	return nil
}

// checkShape reports the first size that is out of range or does not fit.
func (c *Config) checkShape() error {
	for _, v := range []struct {
		name        string
		value, most int
	}{
		{"num_hidden_layers", c.Layers, maxLayers},
		{"hidden_size", c.Hidden, maxDim},
		{"intermediate_size", c.Intermediate, maxDim},
		{"num_attention_heads", c.Heads, maxDim},
		{"num_key_value_heads", c.KVHeads, maxDim},
		{"head_dim", c.HeadDim, maxDim},
		{"vocab_size", c.Vocab, maxVocab},
		{"max_position_embeddings", c.MaxPositions, math.MaxInt32},
		{"draft_vocab_size", c.DraftVocab, c.Vocab},
		{"target_hidden_size", c.TargetHidden, maxDim},
	} {
		if v.value < 1 || v.value > v.most {
			return fmt.Errorf("%s is %d: allowed is 1 to %d", v.name, v.value, v.most)
		}
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("num_attention_heads is %d and num_key_value_heads %d: the first must be a multiple of the second", c.Heads, c.KVHeads)
	case c.HeadDim%2 != 0:
		return fmt.Errorf("head_dim is %d: rotary positions need an even one", c.HeadDim)
	case c.Heads*c.HeadDim > maxDim:
		return fmt.Errorf("num_attention_heads × head_dim is %d: allowed are %d", c.Heads*c.HeadDim, maxDim)
	case !(c.Eps > 0 && c.Eps < 1):
		return fmt.Errorf("rms_norm_eps is %v: allowed is above 0 and below 1", c.Eps)
	}
	return nil
}

// CheckTP reports a tensor parallel degree that the model's shape refuses.
// Key-value heads are split over the ranks, or copied where ranks outnumber them.
func (c *Config) CheckTP(size int) error {
	fits := func(n int) bool {
		kv := c.KVHeads%n == 0 || n%c.KVHeads == 0
		return c.Heads%n == 0 && kv && c.Intermediate%n == 0 && c.Hidden%n == 0
	}
	if size >= 1 && fits(size) {
		return nil
	}
	var allowed []string
	for n := 1; n <= min(c.Heads, 64); n++ {
		if fits(n) {
			allowed = append(allowed, strconv.Itoa(n))
		}
	}
	return fault.Errorf(fault.InvalidConfig,
		"--tp-size is %d: this model (%d heads, %d key-value heads, hidden size %d, intermediate size %d) allows %s",
		size, c.Heads, c.KVHeads, c.Hidden, c.Intermediate, strings.Join(allowed, ", "))
}

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
