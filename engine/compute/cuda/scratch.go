//go:build linux

package cuda

import (
	"github.com/outrider-dev/outrider/engine/compute/cuda/blas"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// The uses of scratch memory that grows.
const (
	scratchIndex   = iota // a list of rows
	scratchInput          // activations in the type of a weight
	scratchWeight         // a quantised weight as bfloat16
	scratchStage          // activations as float32, for the host
	scratchOthers         // what other ranks bring to an AllGather
	scratchSquares        // sums of squares of a residual stream
	scratchSums           // sums that are to be rounded
	scratchUses
)

// scratch is memory that an operation uses within itself.
type scratch struct {
	blas     driver.Ptr
	partial  driver.Ptr // attention's sums of splits, or what blocks of a product leave to others
	arrived  driver.Ptr // and how many of them there are
	growing  [scratchUses]driver.Ptr
	capacity [scratchUses]int
	host     []byte // page-locked, for collectives
}

// maxSplitBlocks is the most blocks of an attention whose positions are split,
// for each multiprocessor.
const maxSplitBlocks = 2

func (s *scratch) init(d *Device) {
	blocks := maxSplitBlocks * d.context.Info.Processors
	s.blas = d.alloc(blas.Workspace, "workspaces")
	s.partial = d.alloc(max(4*blocks*16*(128+4), manyPartial(d.context.Info.Processors)), "workspaces")
	units := max(blocks, mostTiles)
	s.arrived = d.alloc(4*units, "workspaces")
	if d.ok() {
		d.check(d.stream.Fill(s.arrived, 0, 4*units))
	}
}

// get is memory of n bytes for one use, with what was last written there. What
// was given before stays valid, since recorded passes know its address.
func (s *scratch) get(d *Device, use, n int) driver.Ptr {
	if n > s.capacity[use] {
		s.growing[use] = d.alloc(n+n/4, "workspaces")
		s.capacity[use] = n + n/4
	}
	return s.growing[use]
}

// hostBytes is page-locked memory of n bytes.
func (s *scratch) hostBytes(d *Device, n int) []byte {
	if n > len(s.host) {
		s.host = d.allocHost(n + n/4)
	}
	if s.host == nil {
		return nil
	}
	return s.host[:n]
}
