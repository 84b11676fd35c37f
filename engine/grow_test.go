package engine

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// memory is what devices have; their caches grow.
type memory struct {
	free int64
	fits int

	mu    sync.Mutex
	asked int64 // of Fits
	grown []int // pages, by call of Grow
}

// growing is a device of the CPU whose caches grow.
type growing struct {
	*cpu.Device
	m *memory
}

func (g growing) Grows() bool          { return true }
func (g growing) Free() (int64, error) { return g.m.free, nil }

func (g growing) Fits(n int64) int {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	g.m.asked = n
	return g.m.fits
}

func (g growing) Grow(pages int) error {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	g.m.grown = append(g.m.grown, pages)
	return nil
}

func (m *memory) wrap(d compute.Device) compute.Device { return growing{d.(*cpu.Device), m} }

// The pool has what is left of the memory, up to the plan, and at least what its
// first pages are; and requests are computed on all of it.
func TestPoolGrowsIntoWhatIsLeft(t *testing.T) {
	g := golden.Cases()[0]
	for _, c := range []struct {
		name      string
		algorithm string
		ranks     int
		fits      int
		pages     int
	}{
		{"eagle3", AlgorithmEagle3, 1, 100, 100},
		{"none, two ranks", AlgorithmNone, 2, 90, 90},
		{"as planned", AlgorithmEagle3, 1, 1 << 30, 32 * 16},
		{"ngram, the first pages", AlgorithmNGram, 1, 20, 64},
	} {
		m := &memory{free: 1 << 30, fits: c.fits}
		e := newEngine(t, Config{Algorithm: c.algorithm, TPSize: c.ranks, ContextLength: 256})
		e.wrap = m.wrap
		run := runUntil(t, e)
		if got := e.Info().KVPagesTotal; got != c.pages {
			t.Errorf("%s: %d pages, want %d", c.name, got, c.pages)
		}
		whole := e.backend.memory / int64(c.ranks)
		if want := m.free - (whole - int64(float64(whole)*e.cfg.MemFractionStatic)); m.asked != want {
			t.Errorf("%s: the cache was given %d bytes, want %d", c.name, m.asked, want)
		}
		if len(m.grown) != c.ranks || m.grown[0] != c.pages {
			t.Errorf("%s: the devices' caches grew to %v pages", c.name, m.grown)
		}
		n := min(len(g.Output), 256-len(g.Prompt))
		got := complete(t, e, scheduler.Request{PromptIDs: g.Prompt, MaxTokens: n, Logprobs: scheduler.NoLogprobs})
		for i, id := range got.TokenIDs {
			if id != g.Output[i] {
				t.Errorf("%s: token %d is %d, want %d", c.name, i, id, g.Output[i])
				break
			}
		}
		eventually(t, c.name+": pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
		run()
	}
}

// What does not hold one request ends the start, with what would fit.
func TestTooLittleIsLeft(t *testing.T) {
	for fits, says := range map[int][]string{
		3: {"that is 48 positions and one request takes 256", "a larger --mem-fraction-static than 0.8", "--max-running-requests than 32", "--kv-cache-dtype fp8", "--context-length 48 at most"},
		0: {"that is 0 positions"},
	} {
		m := &memory{free: 5 << 20, fits: fits}
		e := newEngine(t, Config{ContextLength: 256})
		e.wrap = m.wrap
		err := e.Run(context.Background())
		if fault.ReasonOf(err) != fault.OutOfMemory || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%d pages: %v; want one line of OutOfMemory", fits, err)
		}
		for _, want := range says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%d pages: %q does not say %q", fits, err, want)
			}
		}
		if strings.Contains(err.Error(), "at most") != (fits > 0) {
			t.Errorf("%d pages: %q names a context length", fits, err)
		}
		if len(m.grown) > 0 {
			t.Errorf("%d pages: the caches grew to %v", fits, m.grown)
		}
	}
}
