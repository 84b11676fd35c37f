//go:build linux

package cuda

import (
	"fmt"
	"sort"
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/engine/fault"
)

// cache is the keys and values of some layers: [layer][page][KV head][offset][dim]
// of bfloat16, of float8 or, to be exact, of float32. It has one page more than it
// says, which the rows that fill up a recorded pass write to.
type cache struct {
	keys, values    driver.Ptr
	stride          int             // bytes from a layer to the next
	ranges          []*driver.Range // of keys and values, where memory is given as the cache grows
	backed          int             // bytes of each layer that have memory
	scales          driver.Ptr      // of float8: [layer][of keys, of values][KV head] of float32; otherwise 0
	element         int             // bytes of a number
	layers          int
	pages, pageSize int
	shape           compute.AttentionShape
}

// How a cache keeps its numbers: CACHE_… of the kernels.
const (
	cacheBF16 int32 = iota
	cacheF32
	cacheF8
)

func (c *cache) kind() int32 {
	switch c.element {
	case 1:
		return cacheF8
	case 4:
		return cacheF32
	}
	return cacheBF16
}

func (c *cache) Pages() int    { return c.pages }
func (c *cache) PageSize() int { return c.pageSize }

// layerBytes is what a layer's keys take with so many pages, as a multiple of step.
func (c *cache) layerBytes(pages, step int) int {
	n := (pages + 1) * c.pageSize * c.shape.KVHeads * c.shape.HeadDim * c.element
	return (n + step - 1) / step * step
}

// layer is the address of a layer's part.
func (c *cache) layer(all driver.Ptr, i int) driver.Ptr { return all + driver.Ptr(i*c.stride) }

// layerScales is the address of a layer's scales, or 0.
func (c *cache) layerScales(i int) driver.Ptr {
	if c.scales == 0 {
		return 0
	}
	return c.scales + driver.Ptr(4*i*2*c.shape.KVHeads)
}

// NewCache implements compute.Device.
func (d *Device) NewCache(layers, pages, pageSize int, shape compute.AttentionShape, format compute.CacheFormat) compute.Cache {
	format.Check(layers, shape)
	c := &cache{element: 2, layers: layers, pages: pages, pageSize: pageSize, shape: shape}
	switch {
	case format.Float8:
		c.element = 1
	case d.options.Exact:
		c.element = 4
	}
	if shape.HeadDim > maxHeadDim {
		d.fail(fault.Errorf(fault.Unsupported, "head_dim is %d: supported on a GPU is up to %d", shape.HeadDim, maxHeadDim))
		return c
	}
	if first := d.options.FirstPages; first > 0 && first < pages && d.granularity > 0 {
		d.reserveCache(c, first)
	} else {
		c.stride = c.layerBytes(pages, 1)
		c.keys = d.allocOr(layers*c.stride, func(err error) error { return d.tooLong(err, c, 0) })
		c.values = d.allocOr(layers*c.stride, func(err error) error { return d.tooLong(err, c, layers*c.stride) })
		d.zero(c.keys, layers*c.stride)
		d.zero(c.values, layers*c.stride)
		d.spare = pages * pageSize
	}
	if format.Float8 {
		d.uploadScales(c, format)
	}
	return c
}

// tooLong says of a cache for whose half there was no memory how long one would fit;
// has is what the other half took.
func (d *Device) tooLong(err error, c *cache, has int) error {
	free, _, ferr := d.context.Free()
	if !outOfMemory(err) || ferr != nil {
		return err
	}
	layers := int64(2 * c.layers)
	page := layers * int64(c.layerBytes(1, 1)-c.layerBytes(0, 1))
	advice := "give a larger --tp-size"
	if fits := (free+int64(has))/page - 1; fits > 0 { // one page is nobody's
		advice = fmt.Sprintf("give --max-total-tokens and --context-length of %d or fewer", fits*int64(c.pageSize))
	}
	return fault.Errorf(fault.OutOfMemory, "%s: the KV cache takes %d MiB, and %d are free for it: %s", d.full(), mib(layers*int64(c.stride)), (free+int64(has))>>20, advice)
}

// reserveCache takes addresses for a cache, and memory for its first pages.
func (d *Device) reserveCache(c *cache, first int) {
	if !d.ok() {
		return
	}
	defer d.enter()()
	c.stride = c.layerBytes(c.pages, d.granularity)
	for _, to := range []*driver.Ptr{&c.keys, &c.values} {
		r, err := d.context.Reserve(c.layers * c.stride)
		if err != nil {
			d.fail(err)
			return
		}
		*to = r.At()
		c.ranges = append(c.ranges, r)
	}
	d.growing = append(d.growing, c)
	d.check(d.back(c, first))
	d.spare = first * c.pageSize
}

// back gives a cache memory for pages pages.
func (d *Device) back(c *cache, pages int) error {
	to := c.layerBytes(pages, d.granularity)
	for _, r := range c.ranges {
		for i := range c.layers {
			if err := d.context.Back(r, i*c.stride+c.backed, i*c.stride+to); err != nil {
				return d.explain(err, c.layers*len(c.ranges)*(to-c.backed), "the KV cache")
			}
			d.held += int64(max(0, to-c.backed))
			d.zero(r.At()+driver.Ptr(i*c.stride+c.backed), to-c.backed)
		}
	}
	c.backed = max(c.backed, to)
	return nil
}

// zero clears n bytes of a cache. The profile reads entries that no pass has written:
// what was in the memory before may be no numbers.
func (d *Device) zero(p driver.Ptr, n int) {
	if n > 0 && d.ok() {
		defer d.enter()()
		d.check(d.stream.Fill(p, 0, n))
	}
}

// Grows implements compute.Grower.
func (d *Device) Grows() bool { return len(d.growing) > 0 }

// Free implements compute.Grower.
func (d *Device) Free() (int64, error) {
	defer d.enter()()
	d.wait()
	if !d.ok() {
		return 0, d.err
	}
	free, _, err := d.context.Free()
	d.check(err)
	return free, d.err
}

// Fits implements compute.Grower.
func (d *Device) Fits(n int64) int {
	return sort.Search(d.growing[0].pages, func(i int) bool {
		more := int64(0)
		for _, c := range d.growing {
			more += int64(2*c.layers) * int64(c.layerBytes(i+1, d.granularity)-c.backed)
		}
		return more > n
	})
}

// Grow implements compute.Grower.
func (d *Device) Grow(pages int) error {
	defer d.enter()()
	d.grown = true
	for _, c := range d.growing {
		if d.ok() {
			d.check(d.back(c, pages))
			d.spare = pages * c.pageSize
		}
	}
	return d.err
}

// uploadScales brings a cache's scales to the device.
func (d *Device) uploadScales(c *cache, f compute.CacheFormat) {
	n := c.shape.KVHeads
	all := make([]float32, 2*c.layers*n)
	for i := range all {
		all[i] = 1
	}
	for i := range c.layers {
		if f.KeyScales != nil {
			copy(all[2*i*n:], f.KeyScales[i*n:(i+1)*n])
		}
		if f.ValueScales != nil {
			copy(all[(2*i+1)*n:], f.ValueScales[i*n:(i+1)*n])
		}
	}
	if c.scales = d.alloc(4*len(all), "the KV cache"); d.ok() {
		d.upload(c.scales, unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), 4*len(all)))
	}
}

// maxHeadDim is the largest head that a kernel takes.
const maxHeadDim = 512
