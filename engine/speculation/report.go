package speculation

import (
	"math"
	"slices"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Counts are the switches between plain decoding and speculation that were chosen,
// probes left out, and the probes.
func (c *Chooser) Counts() (switches, probes int) { return c.switches, c.probes }

// Tokens are the tokens that a cycle is expected to settle for each sequence, by depth.
func (c *Chooser) Tokens() []float64 { return c.tokens }

// Report writes what the choice rests on.
func (c *Chooser) Report(p *telemetry.Profile) {
	p.Acceptance, p.Tokens, p.Costs = c.rates.report(), slices.Clone(c.tokens), c.costs.report()
}

func (a *Acceptance) report() []telemetry.Acceptance {
	var rows []telemetry.Acceptance
	a.rates(func(rate, seen float64) {
		deviation := math.Sqrt(rate*(1-rate)/seen + 0.25/(seen*seen))
		rows = append(rows, telemetry.Acceptance{Position: len(rows), Rate: rate, Deviation: deviation, Drafts: seen})
	})
	return rows
}

func (c *Costs) report() *telemetry.Costs {
	r := &telemetry.Costs{Speed: c.speed, Context: slices.Clone(c.slope)}
	for i, b := range c.batches {
		for d := range c.base[i] {
			r.Cells = append(r.Cells, telemetry.CostCell{Batch: b, Depth: d, Seconds: c.base[i][d], Measured: c.seen[i][d]})
		}
	}
	return r
}
