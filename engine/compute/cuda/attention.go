//go:build linux

package cuda

import (
	"math/bits"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// RopeAndCache implements compute.Device.
func (d *Device) RopeAndCache(qkv compute.Tensor, kv compute.Cache, layer int, r *compute.Rows) {
	defer d.enter()()
	c := kv.(*cache)
	s, t := c.shape, qkv.(*tensor)
	f, heads, threads := d.fn.rope, uint32(s.Heads+2*s.KVHeads), uint32(min((s.HeadDim/2+31)/32*32, 256))
	if s.HeadDim%16 == 0 && !t.wide && t.by(alignment) && c.kind() != cacheF32 {
		units := uint32((s.Heads + 2*s.KVHeads) * s.HeadDim / 16)
		heads = (units + 255) / 256
		f, threads = d.fn.rope8, (units+32*heads-1)/(32*heads)*32
	}
	launch(d, f, driver.Dim{X: uint32(r.Len()), Y: heads, Z: 1}, driver.Dim{X: threads, Y: 1, Z: 1}, &struct {
		qkv                                   view
		cos, sin, slots, keys, values, scales driver.Ptr
		heads, kvHeads, dim, pageSize         int32
		kind, _                               int32
	}{qkv: t.view(), cos: d.pass.cos, sin: d.pass.sin, slots: d.pass.slots, keys: c.layer(c.keys, layer), values: c.layer(c.values, layer), scales: c.layerScales(layer),
		heads: int32(s.Heads), kvHeads: int32(s.KVHeads), dim: int32(s.HeadDim), pageSize: int32(c.pageSize), kind: c.kind()})
}

// attention is Attention of the kernels.
type attention struct {
	qkv, out                             view
	keys, values, starts, ends, masks    driver.Ptr
	items, tables, partial, arrived      driver.Ptr
	scales                               driver.Ptr
	heads, kvHeads, dim, pageSize, shift int32
	window, tiles, splits                int32
	scale                                float32
	kind                                 int32 // of the cache
}

// clusterBlocks is CLUSTER of the kernels.
const clusterBlocks = 8

// clusterShared is the bytes of shared memory of a block of a cluster.
func clusterShared(k attendKind, warps int) int {
	return 4 * (warps + 1) * 8 * k.halves * (k.dim + 4)
}

// clusterWarps are the warps that a block of a cluster may have.
var clusterWarps = [2]int{4, 8}

// longShared is the bytes of shared memory of a block of attend_long: two stages.
func longShared(dim int) int { return 2 * 64 * (2*2*dim + 64 + 16) }

// Attention implements compute.Device.
func (d *Device) Attention(dst, qkv compute.Tensor, kv compute.Cache, layer, window int, _ *compute.Rows) {
	defer d.enter()()
	c, q, out := kv.(*cache), qkv.(*tensor), dst.(*tensor)
	p := attention{
		qkv: q.view(), out: out.view(), keys: c.layer(c.keys, layer), values: c.layer(c.values, layer),
		starts: d.pass.starts, ends: d.pass.ends, masks: d.pass.masks, tables: d.pass.tables,
		partial: d.scratch.partial, arrived: d.scratch.arrived, scales: c.layerScales(layer),
		heads: int32(c.shape.Heads), kvHeads: int32(c.shape.KVHeads), dim: int32(c.shape.HeadDim), pageSize: int32(c.pageSize), shift: -1,
		window: int32(window), scale: c.shape.Scale * log2e, kind: c.kind(),
	}
	if c.pageSize&(c.pageSize-1) == 0 {
		p.shift = int32(bits.TrailingZeros(uint(c.pageSize)))
	}
	k := attendKind{c.shape.HeadDim, 1, c.kind() == cacheF8}
	if _, known := d.fn.attendLong[k]; !known || c.kind() == cacheF32 || !q.by(alignment) || !out.by(alignment) || q.wide || out.wide {
		d.attendAny(p, d.pass.short)
		d.attendAny(p, d.pass.long)
		return
	}
	kvHeads, group := uint32(c.shape.KVHeads), c.shape.Heads/c.shape.KVHeads
	if s := d.pass.short; s.n > 0 {
		if s.most*group > 8 {
			k.halves = 2
		}
		queries := 8 * k.halves
		p.items, p.tiles = s.ptr, int32((s.most*group+queries-1)/queries)
		units := uint32(s.n) * uint32(p.tiles)
		most := maxSplitBlocks * uint32(d.context.Info.Processors)
		if f, ok := d.fn.attendCluster[k]; ok && kvHeads*units*clusterBlocks <= most {
			p.splits = clusterBlocks
			warps := 1
			if 2*kvHeads*units*clusterBlocks > uint32(d.context.Info.Processors) || k.halves == 1 && !d.codes {
				// With 8 each block would want most of a multiprocessor, where others
				// wait, or blocks of the next product (seen on an H200).
				warps = 0
			}
			launchShared(d, f[warps], driver.Dim{X: kvHeads, Y: units, Z: clusterBlocks}, driver.Dim{X: uint32(32 * clusterWarps[warps]), Y: 1, Z: 1}, clusterShared(k, clusterWarps[warps]), &p)
		} else {
			p.splits = int32(min(max(most/(kvHeads*units), 1), 32))
			launch(d, d.fn.attendSplit[k], driver.Dim{X: kvHeads, Y: units, Z: uint32(p.splits)}, driver.Dim{X: 128, Y: 1, Z: 1}, &p)
		}
	}
	if l := d.pass.long; l.n > 0 {
		p.items, k.halves = l.ptr, 1
		tiles := (l.most*group + 15) / 16
		launchShared(d, d.fn.attendLong[k], driver.Dim{X: kvHeads, Y: uint32((tiles + 7) / 8), Z: uint32(l.n)},
			driver.Dim{X: 256, Y: 1, Z: 1}, longShared(c.shape.HeadDim), &p)
	}
}

// attendAny takes heads of any dimension.
func (d *Device) attendAny(p attention, of items) {
	if of.n == 0 {
		return
	}
	p.items = of.ptr
	launch(d, d.fn.attendAny, driver.Dim{X: uint32(of.n), Y: uint32(min(of.most, 1<<15)), Z: uint32(p.heads)}, driver.Dim{X: 32, Y: 1, Z: 1}, &p)
}

// MoveCache implements compute.Device.
func (d *Device) MoveCache(kv compute.Cache, to, from []int32) {
	if len(to) == 0 {
		return
	}
	defer d.enter()()
	c := kv.(*cache)
	a, b := d.pair(to, from)
	launch(d, d.fn.moveCache, driver.Dim{X: uint32(c.layers), Y: uint32(c.shape.KVHeads), Z: 1}, driver.Dim{X: 128, Y: 1, Z: 1}, &struct {
		keys, values, to, from    driver.Ptr
		layer                     uint64
		n, kvHeads, dim, pageSize int32
	}{c.keys, c.values, a, b, uint64(c.stride / 2), int32(len(to)), int32(c.shape.KVHeads), int32(c.shape.HeadDim * c.element / 2), int32(c.pageSize)})
}
