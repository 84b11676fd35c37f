package engine

import (
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

func TestPlanPages(t *testing.T) {
	// A position takes 2 · 4 bytes · 2 layers · 2 heads · 8 = 256 bytes, a page of 16 of them 4 KiB.
	c := &model.Config{Layers: 2, KVHeads: 2, HeadDim: 8}
	const mib = 1 << 20
	for name, p := range map[string]struct {
		running, total        int
		memory, weights, work int64
		pages                 int
		says                  string
	}{
		"room for all":           {running: 4, memory: 100 * mib, weights: mib, work: mib, pages: 256},
		"room for some":          {running: 64, memory: 10 * mib, weights: 5 * mib, work: 3 * mib, pages: 512},
		"no more than asked":     {running: 64, total: 2048, memory: 100 * mib, weights: mib, pages: 128},
		"memory unknown":         {running: 2, weights: mib, work: mib, pages: 128},
		"weights do not fit":     {running: 4, memory: 4 * mib, weights: 5 * mib, work: mib, says: "the model does not fit: weights take 5 MiB, workspaces 1 MiB"},
		"work does not fit":      {running: 4096, memory: 40 * mib, weights: 5 * mib, work: 400 * mib, says: "the workspaces do not fit: weights take 5 MiB, workspaces 400 MiB"},
		"says what to make less": {running: 4096, memory: 40 * mib, weights: 5 * mib, work: 400 * mib, says: "a smaller --max-running-requests than 4096 or --chunked-prefill-size than 256"},
		"one does not fit":       {running: 4, memory: mib + mib/8, weights: mib, says: "or --context-length 512 at most"},
	} {
		cfg := Config{PageSize: 16, TPSize: 1, MaxRunningRequests: p.running, MaxTotalTokens: p.total, MemFractionStatic: 1, ChunkedPrefillSize: 256}
		pages, err := planPages(c, nil, cfg, 1024, p.weights, p.work, backend{memory: p.memory, element: 4})
		switch {
		case p.says == "" && (err != nil || pages != p.pages):
			t.Errorf("%s: %d pages, %v; want %d", name, pages, err, p.pages)
		case p.says != "" && (fault.ReasonOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), p.says)):
			t.Errorf("%s: %d pages, %v; want an error that says %q", name, pages, err, p.says)
		}
	}
}
