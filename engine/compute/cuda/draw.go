//go:build linux

package cuda

import (
	"unsafe"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda/driver"
)

// What sampling.cu calls by the same names.
type (
	drawEdit struct {
		id         int32
		add, minus float32
		flags      uint32
		_          float32 // the kernels'
	}
	drawJob struct {
		factor, least, uniform, topP               uint64
		allowed, edits                             driver.Ptr
		shift, row, edited, topK, tops, flags, out int32
		repetition                                 float32
	}
	drawResult struct {
		mass    uint64
		token   int32
		logit   float32
		tops    int32
		highest float32
		ids     [compute.MaxTops]int32
		logits  [compute.MaxTops]float32
	}
	draws struct {
		jobs                                                                           driver.Ptr
		x                                                                              view
		best, arrived, top, found, sums, masses, counts, bins, results, tokens, points driver.Ptr
		cols, chunk, parts, stride                                                     int32
	}
)

const (
	drawGreedy, drawSearch, drawBinned = 1, 2, 4 // drawJob.flags
	editRepeats, editNever             = 1, 2    // drawEdit.flags

	drawBins  = compute.Octaves << 5
	drawGroup = 64 // jobs of one launch: they share the scratch memory
	drawParts = 64 // parts of a row, at most
)

// drawing is the memory of draws.
type drawing struct {
	points, best, arrived, top, sums, masses, counts, bins driver.Ptr
	stride                                                 int // columns that bins has room for

	jobs   []drawJob
	tokens driver.Ptr  // of the last draws
	most   int         // draws that tokens has room for
	turns  [2]drawTurn // the last draws are of turn turn
	turn   int
}

// drawTurn is what some draws gave. It is not written over by the next ones.
type drawTurn struct {
	upload  []byte // page-locked
	dev     driver.Ptr
	copied  driver.Event
	results []drawResult // page-locked
	asked   []int32      // their Tops
}

// tops are the jobs of FindTops over a tensor, one a row, and what they found.
type tops struct {
	jobs    driver.Ptr
	n       int
	results []drawResult // page-locked
}

// prepare makes scratch memory for rows of stride columns; false after a fault.
func (w *drawing) prepare(d *Device, stride int) bool {
	if w.points == 0 {
		w.points = d.alloc(4*len(compute.DecayPoints), "workspaces")
		d.upload(w.points, unsafe.Slice((*byte)(unsafe.Pointer(&compute.DecayPoints[0])), 4*len(compute.DecayPoints)))
		w.best, w.arrived, w.top = d.alloc(8*drawGroup, "workspaces"), d.alloc(4*drawGroup, "workspaces"), d.alloc(8*drawGroup, "workspaces")
		w.sums = d.alloc(8*drawGroup*drawParts, "workspaces")
		w.masses, w.counts = d.alloc(8*drawGroup*drawBins, "workspaces"), d.alloc(4*drawGroup*drawBins, "workspaces")
		if !d.ok() {
			return false
		}
		for p, n := range map[driver.Ptr]int{w.best: 8 * drawGroup, w.arrived: 4 * drawGroup, w.masses: 8 * drawGroup * drawBins, w.counts: 4 * drawGroup * drawBins} {
			d.check(d.stream.Fill(p, 0, n))
		}
	}
	if stride > w.stride { // recorded passes know the memory of before, which stays
		w.bins, w.stride = d.alloc(2*drawGroup*stride, "workspaces"), stride
	}
	return d.ok()
}

// newResults is page-locked memory for n results; nil after a fault.
func (d *Device) newResults(n int) []drawResult {
	host := d.allocHost(n * int(unsafe.Sizeof(drawResult{})))
	if host == nil {
		return nil
	}
	return unsafe.Slice((*drawResult)(unsafe.Pointer(&host[0])), n)
}

// launches queues kernels over the jobs at a place on the device, group by group.
func (d *Device) launches(t *tensor, cols int, jobs driver.Ptr, n int, results []drawResult, each func(p *draws, first, n int)) {
	w := &d.drawing
	for first := 0; first < n; first += drawGroup {
		k := min(n-first, drawGroup)
		parts := min(max(2*d.context.Info.Processors/k, 1), drawParts)
		chunk := max(((t.stride+parts-1)/parts+7)/8*8, 1024)
		each(&draws{
			jobs: jobs + driver.Ptr(first*int(unsafe.Sizeof(drawJob{}))), x: t.view(), best: w.best, arrived: w.arrived, top: w.top, found: t.best.found,
			sums: w.sums, masses: w.masses, counts: w.counts, bins: w.bins, results: address(results), tokens: w.tokens, points: w.points,
			cols: int32(cols), chunk: int32(chunk), parts: int32((t.stride + chunk - 1) / chunk), stride: int32(t.stride),
		}, first, k)
	}
}

// over queues one of the kernels over jobs × parts, or over jobs.
func (d *Device) over(f driver.Function, n, parts, threads int, p *draws) {
	launch(d, f, driver.Dim{X: uint32(n), Y: uint32(parts), Z: 1}, driver.Dim{X: uint32(threads), Y: 1, Z: 1}, p)
}

// FindTops implements compute.Drawer.
func (d *Device) FindTops(x compute.Tensor, cols, rows, n int) {
	defer d.enter()()
	t := x.(*tensor)
	if rows == 0 || !t.best.prepare(d, t.rows) || !d.drawing.prepare(d, t.stride) || !t.tops.prepare(d, t.rows, n) {
		return
	}
	d.launches(t, cols, t.tops.jobs, rows, t.tops.results, func(p *draws, _, k int) {
		d.over(d.fn.drawWeigh, k, int(p.parts), 256, p)
		d.over(d.fn.drawTops, k, 1, 1024, p)
	})
}

// prepare makes the jobs of a tensor of rows rows; false after a fault.
func (p *tops) prepare(d *Device, rows, n int) bool {
	if p.jobs != 0 && p.n == n {
		return d.ok()
	}
	if p.results == nil {
		if p.results = d.newResults(fillUp(rows)); p.results == nil {
			return false
		}
	}
	jobs := make([]drawJob, fillUp(rows))
	for i := range jobs {
		jobs[i] = topsJob(i, i, n)
	}
	size := len(jobs) * int(unsafe.Sizeof(drawJob{}))
	p.n, p.jobs = n, d.alloc(size, "workspaces")
	d.upload(p.jobs, unsafe.Slice((*byte)(unsafe.Pointer(&jobs[0])), size))
	return d.ok()
}

// topsJob finds the n highest logits of a row.
func topsJob(row, out, n int) drawJob {
	decay := compute.NewDecay(1)
	return drawJob{factor: decay.Factor, shift: decay.Shift, least: 1, row: int32(row), out: int32(out), tops: int32(n), flags: drawBinned}
}

// TopsOf implements compute.Drawer.
func (d *Device) TopsOf(x compute.Tensor, i int) (compute.Tops, bool) {
	if !d.idle {
		d.Wait()
	}
	t := &x.(*tensor).tops
	if !d.ok() || i >= len(t.results) {
		return compute.Tops{}, false
	}
	return t.results[i].topsOf(t.n)
}

// topsOf are the n highest logits of a result.
func (r *drawResult) topsOf(n int) (compute.Tops, bool) {
	return compute.Tops{IDs: r.ids[:n], Logits: r.logits[:n], Highest: r.highest, Mass: r.mass}, int(r.tops) == n
}

// Draw implements compute.Drawer.
func (d *Device) Draw(x compute.Tensor, cols int, all []compute.Draw) {
	w := &d.drawing
	w.turn = 1 - w.turn
	turn := &w.turns[w.turn]
	turn.asked = turn.asked[:0]
	if len(all) == 0 {
		return
	}
	defer d.enter()()
	t := x.(*tensor)
	if !t.best.prepare(d, t.rows) || !w.prepare(d, t.stride) || !w.room(d, all) {
		return
	}
	defer d.passEnds()
	use, topJobs := w.put(all)
	d.check(d.stream.Upload(turn.dev, turn.upload[:use.bytes]))
	d.check(d.stream.Record(turn.copied))
	size := int(unsafe.Sizeof(drawJob{}))
	d.launches(t, cols, turn.dev+driver.Ptr(size*len(all)), topJobs, turn.results, func(p *draws, _, k int) {
		d.over(d.fn.drawWeigh, k, int(p.parts), 256, p)
		d.over(d.fn.drawTops, k, 1, 1024, p)
	})
	d.launches(t, cols, turn.dev, len(all), turn.results, func(p *draws, first, k int) {
		var flags int32
		edited := false
		for _, j := range w.jobs[first : first+k] {
			edited = edited || j.edited > 0
			flags |= j.flags&drawSearch | ^j.flags&drawGreedy
		}
		if edited {
			d.over(d.fn.drawEdit, k, 1, 256, p)
		}
		if flags&drawSearch != 0 {
			d.over(d.fn.drawTop, k, int(p.parts), 256, p)
		}
		if flags&drawGreedy != 0 { // some are not
			d.over(d.fn.drawWeigh, k, int(p.parts), 256, p)
		}
		d.over(d.fn.drawPick, k, 1, 1024, p)
	})
}

// drawUse is how much of the memory for uploads is taken.
type drawUse struct{ edits, words, bytes int }

// useOf is what draws take: jobs, those of tops, masks, edits.
func useOf(all []compute.Draw) (u drawUse) {
	for i := range all {
		u.edits += len(all[i].Edits)
		u.words += len(all[i].Allowed)
	}
	u.bytes = 2*len(all)*int(unsafe.Sizeof(drawJob{})) + 8*u.words + int(unsafe.Sizeof(drawEdit{}))*u.edits
	return u
}

// room makes memory for draws, and waits until that of the last ones of this turn
// is free.
func (w *drawing) room(d *Device, all []compute.Draw) bool {
	t, n := &w.turns[w.turn], len(all)*3/2
	if len(all) > len(t.results) {
		t.results = d.newResults(n)
	}
	if len(all) > w.most {
		d.record.close() // what was recorded knows the memory before
		w.tokens, w.most = d.alloc(4*n, "workspaces"), n
	}
	if n := useOf(all).bytes; n > len(t.upload) {
		n += n / 2
		if t.upload = d.allocHost(n); t.upload == nil {
			return false
		}
		t.dev = d.alloc(n, "workspaces")
	}
	if t.copied == 0 && d.ok() {
		e, err := driver.NewEvent()
		d.check(err)
		t.copied = e
	}
	if d.ok() {
		d.waitFor(t.copied)
	}
	return d.ok()
}

// put writes the jobs of draws, then those that find their tops, to the memory
// that is uploaded.
func (w *drawing) put(all []compute.Draw) (u drawUse, topJobs int) {
	t := &w.turns[w.turn]
	u = useOf(all)
	at := 0
	jobs := take[drawJob](t.upload, &at, 2*len(all))
	words := at
	masks := take[uint64](t.upload, &at, u.words)
	editsAt := at
	edits := take[drawEdit](t.upload, &at, u.edits)
	w.jobs = w.jobs[:0]
	for i := range all {
		a := &all[i]
		j := drawJob{
			factor: a.Decay.Factor, shift: a.Decay.Shift, least: max(a.Least, 1), uniform: a.Uniform, topP: a.TopP,
			row: int32(a.Row), out: int32(i), topK: int32(a.TopK), repetition: a.Repetition, edited: int32(len(a.Edits)),
		}
		if a.Allowed != nil {
			j.allowed, j.flags = t.dev+driver.Ptr(words), drawSearch
			words += 8 * copy(masks, a.Allowed)
			masks = masks[len(a.Allowed):]
		}
		if len(a.Edits) > 0 {
			j.edits, j.flags = t.dev+driver.Ptr(editsAt), drawSearch
			for k, e := range a.Edits {
				edits[k] = drawEdit{id: e.ID, add: e.Add, minus: e.Minus}
				if e.Repeats {
					edits[k].flags |= editRepeats
				}
				if e.Never {
					edits[k].flags |= editNever
				}
			}
			edits = edits[len(a.Edits):]
			editsAt += len(a.Edits) * int(unsafe.Sizeof(drawEdit{}))
		}
		switch {
		case a.Greedy:
			j.flags |= drawGreedy
		case a.TopK > 0 || a.TopP < 1<<compute.ShareBits:
			j.flags |= drawBinned
		}
		w.jobs = append(w.jobs, j)
		t.asked = append(t.asked, int32(a.Tops))
		if a.Tops >= 0 {
			jobs[len(all)+topJobs] = topsJob(a.Row, i, a.Tops)
			topJobs++
		}
	}
	copy(jobs, w.jobs)
	return u, topJobs
}

// take is memory for n values, at at, which moves on.
func take[T any](b []byte, at *int, n int) []T {
	if n == 0 {
		return nil
	}
	s := unsafe.Slice((*T)(unsafe.Pointer(&b[*at])), n)
	*at += n * int(unsafe.Sizeof(s[0]))
	return s
}

// Drawn implements compute.Drawer.
func (d *Device) Drawn(i int) (compute.Drawn, bool) {
	if !d.idle {
		d.Wait()
	}
	if !d.ok() {
		return compute.Drawn{}, false
	}
	return d.drawing.turns[d.drawing.turn].drawn(i)
}

// drawn is what draw i gave.
func (t *drawTurn) drawn(i int) (compute.Drawn, bool) {
	if i >= len(t.asked) {
		return compute.Drawn{}, false
	}
	r := &t.results[i]
	out, ok := compute.Drawn{Token: r.token, Logit: r.logit}, r.token >= 0
	if n := int(t.asked[i]); n >= 0 && ok {
		out.Tops, ok = r.topsOf(n)
	}
	return out, ok
}

// close frees the events.
func (w *drawing) close() {
	for _, t := range w.turns {
		if t.copied != 0 {
			_ = t.copied.Close()
		}
	}
}
