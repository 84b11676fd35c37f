package engine

import (
	"context"
	"time"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/gpu"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// gpuEvery is how often the figures of the GPUs are read.
const gpuEvery = 5 * time.Second

// watchGPUs has the GPUs of this process's ranks watched until ctx ends. Without
// NVML, which some containers lack, the engine runs all the same: what a device's
// own calls report ends it anyway.
func (e *Engine) watchGPUs(ctx context.Context) {
	if len(e.backend.gpus) == 0 {
		return
	}
	m, err := gpu.Open(e.backend.gpus)
	if err != nil {
		e.log.Warn("the GPUs are not watched: no metrics of them, and no XIDs", "error", err)
		return
	}
	e.watchMonitor(ctx, m)
}

// gpuMonitor is a gpu.Monitor.
type gpuMonitor interface {
	GPUs() []gpu.GPU
	Read(i int) (gpu.Reading, error)
	Watch(ctx context.Context, heard func(gpu.Event)) error
	Close()
}

// watchMonitor is watchGPUs with NVML there.
func (e *Engine) watchMonitor(ctx context.Context, m gpuMonitor) {
	e.mu.Lock()
	e.info.GPUs = nil
	for _, g := range m.GPUs() {
		e.info.GPUs = append(e.info.GPUs, telemetry.GPU(g))
	}
	e.mu.Unlock()
	go func() {
		if err := m.Watch(ctx, e.gpuEvent); err != nil {
			e.log.Warn("errors of the GPUs are no longer heard of", "error", err)
		}
	}()
	go func() {
		defer m.Close()
		for tick := time.NewTicker(gpuEvery); ; {
			for i := range m.GPUs() {
				e.readGPU(m, i)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
}

// readGPU brings the figures of the GPU of rank First + i to the metrics.
func (e *Engine) readGPU(m gpuMonitor, i int) {
	r, err := m.Read(i)
	if err != nil {
		e.log.Debug("a GPU does not tell how it is", "gpu", i, "error", err)
		return
	}
	for figure, v := range map[telemetry.GPUFigure]float64{
		telemetry.GPUMemoryUsed: float64(r.MemoryUsed), telemetry.GPUMemoryTotal: float64(r.MemoryTotal), telemetry.GPUTemperature: r.Temperature,
		telemetry.GPUPower: r.Power, telemetry.GPUBusy: r.Busy, telemetry.GPUECCErrors: float64(r.ECCErrors),
	} {
		e.metrics.SetGPU(i, figure, v)
	}
}

// gpuEvent takes note of an error that a GPU reported. One that the device does not
// come back from ends the engine, before a call of the device hangs.
func (e *Engine) gpuEvent(ev gpu.Event) {
	e.metrics.GPUEvent(ev.GPU, ev.XID)
	e.log.Error("a GPU reports an error", "gpu", ev.GPU, "error", ev.String(), "fatal", ev.Fatal)
	if !ev.Fatal {
		return
	}
	rank := e.cfg.Node*e.cfg.localRanks() + ev.GPU
	err := fault.OnRank(rank, fault.Errorf(fault.DeviceFault, "GPU %d (%s) reports %s: have the node looked at, the driver's log (dmesg) has more", ev.GPU, e.backend.gpus[ev.GPU], ev))
	select {
	case e.gpuFault <- err:
	default: // the first counts
	}
}
