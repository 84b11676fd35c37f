package model

const (
	qwen2Architecture = "Qwen2ForCausalLM"
	qwen3Architecture = "Qwen3ForCausalLM"
)

// qwen2 is huggingface transformers, modeling_qwen2.py: biases on queries, keys
// and values, and a window that slides in the layers from max_window_layers on.
func qwen2(raw *rawConfig, c *Config) error {
	c.QKVBias = true
	return raw.qwenWindows(c)
}

// qwen3 is huggingface transformers, modeling_qwen3.py: normed queries and
// keys, biases on request, and windows as Qwen2.
func qwen3(raw *rawConfig, c *Config) error {
	c.QKNorm = true
	c.QKVBias, c.OutBias = raw.AttentionBias, raw.AttentionBias
	return raw.qwenWindows(c)
}

func (raw *rawConfig) qwenWindows(c *Config) error {
	if !or(raw.UseSlidingWindow, false) {
		return nil
	}
	from := or(raw.MaxWindowLayers, 28)
	return raw.windows(c, func(layer int) bool { return layer >= from })
}
