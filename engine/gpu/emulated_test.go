//go:build cuda && linux

package gpu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
)

// TestMain gives the emulation of CUDA, where it is used, as many GPUs as tests want.
func TestMain(m *testing.M) {
	const devices = "OUTRIDER_EMULATION_DEVICES"
	if os.Getenv(devices) == "" {
		if err := os.Setenv(devices, "2"); err != nil {
			panic(err)
		}
	}
	m.Run()
}

// emulatedNVML has NVML of the emulation, with devices as the lines say; the answers are
// the devices' addresses, and files of the state and of the calls.
func emulatedNVML(t *testing.T, lines string) (pci []string, state, calls string) {
	t.Helper()
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	n, err := cuda.Count()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		_, id, err := cuda.Memory(i)
		if err != nil {
			t.Fatal(err)
		}
		pci = append(pci, id)
	}
	state, calls = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "calls")
	tell(t, state, lines)
	t.Setenv("OUTRIDER_EMULATION_NVML", state)
	t.Setenv("OUTRIDER_EMULATION_NVML_CALLS", calls)
	return pci, state, calls
}

// tell adds lines to a file.
func tell(t *testing.T, name, lines string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(lines); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// What the library answers arrives, each figure as what it is.
func TestFiguresOfNVML(t *testing.T) {
	pci, state, _ := emulatedNVML(t, "gpu 0 busy 37\ngpu 0 temperature 81\ngpu 0 power 412500\ngpu 0 memory 1048576\ngpu 0 ecc 3\n")
	m, err := Open([]string{"0000" + pci[0]}) // as NVML itself writes addresses
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := Reading{MemoryUsed: 1 << 20, Temperature: 81, Power: 412.5, Busy: 0.37, ECCErrors: 3}
	got, err := m.Read(0)
	want.MemoryTotal = got.MemoryTotal
	if err != nil || got != want || got.MemoryTotal <= got.MemoryUsed {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	tell(t, state, "gpu 0 busy none\ngpu 0 temperature none\ngpu 0 power none\ngpu 0 ecc none\n")
	got, err = m.Read(0)
	want = Reading{MemoryUsed: 1 << 20, MemoryTotal: got.MemoryTotal, Temperature: -1, Power: -1, Busy: -1, ECCErrors: -1}
	if err != nil || got != want {
		t.Errorf("a device that tells nothing reads %+v, %v", got, err)
	}
	tell(t, state, "gpu 0 memory none\n")
	if _, err := m.Read(0); err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetMemoryInfo: Not Supported (3)") {
		t.Errorf("a device without figures of its memory: %v", err)
	}
}

func TestLinksOfNVML(t *testing.T) {
	pci, state, _ := emulatedNVML(t, "")
	if len(pci) < 2 {
		t.Skipf("NOT RUN: it wants two GPUs, and there is %d", len(pci))
	}
	for _, c := range []struct{ lines, want string }{{"", LinkSystem}, {"nvlink 0 1\n", LinkNVLink}} {
		tell(t, state, c.lines)
		m, err := Open(pci[:2])
		if err != nil {
			t.Fatal(err)
		}
		a, b := m.GPUs()[0], m.GPUs()[1]
		if a.Links[0] != LinkSelf || a.Links[1] != c.want || b.Links[0] != c.want || a.UUID == b.UUID {
			t.Errorf("%+v and %+v, want them linked by %s", a, b, c.want)
		}
		m.Close()
	}
}

// Errors of the devices are heard in their order, once; those of a device that
// reports none are not.
func TestEventsOfNVML(t *testing.T) {
	pci, state, _ := emulatedNVML(t, "event 0 xid 31\n")
	m, err := Open(pci)
	if err != nil {
		t.Fatal(err)
	}
	heard, ended := make(chan Event, 8), make(chan error, 1)
	go func() { ended <- m.Watch(context.Background(), func(e Event) { heard <- e }) }()
	for _, c := range []struct {
		line string
		want Event
	}{{"", Event{0, 31, false}}, {"event 0 xid 79\n", Event{0, 79, true}}, {"event 0 ecc\n", Event{0, 0, true}}} {
		tell(t, state, c.line)
		select {
		case got := <-heard:
			if got != c.want {
				t.Errorf("heard %+v, want %+v", got, c.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not heard: %+v", c.want)
		}
	}
	m.Close()
	if err := <-ended; err != nil || len(heard) > 0 {
		t.Errorf("the watching ended with %v, and %d events more", err, len(heard))
	}
	tell(t, state, "deaf 0\n")
	if m, err = Open(pci[:1]); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*eventWait)
	defer cancel()
	if err := m.Watch(ctx, func(e Event) { t.Errorf("heard %+v of a device that reports none", e) }); err != nil {
		t.Errorf("a device that reports nothing ends the watching: %v", err)
	}
}

// After a start that failed nothing is called but the words for its error.
func TestFailedStartOfNVML(t *testing.T) {
	pci, _, calls := emulatedNVML(t, "init 18\n")
	m, err := Open(pci)
	if err == nil {
		m.Close()
		t.Fatal("a library that does not start is opened")
	}
	if want := "nvmlInit: Driver/library version mismatch (18)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	if b, err := os.ReadFile(calls); err != nil || string(b) != "nvmlInit_v2\nnvmlErrorString\n" {
		t.Errorf("called were %q, %v", b, err)
	}
}

// What was opened is closed, also if a device is not known: the last call is the
// shutdown.
func TestShutdownOfNVML(t *testing.T) {
	pci, _, calls := emulatedNVML(t, "")
	for _, id := range []string{pci[0], "ffff:ff:1f.0"} {
		if err := os.Remove(calls); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if m, err := Open([]string{id}); err == nil {
			m.Close()
		}
		b, err := os.ReadFile(calls)
		if text := string(b); err != nil || strings.Count(text, "nvmlShutdown\n") != 1 || !strings.HasSuffix(text, "nvmlShutdown\n") {
			t.Errorf("%s: called were %q, %v", id, b, err)
		}
	}
}

// A Monitor that closes takes nothing from another one, such as that of an engine which
// ends while the next one starts.
func TestMonitorsShareNVML(t *testing.T) {
	pci, _, _ := emulatedNVML(t, "")
	first, err := Open(pci[:1])
	if err != nil {
		t.Fatal(err)
	}
	second, err := Open(pci[:1])
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close()
	if _, err := first.Read(0); !errors.Is(err, errClosed) {
		t.Errorf("a Monitor that is closed reads: %v", err)
	}
	if r, err := second.Read(0); err != nil || r.MemoryTotal == 0 {
		t.Errorf("the other reads %+v, %v", r, err)
	}
}
