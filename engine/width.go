package engine

import (
	"strconv"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

// width is how wide passes can be: the defaults of --chunked-prefill-size and
// --max-running-requests.
type width struct{ chunk, running int }

// Defaults of the CPU, whose passes take as long as they have rows, and of GPUs, of
// which few rows use a small part.
const (
	DefaultChunk, DefaultRunning       = 256, 32
	DefaultGPUChunk, DefaultGPURunning = 2048, 128
)

// widths are the defaults of a device, the one to be had first, and those that it
// gives way to where memory is short.
func widths(device string) []width {
	if device != DeviceCUDA {
		return []width{{DefaultChunk, DefaultRunning}}
	}
	return []width{{DefaultGPUChunk, DefaultGPURunning}, {1024, 64}, {512, 32}, {DefaultChunk, DefaultRunning}}
}

// chosenWidth tells which of the two is the user's.
type chosenWidth struct{ chunk, running bool }

// all tells whether nothing is left to the engine.
func (c chosenWidth) all() bool { return c.chunk && c.running }

// widen has passes as wide as w, where the user did not say.
func (e *Engine) widen(w width) {
	if !e.chosen.chunk {
		e.cfg.ChunkedPrefillSize = w.chunk
	}
	if !e.chosen.running {
		e.cfg.MaxRunningRequests = w.running
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.info.MaxRunningRequests, e.info.ChunkedPrefillSize = e.cfg.MaxRunningRequests, e.cfg.ChunkedPrefillSize
}

// fit plans for the widest defaults that the memory is enough for. The user's own
// values are kept to, and the last defaults, too: then the error says what would do.
func (e *Engine) fit(spec model.Spec, length int, bytes int64) (model.Limits, error) {
	all := widths(e.backend.name)
	if e.chosen.all() {
		all = all[:1]
	}
	last := len(all) - 1
	at := 0
	for at < last && !e.fits(spec, all[at], length, bytes) {
		at++
	}
	if last > 0 && e.nodes != nil { // the least of all nodes: they compute the same passes
		numbers, err := e.nodes.Numbers(int64(at))
		if err != nil {
			return model.Limits{}, err
		}
		for _, n := range numbers {
			at = max(at, min(int(n[0]), last))
		}
	}
	e.widen(all[at])
	if at > 0 {
		e.logSmaller()
	}
	e.work = e.workspaces(spec)
	limits, _ := e.limits(spec)
	var err error
	limits.Pages, err = planPages(spec.Config, spec.DraftConfig, e.cfg, length, bytes, e.work, e.backend)
	return limits, err
}

// logSmaller says which defaults have given way, and to what.
func (e *Engine) logSmaller() {
	var what []any
	if !e.chosen.chunk {
		what = append(what, "chunked_prefill_size", e.cfg.ChunkedPrefillSize, "widest_chunked_prefill_size", DefaultGPUChunk)
	}
	if !e.chosen.running {
		what = append(what, "max_running_requests", e.cfg.MaxRunningRequests, "widest_max_running_requests", DefaultGPURunning)
	}
	e.log.Info("smaller defaults, since a device's memory is short for the widest passes", what...)
}

// besidePasses is what kernels, libraries, recorded passes and draws take at most that
// no calculation tells before they are there; see growPool.
const besidePasses = 1 << 30

// fits tells whether defaults leave the KV cache enough: one longest request has room
// beside four times the workspaces, and beside twice as much, since rows take more than
// these, and besidePasses. So a device where the narrowest passes would do does not fail
// for the sake of wider ones. What narrower passes do not mend is for the plan to say.
func (e *Engine) fits(spec model.Spec, w width, length int, bytes int64) bool {
	e.widen(w)
	own, spare := e.workspaces(spec), besidePasses*int64(e.cfg.TPSize)
	work := func(running, chunk int) int64 { return max(4*own(running, chunk), 2*own(running, chunk)+spare) }
	_, err := planPages(spec.Config, spec.DraftConfig, e.cfg, length, bytes, work, e.backend)
	return fault.ReasonOf(err) != fault.OutOfMemory
}

// setting is a width as nodes compare it: before they know how much fits.
func setting(value int, chosen bool) string {
	if !chosen {
		return "left to its default"
	}
	return strconv.Itoa(value)
}
