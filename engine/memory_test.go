package engine

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

func TestPlanPages(t *testing.T) {
	// A position takes 2 · 4 bytes · 2 layers · 2 heads · 8 = 256 bytes, a page of 16 of them 4 KiB.
	c := &model.Config{Layers: 2, KVHeads: 2, HeadDim: 8}
	const mib = 1 << 20
	gpu := "GPU 0 (Card)"
	for name, p := range map[string]struct {
		running, total int
		memory         int64
		fraction       float64 // 0: all
		weights, work  int64
		where          string
		pages          int
		says           string
	}{
		"room for all":       {running: 4, memory: 100 * mib, weights: mib, work: mib, pages: 256},
		"room for some":      {running: 64, memory: 10 * mib, weights: 5 * mib, work: 3 * mib, pages: 512},
		"no more than asked": {running: 64, total: 2048, memory: 100 * mib, weights: mib, pages: 128},
		"memory unknown":     {running: 2, weights: mib, work: mib, pages: 128},
		"weights do not fit": {running: 4, memory: 4 * mib, weights: 5 * mib, work: mib,
			says: "the model does not fit: weights take 5 MiB, workspaces 1 MiB and one request of 1024 tokens 1 MiB, but --mem-fraction-static 1 of 4 MiB is 4 MiB: give it more memory (7 MiB or more) or a model with quantised weights"},
		"weights that do not fit on a GPU": {running: 4, memory: 4 * mib, weights: 5 * mib, work: mib, where: gpu,
			says: "of the 4 MiB that are free on GPU 0 (Card) is 4 MiB: give it GPUs with more memory, a larger --tp-size or a model with quantised weights"},
		"a larger fraction": {running: 4, memory: 20 * mib, fraction: 0.5, weights: 14 * mib, work: mib, where: gpu,
			says: "a larger --tp-size, a model with quantised weights or --mem-fraction-static 0.77 or more"},
		"a fraction that leaves a GPU nothing": {running: 4, memory: 20 * mib, fraction: 0.5, weights: 18 * mib, work: mib, where: gpu,
			says: "a larger --tp-size or a model with quantised weights"},
		"work does not fit": {running: 4096, memory: 40 * mib, weights: 5 * mib, work: 400 * mib,
			says: "the workspaces do not fit: weights take 5 MiB, workspaces 400 MiB and one request of 1024 tokens 1 MiB, but --mem-fraction-static 1 of 40 MiB is 40 MiB: give it more memory (406 MiB or more), --max-running-requests 355 at most or --chunked-prefill-size 16 at most"},
		"one does not fit": {running: 4, memory: mib + mib/8, weights: mib,
			says: "the KV cache does not fit: weights take 1 MiB, workspaces 0 MiB and one request of 1024 tokens 1 MiB, but --mem-fraction-static 1 of 1 MiB is 1 MiB: give it more memory (2 MiB or more), a model with quantised weights, --kv-cache-dtype fp8 or --context-length 512 at most"},
	} {
		cfg := Config{PageSize: 16, TPSize: 1, MaxRunningRequests: p.running, MaxTotalTokens: p.total, MemFractionStatic: cmp.Or(p.fraction, 1), ChunkedPrefillSize: 256}
		work := func(running, chunk int) int64 { return p.work * int64(running) / int64(p.running) * int64(chunk) / 256 }
		on := backend{memory: p.memory, element: 4, where: p.where}
		pages, err := planPages(c, nil, cfg, 1024, p.weights, work, on)
		if err != nil {
			takesAdvice(t, err.Error(), cfg, func(cfg Config, float8 bool, length int) error {
				on := on
				on.float8 = float8
				_, err := planPages(c, nil, cfg, cmp.Or(length, 1024), p.weights, work, on)
				return err
			})
		}
		switch {
		case p.says == "" && (err != nil || pages != p.pages):
			t.Errorf("%s: %d pages, %v; want %d", name, pages, err, p.pages)
		case p.says != "" && (fault.ReasonOf(err) != fault.OutOfMemory || !strings.HasSuffix(err.Error(), p.says)):
			t.Errorf("%s: %d pages, %v; want an error that ends with %q", name, pages, err, p.says)
		}
	}
}

// takesAdvice checks that each value which an error names would have it fit, by itself, and
// says how many there are.
func takesAdvice(t *testing.T, text string, cfg Config, plan func(cfg Config, float8 bool, length int) error) (tried int) {
	t.Helper()
	_, advice, _ := strings.Cut(text, ": give it ")
	for _, m := range regexp.MustCompile(`(--[a-z-]+) ([0-9.]+|fp8)`).FindAllStringSubmatch(advice, -1) {
		with, float8, length := cfg, m[2] == "fp8", 0
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil && !float8 {
			t.Fatal(err)
		}
		switch m[1] {
		case "--mem-fraction-static":
			with.MemFractionStatic = n
		case "--max-running-requests":
			with.MaxRunningRequests = int(n)
		case "--chunked-prefill-size":
			with.ChunkedPrefillSize = int(n)
		case "--context-length":
			length = int(n)
		}
		if err := plan(with, float8, length); err != nil {
			t.Errorf("with %s, as advised: %v", m[0], err)
		}
		tried++
	}
	return tried
}
