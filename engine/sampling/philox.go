package sampling

import (
	"math/bits"

	"github.com/outrider-dev/outrider/engine/compute"
)

// uniform is the random number in [0, 1) of (seed, position): the first output
// of Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), with the position as the counter.
//
// It is a share of compute.ShareBits bits.
func uniform(seed uint64, position int) uint64 {
	x := philox([4]uint32{uint32(position), uint32(uint64(position) >> 32), 0, 0}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return (uint64(x[0])<<32 | uint64(x[1])) >> (64 - compute.ShareBits)
}

// philox is ten rounds of Philox4x32.
func philox(c [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, c[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return c
}
