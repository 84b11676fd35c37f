package model

import (
	"math"
	"sync"

	"github.com/outrider-dev/outrider/engine/compute"
)

// Grows tells whether the caches have memory for their first pages only, until Grow.
func (r *Ranks) Grows() bool {
	for _, k := range r.ranks {
		if g, ok := k.device.(compute.Grower); !ok || !g.Grows() {
			return false
		}
	}
	return true
}

// Room is how many pages every rank's caches can have if each device is to keep at
// least spare bytes free, and the least free memory of a device now, in bytes. The
// caches must be ones that grow.
func (r *Ranks) Room(spare int64) (pages int, free int64, err error) {
	pages, free = r.limits.Pages, math.MaxInt64
	var mu sync.Mutex
	err = r.each(func(d compute.Device) error {
		g := d.(compute.Grower)
		has, err := g.Free()
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			pages, free = min(pages, g.Fits(has-spare)), min(free, has)
		}
		return err
	})
	return pages, free, err
}

// Grow gives every rank's caches memory for pages pages, of those in Limits.
func (r *Ranks) Grow(pages int) error {
	err := r.each(func(d compute.Device) error { return d.(compute.Grower).Grow(pages) })
	if err == nil {
		r.limits.Pages = pages
	}
	return err
}
