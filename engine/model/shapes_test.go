package model

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/compute"
)

// shape is a model of random sizes and settings, with its weights as the
// reference reads them.
type shape struct {
	raw   map[string]any
	dtype string
	w     map[string][]float64
	files tensors
	rng   *rand.Rand
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// randomShape is one of any family, of sizes that hardly any model has.
func randomShape(seed uint64) *shape {
	rng := rand.New(rand.NewPCG(seed, 51))
	kv := pick(rng, 1, 2, 3, 4, 6)
	raw := map[string]any{
		"architectures": []string{pick(rng, llamaArchitecture, mistralArchitecture, qwen2Architecture, qwen3Architecture)},
		"hidden_size":   pick(rng, 12, 20, 36, 64, 100), "intermediate_size": pick(rng, 20, 28, 52, 96),
		"num_hidden_layers": 1 + rng.IntN(4), "num_key_value_heads": kv, "num_attention_heads": kv * pick(rng, 1, 2, 4, 8/kv+1),
		"head_dim": pick(rng, 2, 6, 10, 16, 22, 34), "vocab_size": 31 + rng.IntN(70), "max_position_embeddings": 64,
		"rms_norm_eps": pick(rng, 1e-6, 1e-5), "tie_word_embeddings": rng.IntN(2) == 0,
		"attention_bias": rng.IntN(2) == 0, "mlp_bias": rng.IntN(2) == 0,
	}
	layers := raw["num_hidden_layers"].(int)
	if rng.IntN(2) == 0 {
		raw["sliding_window"], raw["use_sliding_window"], raw["max_window_layers"] = 1+rng.IntN(9), true, rng.IntN(layers+1)
		if rng.IntN(2) == 0 {
			var types []string
			for range layers {
				types = append(types, pick(rng, "full_attention", "sliding_attention"))
			}
			raw["layer_types"] = types
		}
	}
	return &shape{raw: raw, rng: rng, dtype: pick(rng, "F32", "BF16", "F16"), w: map[string][]float64{}, files: tensors{entries: map[string]entry{}}}
}

// rope gives the config a rotary scaling, in one of the two spellings, and
// returns the config in the other.
func (s *shape) rope() (other map[string]any) {
	scaling := pick(s.rng,
		map[string]any{}, map[string]any{"rope_type": "default"}, map[string]any{"rope_type": "linear", "factor": 2.5},
		map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
		map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
		map[string]any{"rope_type": "yarn", "factor": 3.0, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25},
		map[string]any{"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 40})
	theta := pick(s.rng, 500.0, 10000.0, 1e6)
	older, newer := map[string]any{}, map[string]any{}
	for k, v := range s.raw {
		older[k], newer[k] = v, v
	}
	older["rope_theta"] = theta
	if len(scaling) > 0 {
		older["rope_scaling"] = scaling
	}
	parameters := map[string]any{"rope_theta": theta}
	for k, v := range scaling {
		parameters[k] = v
	}
	newer["rope_parameters"] = parameters
	if s.rng.IntN(2) == 0 {
		older, newer = newer, older
	}
	s.raw = older
	return newer
}

// add makes a tensor of numbers that its type has exactly.
func (s *shape) add(name string, out, in int) {
	begin := int64(len(s.files.data))
	for range out * in {
		v := float32(s.rng.NormFloat64() / math.Sqrt(float64(in)))
		if out == 1 {
			v = float32(0.5 + s.rng.Float64())
		}
		switch s.dtype {
		case "F32":
			s.files.data = binary.LittleEndian.AppendUint32(s.files.data, math.Float32bits(v))
		case "BF16":
			v = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
			s.files.data = binary.LittleEndian.AppendUint16(s.files.data, uint16(math.Float32bits(v)>>16))
		default:
			bits := uint16(s.rng.Uint32())&0x83ff | uint16(9+s.rng.IntN(4))<<10 // ±1/64 to ±1/4
			if out == 1 {
				bits &^= 0x8000
			}
			v = compute.Half(bits)
			s.files.data = binary.LittleEndian.AppendUint16(s.files.data, bits)
		}
		s.w[name] = append(s.w[name], float64(v))
	}
	dims := []int{out, in}
	if out == 1 {
		dims = []int{in}
	}
	s.files.entries[name] = entry{s.dtype, dims, [2]int64{begin, int64(len(s.files.data))}}
}

// addAll makes the tensors that c wants.
func (s *shape) addAll(c *Config) {
	linear := func(name string, out, in int, biased bool) {
		s.add(name+".weight", out, in)
		if biased {
			s.add(name+".bias", 1, out)
		}
	}
	s.add("model.embed_tokens.weight", c.Vocab, c.Hidden)
	if !c.TiedHead {
		s.add("lm_head.weight", c.Vocab, c.Hidden)
	}
	s.add("model.norm.weight", 1, c.Hidden)
	for i := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		s.add(p+"input_layernorm.weight", 1, c.Hidden)
		s.add(p+"post_attention_layernorm.weight", 1, c.Hidden)
		linear(p+"self_attn.q_proj", c.Heads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.k_proj", c.KVHeads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.v_proj", c.KVHeads*c.HeadDim, c.Hidden, c.QKVBias)
		linear(p+"self_attn.o_proj", c.Hidden, c.Heads*c.HeadDim, c.OutBias)
		linear(p+"mlp.gate_proj", c.Intermediate, c.Hidden, c.MLPBias)
		linear(p+"mlp.up_proj", c.Intermediate, c.Hidden, c.MLPBias)
		linear(p+"mlp.down_proj", c.Hidden, c.Intermediate, c.MLPBias)
		if c.QKNorm {
			s.add(p+"self_attn.q_norm.weight", 1, c.HeadDim)
			s.add(p+"self_attn.k_norm.weight", 1, c.HeadDim)
		}
	}
}

func (s *shape) mul(name string, x []float64) []float64 {
	w := s.w[name+".weight"]
	out := make([]float64, len(w)/len(x))
	copy(out, s.w[name+".bias"])
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

func (s *shape) norm(name string, x []float64, eps float32) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(sum/float64(len(x))+float64(eps)) * s.w[name+".weight"][i]
	}
	return out
}

// heads turns the heads of x to a position, normed before if the family does so.
func (s *shape) heads(c *Config, norm string, x []float64, position int) []float64 {
	var out []float64
	for at := 0; at < len(x); at += c.HeadDim {
		head := slices.Clone(x[at : at+c.HeadDim])
		if c.QKNorm {
			head = s.norm(norm, head, c.Eps)
		}
		half := c.HeadDim / 2
		for j, f := range c.Rope.Freqs {
			sin, cos := math.Sincos(float64(position) * float64(f))
			a, b := head[j], head[j+half]
			head[j], head[j+half] = (a*cos-b*sin)*float64(c.Rope.Scale), (b*cos+a*sin)*float64(c.Rope.Scale)
		}
		out = append(out, head...)
	}
	return out
}

// attend is the attention of layer i over the normed inputs h of all positions.
func (s *shape) attend(c *Config, i int, h [][]float64) (out [][]float64) {
	p := fmt.Sprintf("model.layers.%d.self_attn.", i)
	var keys, values [][]float64
	for t, x := range h {
		keys = append(keys, s.heads(c, p+"k_norm", s.mul(p+"k_proj", x), t))
		values = append(values, s.mul(p+"v_proj", x))
		q := s.heads(c, p+"q_norm", s.mul(p+"q_proj", x), t)
		first := 0
		if w := c.window(i); w > 0 {
			first = max(0, t+1-w)
		}
		mixed := make([]float64, len(q))
		for head := range c.Heads {
			at, kv := head*c.HeadDim, head/(c.Heads/c.KVHeads)*c.HeadDim
			weights, sum := make([]float64, t+1), 0.0
			for u := first; u <= t; u++ {
				var dot float64
				for j := range c.HeadDim {
					dot += q[at+j] * keys[u][kv+j]
				}
				weights[u] = math.Exp(dot / math.Sqrt(float64(c.HeadDim)))
				sum += weights[u]
			}
			for u := first; u <= t; u++ {
				for j := range c.HeadDim {
					mixed[at+j] += weights[u] / sum * values[u][kv+j]
				}
			}
		}
		out = append(out, s.mul(p+"o_proj", mixed))
	}
	return out
}

// logits are the reference's for each position.
func (s *shape) logits(c *Config, tokens []int32) (out [][]float64) {
	var x [][]float64
	for _, id := range tokens {
		x = append(x, slices.Clone(s.w["model.embed_tokens.weight"][int(id)*c.Hidden:(int(id)+1)*c.Hidden]))
	}
	add := func(to, what []float64) {
		for j, v := range what {
			to[j] += v
		}
	}
	for i := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		var h [][]float64
		for _, v := range x {
			h = append(h, s.norm(p+"input_layernorm", v, c.Eps))
		}
		for t, v := range s.attend(c, i, h) {
			add(x[t], v)
			m := s.norm(p+"post_attention_layernorm", x[t], c.Eps)
			gate, up := s.mul(p+"mlp.gate_proj", m), s.mul(p+"mlp.up_proj", m)
			for j, g := range gate {
				up[j] *= g / (1 + math.Exp(-g))
			}
			add(x[t], s.mul(p+"mlp.down_proj", up))
		}
	}
	head := "lm_head"
	if c.TiedHead {
		head = "model.embed_tokens"
	}
	for _, v := range x {
		out = append(out, s.mul(head, s.norm("model.norm", v, c.Eps)))
	}
	return out
}

// folder is the model as files.
func (s *shape) folder(t *testing.T) fstest.MapFS {
	b, err := json.Marshal(s.raw)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"config.json": {Data: b}, "model.safetensors": {Data: s.files.together(t)}}
}

// shapeSeeds is how many shapes TestAnyShapeEqualsTheReference tries: 60, and
// with OUTRIDER_TEST_SEEDS 6 times that.
func shapeSeeds(t *testing.T) uint64 {
	s := os.Getenv("OUTRIDER_TEST_SEEDS")
	if s == "" {
		return 60
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return 6 * n
}

// Models of any sizes and settings that a config can give compute what the
// reference, in float64, computes of the same config, with any number of ranks;
// and the bits of a row depend on nothing but its text.
func TestAnyShapeEqualsTheReference(t *testing.T) {
	seen := map[string]int{}
	for seed := range shapeSeeds(t) {
		s := randomShape(seed)
		other := s.rope()
		c, err := ReadConfig(folder(t, s.raw), "m")
		if err != nil {
			t.Fatalf("seed %d: %v: %v", seed, s.raw, err)
		}
		if spelled, err := ReadConfig(folder(t, other), "m"); err != nil || !reflect.DeepEqual(spelled, c) {
			t.Fatalf("seed %d: the rotary positions' two spellings %v and %v give %+v and %+v, %v", seed, s.raw, other, c, spelled, err)
		}
		s.addAll(c)
		source := Source{"m", s.folder(t)}
		tokens := make([]int32, 15)
		for i := range tokens {
			tokens[i] = s.rng.Int32N(int32(c.Vocab))
		}
		want := s.logits(c, tokens)
		for _, ranks := range []int{1, 2, 3, 4, 6} {
			if c.CheckTP(ranks) != nil {
				continue
			}
			about := fmt.Sprintf("seed %d, %d ranks, %v %s", seed, ranks, s.raw, s.dtype)
			r := loadFixture(t, source, c, ranks)
			pass(t, r, tokens, 0)
			var whole [][]float32
			for p := range tokens {
				whole = append(whole, slices.Clone(r.Logits(p)))
				equalsReference(t, fmt.Sprintf("%s, position %d", about, p), whole[p], want[p])
			}
			sameInParts(t, about, r, tokens, whole, s.rng)
			sameAsTree(t, about, r, tokens, whole, int32(c.Vocab))
			seen[fmt.Sprint("ranks ", ranks)]++
			seen[c.Architecture]++
			if c.KVHeads%ranks != 0 {
				seen["copied heads"]++
			}
			if t.Failed() {
				return
			}
		}
	}
	for _, what := range []string{"ranks 1", "ranks 2", "ranks 4", "copied heads", llamaArchitecture, mistralArchitecture, qwen2Architecture, qwen3Architecture} {
		if n := shapeSeeds(t); n >= 60 && seen[what] < 10 {
			t.Errorf("%s: tried %d times only", what, seen[what])
		}
	}
}

func equalsReference(t *testing.T, about string, got []float32, want []float64) {
	t.Helper()
	scale := 1.0
	for _, v := range want {
		scale = max(scale, math.Abs(v))
	}
	for id, v := range got {
		if !(math.Abs(float64(v)-want[id]) <= 2e-4*scale) {
			t.Fatalf("%s: logit %d is %v, the reference says %v", about, id, v, want[id])
		}
	}
}

// sameInParts computes the text again, in chunks.
func sameInParts(t *testing.T, about string, r *Ranks, tokens []int32, whole [][]float32, rng *rand.Rand) {
	t.Helper()
	for from := 0; from < len(tokens); {
		part := tokens[from:min(from+1+rng.IntN(6), len(tokens))]
		pass(t, r, part, from)
		for i := range part {
			if !slices.Equal(r.Logits(i), whole[from+i]) {
				t.Fatalf("%s: the logits of position %d are others in a chunk of %d", about, from+i, len(part))
			}
		}
		from += len(part)
	}
}

// sameAsTree verifies the last three tokens as nodes of a tree that has wrong
// ones beside them.
func sameAsTree(t *testing.T, about string, r *Ranks, tokens []int32, whole [][]float32, vocab int32) {
	t.Helper()
	base := int32(len(tokens) - 4)
	pass(t, r, tokens[:base+1], 0)
	var rows compute.Rows
	table := make([]int32, 20)
	for i := range table {
		table[i] = int32((7*i + 3) % 40)
	}
	seq := rows.AddSequence(table, 0)
	wrong := func(id int32) int32 { return (id + 1) % vocab }
	next := tokens[base+1:]
	rows.AddNode(seq, wrong(next[0]), base+1, 0, 0, 0b1, 8)
	rows.AddNode(seq, next[0], base+1, 1, 0, 0b10, 8)
	rows.AddNode(seq, wrong(next[1]), base+1, 2, 1, 0b110, 8)
	rows.AddNode(seq, next[1], base+1, 3, 1, 0b1010, 8)
	rows.AddNode(seq, next[2], base+1, 4, 2, 0b11010, 8)
	if err := r.Forward(&rows, []int32{1, 3, 4}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if !slices.Equal(r.Logits(i), whole[int(base)+1+i]) {
			t.Fatalf("%s: the logits of position %d are others in a tree", about, int(base)+1+i)
		}
	}
}
