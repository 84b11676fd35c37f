package model

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/weights"
)

// compressed is a quantization_config of compressed-tensors with changed
// settings: "weights.symmetric", "group.targets", "ignore".
func compressed(changes map[string]any) map[string]any {
	args := map[string]any{"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32, "strategy": "group", "dynamic": false, "actorder": nil, "block_structure": nil, "observer": "minmax", "observer_kwargs": map[string]any{}}
	group := map[string]any{"targets": []string{"Linear"}, "input_activations": nil, "output_activations": nil, "weights": args}
	c := map[string]any{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": []string{"lm_head"}, "kv_cache_scheme": nil, "config_groups": map[string]any{"group_0": group}, "global_compression_ratio": 1.8, "version": "0.9.4"}
	for name, v := range changes {
		if key, ok := strings.CutPrefix(name, "weights."); ok {
			args[key] = v
		} else if key, ok := strings.CutPrefix(name, "group."); ok {
			group[key] = v
		} else {
			c[name] = v
		}
	}
	return c
}

func TestQuantizationIsUnderstoodOrRefused(t *testing.T) {
	fp8 := func(changes map[string]any) map[string]any {
		c := map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{128, 128}}
		maps.Copy(c, changes)
		return c
	}
	type m = map[string]any
	i4 := weightFormat{dtype: compute.I4, codes: ".weight_packed", packed: true, scale: ".weight_scale", blockRows: 1, blockCols: 32}
	i8 := weightFormat{dtype: compute.I8, codes: ".weight", scale: ".weight_scale", blockRows: 1}
	f8 := weightFormat{dtype: compute.F8E4M3, codes: ".weight", scale: ".weight_scale_inv", blockRows: 128, blockCols: 128}
	with := func(f weightFormat, change func(f *weightFormat)) weightFormat { change(&f); return f }
	for name, c := range map[string]struct {
		config map[string]any
		want   weightFormat
		says   string
	}{
		"int4":             {compressed(nil), i4, ""},
		"int4 of 128":      {compressed(m{"weights.group_size": 128}), with(i4, func(f *weightFormat) { f.blockCols = 128 }), ""},
		"int4, channel":    {compressed(m{"weights.strategy": "channel", "weights.group_size": nil}), with(i4, func(f *weightFormat) { f.blockCols = 0 }), ""},
		"no strategy":      {compressed(m{"weights.strategy": nil}), i4, ""},
		"static order":     {compressed(m{"weights.actorder": "static"}), i4, ""},
		"dense sparsity":   {compressed(m{"sparsity_config": m{"format": "dense"}}), i4, ""},
		"packed int8":      {compressed(m{"weights.num_bits": 8}), with(i4, func(f *weightFormat) { f.dtype = compute.I8 }), ""},
		"int8":             {compressed(m{"format": "int-quantized", "weights.num_bits": 8, "weights.strategy": "channel", "group.input_activations": m{"num_bits": 8, "dynamic": true}}), i8, ""},
		"format of group":  {compressed(m{"format": "mixed-precision", "group.format": "int-quantized", "weights.num_bits": 8, "weights.strategy": "channel"}), i8, ""},
		"float8, tensor":   {compressed(m{"format": "float-quantized", "weights.num_bits": 8, "weights.type": "float", "weights.strategy": "tensor"}), weightFormat{dtype: compute.F8E4M3, codes: ".weight", scale: ".weight_scale"}, ""},
		"float8, block":    {compressed(m{"format": "float-quantized", "weights.num_bits": 8, "weights.type": "float", "weights.strategy": "block", "weights.block_structure": []int{128, 64}}), weightFormat{dtype: compute.F8E4M3, codes: ".weight", scale: ".weight_scale", blockRows: 128, blockCols: 64}, ""},
		"fp8":              {fp8(nil), f8, ""},
		"fp8 of DeepSeek":  {fp8(m{"scale_fmt": "ue8m0"}), f8, ""},
		"int4 and cache":   {compressed(m{"kv_cache_scheme": m{"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true, "observer": "minmax"}}), i4, ""},
		"cache alone":      {compressed(m{"config_groups": m{}, "kv_cache_scheme": m{"num_bits": 8, "type": "float", "strategy": "attn_head"}}), weightFormat{}, ""},
		"fp8 without size": {fp8(m{"weight_block_size": nil, "activation_scheme": "static", "ignored_layers": []string{"lm_head"}}), weightFormat{dtype: compute.F8E4M3, codes: ".weight", scale: ".weight_scale"}, ""},

		"gptq":              {m{"quant_method": "gptq", "bits": 4}, i4, `quant_method is "gptq": supported are "compressed-tensors" and "fp8"`},
		"no method":         {m{"bits": 4}, i4, `quant_method is ""`},
		"a list":            {m{"quant_method": []int{1}}, i4, "quantization_config: "},
		"unknown":           {compressed(m{"rotation": true}), i4, `not supported: the setting "rotation"`},
		"unknown in fp8":    {fp8(m{"modules_in_float4": true}), i4, `not supported: the setting "modules_in_float4"`},
		"unknown arguments": {compressed(m{"weights.zero_point": 8}), i4, `not supported: the setting "zero_point"`},
		"status":            {compressed(m{"quantization_status": "calibration"}), i4, `quantization_status is "calibration"`},
		"asymmetric":        {compressed(m{"weights.symmetric": false}), i4, "symmetric is false: supported is true"},
		"2 bits":            {compressed(m{"weights.num_bits": 2}), i4, "format is pack-quantized of 2-bit int: supported are"},
		"float4":            {compressed(m{"format": "nvfp4-pack-quantized", "weights.type": "float"}), i4, "format is nvfp4-pack-quantized of 4-bit float"},
		"marlin":            {compressed(m{"format": "marlin-24"}), i4, "format is marlin-24"},
		"group 0":           {compressed(m{"weights.group_size": 0}), i4, "group_size is 0"},
		"group too large":   {compressed(m{"weights.group_size": 1 << 40}), i4, "group_size is"},
		"strategy":          {compressed(m{"weights.strategy": "token"}), i4, `strategy is "token"`},
		"dynamic":           {compressed(m{"weights.dynamic": true}), i4, "dynamic is true: supported is false"},
		"activation order":  {compressed(m{"weights.actorder": "group"}), i4, `actorder is "group"`},
		"targets":           {compressed(m{"group.targets": []string{"re:.*mlp.*"}}), i4, `targets is ["re:.*mlp.*"]: supported is ["Linear"]`},
		"outputs":           {compressed(m{"group.output_activations": m{"num_bits": 8}}), i4, "output_activations is set"},
		"no weights":        {compressed(m{"group.weights": nil}), i4, "weights is null"},
		"groups":            {compressed(m{"config_groups": m{}}), i4, "config_groups has 0 groups"},
		"kv cache":          {compressed(m{"kv_cache_scheme": m{"num_bits": 8}}), i4, `kv_cache_scheme: num_bits is 8 and type "int": supported are 8 and "float"`},
		"kv cache of 4":     {compressed(m{"kv_cache_scheme": m{"num_bits": 4, "type": "float"}}), i4, "kv_cache_scheme: num_bits is 4"},
		"kv cache, dynamic": {compressed(m{"kv_cache_scheme": m{"num_bits": 8, "type": "float", "dynamic": true}}), i4, "kv_cache_scheme: dynamic is true"},
		"kv cache, groups":  {compressed(m{"kv_cache_scheme": m{"num_bits": 8, "type": "float", "strategy": "group"}}), i4, `kv_cache_scheme: strategy is "group"`},
		"sparse":            {compressed(m{"sparsity_config": m{"format": "sparse-24-bitmask"}}), i4, `sparsity_config has the format "sparse-24-bitmask"`},
		"transform":         {compressed(m{"transform_config": m{"r1": 1}}), i4, "transform_config is set"},
		"look-ahead":        {compressed(m{"ignore": []string{"re:(?!model).*"}}), i4, "no regular expression that can be read"},
		"block structure":   {compressed(m{"format": "float-quantized", "weights.num_bits": 8, "weights.type": "float", "weights.strategy": "block"}), i4, "block_structure is []"},
		"e5m2":              {fp8(m{"fmt": "e5m2"}), i4, `fmt is "e5m2"`},
		"activations":       {fp8(m{"activation_scheme": "none"}), i4, `activation_scheme is "none"`},
		"scale type":        {fp8(m{"scale_fmt": "e8"}), i4, `scale_fmt is "e8"`},
		"three block sizes": {fp8(m{"weight_block_size": []int{1, 2, 3}}), i4, "weight_block_size is [1 2 3]"},
		"block size 0":      {fp8(m{"weight_block_size": []int{0, 128}}), i4, "weight_block_size is [0 128]"},
	} {
		raw := sound()
		raw["quantization_config"] = c.config
		got, err := ReadConfig(folder(t, raw), "m")
		if c.says != "" {
			if err == nil || fault.ReasonOf(err) != fault.Unsupported || !strings.HasPrefix(err.Error(), "m: config.json: quantization_config: ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v; want one line saying %q", name, err, c.says)
			}
			continue
		}
		if err != nil || got.Quantization.format != c.want || got.Quantization.Float8Cache != strings.Contains(name, "cache") {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestIgnoredModules(t *testing.T) {
	raw, _ := json.Marshal(compressed(map[string]any{"ignore": []string{"lm_head", "re:.*self_attn.*", "re:model\\.layers\\.1\\.", "re:up_proj"}}))
	q, err := readQuantization(raw)
	if err != nil {
		t.Fatal(err)
	}
	for module, want := range map[string]bool{
		"lm_head": false, "model.layers.0.self_attn.q_proj": false, "model.layers.1.mlp.up_proj": false,
		"model.layers.10.mlp.up_proj": true, "model.layers.0.mlp.up_proj": true, "lm_head2": true, // an expression begins at the name's begin
	} {
		if got := q.is(module, weights.BF16); got != want {
			t.Errorf("%s is quantised: %v, want %v", module, got, want)
		}
	}
}

// files is a safetensors file being made.
type files struct{ tensors }

func (f *files) add(name, dtype string, shape []int, data []byte) {
	from := int64(len(f.data))
	f.data = append(f.data, data...)
	f.entries[name] = entry{dtype, shape, [2]int64{from, int64(len(f.data))}}
}

// addCoded adds a random weight in the format and returns its values, by the
// formats' definitions.
func (f *files) addCoded(rng *rand.Rand, module string, w weightFormat, out, in int) []float32 {
	codes := make([]byte, out*in)
	for i := range codes {
		codes[i] = byte(rng.Uint32())
		if w.dtype == compute.I4 {
			codes[i] &= 15
		} else if w.dtype == compute.F8E4M3 && codes[i]&0x7f == 0x7f {
			codes[i] = 0
		}
	}
	p := part{module + ".weight", out, in, 0, out, 0, in, &w}
	rows, cols := p.scaleShape()
	scales := make([]byte, 2*rows*cols) // bfloat16
	for i := range rows * cols {
		binary.LittleEndian.PutUint16(scales[2*i:], uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
	}
	values := make([]float32, out*in)
	for i, code := range codes {
		r, c := i/in, i%in
		if w.blockRows > 0 {
			r /= w.blockRows
		} else {
			r = 0
		}
		if w.blockCols > 0 {
			c /= w.blockCols
		} else {
			c = 0
		}
		scale := math.Float32frombits(uint32(binary.LittleEndian.Uint16(scales[2*(r*cols+c):])) << 16)
		var v float32
		switch {
		case w.dtype == compute.I4:
			v = float32(code) - 8
		case w.packed:
			v = float32(code) - 128
		case w.dtype == compute.I8:
			v = float32(int8(code))
		default:
			v = compute.Float8(code)
		}
		values[i] = v * scale
	}
	shape := []int{rows, cols}
	if rows == 1 && cols == 1 && rng.IntN(2) == 0 {
		shape = []int{}
	}
	f.add(p.scale(), "BF16", shape, scales)
	if !w.packed {
		f.add(p.codes(), map[compute.DType]string{compute.I8: "I8", compute.F8E4M3: "F8_E4M3"}[w.dtype], []int{out, in}, codes)
		return values
	}
	bits := 8
	if w.dtype == compute.I4 {
		bits = 4
	}
	words := (in*bits + 31) / 32
	packed := make([]byte, 0, 4*out*words)
	for r := range out {
		row := make([]uint32, words)
		for c, code := range codes[r*in : (r+1)*in] {
			row[c*bits/32] |= uint32(code) << (c * bits % 32)
		}
		for _, word := range row {
			packed = binary.LittleEndian.AppendUint32(packed, word)
		}
	}
	f.add(p.codes(), "I32", []int{out, words}, packed)
	f.add(p.shape(), "I64", []int{2}, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(out)), uint64(in)))
	return values
}

func (f *files) loader(t *testing.T, q *Quantization, rank, size int) *Loader {
	t.Helper()
	set, err := weights.Open(fstest.MapFS{"model.safetensors": {Data: f.together(t)}}, "m")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	d, err := cpu.New(collective.NewLocal(1, 0)[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return &Loader{Device: d, Set: set, Name: "m", Rank: rank, Size: size, Mismatch: fault.WeightsMismatch, Context: context.Background(), quantization: q}
}

// elements reads a weight back, column by column.
func elements(d compute.Device, w compute.Weight) [][]float32 {
	x, y := d.NewTensor(1, w.In()), d.NewTensor(1, w.Out())
	rows := make([][]float32, w.Out())
	for j := range w.In() {
		clear(d.Floats(x, 0))
		d.Floats(x, 0)[j] = 1
		d.Linear(y, x, w, 1)
		for r, v := range d.Floats(y, 0) {
			rows[r] = append(rows[r], v)
		}
	}
	return rows
}

// Parts of quantised weights, wherever they are cut, are those of the values.
func TestQuantisedPartsOnEveryRank(t *testing.T) {
	i4 := func(group int) weightFormat {
		return weightFormat{compute.I4, ".weight_packed", true, ".weight_scale", 1, group}
	}
	for name, c := range map[string]struct {
		format  weightFormat
		out, in int
	}{
		"int4 of 32":           {i4(32), 48, 96}, // 4 ranks cut within groups
		"int4 of 64":           {i4(64), 24, 256},
		"int4 of 128":          {i4(128), 12, 1536},
		"int4 of 5":            {i4(5), 12, 60}, // cut at odd columns
		"int4, channel":        {i4(0), 36, 84},
		"packed int8":          {weightFormat{compute.I8, ".weight_packed", true, ".weight_scale", 1, 32}, 12, 96},
		"packed int8, odd":     {weightFormat{compute.I8, ".weight_packed", true, ".weight_scale", 1, 0}, 12, 36},
		"int8, channel":        {weightFormat{compute.I8, ".weight", false, ".weight_scale", 1, 0}, 24, 120},
		"int8, tensor":         {weightFormat{compute.I8, ".weight", false, ".weight_scale", 0, 0}, 24, 48},
		"float8, blocks":       {weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale_inv", 32, 32}, 96, 96},
		"float8, large blocks": {weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale_inv", 128, 128}, 60, 168},
		"float8, odd blocks":   {weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale_inv", 7, 50}, 36, 204},
		"float8, tensor":       {weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale", 0, 0}, 12, 60},
		"float8, channel":      {weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale", 1, 0}, 12, 60},
	} {
		rng := rand.New(rand.NewPCG(1, uint64(len(name))))
		f := files{tensors{entries: map[string]entry{}}}
		a, b := f.addCoded(rng, "a", c.format, c.out, c.in), f.addCoded(rng, "b", c.format, 2*c.out, c.in)
		other := weightFormat{compute.I8, ".weight", false, ".weight_scale", 1, 0}
		mixed := f.addCoded(rng, "mixed", other, c.out, c.in)
		q := &Quantization{format: c.format}
		for _, ranks := range []int{1, 2, 3, 4, 6, 12} {
			if c.out%ranks != 0 || c.in%ranks != 0 {
				continue
			}
			for rank := range ranks {
				l := f.loader(t, q, rank, ranks)
				at := fmt.Sprintf("%s, rank %d of %d", name, rank, ranks)
				pa, pb := l.rowsOf("a.weight", c.out, c.in), l.rowsOf("b.weight", 2*c.out, c.in)
				fused := l.matrix(pa.rows+pb.rows+3, pa, pb)
				column := l.matrix(c.out, l.colsOf("a.weight", c.out, c.in))
				if l.err != nil {
					t.Fatalf("%s: %v", at, l.err)
				}
				for r, row := range elements(l.Device, fused) {
					for j, got := range row {
						want := float32(0)
						if r < pa.rows {
							want = a[(pa.row+r)*c.in+j]
						} else if r < pa.rows+pb.rows {
							want = b[(pb.row+r-pa.rows)*c.in+j]
						}
						if got != want {
							t.Fatalf("%s: row %d, column %d of the rows' share is %v, want %v", at, r, j, got, want)
						}
					}
				}
				for r, row := range elements(l.Device, column) {
					for j, got := range row {
						if want := a[r*c.in+rank*c.in/ranks+j]; got != want {
							t.Fatalf("%s: row %d, column %d of the columns' share is %v, want %v", at, r, j, got, want)
						}
					}
				}
				if fused.DType() != c.format.dtype || column.DType() != c.format.dtype {
					t.Errorf("%s: kept as %v and %v, want %v", at, fused.DType(), column.DType(), c.format.dtype)
				}
			}
		}
		// Parts that are not coded alike become float32 of the same values.
		l := f.loader(t, q, 1, 2)
		pa, pm := l.rowsOf("a.weight", c.out, c.in), l.rowsOf("mixed.weight", c.out, c.in)
		pa.format, pm.format = &c.format, &other
		both := l.table(pa.rows+pm.rows, pa, pm)
		if l.err != nil {
			t.Fatalf("%s: %v", name, l.err)
		}
		for r, row := range elements(l.Device, both) {
			for j, got := range row {
				want := a[(pa.row+r%pa.rows)*c.in+j]
				if r >= pa.rows {
					want = mixed[(pm.row+r-pa.rows)*c.in+j]
				}
				if got != want {
					t.Fatalf("%s: row %d, column %d of the mixed weight is %v, want %v", name, r, j, got, want)
				}
			}
		}
	}
}

func TestDamagedQuantisedWeightsAreRefusedByName(t *testing.T) {
	i4 := weightFormat{compute.I4, ".weight_packed", true, ".weight_scale", 1, 32}
	f8 := weightFormat{compute.F8E4M3, ".weight", false, ".weight_scale_inv", 32, 32}
	for name, c := range map[string]struct {
		format weightFormat
		in     int
		change func(f *files)
		says   string
	}{
		"no codes":      {i4, 64, func(f *files) { f.rename("w.weight_packed", "w.weight") }, "tensor w.weight_packed is missing: config.json wants it with shape [8, 8]"},
		"no scales":     {i4, 64, func(f *files) { f.rename("w.weight_scale", "w.scale") }, "tensor w.weight_scale is missing"},
		"no shape":      {i4, 64, func(f *files) { f.rename("w.weight_shape", "w.shape") }, "tensor w.weight_shape is missing"},
		"another shape": {i4, 64, func(f *files) { f.data[f.entries["w.weight_shape"].Offsets[0]+8] = 32 }, "tensor w.weight_shape says that dimension 1 of the weight is 32: config.json wants 64"},
		"scales' shape": {i4, 64, func(f *files) {
			e := f.entries["w.weight_scale"]
			e.Shape = []int{2, 8}
			f.entries["w.weight_scale"] = e
		}, "tensor w.weight_scale has shape [2 8]: config.json wants [8, 2]"},
		"codes' type":    {i4, 64, func(f *files) { e := f.entries["w.weight_packed"]; e.DType = "F32"; f.entries["w.weight_packed"] = e }, "tensor w.weight_packed has type F32: supported here are I32"},
		"uneven groups":  {i4, 72, func(*files) {}, "tensor w.weight_packed has rows of 72 weights: quantization_config's group_size 32 does not divide them"},
		"not a number":   {f8, 64, func(f *files) { f.data[f.entries["w.weight"].Offsets[0]+65] = 0xff }, "tensor w.weight has a value that is not a number in row 1, column 1"},
		"infinite scale": {f8, 64, func(f *files) { copy(f.data[f.entries["w.weight_scale_inv"].Offsets[0]:], []byte{0x80, 0x7f}) }, "tensor w.weight_scale_inv has the scale +Inf in row 0, column 0"},
	} {
		f := files{tensors{entries: map[string]entry{}}}
		f.addCoded(rand.New(rand.NewPCG(1, 1)), "w", c.format, 8, c.in)
		c.change(&f)
		l := f.loader(t, &Quantization{format: c.format, byType: c.format.dtype == compute.F8E4M3}, 0, 1)
		if w := l.matrix(8, whole("w.weight", 8, c.in)); w != nil || l.err == nil || !strings.Contains(l.err.Error(), c.says) || fault.ReasonOf(l.err) != fault.WeightsMismatch {
			t.Errorf("%s: %v with reason %s; want %q", name, l.err, fault.ReasonOf(l.err), c.says)
		}
	}
}

// A config that a file does not follow is noticed on both sides.
func TestPlainWeightsBesideQuantisedOnes(t *testing.T) {
	f := files{tensors{entries: map[string]entry{}}}
	f.add("plain.weight", "F16", []int{4, 8}, make([]byte, 64))
	f.add("single.weight", "F32", []int{4, 8}, make([]byte, 128))
	raw, _ := json.Marshal(compressed(map[string]any{"ignore": []string{"plain"}}))
	q, err := readQuantization(raw)
	if err != nil {
		t.Fatal(err)
	}
	l := f.loader(t, q, 0, 1)
	if w := l.matrix(4, whole("plain.weight", 4, 8)); l.err != nil || w.DType() != compute.F16 {
		t.Errorf("an ignored float16 weight gives %v, %v", w, l.err)
	}
	if w := l.table(8, whole("plain.weight", 4, 8), whole("single.weight", 4, 8)); l.err != nil || w.DType() != compute.F32 {
		t.Errorf("float16 and float32 together give %v, %v", w, l.err)
	}
	if l.matrix(4, whole("single.weight", 4, 8)); l.err == nil || !strings.Contains(l.err.Error(), "tensor single.weight_packed is missing") {
		t.Errorf("a plain weight where the config wants a quantised one gives %v", l.err)
	}
}
