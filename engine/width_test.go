package engine

import (
	"bytes"
	"cmp"
	"log/slog"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/model"
)

// GPUs have wide passes unless told otherwise, as wide as their memory allows; the
// CPU's stay as they are, and so does what the user says.
func TestWidths(t *testing.T) {
	const mib = 1 << 20
	// Workspaces take 38 MiB for 2,048 rows and 128 requests, and then 19, 9 and 5;
	// the weights 8 and one longest request 16, beside which a GiB stays free.
	spec := model.Spec{Ranks: 1, Config: &model.Config{Architecture: "LlamaForCausalLM", Layers: 4, Hidden: 512, Heads: 8, KVHeads: 8, HeadDim: 64, Intermediate: 1536, Vocab: 4096, MaxPositions: 2048}}
	for name, c := range map[string]struct {
		device string
		mib    int64
		cfg    Config
		want   width
		logs   bool
		reason fault.Reason // of an error; "" is OutOfMemory, if there is one
	}{
		"CPU":                       {device: DeviceCPU, mib: 1 << 20, want: width{256, 32}},
		"plenty":                    {device: DeviceCUDA, mib: 1 << 20, want: width{2048, 128}},
		"memory that is not known":  {device: DeviceCUDA, want: width{2048, 128}},
		"less":                      {device: DeviceCUDA, mib: 1024 + 70, want: width{1024, 64}, logs: true},
		"little":                    {device: DeviceCUDA, mib: 1024, want: width{256, 32}, logs: true},
		"a little less":             {device: DeviceCUDA, mib: 1024 + 45, want: width{512, 32}, logs: true},
		"too little":                {device: DeviceCUDA, mib: 16, want: width{256, 32}, logs: true},
		"the user's chunks":         {device: DeviceCUDA, mib: 1 << 20, cfg: Config{ChunkedPrefillSize: 100}, want: width{100, 128}},
		"the user's requests":       {device: DeviceCUDA, mib: 50, cfg: Config{MaxRunningRequests: 500}, want: width{256, 500}, logs: true},
		"both are the user's":       {device: DeviceCUDA, mib: 200, cfg: Config{ChunkedPrefillSize: 2048, MaxRunningRequests: 128}, want: width{2048, 128}},
		"both, and they do not fit": {device: DeviceCUDA, mib: 50, cfg: Config{ChunkedPrefillSize: 2048, MaxRunningRequests: 128}, want: width{2048, 128}},
		"a cache that is too small": {device: DeviceCUDA, mib: 1 << 20, cfg: Config{MaxTotalTokens: 1000}, want: width{2048, 128}, reason: fault.InvalidConfig},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Model, c.cfg.MemFractionStatic = "builtin:gocode-7m", 1
			var log bytes.Buffer
			e, err := New(c.cfg, slog.New(slog.NewTextHandler(&log, nil)), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			e.backend = backend{name: c.device, memory: c.mib * mib, element: 2}
			limits, err := e.fit(spec, 2048, 8*mib)
			if got := (width{e.cfg.ChunkedPrefillSize, e.cfg.MaxRunningRequests}); got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
			if err == nil && limits.MaxRows != e.schedulerConfig(spec, nil).MaxRows() {
				t.Errorf("the workspaces are for %d rows", limits.MaxRows)
			}
			if want := cmp.Or(c.reason, fault.OutOfMemory); (err != nil || c.reason != "") && fault.ReasonOf(err) != want {
				t.Errorf("%v; want %s", err, want)
			}
			if info := e.Info(); info.ChunkedPrefillSize != c.want.chunk || info.MaxRunningRequests != c.want.running {
				t.Errorf("/server_info has %d and %d", info.ChunkedPrefillSize, info.MaxRunningRequests)
			}
			if logs := strings.Contains(log.String(), "smaller defaults"); logs != c.logs {
				t.Errorf("the log: %q", log.String())
			}
		})
	}
}

// Workspaces of wide passes are not to take what the cache is to have.
func TestWidthLeavesTheCacheMost(t *testing.T) {
	spec := model.Spec{Ranks: 1, Config: &model.Config{Architecture: "LlamaForCausalLM", Layers: 2, Hidden: 1 << 14, Heads: 128, KVHeads: 8, HeadDim: 128, Intermediate: 1 << 17, Vocab: 1 << 18, MaxPositions: 2048}}
	e, err := New(Config{Model: "builtin:gocode-7m", MemFractionStatic: 1}, quiet(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.backend = backend{name: DeviceCUDA, element: 2}
	widest := widths(DeviceCUDA)[0]
	e.widen(widest)
	_, work := e.limits(spec)
	if work < 1<<30 {
		t.Fatalf("workspaces of %d bytes are not the larger part", work)
	}
	one := 16 * kvBytes(spec.Config, spec.Config.Layers, 1, e.backend.element)
	for memory, want := range map[int64]bool{1000 + 4*work + one: true, 1000 + 4*work + one - 1: false} {
		if e.backend.memory = memory; e.fits(spec, widest, 16, 1000) != want {
			t.Errorf("workspaces of %d bytes beside weights of 1000 fit into %d: %v", work, memory, !want)
		}
	}
}
