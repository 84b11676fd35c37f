package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// memory is what devices have; their caches grow.
type memory struct {
	free int64
	fits int
	page int64 // bytes beyond those of the first question that hold one page more; 0: none do
	ends int   // calls of Free after which the device fails; 0: it does not

	mu    sync.Mutex
	looks int   // calls of Free
	first int64 // bytes that Fits was asked of at first
	asked int64 // and now
	grown []int // pages, by call of Grow
}

// growing is a device of the CPU whose caches grow.
type growing struct {
	*cpu.Device
	grower
}

// grower is what makes a device one whose caches grow.
type grower struct{ m *memory }

func (g grower) Grows() bool { return true }

func (g grower) Free() (int64, error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if g.m.looks++; g.m.ends > 0 && g.m.looks > g.m.ends {
		return 0, fault.Errorf(fault.DeviceFault, "the device is lost")
	}
	return g.m.free, nil
}

func (g grower) Fits(n int64) int {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if g.m.asked = n; g.m.page == 0 {
		return g.m.fits
	}
	if g.m.first == 0 {
		g.m.first = n
	}
	return g.m.fits + int((n-g.m.first)/g.m.page)
}

func (g grower) Grow(pages int) error {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	g.m.grown = append(g.m.grown, pages)
	return nil
}

// drawing is such a device that draws, and keeps what it drew before it was asked how
// much memory is free.
type drawing struct {
	*drawer
	grower
	drew   *[][]compute.Draw
	before *[][]compute.Draw
}

func (d drawing) Draw(x compute.Tensor, cols int, all []compute.Draw) {
	*d.drew = append(*d.drew, slices.Clone(all))
	d.drawer.Draw(x, cols, all)
}

func (d drawing) Free() (int64, error) {
	*d.before = *d.drew
	return d.grower.Free()
}

// What draws of all rows take is in use when the free memory is measured, for both
// passes whose draws may be under way; and requests that are drawn take no more.
func TestDrawsAreMeasured(t *testing.T) {
	m := &memory{free: 1 << 30, fits: 100}
	e := newEngine(t, Config{ContextLength: 256, MaxRunningRequests: 4})
	var drew, before [][]compute.Draw
	e.wrap = func(d compute.Device) compute.Device {
		c := d.(*cpu.Device)
		return drawing{newDrawer(c), grower{m}, &drew, &before}
	}
	defer runUntil(t, e)()
	size := func(all []compute.Draw) (edits, words int) {
		for _, d := range all {
			edits, words = edits+len(d.Edits), words+len(d.Allowed)
		}
		return edits, words
	}
	rows := e.ranks.Limits().MaxLogits
	if len(before) != 2 {
		t.Fatalf("%d passes with draws were measured, want 2", len(before))
	}
	for _, all := range before {
		if edits, words := size(all); len(all) != rows || edits != rows*1024 || words != rows*((e.Info().VocabSize+63)/64) {
			t.Errorf("%d draws with %d edits and %d words of masks were measured: there may be %d", len(all), edits, words, rows)
		}
	}
	edits, words := size(before[0])
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			complete(t, e, scheduler.Request{PromptIDs: golden.Cases()[i].Prompt, MaxTokens: 40, Logprobs: 20,
				Sampling: sampling.Params{Temperature: 1, TopP: 0.9, Repetition: 1.2, Presence: 0.5, Seed: uint64(i)}})
		})
	}
	wg.Wait()
	for _, all := range drew[2:] {
		if n, w := size(all); len(all) > rows || n > edits || w > words {
			t.Errorf("%d draws with %d edits and %d words of masks: measured were %d, %d, %d", len(all), n, w, rows, edits, words)
		}
	}
	if len(drew) == 2 {
		t.Error("nothing was drawn by the device")
	}
}

func (m *memory) wrap(d compute.Device) compute.Device { return growing{d.(*cpu.Device), grower{m}} }

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
		4: {"that is 64 positions and one request takes 256", "--mem-fraction-static 0.81 or more", "--max-running-requests", "--kv-cache-dtype fp8", "--context-length 64 at most"},
		0: {"that is 0 positions"},
	} {
		m := &memory{free: 5 << 20, fits: fits, page: 64 << 10}
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
		if strings.Contains(err.Error(), "--context-length") != (fits > 0) {
			t.Errorf("%d pages: %q names a context length", fits, err)
		}
		if len(m.grown) > 0 {
			t.Errorf("%d pages: the caches grew to %v", fits, m.grown)
		}
	}
}

// A device that fails while it is asked what would fit is told of once.
func TestFaultWhileRoomIsLookedFor(t *testing.T) {
	m := &memory{free: 5 << 20, fits: 3, ends: 1}
	e := newEngine(t, Config{ContextLength: 256})
	e.wrap = m.wrap
	err := e.Run(context.Background())
	if fault.ReasonOf(err) != fault.DeviceFault || strings.Count(err.Error(), "the device is lost") != 1 || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; want one DeviceFault", err)
	}
	if m.looks != m.ends+1 {
		t.Errorf("the device was asked %d times after it had failed", m.looks-m.ends-1)
	}
}
