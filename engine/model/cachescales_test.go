package model

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
)

// numbers are float32 values as files have them.
func numbers(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func TestCacheScales(t *testing.T) {
	type tensor struct {
		name   string
		shape  []int
		values []float32
	}
	c := &Config{KVHeads: 4}
	for name, v := range map[string]struct {
		tensors      []tensor
		keys, values []float32 // of the 4 heads of layer b, after one layer without scales
		says         string
	}{
		"none":            {nil, []float32{1, 1, 1, 1}, []float32{1, 1, 1, 1}, ""},
		"of the layer":    {[]tensor{{"b.k_scale", []int{}, []float32{0.5}}, {"b.v_scale", []int{1}, []float32{2}}}, []float32{0.5, 0.5, 0.5, 0.5}, []float32{2, 2, 2, 2}, ""},
		"of each head":    {[]tensor{{"b.k_scale", []int{4}, []float32{1, 2, 3, 4}}, {"b.v_scale", []int{4, 1, 1}, []float32{5, 6, 7, 8}}}, []float32{1, 2, 3, 4}, []float32{5, 6, 7, 8}, ""},
		"of projections":  {[]tensor{{"b.k_proj.k_scale", []int{1}, []float32{3}}, {"b.v_proj.v_scale", []int{1}, []float32{4}}}, []float32{3, 3, 3, 3}, []float32{4, 4, 4, 4}, ""},
		"of outputs":      {[]tensor{{"b.k_proj.output_scale", []int{1}, []float32{3}}, {"b.v_proj.output_scale", []int{1}, []float32{4}}}, []float32{3, 3, 3, 3}, []float32{4, 4, 4, 4}, ""},
		"one for both":    {[]tensor{{"b.kv_scale", []int{}, []float32{3}}}, []float32{3, 3, 3, 3}, []float32{3, 3, 3, 3}, ""},
		"keys alone":      {[]tensor{{"b.k_scale", []int{1}, []float32{3}}}, nil, nil, "tensor b.v_scale is missing"},
		"zero":            {[]tensor{{"b.k_scale", []int{1}, []float32{0}}, {"b.v_scale", []int{1}, []float32{1}}}, nil, nil, "tensor b.k_scale has the scale 0 for head 0: a scale is above 0 and finite"},
		"infinite":        {[]tensor{{"b.k_scale", []int{4}, []float32{1, 1, 1, float32(math.Inf(1))}}, {"b.v_scale", []int{1}, []float32{1}}}, nil, nil, "has the scale +Inf for head 3"},
		"of other heads":  {[]tensor{{"b.k_scale", []int{3}, []float32{1, 1, 1}}, {"b.v_scale", []int{1}, []float32{1}}}, nil, nil, "tensor b.k_scale has shape [3]"},
		"of other things": {[]tensor{{"b.q_scale", []int{1}, []float32{1}}}, nil, nil, "tensor b.q_scale not known"},
	} {
		f := files{tensors{entries: map[string]entry{}}}
		f.add("used", "F32", []int{1}, numbers(1))
		for _, x := range v.tensors {
			f.add(x.name, "F32", x.shape, numbers(x.values...))
		}
		for _, ranks := range []int{1, 2, 8} {
			for rank := range ranks {
				reported := 0
				l := f.loader(t, nil, rank, ranks)
				l.Loaded = func(int, int64, bool) { reported++ }
				l.use("used")
				format := l.cacheFormat(true, c, "a.", "b.")
				err := l.finish()
				if v.says != "" {
					if err == nil || fault.ReasonOf(err) != fault.WeightsMismatch || !strings.Contains(err.Error(), v.says) {
						t.Errorf("%s: %v; want %q", name, err, v.says)
					}
					continue
				}
				n, first := kvHeads(4, rank, ranks)
				ones := slices.Repeat([]float32{1}, n)
				keys, values := slices.Concat(ones, v.keys[first:first+n]), slices.Concat(ones, v.values[first:first+n])
				if err != nil || !format.Float8 || !slices.Equal(format.KeyScales, keys) || !slices.Equal(format.ValueScales, values) {
					t.Errorf("%s, rank %d of %d: %+v, %v; want keys' %v and values' %v", name, rank, ranks, format, err, keys, values)
				}
				if reported != len(v.tensors) {
					t.Errorf("%s: %d tensors are reported, want %d", name, reported, len(v.tensors))
				}
			}
		}
		if v.says == "" { // a cache that is not of float8 has no use for them
			l := f.loader(t, nil, 0, 1)
			l.use("used")
			if format := l.cacheFormat(false, c, "a.", "b."); format.Float8 || format.KeyScales != nil || l.finish() != nil {
				t.Errorf("%s, no float8: %+v, %v", name, format, l.err)
			}
		}
	}
}

// A float8 cache moves the logits of every family, and only as far as its rounding
// does; and it does so on every number of ranks alike.
func TestFixturesOverFloat8(t *testing.T) {
	for _, name := range []string{"llama", "llama31-rope", "mistral-window", "qwen2", "qwen3", "llama-int4", "llama-fp8"} {
		source, config, golden := readFixture(t, name)
		var first []float32
		for _, ranks := range []int{1, 2} {
			spec := fixtureSpec(source, config, ranks)
			plan := spec.Plan
			spec.Plan = func(bytes int64, shards int) (Limits, error) {
				lim, err := plan(bytes, shards)
				lim.Float8 = true
				return lim, err
			}
			r, err := Load(context.Background(), spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			c := golden.Cases[0]
			pass(t, r, c.IDs, 0)
			whole := slices.Clone(r.Logits(len(c.IDs) - 1))
			var diff, size float64
			for id, want := range c.LastLogits {
				diff += (float64(whole[id]) - want) * (float64(whole[id]) - want)
				size += want * want
			}
			if e := math.Sqrt(diff / size); !(e > 1e-4 && e < 0.1) {
				t.Errorf("%s: relative error of the logits %.3g, and the cache's rounding makes about 0.01", name, e)
			}
			for id, v := range first {
				if math.Abs(float64(v-whole[id])) > 1e-2*math.Sqrt(size/float64(len(whole))) {
					t.Fatalf("%s: logit %d is %v on %d ranks and %v on one", name, id, whole[id], ranks, v)
				}
			}
			first = whole
			for at, rng := 0, rand.New(rand.NewPCG(1, 1)); at < len(c.IDs); { // in parts: the same numbers
				n := min(1+rng.IntN(7), len(c.IDs)-at)
				pass(t, r, c.IDs[at:at+n], at)
				if at += n; at == len(c.IDs) && !slices.Equal(r.Logits(n-1), whole) {
					t.Errorf("%s, %d ranks: the prompt in parts gives other logits", name, ranks)
				}
			}
		}
	}
}
