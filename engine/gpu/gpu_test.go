package gpu

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// played is a library with some devices; handle i + 1 is device i.
type played struct {
	t        *testing.T
	pci      []string
	events   chan [2]int // device, XID
	deaf     error       // of listen
	broken   error       // of next
	mu       sync.Mutex
	closed   bool
	listened bool
}

// open fails the test for a call after close: the real library ends the process.
func (p *played) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.t.Error("the library is called after it was closed")
	}
}

func (p *played) handle(pci string) (uintptr, error) {
	p.open()
	if i := slices.Index(p.pci, pci); i >= 0 {
		return uintptr(i + 1), nil
	}
	return 0, errors.New("not found")
}

func (p *played) describe(h uintptr) (name, uuid string, err error) {
	p.open()
	return "H200", "GPU-" + p.pci[h-1], nil
}

func (p *played) read(h uintptr) (Reading, error) {
	p.open()
	return Reading{MemoryTotal: int64(h) << 30, Temperature: -1}, nil
}

func (p *played) link(a, b uintptr) (string, error) {
	p.open()
	if a+b == 3 {
		return LinkNVLink, nil
	}
	return "", errors.New("not told")
}

func (p *played) listen(handles []uintptr) error {
	p.open()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listened = len(handles) > 0
	return p.deaf
}

func (p *played) next() (h uintptr, xid int, ok bool, err error) {
	p.open()
	select {
	case e := <-p.events:
		return uintptr(e[0] + 1), e[1], true, nil
	default:
		return 0, 0, false, p.broken
	}
}

func (p *played) close() {
	p.open()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func TestMonitor(t *testing.T) {
	lib := &played{t: t, pci: []string{"a", "b", "c", "d"}, events: make(chan [2]int, 8)}
	m, err := newMonitor(lib, []string{"b", "a", "c"}) // the ranks' order, not the library's
	if err != nil {
		t.Fatal(err)
	}
	links := [][]string{{LinkSelf, LinkNVLink, LinkOther}, {LinkNVLink, LinkSelf, LinkOther}, {LinkOther, LinkOther, LinkSelf}}
	for i, want := range []string{"b", "a", "c"} {
		g := m.GPUs()[i]
		if g.PCI != want || g.UUID != "GPU-"+want || g.Name != "H200" || !slices.Equal(g.Links, links[i]) {
			t.Errorf("GPU %d is %+v, want %s with the links %v", i, g, want, links[i])
		}
	}
	if r, err := m.Read(0); err != nil || r.MemoryTotal != 2<<30 {
		t.Errorf("GPU 0 reads %+v, %v; want that of b", r, err)
	}
	for _, e := range [][2]int{{0, 79}, {3, 79}, {1, 13}, {2, 0}} { // device 3 is not watched
		lib.events <- e
	}
	heard, ended := make(chan Event, 8), make(chan error, 1)
	go func() { ended <- m.Watch(context.Background(), func(e Event) { heard <- e }) }()
	for _, want := range []Event{{1, 79, true}, {0, 13, false}, {2, 0, true}} {
		select {
		case got := <-heard:
			if got != want {
				t.Errorf("heard %+v, want %+v", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not heard: %+v", want)
		}
	}
	m.Close()
	m.Close() // the library is closed once
	if err := <-ended; err != nil {
		t.Errorf("closing ends the watching with %v", err)
	}
	if _, err := m.Read(0); !errors.Is(err, errClosed) {
		t.Errorf("a closed monitor reads: %v", err)
	}
	if err := m.Watch(context.Background(), nil); err != nil {
		t.Errorf("a closed monitor watches: %v", err)
	}
}

func TestMonitorEndsWithItsLibrary(t *testing.T) {
	for name, lib := range map[string]*played{"listen": {deaf: errors.New("no events")}, "next": {broken: errors.New("driver unloaded")}} {
		lib.t, lib.pci = t, []string{"a"}
		m, err := newMonitor(lib, []string{"a"})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Watch(context.Background(), nil); !errors.Is(err, errors.Join(lib.deaf, lib.broken)) && err == nil {
			t.Errorf("%s: the watching ends without an error", name)
		}
		m.Close()
	}
	lib := &played{t: t, pci: []string{"a"}}
	if _, err := newMonitor(lib, []string{"a", "x"}); err == nil || !strings.Contains(err.Error(), "GPU at x: not found") || !lib.closed {
		t.Errorf("an unknown GPU gives %v, library closed: %v", err, lib.closed)
	}
}

func TestEventsAreNamed(t *testing.T) {
	for want, e := range map[string]Event{
		"XID 79 (the GPU has fallen off the bus)": {XID: 79},
		"XID 999": {XID: 999},
		"a memory error that ECC did not correct": {},
	} {
		if got := e.String(); got != want {
			t.Errorf("%+v is %q, want %q", e, got, want)
		}
	}
}
