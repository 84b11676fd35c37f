package model

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/fault"
)

// sound is a config that is accepted; the tests change one thing at a time.
func sound() map[string]any {
	return map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_act": "silu",
		"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96,
		"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
		"max_position_embeddings": 512, "eos_token_id": 2,
	}
}

func folder(t *testing.T, config map[string]any, more ...string) fstest.MapFS {
	t.Helper()
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	fsys := fstest.MapFS{"config.json": &fstest.MapFile{Data: b}}
	for i := 0; i < len(more); i += 2 {
		fsys[more[i]] = &fstest.MapFile{Data: []byte(more[i+1])}
	}
	return fsys
}

func TestConfigDefaults(t *testing.T) {
	c, err := ReadConfig(folder(t, sound(), "generation_config.json", `{"eos_token_id": [7, 9]}`), "m")
	if err != nil {
		t.Fatal(err)
	}
	if c.HeadDim != 16 || c.Eps != 1e-6 || c.BOS != -1 || len(c.EOS) != 2 || c.EOS[1] != 9 || c.TiedHead || c.DraftVocab != 320 {
		t.Errorf("got %+v", c)
	}
	if got, want := float64(c.Rope.Freqs[3]), math.Pow(10000, -6.0/16); math.Abs(got-want) > 1e-7 {
		t.Errorf("frequency 3 is %v, want %v", got, want)
	}
}

func TestConfigRefusals(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		says  string
	}{
		{"architectures", []string{}, "architectures is []"},
		{"hidden_act", "gelu", `hidden_act is "gelu"`},
		{"attention_bias", true, "attention_bias"},
		{"mlp_bias", true, "mlp_bias"},
		{"quantization_config", map[string]any{"quant_method": "fp8"}, "quantization_config"},
		{"sliding_window", 16, "sliding_window is 16"},
		{"pretraining_tp", 2, "pretraining_tp is 2"},
		{"logits_scaling", 8.0, "logits_scaling is 8"},
		{"num_hidden_layers", 0, "num_hidden_layers is 0: allowed is 1 to"},
		{"num_hidden_layers", 1 << 40, "num_hidden_layers"},
		{"hidden_size", -1, "hidden_size is -1"},
		{"vocab_size", 1 << 30, "vocab_size"},
		{"num_key_value_heads", 3, "must be a multiple"},
		{"num_attention_heads", 0, "num_attention_heads is 0"},
		{"head_dim", 15, "head_dim is 15"},
		{"rms_norm_eps", 0.0, "rms_norm_eps is 0"},
		{"rope_theta", 0.5, "rope_theta is 0.5"},
		{"rope_scaling", map[string]any{"type": "yarn", "factor": 4}, `rope_type is "yarn"`},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 0}, "rope scaling llama3"},
		{"rope_parameters", map[string]any{"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"},
		{"eos_token_id", 320, "eos_token_id is 320: allowed is 0 to 319"},
		{"eos_token_id", "x", "config.json"},
	} {
		raw := sound()
		raw[c.key] = c.value
		_, err := ReadConfig(folder(t, raw), "m")
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "m: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s = %v: %v; want one line from m saying %q", c.key, c.value, err, c.says)
		}
	}
	if _, err := ReadConfig(fstest.MapFS{}, "m"); fault.ReasonOf(err) != fault.ModelNotFound {
		t.Errorf("an empty folder gives %v with reason %s", err, fault.ReasonOf(err))
	}
	big := fstest.MapFS{"config.json": &fstest.MapFile{Data: make([]byte, maxConfig+1)}}
	if _, err := ReadConfig(big, "m"); err == nil || !strings.Contains(err.Error(), "allowed are 1048576") {
		t.Errorf("a config of over a MiB gives %v", err)
	}
}

func TestCheckTP(t *testing.T) {
	c, err := ReadConfig(folder(t, sound()), "m")
	if err != nil {
		t.Fatal(err)
	}
	for size, ok := range map[int]bool{1: true, 2: true, 4: true, 3: false, 8: false, 0: false, -1: false} {
		err := c.CheckTP(size)
		if (err == nil) != ok {
			t.Errorf("%d ranks: %v", size, err)
		}
		if err != nil && !strings.HasSuffix(err.Error(), "allows 1 2 4") {
			t.Errorf("%d ranks: %q does not say what is allowed", size, err)
		}
	}
}

func TestFeatureLayers(t *testing.T) {
	target := &Config{Layers: 32}
	for _, c := range []struct {
		layers int
		aux    []int
		want   string
	}{
		{32, nil, "[2 16 29]"},
		{8, nil, "[2 4 5]"},
		{32, []int{1, 10, 30}, "[2 11 31]"},
		{32, []int{1, 10}, "fc reads 3"},
		{32, []int{1, 10, 31}, "must rise and lie"},
		{32, []int{10, 1, 30}, "must rise"},
		{32, []int{-1, 1, 2}, "has -1"},
		{4, nil, "must rise"},
	} {
		target.Layers = c.layers
		got, err := (&Config{AuxLayers: c.aux}).FeatureLayers(target)
		b, _ := json.Marshal(got)
		said := strings.ReplaceAll(string(b), ",", " ")
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, c.want) {
			t.Errorf("%d layers, %v: %s, want %s", c.layers, c.aux, said, c.want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	b, _ := json.Marshal(sound())
	f.Add(b)
	f.Add([]byte(`{"architectures":["LlamaForCausalLM"],"rope_scaling":{"rope_type":"llama3","factor":1e308,"low_freq_factor":1e-300,"high_freq_factor":2,"original_max_position_embeddings":1}}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		fsys := fstest.MapFS{"config.json": &fstest.MapFile{Data: config}}
		c, err := ReadConfig(fsys, "m")
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		for _, f := range c.Rope.Freqs {
			if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
				t.Errorf("a frequency is %v", f)
			}
		}
	})
}
