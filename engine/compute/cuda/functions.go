//go:build linux

package cuda

import (
	"fmt"

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
	embed, norm, norm4, qkNorm, move, siluMul, angles, rope, argmax, convert driver.Function
	linearAny, quantAny, dequantise                                          driver.Function
	siluMul8, rope8, attendAny, moveCache, readAll4, readAll8, noise, follow driver.Function
	attendLong                                                               map[attendKind]driver.Function // with one half
	attendSplit                                                              map[attendKind]driver.Function
	attendCluster                                                            map[attendKind][2]driver.Function // of 4 and of 8 warps
	linearBF16, linearF16                                                    driver.Function
	sumPush, sumPushWide, sumRead, sumReadWide, sumNorm                      driver.Function
	quantSkinny                                                              map[quantSkinny]driver.Function
	drawEdit, drawTop, drawWeigh, drawPick, drawTops, take                   driver.Function
}

// quantSkinny names a variant of the product for few rows with codes.
type quantSkinny struct {
	dtype  string
	rows   int
	scales int // groups that a tile of 64 bytes lies in
}

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

// find looks up every kernel, and those of clusters if the card has them.
func (f *functions) find(modules []module, clusters bool) error {
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
		"angles": &f.angles, "linear_bf16": &f.linearBF16, "linear_f16": &f.linearF16, "rope_cache": &f.rope, "rope_cache8": &f.rope8, "argmax": &f.argmax, "convert": &f.convert,
		"linear_any": &f.linearAny, "quant_any": &f.quantAny, "dequantise": &f.dequantise,
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
	}, clusters)
	f.quantSkinny = map[quantSkinny]driver.Function{}
	for _, rows := range []int{8, 16} {
		for _, v := range []struct {
			dtype  string
			scales []int
		}{{"i4", []int{1, 2, 4}}, {"i8", []int{1, 2}}, {"f8", []int{1, 2}}} {
			for _, s := range v.scales {
				f.quantSkinny[quantSkinny{v.dtype, rows, s}] = get(fmt.Sprintf("quant_%s_%d_%d", v.dtype, rows, s))
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
