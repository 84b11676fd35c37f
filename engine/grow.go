package engine

import (
	"fmt"
	"math"
	"sort"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// firstPositions is how many positions the KV pool of a device whose caches grow has
// at first: what the passes that are recorded at the start write to.
const firstPositions = 1024

// firstPages are those.
func (c Config) firstPages() int { return (firstPositions + c.PageSize - 1) / c.PageSize }

// growPool gives the KV cache the memory that is left when everything else has its
// own: the weights, the workspaces, the kernels and the passes that are recorded.
// The plan, which could not know these, is the most. Devices whose caches do not
// grow keep to it.
func (e *Engine) growPool() error {
	if !e.ranks.Grows() {
		return nil
	}
	planned := e.ranks.Limits().Pages
	whole := e.backend.memory / int64(e.cfg.localRanks()) // of each device, before the weights came
	spare := whole - int64(float64(whole)*e.cfg.MemFractionStatic)
	if err := e.widestPasses(); err != nil {
		return err
	}
	pages, free, err := e.ranks.Room(spare)
	if err != nil {
		return err
	}
	if pages, err = e.enoughPages(min(pages, planned), free, spare, whole); err != nil {
		return err
	}
	pages = max(pages, e.pool.Total()) // which have their memory
	if err := e.ranks.Grow(pages); err != nil {
		return err
	}
	e.pool.Grow(pages)
	e.mu.Lock()
	e.info.KVPagesTotal = pages
	e.mu.Unlock()
	e.log.Info("KV cache sized", "kv_pages", pages, "planned", planned, "free_mib", free>>20, "kept_free_mib", spare>>20)
	return nil
}

// enoughPages is pages, if they hold one longest request; free is what each device
// has free, spare what it keeps, and whole what it had at first.
func (e *Engine) enoughPages(pages int, free, spare, whole int64) (int, error) {
	one := (e.info.ContextLength + e.cfg.PageSize - 1) / e.cfg.PageSize
	if pages >= one {
		return pages, nil
	}
	on := e.backend.where
	if e.cfg.localRanks() > 1 {
		on = "each of " + on
	}
	ways := []string{"GPUs with more memory", "a larger --tp-size"}
	lacks, err := e.lacks(one, spare, whole)
	if err != nil {
		return 0, err
	}
	if f := math.Ceil(100-100*float64(spare-lacks)/float64(whole)) / 100; f <= mostOfGPU {
		ways = append(ways, fmt.Sprintf("--mem-fraction-static %v or more", f))
	}
	present := e.work(e.cfg.MaxRunningRequests, e.cfg.ChunkedPrefillSize) // on all devices
	ways = append(ways, e.cfg.lessWork(e.work, present-lacks*int64(e.cfg.TPSize))...)
	if !e.backend.float8 && pages*int(e.backend.element) >= one {
		ways = append(ways, "--kv-cache-dtype fp8")
	}
	if pages > 0 {
		ways = append(ways, fmt.Sprintf("--context-length %d at most", pages*e.cfg.PageSize))
	}
	return 0, fault.Errorf(fault.OutOfMemory,
		"the KV cache does not fit: with weights, workspaces and recorded passes in place %d MiB of the %d that were free are left on %s, of which --mem-fraction-static %v keeps %d: that is %d positions and one request takes %d: give it %s",
		free>>20, whole>>20, on, e.cfg.MemFractionStatic, spare>>20, pages*e.cfg.PageSize, e.info.ContextLength, either(ways))
}

// lacks is how much more each device, which had whole bytes free at first, would have
// to give the cache, beside spare, for that many pages; a multiple of a MiB.
func (e *Engine) lacks(pages int, spare, whole int64) (int64, error) {
	var failed error
	n := sort.Search(int(whole>>20), func(i int) bool {
		if failed != nil { // a device that has failed does so each time
			return true
		}
		var room int
		room, _, failed = e.ranks.Room(spare - int64(i)<<20)
		return failed != nil || room >= pages
	})
	return int64(n) << 20, failed
}

// widestPasses runs what takes the most memory: a whole chunk of prompts beside as
// many decodes as may be, with as many tokens drawn by the device, and the passes that
// are recorded, as often as they are before they come from the recording.
func (e *Engine) widestPasses() error {
	limits := e.ranks.Limits()
	var r compute.Rows
	var prompts []speculation.Sequence
	for r.Len() < e.cfg.ChunkedPrefillSize {
		n := min(e.cfg.ChunkedPrefillSize-r.Len(), e.pool.Total()*e.pool.PageSize())
		prompts = append(prompts, speculation.Sequence{Tokens: make([]int32, n+1), Row: r.Len(), Count: n, State: &speculation.State{}})
		prompts[len(prompts)-1].Table = e.addRows(&r, n)
	}
	for len(r.Tables) < e.cfg.MaxRunningRequests && r.Len() < limits.MaxRows {
		e.addRows(&r, 1)
	}
	if err := e.ranks.ForwardWith(&r, lastRows(&r, limits.MaxLogits), e.widestDraws(r.Len())); err != nil {
		return err
	}
	e.ranks.Logits(0)       // the host's part of them
	if e.ranks.Overlaps() { // the draws of two passes have their memory each
		var r compute.Rows
		for range min(limits.MaxLogits, limits.MaxRows) {
			e.addRows(&r, 1)
		}
		if err := e.ranks.ForwardWith(&r, lastRows(&r, r.Len()), e.widestDraws(r.Len())); err != nil {
			return err
		}
	}
	if e.drafter == nil {
		e.capturedParts(1)
		return e.recordDecodes()
	}
	prompts = prompts[:min(len(prompts), e.scheduler.Slots())]
	if err := e.drafter.Draft(prompts, false); err != nil {
		return err
	}
	for _, s := range prompts {
		e.drafter.Forget(s.State)
	}
	e.capturedParts(1)
	return e.record(e.batches())
}

// measuredEdits is how many changed logits a draw has while memory is measured: a whole
// logit_bias, or the penalties of a text of so many different tokens. Longer ones find
// their memory in what --mem-fraction-static keeps free.
const measuredEdits = 1024

// widestDraws are draws of all logits of a pass of rows rows, each with all that one
// can have; nil where devices draw nothing.
func (e *Engine) widestDraws(rows int) *model.Overlap {
	if !e.ranks.Overlaps() {
		return nil
	}
	edits := make([]compute.Edit, min(measuredEdits, e.info.VocabSize))
	for i := range edits {
		edits[i].ID = int32(i)
	}
	allowed := make([]uint64, (e.info.VocabSize+63)/64)
	for i := range allowed {
		allowed[i] = ^uint64(0)
	}
	all := make([]compute.Draw, min(rows, e.ranks.Limits().MaxLogits))
	for i := range all {
		all[i] = compute.Draw{Row: i, Edits: edits, Repetition: 1, Allowed: allowed, Decay: compute.NewDecay(1), TopP: 1 << compute.ShareBits, Tops: compute.MaxTops}
	}
	return &model.Overlap{Draws: func() []compute.Draw { return all }, Rest: func() {}}
}

// recordDecodes has the passes of plain decoding recorded.
func (e *Engine) recordDecodes() error {
	for _, n := range e.batches() {
		for range 2 {
			var r compute.Rows
			for range n {
				e.addRows(&r, 1)
			}
			if err := e.ranks.Forward(&r, lastRows(&r, n)); err != nil {
				return err
			}
		}
		e.capturedParts(1)
	}
	return nil
}

// lastRows are the numbers of the last n rows, or of all.
func lastRows(r *compute.Rows, n int) []int32 {
	rows := make([]int32, min(n, r.Len()))
	for i := range rows {
		rows[i] = int32(r.Len() - len(rows) + i)
	}
	return rows
}

// addRows adds a sequence of n rows from position 0 on, on the pool's first pages:
// the answer is its table.
func (e *Engine) addRows(r *compute.Rows, n int) []int32 {
	table := make([]int32, e.pool.PagesFor(n))
	for k := range table {
		table[k] = int32(k)
	}
	seq := r.AddSequence(table, 0)
	for p := range n {
		r.Add(seq, 0, int32(p), e.pool.PageSize())
	}
	return table
}
