//go:build linux

package cuda

import (
	"fmt"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/compute/cuda/kernels"
)

// module is a source of kernels and its code on the device.
type module struct {
	source kernels.Source
	code   driver.Module
}

// functions are the kernels.
type functions struct {
	embed, norm, norm4, qkNorm, move, siluMul, angles, rope, argmax, convert, narrow driver.Function
	linearAny, quantAny                                                              driver.Function
	dequantise                                                                       map[compute.DType]driver.Function
	siluMul8, rope8, attendAny, moveCache, readAll4, readAll8, noise, follow         driver.Function
	attendLong                                                                       map[attendKind]driver.Function // with one half
	attendSplit                                                                      map[attendKind]driver.Function
	attendCluster                                                                    map[attendKind][2]driver.Function // of 4 and of 8 warps
	linearBF16, linearF16                                                            driver.Function
	sumPush, sumPushWide, sumRead, sumReadWide, sumNorm                              driver.Function
	drawEdit, drawTop, drawWeigh, drawPick, drawTops, take                           driver.Function
	quant                                                                            map[quantKind]driver.Function
	wide                                                                             map[wideKind]driver.Function // of compute capability 9.0
}

// quantKind names a variant of the products with codes: up to fewRows rows are a
// kernel of its own.
type quantKind struct {
	dtype  compute.DType
	rows   int // at most
	scales int // groups that a tile of 64 bytes lies in
}

// quantScales are the groups that a tile may lie in.
var quantScales = map[compute.DType][]int{compute.I4: {1, 2, 4}, compute.I8: {1, 2}, compute.F8E4M3: {1, 2}}

// attendKind names a variant of attention of few rows.
type attendKind struct {
	dim    int
	halves int  // times 8 queries of a tile
	float8 bool // the cache's numbers
}

// suffix is what the kernels' names end with.
func (k attendKind) suffix() string {
	if k.float8 {
		return "_f8"
	}
	return ""
}

// find looks up every kernel that the card has.
func (f *functions) find(modules []module, info driver.Info) error {
	var err error
	get := func(name string) driver.Function {
		for _, m := range modules {
			if m.source.Has(name) {
				fn, e := m.code.Function(name)
				if e != nil && err == nil {
					err = e
				}
				return fn
			}
		}
		if err == nil {
			err = fmt.Errorf("kernel %s is in no source", name)
		}
		return 0
	}
	for name, to := range map[string]*driver.Function{
		"embed": &f.embed, "rms_norm": &f.norm, "rms_norm4": &f.norm4, "qk_norm": &f.qkNorm, "move": &f.move, "silu_mul": &f.siluMul, "silu_mul8": &f.siluMul8,
		"angles": &f.angles, "linear_bf16": &f.linearBF16, "linear_f16": &f.linearF16, "rope_cache": &f.rope, "rope_cache8": &f.rope8, "argmax": &f.argmax, "convert": &f.convert, "narrow": &f.narrow,
		"linear_any": &f.linearAny, "quant_any": &f.quantAny,
		"attend_any": &f.attendAny, "move_cache": &f.moveCache, "read_all_4": &f.readAll4, "read_all_8": &f.readAll8, "noise": &f.noise, "follow": &f.follow,
		"sum_push_narrow": &f.sumPush, "sum_push_wide": &f.sumPushWide, "sum_read_narrow": &f.sumRead, "sum_read_wide": &f.sumReadWide, "sum_norm": &f.sumNorm,
		"draw_edit": &f.drawEdit, "draw_top": &f.drawTop, "draw_weigh": &f.drawWeigh, "draw_pick": &f.drawPick, "draw_tops": &f.drawTops, "take": &f.take,
	} {
		*to = get(name)
	}
	f.findAttention(func(name string, shared int) driver.Function {
		fn := get(name)
		if err == nil && shared > 0 {
			err = fn.AllowShared(shared)
		}
		return fn
	}, info.Major >= 9)
	f.quant, f.dequantise = map[quantKind]driver.Function{}, map[compute.DType]driver.Function{}
	for dtype, name := range quantNames {
		f.dequantise[dtype] = get("dequantise_" + name)
		for _, s := range quantScales[dtype] {
			for rows := 8; rows <= mostMany; rows *= 2 {
				k := quantKind{dtype, rows, s}
				f.quant[k] = get(fmt.Sprintf("quant_%s_%d_%d", name, rows, s))
				if n := k.stages(info.Shared); err == nil && rows > fewRows && n > 0 {
					err = f.quant[k].AllowShared(k.shared(n))
				}
			}
		}
	}
	f.wide = map[wideKind]driver.Function{}
	if info.Major == 9 && info.Minor == 0 {
		for _, k := range wideKinds() {
			f.wide[k] = get(k.name())
			if err == nil {
				err = f.wide[k].AllowShared(k.shared())
			}
		}
	}
	return err
}

// findAttention is find for attention over heads of the usual dimensions.
func (f *functions) findAttention(get func(name string, shared int) driver.Function, clusters bool) {
	f.attendLong, f.attendSplit, f.attendCluster = map[attendKind]driver.Function{}, map[attendKind]driver.Function{}, map[attendKind][2]driver.Function{}
	for _, k := range []attendKind{{64, 1, false}, {128, 1, false}, {64, 1, true}, {128, 1, true}} {
		f.attendLong[k] = get(fmt.Sprintf("attend_long_%d%s", k.dim, k.suffix()), longShared(k.dim))
		for k.halves = 1; k.halves <= 2; k.halves++ {
			f.attendSplit[k] = get(fmt.Sprintf("attend_split_%d_%d%s", k.dim, k.halves, k.suffix()), 0)
			if !clusters {
				continue
			}
			both := [2]driver.Function{}
			for i, warps := range clusterWarps {
				both[i] = get(fmt.Sprintf("attend_cluster_%d_%d_%d%s", k.dim, k.halves, warps, k.suffix()), clusterShared(k, warps))
			}
			f.attendCluster[k] = both
		}
	}
}
