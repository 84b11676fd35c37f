package speculation

import "math/bits"

// mixed is what cycles whose passes compute so many rows of prompts take longer than
// those without, at one depth. Where requests end and begin all the time there are hardly
// any others: a depth that is tried is then compared by these with the one in force.
type mixed struct {
	seconds float64 // of a machine whose speed is 1
	square  float64 // of what single cycles differ from that by, as a share of a cycle without prompts
	cycles  float64
}

const (
	mixedSizes  = 12 // numbers of rows by the power of two that they are below, the last one for all beyond
	followMixed = 1. / 32
	firstMixed  = 8 // cycles after which a size tells something
	// differs is the part of what prompts add at one depth by which it may be another time
	// at another one: their rows may be those with which a device takes another way. Taken
	// for what the depth costs, and then for the machine's speed, that had a choice swing.
	differs = 0.5
)

// Mixed takes in a cycle whose pass computed rows of prompts too, of a probe or of the
// depth in force. The answer is whether it said something of the depth.
func (c *Costs) Mixed(l Load, depth int, seconds float64, rows int, probe bool) bool {
	expected := c.Seconds(l, depth)
	if !(seconds > 0) || !(expected > 0) {
		return false
	}
	size := min(bits.Len(uint(rows)), mixedSizes-1)
	if !probe {
		c.forced = depth
		m := &c.mixed[depth][size]
		m.cycles++
		follow := max(followMixed, 1/m.cycles)
		most := expected / c.speed // that a single cycle counts as, so that one that was interrupted does not decide
		off := min(max((seconds-expected)/c.speed-m.seconds, -most), most)
		m.seconds += follow * off
		if m.cycles > 1 { // the first one differs from nothing that was known
			m.square += max(followMixed, 1/(m.cycles-1)) * (off*off/(most*most) - m.square)
		}
		return false
	}
	m, other := &c.mixed[depth][size], 0.0
	if m.cycles < firstMixed {
		m = &c.mixed[c.forced][size]
		other = differs * c.speed * m.seconds / expected
	}
	alone := seconds - c.speed*m.seconds
	if m.cycles < firstMixed || !(alone > 0) {
		return false
	}
	c.add(l, depth, alone/expected, c.noise/(c.noise+m.square+probeCycles*other*other), true)
	return true
}
