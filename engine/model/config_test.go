package model

import (
	"encoding/json"
	"math"
	"slices"
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
		{"architectures", []string{}, "architectures has 0 names: give exactly one"},
		{"hidden_act", "gelu", `hidden_act is "gelu"`},
		{"architectures", []string{"GPT2LMHeadModel"}, `architecture "GPT2LMHeadModel" is not supported: supported are LlamaForCausalLM`},
		{"architectures", []string{"A\nB"}, `architecture "A\nB" is not supported`},
		{"quantization_config", "fp8", "quantization_config: a JSON string: it must be an object"},
		{"quantization_config", map[string]any{"quant_method": "fp8", "fmt": 8}, "quantization_config: fmt is a JSON number, which is not its type"},
		{"partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5: supported is 1"},
		{"quantization_config", map[string]any{"quant_method": "awq"}, "quantization_config: quant_method is \"awq\""},
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
		{"rope_scaling", map[string]any{"type": "longrope", "factor": 4}, `rope_type is "longrope"`},
		{"rope_scaling", map[string]any{"type": "su"}, `rope_scaling: rope_type is "su": supported are default, linear`},
		{"rope_scaling", map[string]any{"type": "linear", "factor": "2"}, "rope_scaling.factor is a JSON string, which is not its type"},
		{"rope_scaling", map[string]any{"type": "yarn", "factor": 2, "short_factor": []int{1}}, `rope_scaling has "short_factor", which is not understood`},
		{"rope_parameters", map[string]any{"full_attention": map[string]any{"rope_type": "default"}}, `rope_parameters has "full_attention", which is not understood`},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 0}, "rope scaling llama3 has factor 0"},
		{"rope_scaling", map[string]any{"rope_type": "llama3", "factor": 8}, "rope scaling llama3 has low_freq_factor 0"},
		{"rope_scaling", map[string]any{"rope_type": "linear", "factor": -1}, "rope scaling linear has factor -1"},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 4, "beta_slow": 40}, "rope scaling yarn has"},
		{"rope_scaling", map[string]any{"rope_type": "yarn", "factor": 4, "attention_factor": -1}, "attention_factor -1"},
		{"rope_parameters", map[string]any{"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"},
		{"eos_token_id", 320, "eos_token_id is 320: allowed is 0 to 319"},
		{"eos_token_id", "x", "config.json"},
		{"hidden_size", "x", "hidden_size is a JSON string, which is not its type"},
		{"max_position_embeddings", 0, "max_position_embeddings is 0: allowed is 1 to"},
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
	for config, says := range map[string]string{"[]": "config.json: a JSON array: it must be an object", `{"a": `: "config.json is not JSON, or is cut off"} {
		if _, err := ReadConfig(fstest.MapFS{"config.json": &fstest.MapFile{Data: []byte(config)}}, "m"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", config, err, says)
		}
	}
	both := sound()
	both["rope_scaling"], both["rope_parameters"] = map[string]any{"type": "linear", "factor": 2}, map[string]any{"rope_type": "default"}
	if _, err := ReadConfig(folder(t, both), "m"); err == nil || !strings.Contains(err.Error(), "rope_scaling and rope_parameters are both there and differ") {
		t.Errorf("two rope scalings give %v", err)
	}
	both["rope_parameters"] = map[string]any{"rope_type": "linear", "factor": 2, "rope_theta": 10000}
	if _, err := ReadConfig(folder(t, both), "m"); err != nil {
		t.Errorf("one rope scaling in two spellings: %v", err)
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
		if err != nil && !strings.HasSuffix(err.Error(), "allows 1, 2, 4") {
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
	head := sound()
	head["architectures"], head["num_hidden_layers"] = []string{eagle3Architecture}, 1
	head["eagle_config"] = map[string]any{"eagle_aux_hidden_state_layer_ids": []int{1, 2, 4}, "norm_output": true}
	b, _ = json.Marshal(head)
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
		// The same as a draft of another model, and of itself.
		other := &Config{Architecture: llamaArchitecture, Layers: 6, Hidden: 64, Vocab: 320, MaxPositions: 512}
		for _, target := range []*Config{other, c} {
			if head, err := ReadEagle3Config(fsys, "m", target); err == nil {
				if layers, err := head.FeatureLayers(target); err != nil || len(layers) != features || layers[2] >= target.Layers {
					t.Errorf("a head of %d layers reads %v, %v", target.Layers, layers, err)
				}
				if head.Vocab != target.Vocab || head.TargetHidden != target.Hidden || head.DraftVocab > target.Vocab {
					t.Errorf("a head %+v is taken for %+v", head, target)
				}
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			if draft, err := ReadDraftConfig(fsys, "m", target); err == nil && draft.Vocab != target.Vocab {
				t.Errorf("a draft model of %d tokens is taken for %d", draft.Vocab, target.Vocab)
			} else if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		}
	})
}

func TestFamilies(t *testing.T) {
	read := func(architecture string, change map[string]any) (*Config, error) {
		raw := sound()
		raw["architectures"] = []string{architecture}
		for k, v := range change {
			raw[k] = v
		}
		return ReadConfig(folder(t, raw), "m")
	}
	for name, c := range map[string]struct {
		architecture string
		change       map[string]any
		want         Config
		says         string
	}{
		"llama":                  {"LlamaForCausalLM", map[string]any{"sliding_window": 9}, Config{}, ""},
		"llama with biases":      {"LlamaForCausalLM", map[string]any{"attention_bias": true, "mlp_bias": true}, Config{QKVBias: true, OutBias: true, MLPBias: true}, ""},
		"mistral":                {"MistralForCausalLM", map[string]any{"sliding_window": 9}, Config{Windows: []int{9, 9, 9, 9, 9, 9}}, ""},
		"mistral without window": {"MistralForCausalLM", map[string]any{"sliding_window": nil}, Config{}, ""},
		"qwen2":                  {"Qwen2ForCausalLM", map[string]any{"sliding_window": 9, "use_sliding_window": false, "max_window_layers": 0}, Config{QKVBias: true}, ""},
		"qwen2 with windows":     {"Qwen2ForCausalLM", map[string]any{"sliding_window": 9, "use_sliding_window": true, "max_window_layers": 4}, Config{QKVBias: true, Windows: []int{0, 0, 0, 0, 9, 9}}, ""},
		"qwen3":                  {"Qwen3ForCausalLM", nil, Config{QKNorm: true}, ""},
		"qwen3 by layer types": {"Qwen3ForCausalLM", map[string]any{"use_sliding_window": true, "sliding_window": 5,
			"layer_types": []string{"full_attention", "sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"}},
			Config{QKNorm: true, Windows: []int{0, 5, 0, 0, 0, 0}}, ""},
		"too few layer types": {"MistralForCausalLM", map[string]any{"layer_types": []string{"full_attention"}}, Config{}, "layer_types has 1 entries"},
		"unknown layer type":  {"MistralForCausalLM", map[string]any{"layer_types": []string{"a", "a", "a", "a", "a", "a"}}, Config{}, `layer_types has "a" for layer 0`},
		"window of nothing":   {"MistralForCausalLM", map[string]any{"sliding_window": 0}, Config{}, "sliding_window is 0"},
	} {
		got, err := read(c.architecture, c.change)
		if c.says != "" || err != nil {
			if err == nil || c.says == "" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v; want %q", name, err, c.says)
			}
			continue
		}
		w := c.want
		if got.QKVBias != w.QKVBias || got.OutBias != w.OutBias || got.MLPBias != w.MLPBias || got.QKNorm != w.QKNorm || !slices.Equal(got.Windows, w.Windows) {
			t.Errorf("%s: %+v, want %+v", name, got, w)
		}
	}
}

func TestRopeScaling(t *testing.T) {
	plain := make([]float64, 8)
	for i := range plain {
		plain[i] = math.Pow(10000, -float64(i)/8)
	}
	scaled := func(by float64) []float64 {
		f := slices.Clone(plain)
		for i := range f {
			f[i] /= by
		}
		return f
	}
	for name, c := range map[string]struct {
		rope      map[string]any
		freqs     []float64
		scale     float64
		positions int
	}{
		"none":    {nil, plain, 1, 512},
		"default": {map[string]any{"rope_type": "default"}, plain, 1, 512},
		"linear":  {map[string]any{"type": "linear", "factor": 4}, scaled(4), 1, 512},
		"dynamic": {map[string]any{"type": "dynamic", "factor": 2, "original_max_position_embeddings": 256}, plain, 1, 256},
		// By the formula of the reference, computed apart.
		"yarn": {map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
			[]float64{1, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, 0.1*math.Log(4) + 1, 512},
		"yarn, given factor": {map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "attention_factor": 1.5},
			[]float64{1, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, 1.5, 512},
		"yarn, equal mscales": {map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "mscale": 1, "mscale_all_dim": 1},
			[]float64{1, 0.237170825, 0.05, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, 1, 512},
		"yarn, long": {map[string]any{"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096},
			[]float64{1, 0.316227766, 0.1, 0.0247052942, 0.005625, 0.00108703295, 0.000125, 3.95284708e-05}, 0.1*math.Log(8) + 1, 512},
		"yarn, betas": {map[string]any{"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096, "beta_fast": 16, "beta_slow": 2},
			[]float64{1, 0.316227766, 0.1, 0.0316227766, 0.00708333333, 0.00131761569, 0.000125, 3.95284708e-05}, 0.1*math.Log(8) + 1, 512},
		"yarn, not truncated": {map[string]any{"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 4096, "truncate": false, "mscale": 0.5, "mscale_all_dim": 1},
			[]float64{1, 0.316227766, 0.1, 0.0281120808, 0.00598313344, 0.000972857759, 0.000125, 3.95284708e-05}, (0.05*math.Log(8) + 1) / (0.1*math.Log(8) + 1), 512},
	} {
		for _, key := range []string{"rope_scaling", "rope_parameters"} {
			raw := sound()
			raw[key] = c.rope
			got, err := ReadConfig(folder(t, raw), "m")
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for i, want := range c.freqs {
				if d := math.Abs(float64(got.Rope.Freqs[i]) - want); d > 1e-6*want {
					t.Errorf("%s in %s: frequency %d is %v, want %v", name, key, i, got.Rope.Freqs[i], want)
				}
			}
			if math.Abs(float64(got.Rope.Scale)-c.scale) > 1e-6 || got.MaxPositions != c.positions {
				t.Errorf("%s in %s: scale %v and %d positions, want %v and %d", name, key, got.Rope.Scale, got.MaxPositions, c.scale, c.positions)
			}
		}
	}
}
