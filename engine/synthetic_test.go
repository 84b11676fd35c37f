package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A synthetic model is small enough for thousands of requests: random weights,
// whose texts are random but not the same few tokens again and again.
const (
	synthHidden, synthHeads, synthDim, synthMLP = 32, 4, 8, 48
	synthLayers, synthVocab, synthContext       = 6, 64, 256
)

// synthFiles collects tensors of random values.
type synthFiles struct {
	rng    *rand.Rand
	values map[string]synthTensor
}

type synthTensor struct {
	shape []int
	data  []byte
}

func (f *synthFiles) add(name string, scale float64, out, in int) {
	var data []byte
	shape := []int{out, in}
	if out == 1 {
		shape = []int{in}
	}
	for range out * in {
		v := f.rng.NormFloat64() * scale
		if out == 1 {
			v = 0.5 + f.rng.Float64()
		}
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
	}
	f.values[name] = synthTensor{shape, data}
}

func (f *synthFiles) layer(prefix string, in, kv int) {
	s := 1 / math.Sqrt(float64(in))
	f.add(prefix+"self_attn.q_proj.weight", 2*s, synthHeads*synthDim, in)
	f.add(prefix+"self_attn.k_proj.weight", 2*s, kv*synthDim, in)
	f.add(prefix+"self_attn.v_proj.weight", s, kv*synthDim, in)
	f.add(prefix+"self_attn.o_proj.weight", 0.2, synthHidden, synthHeads*synthDim)
	f.add(prefix+"mlp.gate_proj.weight", 0.2, synthMLP, synthHidden)
	f.add(prefix+"mlp.up_proj.weight", 0.2, synthMLP, synthHidden)
	f.add(prefix+"mlp.down_proj.weight", 0.2, synthHidden, synthMLP)
	f.add(prefix+"input_layernorm.weight", 0, 1, synthHidden)
	f.add(prefix+"post_attention_layernorm.weight", 0, 1, synthHidden)
}

// write puts the tensors whose names keep allows into a model folder.
func (f *synthFiles) write(t testing.TB, config map[string]any, keep func(name string) bool) string {
	t.Helper()
	entries := map[string]any{}
	var data []byte
	for name, v := range f.values { // no holes are allowed
		if keep(name) {
			entries[name] = map[string]any{"dtype": "F32", "shape": v.shape, "data_offsets": []int{len(data), len(data) + len(v.data)}}
			data = append(data, v.data...)
		}
	}
	header, err := json.Marshal(entries)
	if err != nil {
		t.Fatal(err)
	}
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
	c, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"config.json": c, "model.safetensors": append(b, data...)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// synthetic is a model with what drafts for it.
type synthetic struct{ target, head, small string }

// synthesise writes a target (with a sliding window, if window is above 0), an
// EAGLE-3 head of random weights, and a draft model: the target without its last
// layers, which is right about it now and then.
func synthesise(t testing.TB, seed uint64, kv, window int) synthetic {
	t.Helper()
	f := &synthFiles{rng: rand.New(rand.NewPCG(seed, 4)), values: map[string]synthTensor{}}
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "num_hidden_layers": synthLayers, "hidden_size": synthHidden, "intermediate_size": synthMLP,
		"num_attention_heads": synthHeads, "num_key_value_heads": kv, "head_dim": synthDim, "vocab_size": synthVocab,
		"max_position_embeddings": synthContext, "eos_token_id": 1,
	}
	if window > 0 {
		config["architectures"], config["sliding_window"] = []string{"MistralForCausalLM"}, window
	}
	f.add("model.embed_tokens.weight", 1, synthVocab, synthHidden)
	f.add("lm_head.weight", 0.4, synthVocab, synthHidden)
	f.add("model.norm.weight", 0, 1, synthHidden)
	for i := range synthLayers {
		f.layer(fmt.Sprintf("model.layers.%d.", i), synthHidden, kv)
	}
	all := func(string) bool { return true }
	m := synthetic{target: f.write(t, config, all)}
	config["num_hidden_layers"] = synthLayers - 2
	m.small = f.write(t, config, func(name string) bool {
		return !strings.HasPrefix(name, fmt.Sprintf("model.layers.%d.", synthLayers-1)) && !strings.HasPrefix(name, fmt.Sprintf("model.layers.%d.", synthLayers-2))
	})

	h := &synthFiles{rng: f.rng, values: map[string]synthTensor{}}
	h.add("fc.weight", 0.1, synthHidden, 3*synthHidden)
	h.layer("midlayer.", synthHidden, kv)
	for _, part := range []string{"q", "k", "v"} { // of the embedding and the hidden input together
		out := kv * synthDim
		if part == "q" {
			out = synthHeads * synthDim
		}
		h.add("midlayer.self_attn."+part+"_proj.weight", 0.15, out, 2*synthHidden)
	}
	h.add("midlayer.hidden_norm.weight", 0, 1, synthHidden)
	h.add("norm.weight", 0, 1, synthHidden)
	m.head = h.write(t, map[string]any{
		"architectures": []string{"LlamaForCausalLMEagle3"}, "num_hidden_layers": 1, "hidden_size": synthHidden, "intermediate_size": synthMLP,
		"num_attention_heads": synthHeads, "num_key_value_heads": kv, "head_dim": synthDim, "vocab_size": synthVocab, "norm_output": true,
		"eagle_config": map[string]any{"eagle_aux_hidden_state_layer_ids": []int{0, 2, 4}},
	}, all)
	return m
}
