package model

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/weights"
)

// scaleNames are the names that files have for the scales of a float8 cache, of a
// layer's keys and of its values, after the attention's: those of
// compressed-tensors and vLLM, of ModelOpt, of the older compressed-tensors, and
// of the first such files, with one scale for both.
var scaleNames = [][2]string{{"k_scale", "v_scale"}, {"k_proj.k_scale", "v_proj.v_scale"}, {"k_proj.output_scale", "v_proj.output_scale"}, {"kv_scale", "kv_scale"}}

// cacheFormat is how the caches keep numbers, with the scales that the files have
// for the attentions under prefixes, one a layer.
func (l *Loader) cacheFormat(float8 bool, c *Config, prefixes ...string) compute.CacheFormat {
	n, _ := kvHeads(c.KVHeads, l.Rank, l.Size)
	f := compute.CacheFormat{Float8: float8, KeyScales: []float32{}, ValueScales: []float32{}}
	for _, prefix := range prefixes {
		keys, values := slices.Repeat([]float32{1}, n), slices.Repeat([]float32{1}, n)
		for _, names := range scaleNames {
			if l.has(prefix+names[0]) || l.has(prefix+names[1]) {
				l.readCacheScale(keys, prefix+names[0], c, float8)
				l.readCacheScale(values, prefix+names[1], c, float8)
				break
			}
		}
		f.KeyScales, f.ValueScales = append(f.KeyScales, keys...), append(f.ValueScales, values...)
	}
	if !float8 {
		return compute.CacheFormat{} // the scales are of no use
	}
	return f
}

// readCacheScale reads one scale for all KV heads, or one for each, as this rank's
// dst; with wanted false it only marks the tensor used.
func (l *Loader) readCacheScale(dst []float32, name string, c *Config, wanted bool) {
	first := !l.used[name] // one name may be of keys and values
	heads := c.KVHeads
	info, ok := l.expect(name, floats, []int{1}, []int{}, []int{1, 1}, []int{heads}, []int{heads, 1}, []int{heads, 1, 1})
	if !ok || l.err != nil {
		return
	}
	all := make([]float32, 1)
	if len(info.Shape) > 0 {
		all = make([]float32, info.Shape[0])
	}
	if wanted {
		if err := l.Set.ReadF32(name, weights.Whole(info), all); err != nil {
			l.err = err
			return
		}
		for i, v := range all {
			if !(v > 0 && v-v == 0) {
				l.fail("tensor %s has the scale %v for head %d: a scale is above 0 and finite: fetch the model again", name, v, i)
				return
			}
		}
		_, from := kvHeads(heads, l.Rank, l.Size)
		for h := range dst {
			dst[h] = all[min(from+h, len(all)-1)]
		}
	}
	if first {
		l.loaded(name)
	}
}
