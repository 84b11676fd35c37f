// Package gpu watches NVIDIA GPUs by NVML, the driver's library for management:
// their memory, temperature and power, how they are joined, and the errors that
// they report. It computes nothing, and an engine runs without it.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// GPU is what a device is.
type GPU struct {
	Name  string   `json:"name"`
	UUID  string   `json:"uuid"`
	PCI   string   `json:"pci_bus_id"`
	Links []string `json:"links,omitempty"` // to each of the Monitor's GPUs, in their order: one of the Link constants
}

// How two GPUs reach each other: the values of GPU.Links.
const (
	LinkSelf   = "self"
	LinkNVLink = "nvlink"
	LinkBoard  = "pcie-board"  // on one board
	LinkSwitch = "pcie-switch" // by PCIe switches alone
	LinkHost   = "pcie-host"   // by one host bridge
	LinkNode   = "numa-node"   // by the bridges of one NUMA node
	LinkSystem = "system"      // by what joins NUMA nodes
	LinkOther  = "unknown"
)

// Reading is how a device is now. What it cannot tell is negative.
type Reading struct {
	MemoryUsed, MemoryTotal int64   // bytes
	Temperature             float64 // °C
	Power                   float64 // W
	Busy                    float64 // share of the last moments in which a kernel ran, 0 to 1
	ECCErrors               int64   // not corrected, since the driver was loaded
}

// Event is an error that a device reported.
type Event struct {
	GPU   int // number among the Monitor's
	XID   int // the driver's number of the error; 0: a memory error that was not corrected
	Fatal bool
}

// String says what happened, without the GPU.
func (e Event) String() string {
	if e.XID == 0 {
		return "a memory error that ECC did not correct"
	}
	if text := xids[e.XID]; text != "" {
		return fmt.Sprintf("XID %d (%s)", e.XID, text)
	}
	return fmt.Sprintf("XID %d", e.XID)
}

// xids are XIDs with a known meaning (NVIDIA, "XID Errors").
var xids = map[int]string{
	13: "graphics engine exception", 31: "memory page fault", 43: "a channel was stopped", 45: "a channel was removed", 48: "double-bit ECC error",
	61: "internal microcontroller halt", 62: "internal microcontroller halt", 63: "memory row remapped", 64: "memory row not remapped",
	68: "video processor exception", 69: "graphics engine class error", 74: "NVLink error", 79: "the GPU has fallen off the bus", 92: "many single-bit ECC errors",
	94: "contained memory error", 95: "uncontained memory error", 109: "context switch timeout", 119: "GSP timeout", 120: "GSP error", 140: "unrecovered ECC error",
}

// spared are XIDs that end a program's work, not the device: if it was this
// process's, a call of the device reports it. And those that only tell of a repair.
var spared = []int{13, 31, 43, 45, 63, 68, 69, 92, 94, 109}

// nvml is the library, after a successful start. Handles are its own.
type nvml interface {
	handle(pci string) (uintptr, error)
	describe(h uintptr) (name, uuid string, err error)
	read(h uintptr) (Reading, error)
	link(a, b uintptr) (string, error)
	// listen has errors of the devices reported to next.
	listen(handles []uintptr) error
	// next is the next error: the device and its XID, 0 for a memory error. It is
	// not ok if there was none.
	next() (h uintptr, xid int, ok bool, err error)
	close()
}

// Monitor watches some GPUs. Its methods may be called from anywhere.
type Monitor struct {
	mu      sync.Mutex // no call after the library is closed
	lib     nvml       // nil: closed
	handles []uintptr
	gpus    []GPU
}

// errClosed is the answer of a Monitor that was closed.
var errClosed = errors.New("the GPUs are no longer watched")

// newMonitor watches the devices at PCI addresses. It closes lib if it fails.
func newMonitor(lib nvml, pci []string) (*Monitor, error) {
	m := &Monitor{lib: lib}
	for _, id := range pci {
		h, err := lib.handle(id)
		if err != nil {
			lib.close()
			return nil, fmt.Errorf("NVML does not know the GPU at %s: %w", id, err)
		}
		g := GPU{PCI: id}
		if g.Name, g.UUID, err = lib.describe(h); err != nil {
			lib.close()
			return nil, fmt.Errorf("NVML does not describe the GPU at %s: %w", id, err)
		}
		m.handles, m.gpus = append(m.handles, h), append(m.gpus, g)
	}
	for i, a := range m.handles {
		for j, b := range m.handles {
			link := LinkSelf
			if i != j {
				var err error
				if link, err = lib.link(a, b); err != nil {
					link = LinkOther
				}
			}
			m.gpus[i].Links = append(m.gpus[i].Links, link)
		}
	}
	return m, nil
}

// GPUs are the devices, in the order in which they were asked for.
func (m *Monitor) GPUs() []GPU { return m.gpus }

// Read reads how device i is.
func (m *Monitor) Read(i int) (Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lib == nil {
		return Reading{}, errClosed
	}
	return m.lib.read(m.handles[i])
}

// eventWait is the time between two looks for events. The library's own wait would
// keep Close waiting.
const eventWait = 200 * time.Millisecond

// Watch calls heard for each error that a device reports, until ctx ends or the
// Monitor is closed, which is no error.
func (m *Monitor) Watch(ctx context.Context, heard func(Event)) error {
	m.mu.Lock()
	lib := m.lib
	var err error
	if lib != nil {
		err = lib.listen(m.handles)
	}
	m.mu.Unlock()
	for err == nil && lib != nil && ctx.Err() == nil {
		var h uintptr
		var xid int
		var ok bool
		m.mu.Lock()
		if lib = m.lib; lib != nil {
			h, xid, ok, err = lib.next()
		}
		m.mu.Unlock()
		if err == nil && ok {
			if i := slices.Index(m.handles, h); i >= 0 {
				heard(Event{GPU: i, XID: xid, Fatal: !slices.Contains(spared, xid)})
			}
			continue
		}
		select {
		case <-time.After(eventWait):
		case <-ctx.Done():
		}
	}
	return err
}

// Close ends the watching.
func (m *Monitor) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lib != nil {
		m.lib.close()
		m.lib = nil
	}
}
