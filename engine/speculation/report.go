package speculation

import (
	"slices"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Counts are the switches between plain decoding and speculation, probes left
// out, and the probes.
func (c *Chooser) Counts() (switches, probes int) { return c.switches, c.probes }

// Report is what the choice rests on.
func (c *Chooser) Report() ([]telemetry.Acceptance, *telemetry.Costs) {
	return c.rates.report(), c.costs.report()
}

func (a *Acceptance) report() []telemetry.Acceptance {
	rows := make([]telemetry.Acceptance, len(a.trials))
	for k, lower := range a.Rates(nil) {
		rows[k] = telemetry.Acceptance{Position: k, Rate: a.hits[k] / a.trials[k], Lower: lower, Drafts: a.trials[k]}
	}
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
