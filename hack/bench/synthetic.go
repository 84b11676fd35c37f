package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// synthetic is the size of a model with random weights and of an EAGLE-3 head for it,
// whose acceptance is simulated. Its texts mean nothing: after token t of the
// vocabulary comes t + 1, by a wide margin. The numbers of a device differ by
// rounding with the number of rows, and where that decided, a text would be another
// one at each depth. Such a text was not computed before, so that none of its drafts
// would be accepted: arms that change their depth would lose by what no real head does.
type synthetic struct {
	hidden, intermediate, layers, heads, kvHeads, vocab, draftVocab int
}

// memoryBound is a model of about 100 million parameters in bfloat16: a pass reads
// 200 MB, so that its time is that of the memory, as with large models.
var memoryBound = synthetic{hidden: 768, intermediate: 2048, layers: 12, heads: 12, kvHeads: 4, vocab: 16384, draftVocab: 4096}

const synthPositions = 4096

// Exponents of bfloat16: of the embedding, which outweighs what layers add to it, and
// of all other weights.
const (
	embedded = 127 // ±1 … ±2
	weighing = 120 // ±2^-7 … ±2^-6
)

// synthTensor is a bfloat16 tensor of random values, or of ones where it has one
// dimension; d2t is int64 and zero. Row r has the signs and fractions of row r − shift of
// all tensors of the same seed.
type synthTensor struct {
	name     string
	shape    []int
	exponent uint16
	seed     uint64
	shift    int
}

// synthesize writes the model and its head below dir.
func (m synthetic) synthesize(dir string) (target, head string, err error) {
	target, head = filepath.Join(dir, "synthetic"), filepath.Join(dir, "synthetic-eagle3")
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": m.hidden,
		"intermediate_size": m.intermediate, "num_hidden_layers": m.layers, "num_attention_heads": m.heads,
		"num_key_value_heads": m.kvHeads, "vocab_size": m.vocab, "max_position_embeddings": synthPositions,
		"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu",
	}
	var tensors []synthTensor
	seed := uint64(1) // of the embedding
	add := func(name string, shape ...int) {
		seed++
		tensors = append(tensors, synthTensor{name: name, shape: shape, exponent: weighing, seed: seed})
	}
	dim := m.hidden / m.heads
	block := func(prefix string, in int) {
		add(prefix+"self_attn.q_proj.weight", m.hidden, in)
		add(prefix+"self_attn.k_proj.weight", m.kvHeads*dim, in)
		add(prefix+"self_attn.v_proj.weight", m.kvHeads*dim, in)
		add(prefix+"self_attn.o_proj.weight", m.hidden, m.hidden)
		add(prefix+"mlp.gate_proj.weight", m.intermediate, m.hidden)
		add(prefix+"mlp.up_proj.weight", m.intermediate, m.hidden)
		add(prefix+"mlp.down_proj.weight", m.hidden, m.intermediate)
		add(prefix+"input_layernorm.weight", m.hidden)
		add(prefix+"post_attention_layernorm.weight", m.hidden)
	}
	for i := range m.layers {
		block(fmt.Sprintf("model.layers.%d.", i), m.hidden)
	}
	add("model.norm.weight", m.hidden)
	tensors = append(tensors,
		synthTensor{name: "model.embed_tokens.weight", shape: []int{m.vocab, m.hidden}, exponent: embedded, seed: 1},
		synthTensor{name: "lm_head.weight", shape: []int{m.vocab, m.hidden}, exponent: weighing, seed: 1, shift: 1})
	if err := writeModel(target, config, tensors); err != nil {
		return "", "", err
	}

	config["architectures"], config["num_hidden_layers"], config["draft_vocab_size"] = []string{"LlamaForCausalLMEagle3"}, 1, m.draftVocab
	tensors = nil
	block("midlayer.", 2*m.hidden)
	add("midlayer.hidden_norm.weight", m.hidden)
	add("fc.weight", m.hidden, 3*m.hidden)
	add("norm.weight", m.hidden)
	add("lm_head.weight", m.draftVocab, m.hidden)
	add("d2t", m.draftVocab)
	return target, head, writeModel(head, config, tensors)
}

func (t *synthTensor) size() int {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// row appends row r of n values.
func (t *synthTensor) row(dst []byte, r, n int) []byte {
	switch {
	case t.name == "d2t":
		return append(dst, make([]byte, 8*n)...)
	case len(t.shape) == 1:
		for range n {
			dst = append(dst, 0x80, 0x3f) // 1
		}
		return dst
	}
	rng := rand.NewPCG(t.seed, uint64((r+t.shape[0]-t.shift)%t.shape[0]))
	for range n {
		bits := uint16(rng.Uint64() >> 48)
		dst = binary.LittleEndian.AppendUint16(dst, bits&0x807f|t.exponent<<7)
	}
	return dst
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
	var row []byte
	for _, t := range tensors {
		rows := t.shape[0]
		if len(t.shape) == 1 {
			rows = 1
		}
		for r := range rows {
			row = t.row(row[:0], r, t.size()/rows)
			if _, err := w.Write(row); err != nil {
				return err
			}
		}
	}
	return nil
}
