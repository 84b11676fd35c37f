package model

const llamaArchitecture = "LlamaForCausalLM"

// llama is huggingface transformers, modeling_llama.py: biases on request.
func llama(raw *rawConfig, c *Config) error {
	c.QKVBias, c.OutBias, c.MLPBias = raw.AttentionBias, raw.AttentionBias, raw.MLPBias
	return nil
}
