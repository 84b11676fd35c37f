package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// A model of about 100 million parameters in bfloat16, whose weights are random:
// its texts mean nothing, but a pass reads 200 MB, so that its time is that of
// the memory, as with large models. It comes with an EAGLE-3 head, whose
// acceptance is simulated.
const (
	synthHidden       = 768
	synthIntermediate = 2048
	synthLayers       = 12
	synthHeads        = 12
	synthKVHeads      = 4
	synthHeadDim      = synthHidden / synthHeads
	synthVocab        = 16384
	synthDraftVocab   = 4096
	synthPositions    = 4096
)

// synthesize writes the model and its head below dir.
func synthesize(dir string) (target, head string, err error) {
	target, head = filepath.Join(dir, "synthetic-100m"), filepath.Join(dir, "synthetic-100m-eagle3")
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": synthHidden,
		"intermediate_size": synthIntermediate, "num_hidden_layers": synthLayers, "num_attention_heads": synthHeads,
		"num_key_value_heads": synthKVHeads, "vocab_size": synthVocab, "max_position_embeddings": synthPositions,
		"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu",
	}
	var tensors []synthTensor
	add := func(name string, shape ...int) { tensors = append(tensors, synthTensor{name, shape}) }
	block := func(prefix string, in int) {
		add(prefix+"self_attn.q_proj.weight", synthHidden, in)
		add(prefix+"self_attn.k_proj.weight", synthKVHeads*synthHeadDim, in)
		add(prefix+"self_attn.v_proj.weight", synthKVHeads*synthHeadDim, in)
		add(prefix+"self_attn.o_proj.weight", synthHidden, synthHidden)
		add(prefix+"mlp.gate_proj.weight", synthIntermediate, synthHidden)
		add(prefix+"mlp.up_proj.weight", synthIntermediate, synthHidden)
		add(prefix+"mlp.down_proj.weight", synthHidden, synthIntermediate)
		add(prefix+"input_layernorm.weight", synthHidden)
		add(prefix+"post_attention_layernorm.weight", synthHidden)
	}
	add("model.embed_tokens.weight", synthVocab, synthHidden)
	for i := range synthLayers {
		block(fmt.Sprintf("model.layers.%d.", i), synthHidden)
	}
	add("model.norm.weight", synthHidden)
	add("lm_head.weight", synthVocab, synthHidden)
	if err := writeModel(target, config, tensors); err != nil {
		return "", "", err
	}

	config["architectures"], config["num_hidden_layers"], config["draft_vocab_size"] = []string{"LlamaForCausalLMEagle3"}, 1, synthDraftVocab
	tensors = nil
	block("midlayer.", 2*synthHidden)
	add("midlayer.hidden_norm.weight", synthHidden)
	add("fc.weight", synthHidden, 3*synthHidden)
	add("norm.weight", synthHidden)
	add("lm_head.weight", synthDraftVocab, synthHidden)
	add("d2t", synthDraftVocab)
	return target, head, writeModel(head, config, tensors)
}

// synthTensor is a bfloat16 tensor of random values, or of ones where it has one
// dimension; d2t is int64 and zero.
type synthTensor struct {
	name  string
	shape []int
}

func (t synthTensor) size() int {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// writeModel writes config.json and model.safetensors.
func writeModel(dir string, config map[string]any, tensors []synthTensor) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = writeTensors(w, tensors)
	if err == nil {
		err = w.Flush()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func writeTensors(w *bufio.Writer, tensors []synthTensor) error {
	header, at := map[string]any{}, 0
	for _, t := range tensors {
		dtype, bytes := "BF16", 2
		if t.name == "d2t" {
			dtype, bytes = "I64", 8
		}
		end := at + bytes*t.size()
		header[t.name] = map[string]any{"dtype": dtype, "shape": t.shape, "data_offsets": []int{at, end}}
		at = end
	}
	b, err := json.Marshal(header)
	if err != nil {
		return err
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(len(b))); err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	state := uint64(1)
	for _, t := range tensors {
		row := make([]byte, 0, 1<<16)
		for i := range t.size() {
			switch {
			case t.name == "d2t":
				row = append(row, 0, 0, 0, 0, 0, 0, 0, 0)
			case len(t.shape) == 1:
				row = append(row, 0x80, 0x3f) // 1
			default: // ±2^-6 … ±2^-5
				state = state*6364136223846793005 + 1442695040888963407
				row = append(row, byte(state>>40)&0x7f, 0x3c|byte(state>>56)&0x80)
			}
			if len(row) >= 1<<16-8 || i == t.size()-1 {
				if _, err := w.Write(row); err != nil {
					return err
				}
				row = row[:0]
			}
		}
	}
	return nil
}
