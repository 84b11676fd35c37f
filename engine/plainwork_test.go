package engine

import (
	"fmt"
	"maps"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// counting is a device of the CPU that counts what it is asked for.
type counting struct {
	*cpu.Device
	n map[string]int
}

func (c counting) Prepare(r *compute.Rows, freqs []float32, scale float32) {
	c.n["prepare"]++
	c.n["rows"] += r.Len()
	c.Device.Prepare(r, freqs, scale)
}

func (c counting) Embed(dst compute.Tensor, table compute.Weight, first int, r *compute.Rows) {
	c.n["embed"]++
	c.Device.Embed(dst, table, first, r)
}

func (c counting) Copy(dst, x compute.Tensor, rows int) {
	c.n["copy"]++
	c.Device.Copy(dst, x, rows)
}

func (c counting) Gather(dst, x compute.Tensor, index []int32) {
	c.n["gather"]++
	c.Device.Gather(dst, x, index)
}

func (c counting) Scatter(dst, x compute.Tensor, to, from []int32) {
	c.n["scatter"]++
	c.Device.Scatter(dst, x, to, from)
}

func (c counting) Linear(dst, x compute.Tensor, w compute.Weight, rows int) {
	c.n["linear"]++
	c.Device.Linear(dst, x, w, rows)
}

func (c counting) AllReduce(x compute.Tensor, rows int) {
	c.n["all-reduce"]++
	c.Device.AllReduce(x, rows)
}

func (c counting) Attention(dst, qkv compute.Tensor, cache compute.Cache, layer, window int, r *compute.Rows) {
	c.n["attention"]++
	c.Device.Attention(dst, qkv, cache, layer, window, r)
}

func (c counting) MoveCache(cache compute.Cache, to, from []int32) {
	c.n["move"]++
	c.Device.MoveCache(cache, to, from)
}

// Where drafts are off, or not allowed to be longer than nothing, a step of requests
// that decode asks the device for what it does without a draft and nothing else,
// whatever would draft; and for more when they are on.
func TestPlainDecodingDoesNoDraftWork(t *testing.T) {
	m := synthesise(t, 3, 2, 0)
	const steps = 8
	count := func(c Config, plain func(e *Engine) error) map[string]int {
		c.Model, c.MaxRunningRequests = m.target, 4
		e := newEngine(t, c)
		n := map[string]int{}
		e.wrap = func(d compute.Device) compute.Device { return counting{d.(*cpu.Device), n} }
		if err := e.load(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		defer e.ranks.Close()
		if err := plain(e); err != nil {
			t.Fatal(err)
		}
		for _, r := range steadyRequests() {
			if _, err := e.scheduler.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 4 + steps {
			if i == 4 {
				clear(n)
			}
			if worked, err := e.step(); err != nil || !worked {
				t.Fatal(worked, err)
			}
		}
		return n
	}
	want := count(Config{Algorithm: AlgorithmNone}, func(*Engine) error { return nil })
	if want["prepare"] != steps || want["rows"] != steps*len(steadyRequests()) || want["attention"] != steps*synthLayers {
		t.Fatalf("%d steps without a draft are %v", steps, want)
	}
	for name, c := range map[string]Config{
		"head":         {Algorithm: AlgorithmEagle3, DraftModel: m.head},
		"trees":        {Algorithm: AlgorithmEagle3, DraftModel: m.head, TopK: 4, NumDraftTokens: 12},
		"draft model":  {Algorithm: AlgorithmDraft, DraftModel: m.small},
		"n-grams":      {Algorithm: AlgorithmNGram},
		"other tokens": {Algorithm: AlgorithmEagle3, DraftModel: m.head, SimulateAccept: "0.9"},
	} {
		for _, mode := range []speculation.Mode{speculation.ModeOff, speculation.ModeFixed, speculation.ModeAuto} {
			got := count(c, func(e *Engine) error { return e.SetSpeculation(mode, 0, 0) })
			if !maps.Equal(got, want) {
				t.Errorf("%s, %s with 0 steps at most: %v, and without a draft %v", name, mode, got, want)
			}
		}
		if name == "n-grams" {
			continue
		}
		on := count(c, func(e *Engine) error { return e.SetSpeculation(speculation.ModeFixed, 0, 3) })
		if on["prepare"] <= want["prepare"] {
			t.Errorf("%s, drafting: %v: the test counts nothing", name, fmt.Sprint(on))
		}
	}
}
