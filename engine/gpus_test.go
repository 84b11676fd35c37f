package engine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/gpu"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// playedMonitor is a monitor of two GPUs.
type playedMonitor struct {
	events chan gpu.Event
	closed atomic.Bool
}

func (m *playedMonitor) GPUs() []gpu.GPU {
	return []gpu.GPU{{Name: "H200", UUID: "GPU-1", PCI: "0000:1B:00.0", Links: []string{gpu.LinkSelf, gpu.LinkNVLink}}, {Name: "H200", UUID: "GPU-2"}}
}

func (m *playedMonitor) Read(i int) (gpu.Reading, error) {
	if i == 1 {
		return gpu.Reading{}, errors.New("not told")
	}
	return gpu.Reading{MemoryUsed: 5 << 30, MemoryTotal: 141 << 30, Temperature: 42, Power: -1, Busy: 0.5}, nil
}

func (m *playedMonitor) Watch(ctx context.Context, heard func(gpu.Event)) error {
	for {
		select {
		case e := <-m.events:
			heard(e)
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *playedMonitor) Close() { m.closed.Store(true) }

// What GPUs say is in the metrics and in /server_info; an error from which one does
// not come back ends the engine, with the rank that it is of, and others do not.
func TestGPUsAreWatched(t *testing.T) {
	reg := prometheus.NewRegistry()
	e, err := New(Config{Model: "builtin:gocode-7m"}, quiet(), telemetry.NewMetrics(reg, "m", time.Now), telemetry.NewProgress(1, time.Now))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	eventually(t, "not ready", func() bool { return e.Ready() == nil })
	e.backend.gpus = []string{"0000:1B:00.0", "0000:2B:00.0"}
	m := &playedMonitor{events: make(chan gpu.Event)}
	e.watchMonitor(ctx, m)
	if got := e.Info().GPUs; len(got) != 2 || got[0].Links[1] != "nvlink" || got[1].UUID != "GPU-2" {
		t.Errorf("/server_info has the GPUs %+v", got)
	}
	m.events <- gpu.Event{GPU: 0, XID: 31}
	series := func(name string) int {
		n, err := testutil.GatherAndCount(reg, name)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	eventually(t, "the figures are not in the metrics", func() bool {
		return series("outrider_gpu_temperature_celsius") == 1 && series("outrider_gpu_xid_events_total") == 1
	})
	if n := series("outrider_gpu_power_watts"); n != 0 {
		t.Errorf("there are %d series of a power that no device tells", n)
	}
	if e.Ready() != nil {
		t.Fatalf("an error of a program's own ended the engine: %v", e.Ready())
	}
	m.events <- gpu.Event{GPU: 1, XID: 79, Fatal: true}
	select {
	case err := <-ended:
		var f *fault.Error
		if !errors.As(err, &f) || f.Reason != fault.DeviceFault || f.Rank != 1 || !strings.Contains(err.Error(), "GPU 1 (0000:2B:00.0) reports XID 79 (the GPU has fallen off the bus)") {
			t.Errorf("the engine ended with %#v", err)
		}
	case <-time.After(patience):
		t.Fatal("the engine goes on without its GPU")
	}
	cancel()
	eventually(t, "the monitor is not closed", m.closed.Load)
}
