//go:build linux

package cuda

import (
	"fmt"
	"math/bits"
	"strings"
)

// way is who makes a sum.
type way uint8

const (
	byNCCL way = iota
	byPush     // peers.cu: pairs of words are written into every GPU's memory
	byRead     // peers.cu: each GPU reads every other's message
	ways
)

var wayNames = [ways]string{"NCCL", "push", "read"}

// Sizes of messages that are measured: powers of two.
const (
	leastMessage = 1 << 12
	mostMessage  = 8 << 20
	sizes        = 12
)

// table says which way to take for a message, by its bytes. The zero table
// leaves all to NCCL.
type table struct {
	sum   [sizes]way
	fused [sizes]bool // a sum before a norm is one kernel with it
}

// sizeOf is the entry of a message: that of the next power of two. Those beyond
// the table are NCCL's.
func sizeOf(bytes int) (i int, ok bool) {
	if bytes > mostMessage {
		return 0, false
	}
	return bits.Len(uint((max(bytes, 1) - 1) / leastMessage)), true
}

// of is the way for a message of so many bytes.
func (t *table) of(bytes int) way {
	if i, ok := sizeOf(bytes); ok {
		return t.sum[i]
	}
	return byNCCL
}

// fuses tells whether sum_norm takes a message of so many bytes.
func (t *table) fuses(bytes int) bool {
	i, ok := sizeOf(bytes)
	return ok && t.fused[i]
}

// times are seconds by way and size; 0 where a way does not take that size.
// norms and fused are those of a norm after a sum, and of both at once.
type times struct {
	sum          [ways][sizes]float64
	norms, fused [sizes]float64
}

// better is how much faster a way must be than the ones before it: what is as
// good as another does not flip from start to start.
const better = 0.97

// choose makes the table of what was measured.
func choose(m times) table {
	var t table
	for i := range sizes {
		best := m.sum[byNCCL][i]
		for w := byPush; w < ways; w++ {
			if s := m.sum[w][i]; s > 0 && s < better*best {
				t.sum[i], best = w, s
			}
		}
		t.fused[i] = m.fused[i] > 0 && m.fused[i] < better*(best+m.norms[i])
	}
	return t
}

// slower is the times of a group: at each size the slowest rank's.
func slower(a, b times) times {
	for w := range ways {
		for i := range sizes {
			a.sum[w][i] = max(a.sum[w][i], b.sum[w][i])
		}
	}
	for i := range sizes {
		a.norms[i], a.fused[i] = max(a.norms[i], b.norms[i]), max(a.fused[i], b.fused[i])
	}
	return a
}

// String is the table in words: "sums by push to 64 KiB, read to 1 MiB, then
// NCCL; with the norm to 128 KiB".
func (t *table) String() string {
	var parts []string
	for i := 0; i < sizes; {
		end := i + 1
		for end < sizes && t.sum[end] == t.sum[i] {
			end++
		}
		switch {
		case end < sizes:
			parts = append(parts, fmt.Sprintf("%s to %s", wayNames[t.sum[i]], size(leastMessage<<(end-1))))
		case t.sum[i] == byNCCL:
			parts = append(parts, wayNames[byNCCL])
		default:
			parts = append(parts, fmt.Sprintf("%s to %s", wayNames[t.sum[i]], size(mostMessage)), wayNames[byNCCL])
		}
		i = end
	}
	s := "sums by " + parts[0]
	for _, p := range parts[1:] {
		s += ", then " + p
	}
	var fused []string
	for i, f := range t.fused {
		if f {
			fused = append(fused, size(leastMessage<<i))
		}
	}
	if len(fused) > 0 {
		s += "; one kernel with the norm at " + strings.Join(fused, ", ")
	}
	return s
}

func size(bytes int) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
