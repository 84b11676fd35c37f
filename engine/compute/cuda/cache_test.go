//go:build linux

package cuda

import (
	"math"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
	"github.com/outrider-dev/outrider/internal/seed"
)

// download is n bytes of device memory.
func download(t *testing.T, d *Device, from driver.Ptr, n int) []byte {
	t.Helper()
	defer d.enter()()
	host := d.allocHost(n)
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	host = host[:n]
	d.check(d.stream.Download(host, from))
	d.wait()
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	return host
}

// Every bfloat16 number gets the nearest code, whichever kernel writes it.
func TestFloat8CodesAreTheNearest(t *testing.T) {
	d := gpu(t, nil)
	s := compute.AttentionShape{Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 1}
	const rows, of = 1 << 16 / (2 * 64), 2 * 64 // each row has as many keys and values
	format := compute.CacheFormat{Float8: true, KeyScales: []float32{1, 0.37}, ValueScales: []float32{3, 1}}
	numbers := make([]float32, rows*s.QKVCols())
	for i := range rows {
		for j := range of {
			v := math.Float32frombits(uint32(i*of+j) << 16)
			numbers[i*s.QKVCols()+2*of+j] = v
			if v-v != 0 {
				v = 1 // to be turned, if by no angle
			}
			numbers[i*s.QKVCols()+of+j] = v
		}
	}
	var r compute.Rows
	for i := range rows {
		r.Add(r.AddSequence([]int32{int32(i)}, 0), 0, 0, 1)
	}
	for name, qkv := range map[string]*tensor{"rope_cache8": d.newTensor(rows, s.QKVCols(), false), "rope_cache": d.newTensor(rows, s.QKVCols(), true)} {
		kv := d.NewCache(1, rows, 1, s, format).(*cache)
		put(d, qkv, numbers)
		d.Prepare(&r, make([]float32, s.HeadDim/2), 1)
		d.RopeAndCache(qkv, kv, 0, &r)
		keys, values := download(t, d, kv.keys, rows*of), download(t, d, kv.values, rows*of)
		for i := range rows * of {
			head, row := i%of/s.HeadDim, i/of*s.QKVCols()+i%of
			key, value := numbers[row+of], numbers[row+2*of]
			if want := compute.ToFloat8(key / format.KeyScales[head]); keys[i] != want && (keys[i]|want)&0x7f != 0 { // turning may change a zero's sign
				t.Fatalf("%s: key %v by %v is %#x, want %#x", name, key, format.KeyScales[head], keys[i], want)
			}
			want := compute.ToFloat8(value / format.ValueScales[head])
			if got := values[i]; got != want && !(got&0x7f == 0x7f && want&0x7f == 0x7f) {
				t.Fatalf("%s: value %v by %v is %#x, want %#x", name, value, format.ValueScales[head], got, want)
			}
		}
	}
}

// A cache that grows keeps what is in it, and can use all its pages afterwards; the
// device's free memory is what it was told to keep.
func TestCacheGrows(t *testing.T) {
	if err := Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	d, err := New(collective.NewLocal(1, 0)[0], Options{FirstPages: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	if err := d.Build(); err != nil {
		t.Fatal(err)
	}
	if d.granularity == 0 {
		t.Skip("NOT RUN: this driver gives no memory to addresses later")
	}
	rng := seed.Numbers(t)
	s := compute.AttentionShape{Heads: 8, KVHeads: 2, HeadDim: 64, Scale: 0.125}
	a := newAttended(d, rng, s, 16)
	other := d.NewCache(1, attentionPages, 16, s, compute.CacheFormat{Float8: true}).(*cache)
	if !d.Grows() || d.spare != 8*16 {
		t.Fatalf("grows: %t, spare slot %d", d.Grows(), d.spare)
	}
	low, high := []int32{3, 1, 7}, []int32{3, 1, 7, attentionPages - 1, 200}
	prompt := func(table []int32, from, n int) *compute.Rows {
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		for p := range n {
			r.Add(seq, 0, int32(from+p), 16)
		}
		return &r
	}
	a.pass(t, "first pages", prompt(low, 0, 40), 0)
	before, err := d.Free()
	if err != nil {
		t.Fatal(err)
	}
	if few, all := d.Fits(0), d.Fits(1<<40); few < 8 || few > all || all != attentionPages {
		t.Errorf("with no memory %d pages fit, with a lot %d", few, all)
	}
	if err := d.Grow(attentionPages); err != nil {
		t.Fatal(err)
	}
	after, err := d.Free()
	if took := before - after; err != nil || took > int64(2*(2*a.cache.(*cache).stride+other.stride)) {
		t.Errorf("growing took %d bytes, %v", took, err)
	}
	if d.spare != attentionPages*16 {
		t.Errorf("the spare slot is %d", d.spare)
	}
	a.pass(t, "goes on", prompt(high, 40, 1), 0)
	a.pass(t, "in new pages", prompt(high, 41, 39), 0)
	a.pass(t, "after them", prompt(high, 79, 1), 0)
}

// What a cache holds where no pass has written are numbers: zeros, also in pages that
// came later.
func TestCacheBeginsWithZeros(t *testing.T) {
	if err := Available(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	s := compute.AttentionShape{Heads: 2, KVHeads: 2, HeadDim: 64, Scale: 1}
	for _, first := range []int{0, 4} {
		d, err := New(collective.NewLocal(1, 0)[0], Options{FirstPages: first})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		const layers, pages = 2, 3000
		c := d.NewCache(layers, pages, 16, s, compute.CacheFormat{}).(*cache)
		if d.Grows() {
			if err := d.Grow(pages); err != nil {
				t.Fatal(err)
			}
		}
		n := pages * 16 * s.KVHeads * s.HeadDim * c.element
		for i := range layers {
			for what, all := range map[string]driver.Ptr{"key": c.keys, "value": c.values} {
				if at := slices.IndexFunc(download(t, d, c.layer(all, i), n), func(b byte) bool { return b != 0 }); at >= 0 {
					t.Errorf("%d pages at first: byte %d of the %ss of layer %d is not zero", first, at, what, i)
				}
			}
		}
	}
}
