package engine

import (
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/speculation"
)

const (
	// profileBudget bounds the time that the profile takes at the start; larger
	// batches are extrapolated when it is over.
	profileBudget = 4 * time.Second
	profileRuns   = 2                      // of each cell at least: the fastest counts, which nothing disturbed
	mostRuns      = 9                      // and at most,
	profileEnough = 100 * time.Millisecond // as long as those of a batch have not taken as much
	longContext   = 512                    // positions of the cells that give the slope
	recordBudget  = 15 * time.Second       // that a device has to record passes in
)

// captured is how far PhaseCapture is, in parts: see captureParts.
type captured struct{ done, of int }

// captureParts is how many parts PhaseCapture has: the widest passes, each shape as
// often as the shapes are recorded, each batch that is measured, and the slope.
func (e *Engine) captureParts() int {
	n, shapes := 0, e.recordedShapes()
	if e.ranks.Grows() {
		n += 1 + shapes
	}
	if e.drafter == nil {
		return n
	}
	if e.ranks.Records() {
		n += shapes
	}
	return n + len(e.batches()) + 1
}

// recordedShapes is the number of cycles that record, or recordDecodes, runs.
func (e *Engine) recordedShapes() int {
	if e.drafter == nil {
		return len(e.batches())
	}
	return len(e.batches()) * (e.cfg.NumSteps + 1)
}

// capturedParts notes that n more parts of PhaseCapture are over.
func (e *Engine) capturedParts(n int) {
	e.captured.done += n
	e.progress.Captured(e.captured.done, e.captured.of)
}

// profile measures decode cycles by batch, depth and context on an idle
// engine, with made-up sequences. Where the depth is fixed it measures the ends
// of the range only: enough to begin with if the mode becomes auto later.
func (e *Engine) profile() (*speculation.Costs, error) {
	begin := time.Now()
	batches := e.batches()
	if e.ranks.Records() {
		if err := e.record(batches); err != nil {
			return nil, err
		}
		begin = time.Now()
	}
	seconds, measured, err := e.profileGrid(batches, begin)
	if err != nil {
		return nil, err
	}
	slope := make([]float64, e.cfg.NumSteps+1)
	context := min(longContext, e.info.ContextLength-e.cfg.NumSteps-3)
	i := 0
	for i+1 < measured && batches[i] < 4 { // several sequences, if there may be
		i++
	}
	if context > 0 && affordable(begin, seconds[i], 1) {
		row, err := e.profileBatch(batches[i], context)
		if err != nil {
			return nil, err
		}
		for d := range slope {
			slope[d] = max(0, row[d]-seconds[i][d]) / float64(batches[i]*context)
		}
	}
	e.capturedParts(1)
	e.log.Debug("profiled", "batches", batches, "seconds", seconds, "took", time.Since(begin).Round(time.Millisecond))
	return speculation.NewCosts(batches, seconds, slope), nil
}

// batches are the numbers of sequences that the profile measures.
func (e *Engine) batches() []int {
	batches := []int{1}
	for b := 2; b < e.cfg.MaxRunningRequests && e.cfg.Mode == speculation.ModeAuto; b *= 2 {
		batches = append(batches, b)
	}
	if e.cfg.MaxRunningRequests > 1 {
		batches = append(batches, e.cfg.MaxRunningRequests)
	}
	return batches
}

// record runs the cycles of the profile before their time counts, on a device that
// records passes: the first of a shape is issued step by step and the second one
// recorded, and both take many times as long as those that come after. What there is
// no time for is recorded when it comes.
func (e *Engine) record(batches []int) error {
	begin, left := time.Now(), e.recordedShapes()
	for _, b := range batches {
		for d := range e.cfg.NumSteps + 1 {
			for range 2 {
				if _, err := e.profileCycle(b, d, 0); err != nil {
					return err
				}
			}
			left--
			e.capturedParts(1)
			if time.Since(begin) > recordBudget {
				e.capturedParts(left)
				return nil
			}
		}
	}
	return nil
}

// profileGrid measures the batches with empty caches, the first ones that the
// budget allows: those after them are extrapolated.
func (e *Engine) profileGrid(batches []int, begin time.Time) (seconds [][]float64, measured int, err error) {
	for i, b := range batches {
		var row []float64
		more := 1.0
		if i > 0 {
			more = float64(b) / float64(batches[i-1])
		}
		if i == 0 || measured == i && affordable(begin, seconds[i-1], more) {
			if row, err = e.profileBatch(b, 0); err != nil {
				return nil, 0, err
			}
			measured++
		} else {
			for _, s := range seconds[i-1] { // as if time grew with the rows
				row = append(row, s*more)
			}
		}
		seconds = append(seconds, row)
		e.capturedParts(1)
	}
	return seconds, measured, nil
}

// affordable tells whether what is left of the budget pays for cells that take
// more times as long as those of row.
func affordable(begin time.Time, row []float64, more float64) bool {
	expected := 0.0
	for _, s := range row {
		expected += profileRuns * more * s
	}
	return time.Since(begin).Seconds()+expected <= profileBudget.Seconds()
}

// profileBatch is the time of a cycle of batch sequences with context positions
// each, by depth. The depths take turns, so that a machine that is slow for a
// moment is so for all of them.
func (e *Engine) profileBatch(batch, context int) ([]float64, error) {
	row := make([]float64, e.cfg.NumSteps+1)
	begin := time.Now()
	for run := 0; run < profileRuns || run < mostRuns && time.Since(begin) < profileEnough; run++ {
		for d := range row {
			took, err := e.profileCycle(batch, d, context)
			if err != nil {
				return nil, err
			}
			if s := took.Seconds(); run == 0 || s < row[d] {
				row[d] = s
			}
		}
	}
	return row, nil
}

// profileCycle runs one cycle: verify at a depth, sample, and draft as much
// again, half of the draft having been accepted.
func (e *Engine) profileCycle(batch, depth, context int) (time.Duration, error) {
	start := time.Now()
	var rows compute.Rows
	var want []int32
	accepted, nodes := 1+depth/2, e.cfg.shape().At(depth)
	pages := e.pool.PagesFor(context + 1 + max(nodes, accepted+max(depth, e.cfg.treeRoom())))
	seqs := make([]speculation.Sequence, batch)
	tokens := make([]int32, context+accepted+1)
	for i := range seqs {
		table := make([]int32, pages)
		for k := range table {
			table[k] = int32((i*pages + k) % e.pool.Total())
		}
		seq := rows.AddSequence(table, 0)
		for k := range 1 + nodes { // also of a tree: what rows cost does not depend on their order
			want = append(want, int32(rows.Len()))
			rows.Add(seq, 0, int32(context+k), e.pool.PageSize())
		}
		seqs[i] = speculation.Sequence{Tokens: tokens, Table: table, Row: i * (1 + nodes), From: context, Count: accepted, Depth: depth, Room: pages*e.pool.PageSize() - len(tokens),
			State: &speculation.State{Next: context}}
		if depth == 0 && e.keeper != nil { // a row each
			rows.Kept = append(rows.Kept, -1)
			e.keeper.Keep(seqs[i].State, context, 1, rows.Kept[i:])
		}
	}
	if err := e.ranks.ForwardWith(&rows, want, nil); err != nil {
		return 0, err
	}
	for i := range want {
		if _, ok := e.ranks.Best(i); ok {
			continue // as for most requests
		}
		if _, err := e.sampler.Sample(e.ranks.Logits(i), &sampling.Params{TopP: 1}, context, sampling.Text{}); err != nil {
			return 0, err
		}
	}
	if e.drafter != nil {
		if err := e.drafter.Draft(seqs, depth == 0); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	for _, s := range seqs {
		e.drafter.Forget(s.State)
	}
	return took, nil
}
