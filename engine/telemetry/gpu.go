package telemetry

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// GPUFigure is a figure of a device that changes.
type GPUFigure int

const (
	GPUMemoryUsed  GPUFigure = iota // bytes, by all processes
	GPUMemoryTotal                  // bytes
	GPUTemperature                  // °C
	GPUPower                        // W
	GPUBusy                         // 0 to 1
	GPUECCErrors                    // since the driver was loaded
	gpuFigures                      // their number
)

var gpuGauges = [gpuFigures]struct{ name, help string }{
	GPUMemoryUsed:  {"gpu_memory_used_bytes", "Memory of the device that is in use, by any process."},
	GPUMemoryTotal: {"gpu_memory_total_bytes", "Memory of the device."},
	GPUTemperature: {"gpu_temperature_celsius", "Temperature of the device."},
	GPUPower:       {"gpu_power_watts", "Power that the device draws."},
	GPUBusy:        {"gpu_utilization_ratio", "Share of the last moments in which a kernel ran on the device, 0 to 1."},
	GPUECCErrors:   {"gpu_ecc_uncorrected_errors", "Memory errors that ECC did not correct, since the driver was loaded."},
}

// gpuMetrics are of this process's devices, by their number.
type gpuMetrics struct {
	gauges [gpuFigures]*prometheus.GaugeVec
	xids   *prometheus.CounterVec
}

func newGPUMetrics(reg prometheus.Registerer) gpuMetrics {
	var m gpuMetrics
	for i, g := range gpuGauges {
		m.gauges[i] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "outrider_" + g.name, Help: g.help}, []string{"gpu"})
		reg.MustRegister(m.gauges[i])
	}
	m.xids = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outrider_gpu_xid_events_total", Help: "Errors that the driver reported of the device, by their XID; 0 is a memory error that ECC did not correct."}, []string{"gpu", "xid"})
	reg.MustRegister(m.xids)
	return m
}

// SetGPU sets a figure of a device; there is no series for one that it cannot
// tell, which is negative.
func (m *Metrics) SetGPU(gpu int, f GPUFigure, v float64) {
	if v >= 0 {
		m.gpu.gauges[f].WithLabelValues(strconv.Itoa(gpu)).Set(v)
	}
}

// GPUEvent counts an error of a device.
func (m *Metrics) GPUEvent(gpu, xid int) {
	m.gpu.xids.WithLabelValues(strconv.Itoa(gpu), strconv.Itoa(xid)).Inc()
}
