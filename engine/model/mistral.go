package model

const mistralArchitecture = "MistralForCausalLM"

// mistral is huggingface transformers, modeling_mistral.py: a window that
// slides in every layer, where the config has one.
func mistral(raw *rawConfig, c *Config) error {
	return raw.windows(c, func(int) bool { return raw.SlidingWindow != nil })
}
