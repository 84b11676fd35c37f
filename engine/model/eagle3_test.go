package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// tensors is a safetensors file taken apart, to be changed and put together.
type tensors struct {
	entries map[string]entry
	data    []byte
}

func takeApart(t *testing.T, b []byte) tensors {
	t.Helper()
	n := binary.LittleEndian.Uint64(b)
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "__metadata__")
	x := tensors{map[string]entry{}, bytes.Clone(b[8+n:])}
	for name, r := range raw {
		var e entry
		if err := json.Unmarshal(r, &e); err != nil {
			t.Fatal(err)
		}
		x.entries[name] = e
	}
	return x
}

func (x tensors) together(t *testing.T) []byte {
	t.Helper()
	header, err := json.Marshal(x.entries)
	if err != nil {
		t.Fatal(err)
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), x.data...)
}

func (x tensors) rename(from, to string) {
	x.entries[to] = x.entries[from]
	delete(x.entries, from)
}

// loadHead loads the bundled model with a changed copy of its head.
func loadHead(t *testing.T, change func(config map[string]any, x tensors)) error {
	t.Helper()
	target, err := builtin.Open("gocode-7m")
	if err != nil {
		t.Fatal(err)
	}
	head, err := builtin.Open("gocode-7m-eagle3")
	if err != nil {
		t.Fatal(err)
	}
	weights, err := fs.ReadFile(head, "model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	b, err := fs.ReadFile(head, "config.json")
	if err != nil {
		t.Fatal(err)
	}
	var raw map[string]any
	if err := json.Unmarshal(b, &raw); err != nil {
		t.Fatal(err)
	}
	x := takeApart(t, weights)
	change(raw, x)
	b, err = json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{"config.json": {Data: b}, "model.safetensors": {Data: x.together(t)}}
	c, err := ReadConfig(target, "target")
	if err != nil {
		t.Fatal(err)
	}
	d, err := ReadEagle3Config(files, "head", c)
	if err != nil {
		return err
	}
	r, err := Load(context.Background(), Spec{
		Target: Source{"target", target}, Config: c, Draft: Source{"head", files}, DraftConfig: d, Ranks: 2,
		Plan: func(int64, int) (Limits, error) {
			return Limits{MaxRows: 4, MaxLogits: 4, MaxDrafts: 4, Pages: 2, PageSize: 4}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
	})
	if err == nil {
		r.Close()
	}
	return err
}

// A head with a tensor too few, too many or of another shape would serve with
// accept length 1, and nobody would notice: it is refused by name.
func TestWrongHeadsAreRefusedByName(t *testing.T) {
	for name, c := range map[string]struct {
		change func(config map[string]any, x tensors)
		says   string
	}{
		"missing":              {func(_ map[string]any, x tensors) { x.rename("norm.weight", "norms.weight") }, "tensor norm.weight is missing"},
		"missing fc":           {func(_ map[string]any, x tensors) { x.rename("fc.weight", "fcs.weight") }, "tensor fc.weight is missing"},
		"missing head":         {func(_ map[string]any, x tensors) { x.rename("lm_head.weight", "head") }, "tensor lm_head.weight is missing"},
		"missing d2t":          {func(_ map[string]any, x tensors) { x.rename("d2t", "d2x") }, "tensor d2t is missing"},
		"missing feature norm": {func(c map[string]any, _ tensors) { c["fc_norm"] = true }, "tensor fc_norm.0.weight is missing: config.json wants it with shape [1, 256]"},
		"missing norm of the features": {func(c map[string]any, _ tensors) {
			c["eagle_config"] = map[string]any{"norm_before_fc": true}
		}, "tensor input_norm.weight is missing"},
		"two norms before fc": {func(c map[string]any, _ tensors) { c["fc_norm"], c["norm_before_fc"] = true, true }, "fc_norm and norm_before_fc are both true"},
		"unknown": {func(_ map[string]any, x tensors) {
			end := int64(len(x.data))
			x.entries["fc_norm.0.weight"] = entry{"BF16", []int{0}, [2]int64{end, end}}
		}, "tensor fc_norm.0.weight not known"},
		"shape": {func(_ map[string]any, x tensors) {
			e := x.entries["fc.weight"]
			e.Shape = []int{e.Shape[1], e.Shape[0]}
			x.entries["fc.weight"] = e
		}, "tensor fc.weight has shape [768 256]: config.json wants [256, 768]"},
		"type": {func(_ map[string]any, x tensors) {
			e := x.entries["fc.weight"]
			e.DType = "I16"
			x.entries["fc.weight"] = e
		}, "tensor fc.weight has type I16"},
		"d2t too high": {func(_ map[string]any, x tensors) {
			binary.LittleEndian.PutUint64(x.data[x.entries["d2t"].Offsets[0]+8:], 4095)
		}, "tensor d2t maps draft token 1 by 4095"},
		"d2t too low": {func(_ map[string]any, x tensors) {
			binary.LittleEndian.PutUint64(x.data[x.entries["d2t"].Offsets[0]:], ^uint64(0))
		}, "tensor d2t maps draft token 0 by -1"},
		"vocabulary":    {func(c map[string]any, _ tensors) { c["vocab_size"] = 4000 }, "vocab_size is 4000, but the target's is 4096"},
		"target":        {func(c map[string]any, _ tensors) { c["target_hidden_size"] = 512 }, "target_hidden_size (or hidden_size) is 512"},
		"layers":        {func(c map[string]any, _ tensors) { c["num_hidden_layers"] = 2 }, "num_hidden_layers is 2"},
		"architecture":  {func(c map[string]any, _ tensors) { c["architectures"] = []string{"MedusaModel"} }, `architecture "MedusaModel" is not supported`},
		"another model": {func(c map[string]any, _ tensors) { c["architectures"] = []string{"Qwen3ForCausalLM"} }, "Qwen3ForCausalLM is no EAGLE-3 head"},
		"biases":        {func(c map[string]any, _ tensors) { c["attention_bias"] = true }, "attention_bias or mlp_bias is true"},
		"feature layers": {func(c map[string]any, _ tensors) {
			c["eagle_config"] = map[string]any{"eagle_aux_hidden_state_layer_ids": []int{1, 3, 8}}
		}, "has 8: allowed is 0 to 6"},
		"feature layers beside": {func(c map[string]any, _ tensors) {
			c["eagle_aux_hidden_state_layer_ids"] = []int{1, 3, 8}
		}, "has 8: allowed is 0 to 6"},
		"feature layers twice": {func(c map[string]any, _ tensors) {
			c["eagle_aux_hidden_state_layer_ids"] = []int{1, 3, 4}
			c["eagle_config"] = map[string]any{"eagle_aux_hidden_state_layer_ids": []int{1, 3, 5}}
		}, "eagle_aux_hidden_state_layer_ids is [1 3 4], and [1 3 5] in eagle_config"},
		"one feature": {func(c map[string]any, _ tensors) {
			c["eagle_config"] = map[string]any{"use_aux_hidden_state": false}
		}, "use_aux_hidden_state is false"},
	} {
		err := loadHead(t, c.change)
		reason := fault.ReasonOf(err)
		if err == nil || reason != fault.DraftMismatch && reason != fault.Unsupported || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "head: ") {
			t.Errorf("%s: %v with reason %s; want one from head saying %q", name, err, reason, c.says)
		}
	}
}

func TestOtherLayoutsOfHeadsLoad(t *testing.T) {
	for name, change := range map[string]func(config map[string]any, x tensors){
		"as it is": func(map[string]any, tensors) {},
		"named layers.0": func(_ map[string]any, x tensors) {
			for tensor := range x.entries {
				if rest, ok := strings.CutPrefix(tensor, "midlayer."); ok {
					x.rename(tensor, "layers.0."+rest)
				}
			}
		},
		"older architecture": func(c map[string]any, _ tensors) { c["architectures"] = []string{"LlamaForCausalLM"} },
		"named features": func(c map[string]any, _ tensors) {
			c["eagle_config"] = map[string]any{"eagle_aux_hidden_state_layer_ids": []int{1, 3, 4}}
		},
		"float16": func(_ map[string]any, x tensors) {
			e := x.entries["fc.weight"]
			e.DType = "F16"
			x.entries["fc.weight"] = e
		},
	} {
		if err := loadHead(t, change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
