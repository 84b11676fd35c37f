package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/weights"
)

// Quantization is how a model's linear weights are stored, as
// quantization_config says. Activations are not quantised as it may ask for
// them: that only makes results more exact.
type Quantization struct {
	Method string // quant_method
	// Float8Cache tells that the files are made for a cache of float8.
	Float8Cache bool

	format weightFormat
	// ignore are the modules that are not quantised.
	ignore []func(module string) bool
	// byType tells that a weight is quantised exactly if it is stored as F8_E4M3.
	byType bool
}

// weightFormat is how one quantised weight of the shape [out, in] is stored.
type weightFormat struct {
	dtype compute.DType
	codes string // its tensor's name after the module's
	// packed tells that an I32 holds 8 codes of 4 bits or 4 of 8, the first
	// column in the lowest bits, each with half its range added.
	packed bool
	scale  string // the scales' tensor's name after the module's
	// Rows and columns of the blocks that share a scale; 0 is all of them.
	blockRows, blockCols int
}

// is tells whether a module's weight is quantised; stored is its type.
func (q *Quantization) is(module string, stored weights.DType) bool {
	if q.byType {
		return stored == weights.F8E4M3
	}
	for _, ignored := range q.ignore {
		if ignored(module) {
			return false
		}
	}
	return true
}

// readQuantization reads quantization_config; nil is none. Whatever it does not
// understand it refuses by name, since it would change the weights' meaning.
func readQuantization(raw json.RawMessage) (*Quantization, error) {
	if !isSet(raw) {
		return nil, nil
	}
	var head struct {
		Method string `json:"quant_method"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, wrongType(err) // of another kind it cannot be: raw was decoded before
	}
	var q *Quantization
	var err error
	switch head.Method {
	case "compressed-tensors":
		q, err = readCompressed(raw)
	case "fp8":
		q, err = readFP8(raw)
	default:
		return nil, fmt.Errorf("quant_method is %q: supported are \"compressed-tensors\" and \"fp8\", and unquantised weights in bfloat16, float16 or float32", head.Method)
	}
	if q != nil {
		q.Method = head.Method
	}
	return q, err
}

// isSet tells whether a setting says anything.
func isSet(raw json.RawMessage) bool {
	return len(raw) > 0 && !bytes.Equal(raw, []byte("null")) && !bytes.Equal(raw, []byte("{}"))
}

// strict decodes JSON into v, refusing members that v does not have.
func strict(raw json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		if said := wrongType(err); said != nil {
			return said
		}
		return errors.New(strings.Replace(strings.TrimPrefix(err.Error(), "json: "), "unknown field", "not supported: the setting", 1))
	}
	return nil
}

// readFP8 reads what huggingface transformers, FineGrainedFP8Config, writes,
// and vLLM's form with one scale a tensor.
func readFP8(raw json.RawMessage) (*Quantization, error) {
	var c struct {
		Method     string   `json:"quant_method"`
		Format     string   `json:"fmt"`
		Activation string   `json:"activation_scheme"`
		Block      []int    `json:"weight_block_size"`
		ScaleFmt   string   `json:"scale_fmt"`
		Ignored    []string `json:"ignored_layers"`         // seen from the types too
		Excluded   []string `json:"modules_to_not_convert"` // likewise
	}
	if err := strict(raw, &c); err != nil {
		return nil, err
	}
	f := weightFormat{dtype: compute.F8E4M3, codes: ".weight", scale: ".weight_scale"}
	switch {
	case c.Format != "" && c.Format != "e4m3":
		return nil, fmt.Errorf("fmt is %q: supported is \"e4m3\"", c.Format)
	case c.Activation != "" && c.Activation != "dynamic" && c.Activation != "static":
		return nil, fmt.Errorf("activation_scheme is %q: supported are \"dynamic\" and \"static\"", c.Activation)
	case c.ScaleFmt != "" && c.ScaleFmt != "ue8m0" && c.ScaleFmt != "float":
		return nil, fmt.Errorf("scale_fmt is %q: supported are \"ue8m0\" and \"float\"", c.ScaleFmt)
	case c.Block != nil:
		if err := f.setBlock("weight_block_size", c.Block); err != nil {
			return nil, err
		}
		f.scale = ".weight_scale_inv"
	}
	return &Quantization{format: f, byType: true}, nil
}

func (f *weightFormat) setBlock(name string, block []int) error {
	if len(block) != 2 || min(block[0], block[1]) < 1 || max(block[0], block[1]) > maxDim {
		return fmt.Errorf("%s is %v: it must be [rows, columns], each 1 to %d", name, block, maxDim)
	}
	f.blockRows, f.blockCols = block[0], block[1]
	return nil
}

// rawCompressed is quantization_config of compressed-tensors
// (github.com/vllm-project/compressed-tensors, quant_config.py).
type rawCompressed struct {
	Method    string                        `json:"quant_method"`
	Format    string                        `json:"format"`
	Status    string                        `json:"quantization_status"`
	Ignore    []string                      `json:"ignore"`
	KVCache   json.RawMessage               `json:"kv_cache_scheme"`
	Groups    map[string]rawCompressedGroup `json:"config_groups"`
	Sparsity  json.RawMessage               `json:"sparsity_config"`
	Transform json.RawMessage               `json:"transform_config"`
	Ratio     json.RawMessage               `json:"global_compression_ratio"` // says nothing about the format
	Version   json.RawMessage               `json:"version"`                  // likewise
}

type rawCompressedGroup struct {
	Targets []string        `json:"targets"`
	Weights *rawWeightArgs  `json:"weights"`
	Inputs  json.RawMessage `json:"input_activations"`
	Outputs json.RawMessage `json:"output_activations"`
	Format  *string         `json:"format"`
}

// rawWeightArgs is quant_args.py's QuantizationArgs.
type rawWeightArgs struct {
	Bits      int             `json:"num_bits"`
	Type      *string         `json:"type"`
	Symmetric *bool           `json:"symmetric"`
	GroupSize *int            `json:"group_size"`
	Strategy  *string         `json:"strategy"`
	Block     []int           `json:"block_structure"`
	Dynamic   json.RawMessage `json:"dynamic"`
	ActOrder  json.RawMessage `json:"actorder"`
	// How the scales were found, and how they are stored, which is seen there.
	Observer       json.RawMessage `json:"observer"`
	ObserverKwargs json.RawMessage `json:"observer_kwargs"`
	ScaleDType     json.RawMessage `json:"scale_dtype"`
	ZeroDType      json.RawMessage `json:"zp_dtype"`
}

func readCompressed(raw json.RawMessage) (*Quantization, error) {
	var c rawCompressed
	if err := strict(raw, &c); err != nil {
		return nil, err
	}
	var sparsity struct {
		Format string `json:"format"`
	}
	switch {
	case c.Status != "" && c.Status != "compressed" && c.Status != "frozen":
		return nil, fmt.Errorf("quantization_status is %q: supported is \"compressed\"", c.Status)
	case isSet(c.Transform):
		return nil, errors.New("transform_config is set: supported is null")
	case isSet(c.Sparsity) && (json.Unmarshal(c.Sparsity, &sparsity) != nil || sparsity.Format != "dense"):
		return nil, fmt.Errorf("sparsity_config has the format %q: supported is \"dense\"", sparsity.Format)
	case len(c.Groups) != 1 && (len(c.Groups) > 0 || !isSet(c.KVCache)):
		return nil, fmt.Errorf("config_groups has %d groups: supported is one", len(c.Groups))
	}
	q := &Quantization{}
	if isSet(c.KVCache) {
		if err := readCacheScheme(c.KVCache); err != nil {
			return nil, fmt.Errorf("kv_cache_scheme: %w", err)
		}
		q.Float8Cache = true
	}
	if len(c.Groups) == 0 { // only the cache is quantised
		q.ignore = append(q.ignore, func(string) bool { return true })
	}
	for name, g := range c.Groups {
		if err := g.read(c.Format, &q.format); err != nil {
			return nil, fmt.Errorf("config_groups: %.100q: %w", name, err)
		}
	}
	for _, pattern := range c.Ignore {
		match, err := moduleMatcher(pattern)
		if err != nil {
			return nil, fmt.Errorf("ignore: %w", err)
		}
		q.ignore = append(q.ignore, match)
	}
	return q, nil
}

// readCacheScheme reads what kv_cache_scheme says of the cache, the arguments of
// its quantisation. How many heads share a scale is seen from the tensors.
func readCacheScheme(raw json.RawMessage) error {
	var w rawWeightArgs
	if err := strict(raw, &w); err != nil {
		return err
	}
	if err := w.understood(); err != nil {
		return err
	}
	strategy := or(w.Strategy, "tensor")
	switch {
	case w.Bits != 8 || or(w.Type, "int") != "float":
		return fmt.Errorf("num_bits is %d and type %.40q: supported are 8 and \"float\"", w.Bits, or(w.Type, "int"))
	case strategy != "tensor" && strategy != "attn_head":
		return fmt.Errorf("strategy is %.40q: supported are \"tensor\" and \"attn_head\"", strategy)
	}
	return nil
}

// moduleMatcher reads an entry of ignore: a module's name, its class, or "re:"
// and a regular expression for a name's beginning.
func moduleMatcher(pattern string) (func(module string) bool, error) {
	expr, ok := strings.CutPrefix(pattern, "re:")
	if !ok {
		return func(module string) bool { return module == pattern || pattern == "Linear" }, nil
	}
	re, err := regexp.Compile("^(?:" + expr + ")")
	if err != nil {
		return nil, fmt.Errorf("%.200q is no regular expression that can be read (%w): name the modules in a simpler one", pattern, err)
	}
	return re.MatchString, nil
}

// read reads a group; format is the one for all groups.
func (g *rawCompressedGroup) read(format string, f *weightFormat) error {
	if or(g.Format, "") != "" {
		format = *g.Format
	}
	switch {
	case len(g.Targets) != 1 || g.Targets[0] != "Linear":
		return fmt.Errorf("targets is %.200q: supported is [\"Linear\"]", g.Targets)
	case isSet(g.Outputs):
		return errors.New("output_activations is set: supported is null")
	case g.Weights == nil:
		return errors.New("weights is null: supported are quantised weights")
	}
	if err := g.Weights.understood(); err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	f.codes, f.scale = ".weight", ".weight_scale"
	switch kind := fmt.Sprintf("%s of %d-bit %s", format, g.Weights.Bits, or(g.Weights.Type, "int")); kind {
	case "pack-quantized of 4-bit int":
		f.dtype, f.codes, f.packed = compute.I4, ".weight_packed", true
	case "pack-quantized of 8-bit int":
		f.dtype, f.codes, f.packed = compute.I8, ".weight_packed", true
	case "int-quantized of 8-bit int", "naive-quantized of 8-bit int":
		f.dtype = compute.I8
	case "float-quantized of 8-bit float", "naive-quantized of 8-bit float":
		f.dtype = compute.F8E4M3
	default:
		return fmt.Errorf("format is %.200s: supported are pack-quantized of 4-bit or 8-bit int, int-quantized of 8-bit int and float-quantized of 8-bit float", kind)
	}
	return g.Weights.blocks(f)
}

// understood refuses arguments that change what a code means.
func (w *rawWeightArgs) understood() error {
	dynamic, order := string(w.Dynamic), strings.Trim(string(w.ActOrder), `"`)
	switch {
	case !or(w.Symmetric, true):
		return errors.New("symmetric is false: supported is true")
	case dynamic != "" && dynamic != "false" && dynamic != "null":
		return fmt.Errorf("dynamic is %.40s: supported is false", dynamic)
	case order != "" && order != "null" && order != "false" && order != "weight" && order != "static":
		return fmt.Errorf("actorder is %.40q: supported are null, \"weight\" and \"static\"", order)
	}
	return nil
}

// blocks tells what shares a scale.
func (w *rawWeightArgs) blocks(f *weightFormat) error {
	size := or(w.GroupSize, -1)
	strategy := or(w.Strategy, "")
	if strategy == "" { // as the reference chooses
		strategy = "tensor"
		if size > 0 {
			strategy = "group"
		} else if w.GroupSize != nil {
			strategy = "channel"
		}
	}
	switch strategy {
	case "group":
		if size < 1 || size > maxDim {
			return fmt.Errorf("group_size is %d: allowed with the strategy \"group\" is 1 to %d", size, maxDim)
		}
		f.blockRows, f.blockCols = 1, size
	case "channel":
		f.blockRows = 1
	case "tensor":
	case "block":
		return f.setBlock("block_structure", w.Block)
	default:
		return fmt.Errorf("strategy is %.40q: supported are \"group\", \"channel\", \"tensor\" and \"block\"", strategy)
	}
	return nil
}
