//go:build linux

package main

import "fmt"

// shape is a model's, without its weights.
type shape struct {
	name                                                string
	architecture                                        string
	hidden, intermediate, layers, heads, kv, dim, vocab int
	tied, qkNorm                                        bool
	draftVocab                                          int // of its EAGLE-3 head
}

var shapes = []shape{
	{name: "llama-3.1-8b", architecture: "LlamaForCausalLM", hidden: 4096, intermediate: 14336, layers: 32, heads: 32, kv: 8, dim: 128, vocab: 128256, draftVocab: 32000},
	{name: "llama-3.2-1b", architecture: "LlamaForCausalLM", hidden: 2048, intermediate: 8192, layers: 16, heads: 32, kv: 8, dim: 64, vocab: 128256, tied: true, draftVocab: 32000},
	{name: "qwen3-8b", architecture: "Qwen3ForCausalLM", hidden: 4096, intermediate: 12288, layers: 36, heads: 32, kv: 8, dim: 128, vocab: 151936, qkNorm: true, draftVocab: 32000},
	{name: "llama-3.1-70b", architecture: "LlamaForCausalLM", hidden: 8192, intermediate: 28672, layers: 80, heads: 64, kv: 8, dim: 128, vocab: 128256, draftVocab: 32000},
	// Of Kimi-K2 the widths of what is not of experts, and so the messages between
	// ranks; its attention is another.
	{name: "kimi-k2-widths", architecture: "LlamaForCausalLM", hidden: 7168, intermediate: 18432, layers: 61, heads: 64, kv: 8, dim: 128, vocab: 163840, draftVocab: 32000},
}

// config is a config.json, with quantization_config for a format other than bf16.
func (s shape) config(format string) string {
	quantization := ""
	switch format {
	case "fp8":
		quantization = `, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}`
	case "int4":
		quantization = `, "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
			"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 128, "strategy": "group", "dynamic": false}}}}`
	}
	return fmt.Sprintf(`{"architectures": [%q], "hidden_act": "silu", "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
		"num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": %d, "vocab_size": %d, "tie_word_embeddings": %t,
		"max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "eos_token_id": 2, "torch_dtype": "bfloat16"%s}`,
		s.architecture, s.hidden, s.intermediate, s.layers, s.heads, s.kv, s.dim, s.vocab, s.tied, quantization)
}

// draftConfig is the config.json of the head.
func (s shape) draftConfig() string {
	return fmt.Sprintf(`{"architectures": ["LlamaForCausalLMEagle3"], "hidden_act": "silu", "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": 1,
		"num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": %d, "vocab_size": %d, "draft_vocab_size": %d, "tie_word_embeddings": false,
		"max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "torch_dtype": "bfloat16"}`,
		s.hidden, s.intermediate, s.heads, s.kv, s.dim, s.vocab, s.draftVocab)
}

// attention adds an attention's projections, for inputs of width in.
func (s shape) attention(f *files, prefix, format string, in int) {
	f.linear(prefix+"q_proj", s.heads*s.dim, in, format)
	f.linear(prefix+"k_proj", s.kv*s.dim, in, format)
	f.linear(prefix+"v_proj", s.kv*s.dim, in, format)
	f.linear(prefix+"o_proj", s.hidden, s.heads*s.dim, format)
	if s.qkNorm {
		f.ones(prefix+"q_norm.weight", s.dim)
		f.ones(prefix+"k_norm.weight", s.dim)
	}
}

func (s shape) mlp(f *files, prefix, format string) {
	f.linear(prefix+"gate_proj", s.intermediate, s.hidden, format)
	f.linear(prefix+"up_proj", s.intermediate, s.hidden, format)
	f.linear(prefix+"down_proj", s.hidden, s.intermediate, format)
}

// target is a model folder in memory, whose weights are made when they are read.
func (s shape) target(format string) *files {
	f := newFiles(s.config(format))
	f.plain("model.embed_tokens.weight", s.vocab, s.hidden, format)
	for i := range s.layers {
		prefix := fmt.Sprintf("model.layers.%d.", i)
		f.ones(prefix+"input_layernorm.weight", s.hidden)
		f.ones(prefix+"post_attention_layernorm.weight", s.hidden)
		s.attention(f, prefix+"self_attn.", format, s.hidden)
		s.mlp(f, prefix+"mlp.", format)
	}
	f.ones("model.norm.weight", s.hidden)
	if !s.tied {
		f.plain("lm_head.weight", s.vocab, s.hidden, format)
	}
	return f
}

// head is the folder of the draft head, in bfloat16.
func (s shape) head() *files {
	f := newFiles(s.draftConfig())
	plain := s
	plain.qkNorm = false
	f.linear("fc", s.hidden, 3*s.hidden, "bf16")
	f.ones("midlayer.input_layernorm.weight", s.hidden)
	f.ones("midlayer.hidden_norm.weight", s.hidden)
	f.ones("midlayer.post_attention_layernorm.weight", s.hidden)
	plain.attention(f, "midlayer.self_attn.", "bf16", 2*s.hidden)
	plain.mlp(f, "midlayer.mlp.", "bf16")
	f.ones("norm.weight", s.hidden)
	f.numbers("lm_head.weight", s.draftVocab, s.hidden)
	f.zeros("d2t", "I64", 8, s.draftVocab)
	return f
}

// stepBytes is what one step reads of the weights and, for each of seqs
// sequences, of context positions of the cache. scaleBytes is of a scale, as the
// device keeps it.
func (s shape) stepBytes(format string, seqs, context int) float64 {
	layer := float64((s.heads+2*s.kv)*s.dim*s.hidden + s.hidden*s.heads*s.dim + 3*s.hidden*s.intermediate)
	bytes := 2.0
	switch format {
	case "fp8":
		bytes = 1 + 4.0/128
	case "int4":
		bytes = 0.5 + 4.0/128
	}
	return layer*float64(s.layers)*bytes + 2*float64(s.vocab*s.hidden) + s.cacheBytes(seqs, context)
}

// weightBytes is what the weights of one step take in their file, that of quantised ones'
// scales with them: of 128 × 128 weights for fp8, of 128 for int4, which has them in
// bfloat16.
func (s shape) weightBytes(format string) float64 {
	bytes := 2.0
	switch format {
	case "fp8":
		bytes = 1 + 4.0/(128*128)
	case "int4":
		bytes = 0.5 + 2.0/128
	}
	layer := float64((s.heads+2*s.kv)*s.dim*s.hidden + s.hidden*s.heads*s.dim + 3*s.hidden*s.intermediate)
	return layer*float64(s.layers)*bytes + 2*float64(s.vocab*s.hidden)
}

func (s shape) cacheBytes(seqs, context int) float64 {
	return float64(4 * s.layers * s.kv * s.dim * seqs * context)
}

// headBytes is what a pass of the head reads, its first with fc.
func (s shape) headBytes(first bool) float64 {
	n := float64((s.heads+2*s.kv)*s.dim*2*s.hidden + s.hidden*s.heads*s.dim + 3*s.hidden*s.intermediate + s.draftVocab*s.hidden)
	if first {
		n += float64(3 * s.hidden * s.hidden)
	}
	return 2 * n
}

// operations is the floating-point work of rows, without the output head, whose
// attention goes back over as many positions on average as there are before.
func (s shape) operations(rows int) float64 {
	layer := float64((s.heads+2*s.kv)*s.dim*s.hidden + s.hidden*s.heads*s.dim + 3*s.hidden*s.intermediate)
	attention := 4 * float64(s.heads*s.dim) * float64(rows) * float64(rows) / 2
	return float64(s.layers) * (2*layer*float64(rows) + attention)
}
