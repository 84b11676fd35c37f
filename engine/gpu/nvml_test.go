//go:build cuda && linux

package gpu

import (
	"context"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
)

// The card that is there, as NVML sees it.
func TestNVML(t *testing.T) {
	n, err := cuda.Count()
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	var ids []string
	for i := range n {
		_, pci, err := cuda.Memory(i)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, pci)
	}
	m, err := Open(ids)
	if err != nil {
		t.Skipf("NOT RUN: %v", err) // containers may have CUDA without it
	}
	defer m.Close()
	for i, g := range m.GPUs() {
		r, err := m.Read(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v: %+v", g, r)
		free, _, err := cuda.Memory(i)
		if err != nil {
			t.Fatal(err)
		}
		if g.Name == "" || !strings.HasPrefix(g.UUID, "GPU-") || g.Links[i] != LinkSelf || r.MemoryTotal < free || r.MemoryUsed <= 0 || r.MemoryUsed > r.MemoryTotal {
			t.Errorf("GPU %d is %+v, %+v; CUDA has %d bytes free", i, g, r, free)
		}
		if r.Temperature > 120 || r.Power > 2000 || r.Busy > 1 {
			t.Errorf("GPU %d reads %+v", i, r)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Watch(ctx, func(Event) {}); err != nil {
		t.Errorf("errors cannot be heard of: %v", err)
	}
}

func TestUnknownGPU(t *testing.T) {
	if _, err := cuda.Count(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	m, err := Open([]string{"ffff:ff:1f.0"})
	if err == nil {
		m.Close()
		t.Error("opened a GPU that there is not")
	}
}
