package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/engine/weights"
)

// Sizes of the synthetic head: none equals another, but for its hidden size,
// which is the target's.
const (
	refHidden, refHeads, refKV, refDim, refMLP, refVocab = 256, 4, 2, 16, 48, 40
	refEps                                               = 1e-5
)

// referenceHead computes an EAGLE-3 head in float64, one position after the
// other, as the papers and the checkpoints' own code have it.
type referenceHead struct {
	norms  HeadNorms
	own    headParts
	w      map[string][]float64
	embed  func(token int32) []float64
	keys   [][]float64 // by row: turned
	values [][]float64
}

func (r *referenceHead) mul(name string, x []float64) []float64 {
	w := r.w[name]
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += w[i*len(x)+j] * v
		}
	}
	return out
}

func (r *referenceHead) norm(name string, x []float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+refEps)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * r.w[name][i]
	}
	return out
}

// features is the first hidden input of a row.
func (r *referenceHead) features(f []float64) []float64 {
	var in []float64
	switch {
	case r.norms.AllFeatures:
		in = r.norm("input_norm.weight", f)
	case r.norms.EachFeature:
		for k := range 3 {
			in = append(in, r.norm(fmt.Sprintf("fc_norm.%d.weight", k), f[k*refHidden:(k+1)*refHidden])...)
		}
	default:
		in = f
	}
	return r.mul("fc.weight", in)
}

// row adds a row, and gives its logits and the hidden input of the next step.
func (r *referenceHead) row(token int32, position int, h []float64) (logits, next []float64) {
	e, f := r.norm("midlayer.input_layernorm.weight", r.embed(token)), r.norm("midlayer.hidden_norm.weight", h)
	in := append(append([]float64{}, e...), f...)
	residual := h
	if r.norms.Residual {
		residual = f
	}
	q, k := r.mul("midlayer.self_attn.q_proj.weight", in), r.mul("midlayer.self_attn.k_proj.weight", in)
	turn := func(x []float64) {
		for at := 0; at < len(x); at += refDim {
			for j := range refDim / 2 {
				s, c := math.Sincos(float64(position) * math.Pow(10000, -2*float64(j)/refDim))
				a, b := x[at+j], x[at+j+refDim/2]
				x[at+j], x[at+j+refDim/2] = a*c-b*s, b*c+a*s
			}
		}
	}
	turn(q)
	turn(k)
	r.keys, r.values = append(r.keys, k), append(r.values, r.mul("midlayer.self_attn.v_proj.weight", in))
	attn := make([]float64, refHeads*refDim)
	for head := range refHeads {
		kv := head / (refHeads / refKV) * refDim
		var weights []float64
		var sum float64
		for _, key := range r.keys {
			var dot float64
			for j := range refDim {
				dot += q[head*refDim+j] * key[kv+j]
			}
			weights = append(weights, math.Exp(dot/math.Sqrt(refDim)))
			sum += weights[len(weights)-1]
		}
		for i, v := range r.values {
			for j := range refDim {
				attn[head*refDim+j] += weights[i] / sum * v[kv+j]
			}
		}
	}
	x := r.mul("midlayer.self_attn.o_proj.weight", attn)
	for i := range x {
		x[i] += residual[i]
	}
	m := r.norm("midlayer.post_attention_layernorm.weight", x)
	gate, up := r.mul("midlayer.mlp.gate_proj.weight", m), r.mul("midlayer.mlp.up_proj.weight", m)
	for i, g := range gate {
		up[i] *= g / (1 + math.Exp(-g))
	}
	for i, v := range r.mul("midlayer.mlp.down_proj.weight", up) {
		x[i] += v
	}
	out := r.norm("norm.weight", x)
	if next = x; r.norms.Output {
		next = out
	}
	return r.mul("lm_head.weight", out), next
}

// headParts tell which of the target's parts a head has of its own, and how its
// vocabulary lies in the target's.
type headParts struct {
	embedding bool
	borrowed  bool  // it has no output head, and no vocabulary of its own
	step      int64 // between the target's tokens of neighbouring draft tokens
}

// syntheticHead is a random head for the bundled model, as files and as the reference.
func syntheticHead(t *testing.T, seed uint64, norms HeadNorms, own headParts, config map[string]any) (fs.FS, *referenceHead) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 77))
	ref := &referenceHead{norms: norms, own: own, w: map[string][]float64{}}
	x := tensors{entries: map[string]entry{}}
	add := func(name string, out, in int) {
		begin := int64(len(x.data))
		for range out * in {
			v := float32(rng.NormFloat64() / math.Sqrt(float64(in)))
			if out == 1 {
				v = float32(0.5 + rng.Float64())
			}
			ref.w[name] = append(ref.w[name], float64(v))
			x.data = binary.LittleEndian.AppendUint32(x.data, math.Float32bits(v))
		}
		shape := []int{out, in}
		if out == 1 {
			shape = []int{in}
		}
		x.entries[name] = entry{"F32", shape, [2]int64{begin, int64(len(x.data))}}
	}
	add("fc.weight", refHidden, 3*refHidden)
	add("midlayer.self_attn.q_proj.weight", refHeads*refDim, 2*refHidden)
	add("midlayer.self_attn.k_proj.weight", refKV*refDim, 2*refHidden)
	add("midlayer.self_attn.v_proj.weight", refKV*refDim, 2*refHidden)
	add("midlayer.self_attn.o_proj.weight", refHidden, refHeads*refDim)
	add("midlayer.mlp.gate_proj.weight", refMLP, refHidden)
	add("midlayer.mlp.up_proj.weight", refMLP, refHidden)
	add("midlayer.mlp.down_proj.weight", refHidden, refMLP)
	for _, name := range []string{"midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"} {
		add(name+".weight", 1, refHidden)
	}
	vocab := 4096
	if !own.borrowed {
		vocab = refVocab
		add("lm_head.weight", refVocab, refHidden)
		begin := int64(len(x.data))
		for i := range int64(refVocab) {
			x.data = binary.LittleEndian.AppendUint64(x.data, uint64(i*own.step))
		}
		x.entries["d2t"] = entry{"I64", []int{refVocab}, [2]int64{begin, int64(len(x.data))}}
	}
	if own.embedding {
		add("embed_tokens.weight", 4096, refHidden)
	}
	if norms.AllFeatures {
		add("input_norm.weight", 1, 3*refHidden)
	}
	for k := range 3 {
		if norms.EachFeature {
			add(fmt.Sprintf("fc_norm.%d.weight", k), 1, refHidden)
		}
	}
	for key, v := range map[string]any{
		"architectures": []string{eagle3Architecture}, "num_hidden_layers": 1, "hidden_size": refHidden, "intermediate_size": refMLP,
		"num_attention_heads": refHeads, "num_key_value_heads": refKV, "head_dim": refDim, "vocab_size": 4096, "draft_vocab_size": vocab,
		"rms_norm_eps": refEps,
	} {
		config[key] = v
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{"config.json": {Data: b}, "model.safetensors": {Data: x.together(t)}}, ref
}

// Heads with each norm, with an embedding and an output head of their own and with
// the target's, compute what the float64 reference computes: over a prompt with the
// target's features, then steps on their own output.
func TestHeadsEqualTheReference(t *testing.T) {
	for name, c := range map[string]struct {
		norms  HeadNorms
		own    headParts
		config map[string]any
	}{
		"none":                 {HeadNorms{}, headParts{step: 3}, map[string]any{}},
		"own embedding":        {HeadNorms{}, headParts{embedding: true, step: 100}, map[string]any{}},
		"the target's head":    {HeadNorms{}, headParts{borrowed: true}, map[string]any{}},
		"fc_norm":              {HeadNorms{EachFeature: true}, headParts{}, map[string]any{"fc_norm": true}},
		"norm_output":          {HeadNorms{Output: true}, headParts{}, map[string]any{"norm_output": true}},
		"norm_before_residual": {HeadNorms{Residual: true}, headParts{}, map[string]any{"norm_before_residual": true}},
		"norm_before_fc":       {HeadNorms{AllFeatures: true}, headParts{}, map[string]any{"eagle_config": map[string]any{"norm_before_fc": true}}},
		"fc_norm, norm_output, norm_before_residual": {HeadNorms{EachFeature: true, Residual: true, Output: true}, headParts{embedding: true},
			map[string]any{"fc_norm": true, "eagle_config": map[string]any{"norm_output": true, "norm_before_residual": true}}},
	} {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/tp=%d", name, ranks), func(t *testing.T) {
				files, ref := syntheticHead(t, 5, c.norms, c.own, c.config)
				compareHead(t, files, ref, ranks)
			})
		}
	}
}

// untied is the bundled model with an output head that is not its embedding: that of
// the token before.
func untied(t *testing.T, files fs.FS) fs.FS {
	t.Helper()
	read := func(name string) []byte {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var config map[string]any
	if err := json.Unmarshal(read("config.json"), &config); err != nil {
		t.Fatal(err)
	}
	if config["tie_word_embeddings"] != true {
		t.Fatal("it is untied already")
	}
	config["tie_word_embeddings"] = false
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	x := takeApart(t, read("model.safetensors"))
	e := x.entries["model.embed_tokens.weight"]
	table := x.data[e.Offsets[0]:e.Offsets[1]]
	row := len(table) / e.Shape[0]
	end := int64(len(x.data))
	x.data = slices.Concat(x.data, table[len(table)-row:], table[:len(table)-row])
	x.entries["lm_head.weight"] = entry{e.DType, e.Shape, [2]int64{end, int64(len(x.data))}}
	return fstest.MapFS{"config.json": {Data: b}, "model.safetensors": {Data: x.together(t)}}
}

func compareHead(t *testing.T, files fs.FS, ref *referenceHead, ranks int) {
	target, err := builtin.Open("gocode-7m")
	if err != nil {
		t.Fatal(err)
	}
	if ref.own.borrowed {
		target = untied(t, target)
	}
	config, err := ReadConfig(target, "target")
	if err != nil {
		t.Fatal(err)
	}
	draft, err := ReadEagle3Config(files, "head", config)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Load(context.Background(), Spec{
		Target: Source{"target", target}, Config: config, Draft: Source{"head", files}, DraftConfig: draft, Ranks: ranks,
		Plan: func(int64, int) (Limits, error) {
			return Limits{MaxRows: 16, MaxLogits: 16, MaxDrafts: 16, Pages: 4, PageSize: 8, Kept: 16}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	set, err := weights.Open(target, "target")
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	ref.embed = func(token int32) []float64 {
		if ref.own.embedding {
			return ref.w["embed_tokens.weight"][int(token)*refHidden:][:refHidden]
		}
		row := make([]float32, refHidden)
		if err := set.ReadF32("model.embed_tokens.weight", weights.Slice{Row: int(token), Rows: 1, Cols: refHidden}, row); err != nil {
			t.Fatal(err)
		}
		return widen(row)
	}
	if ref.own.borrowed {
		table := make([]float32, 4096*refHidden)
		if err := set.ReadF32("lm_head.weight", weights.Slice{Rows: 4096, Cols: refHidden}, table); err != nil {
			t.Fatal(err)
		}
		ref.w["lm_head.weight"] = widen(table)
	}
	for i := range int32(draft.DraftVocab) {
		if want := i + i*int32(ref.own.step); r.TargetID(i) != want {
			t.Fatalf("draft token %d is the target's %d, want %d", i, r.TargetID(i), want)
		}
	}
	same := func(what string, i int, want []float64) {
		t.Helper()
		for j, got := range r.DraftLogits(i) {
			if math.Abs(float64(got)-want[j]) > 2e-3 {
				t.Fatalf("%s: logit %d is %v, the reference says %v", what, j, got, want[j])
			}
		}
	}
	tokens := []int32{5, 900, 31, 2000, 7, 411, 3000}
	var rows compute.Rows
	table := []int32{2, 0}
	seq := rows.AddSequence(table, 0)
	for p, id := range tokens[:6] {
		rows.Add(seq, id, int32(p), 8)
	}
	if err := r.Forward(&rows, nil); err != nil {
		t.Fatal(err)
	}
	var h [][]float64
	var all []int32
	for p := range 6 {
		h = append(h, ref.features(widen(r.ranks[0].device.Floats(r.ranks[0].target.aux, p))))
		all = append(all, int32(p))
		rows.Tokens[p] = tokens[p+1]
	}
	if err := r.Extend(&rows, all, all); err != nil {
		t.Fatal(err)
	}
	var logits, next []float64
	for p := range 6 {
		logits, next = ref.row(tokens[p+1], p, h[p])
		same(fmt.Sprintf("row %d", p), p, logits)
	}
	from := []int32{5}
	for step, id := range []int32{17, 1234, 8} {
		rows.Reset()
		rows.Add(rows.AddSequence(table, 0), id, int32(6+step), 8)
		if err := r.Step(&rows, from); err != nil {
			t.Fatal(err)
		}
		logits, next = ref.row(id, 6+step, next)
		same(fmt.Sprintf("step %d", step), 0, logits)
		from[0] = 0
	}
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}
