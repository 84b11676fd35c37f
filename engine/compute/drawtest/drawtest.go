// Package drawtest draws tokens by the definition of compute.Draw, slowly, and
// makes up draws: for tests of what draws faster.
package drawtest

import (
	"math"
	"math/rand/v2"
	"sort"

	"github.com/outrider-dev/outrider/engine/compute"
)

// By is what a draw gives of a row of logits. It is not ok where no token is
// left, or a logit is no number or infinite.
func By(logits []float32, d *compute.Draw) (compute.Drawn, bool) {
	for _, v := range logits {
		if v != v || math.IsInf(float64(v), 1) {
			return compute.Drawn{}, false
		}
	}
	changed := Edited(logits, d)
	order := best(changed)
	if len(order) == 0 {
		return compute.Drawn{}, false
	}
	out := compute.Drawn{Token: order[0]}
	if !d.Greedy {
		out.Token = drawn(changed, order, d)
	}
	out.Logit = logits[out.Token]
	if d.Tops >= 0 {
		out.Tops = TopsOf(logits, d.Tops)
	}
	return out, true
}

// Edited are the logits that a draw looks at: minus infinity is left out.
func Edited(logits []float32, d *compute.Draw) []float32 {
	none := float32(math.Inf(-1))
	changed := append([]float32(nil), logits...)
	for _, e := range d.Edits {
		v := changed[e.ID] + e.Add
		switch {
		case e.Repeats && v > 0:
			v /= d.Repetition
		case e.Repeats:
			v *= d.Repetition
		}
		changed[e.ID] = v - e.Minus
		if e.Never {
			changed[e.ID] = none
		}
	}
	for i := range changed {
		if d.Allowed != nil && d.Allowed[i>>6]>>(i&63)&1 == 0 {
			changed[i] = none
		}
	}
	return changed
}

// best are the tokens that have a logit, the highest first.
func best(logits []float32) []int32 {
	var order []int32
	for i, v := range logits {
		if !math.IsInf(float64(v), -1) {
			order = append(order, int32(i))
		}
	}
	sort.SliceStable(order, func(a, b int) bool { return logits[order[a]] > logits[order[b]] })
	return order
}

func drawn(logits []float32, order []int32, d *compute.Draw) int32 {
	top := logits[order[0]]
	weight := func(id int32) uint64 {
		if w := compute.Mass(d.Decay.At(top - logits[id])); w >= max(d.Least, 1) {
			return w
		}
		return 0
	}
	var kept []int32
	for _, id := range order {
		if weight(id) > 0 && (d.TopK == 0 || len(kept) < d.TopK) {
			kept = append(kept, id)
		}
	}
	sum := func(ids []int32) (n uint64) {
		for _, id := range ids {
			n += weight(id)
		}
		return n
	}
	if d.TopP < 1<<compute.ShareBits {
		need := compute.Needed(d.TopP, sum(kept))
		n, mass := 0, uint64(0)
		for ; n < len(kept) && mass < need; n++ {
			mass += weight(kept[n])
		}
		kept = kept[:n]
	}
	at := compute.Part(d.Uniform, sum(kept))
	sort.Slice(kept, func(a, b int) bool { return kept[a] < kept[b] })
	for _, id := range kept {
		w := weight(id)
		if w > at {
			return id
		}
		at -= w
	}
	panic("drawtest: nothing was drawn")
}

// TopsOf are the n highest logits of a row, or as many as there are.
func TopsOf(logits []float32, n int) compute.Tops {
	order := best(logits)
	t := compute.Tops{IDs: order[:min(n, len(order))], Highest: logits[order[0]]}
	for _, id := range t.IDs {
		t.Logits = append(t.Logits, logits[id])
	}
	for _, id := range order {
		t.Mass += compute.Mass(compute.NewDecay(1).At(t.Highest - logits[id]))
	}
	return t
}

// Logits are made up: of a model's kind, or nearly equal, with equal ones among
// them, or far apart.
func Logits(rng *rand.Rand, vocab int) []float32 {
	logits := make([]float32, vocab)
	spread := []float64{2.5, 2.5, 0.2, 1e-3, 40}[rng.IntN(5)]
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * spread)
		if rng.IntN(50) == 0 {
			logits[i] = logits[rng.IntN(i+1)]
		}
		if rng.IntN(500) == 0 {
			logits[i] = float32(math.Inf(-1))
		}
	}
	for range rng.IntN(4) { // some stand out
		logits[rng.IntN(vocab)] += float32(6 * rng.Float64() * spread)
	}
	return logits
}

// Random is a made-up draw from row of logits of vocab tokens.
func Random(rng *rand.Rand, row, vocab int) compute.Draw {
	some := func(n int) bool { return rng.IntN(n) == 0 }
	d := compute.Draw{Row: row, Greedy: some(5), TopP: 1 << compute.ShareBits, Tops: -1, Uniform: rng.Uint64() >> (64 - compute.ShareBits), Repetition: 1.3}
	d.Decay = compute.NewDecay([]float64{1, 1, 0.7, 0.05, 2, 1e-9}[rng.IntN(6)])
	if some(3) {
		d.TopK = []int{1, 2, 40, 1 + rng.IntN(vocab)}[rng.IntN(4)]
	}
	if some(3) {
		d.TopP = uint64([]float64{0.9, 0.5, rng.Float64(), 1e-12}[rng.IntN(4)] * (1 << compute.ShareBits))
	}
	if some(4) {
		d.Least = uint64(rng.Float64() / 10 * (1 << compute.MassBits))
	}
	if some(3) {
		for _, id := range rng.Perm(vocab)[:min(1+rng.IntN(300), vocab/2)] {
			d.Edits = append(d.Edits, compute.Edit{ID: int32(id), Add: float32(rng.IntN(3) - 1), Minus: float32(rng.IntN(4)) / 2, Repeats: some(2), Never: some(4)})
		}
	}
	if some(3) {
		d.Allowed = make([]uint64, (vocab+63)/64)
		for i := range d.Allowed {
			d.Allowed[i] = rng.Uint64() & rng.Uint64() & rng.Uint64()
		}
		d.Allowed[0] |= 1
	}
	if some(3) {
		d.Tops = rng.IntN(compute.MaxTops + 1)
	}
	return d
}
