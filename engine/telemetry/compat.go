package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// RegisterVLLM adds the three gauges that the endpoint picker of the Gateway
// API's inference extension reads, under the names that it expects.
func (m *Metrics) RegisterVLLM(reg prometheus.Registerer, model string) {
	for name, g := range map[string]struct {
		gauge prometheus.Gauge
		help  string
	}{
		"num_requests_running": {m.Running, "The same as outrider_requests_running."},
		"num_requests_waiting": {m.Waiting, "The same as outrider_requests_waiting."},
		"kv_cache_usage_perc":  {m.KVUsage, "The same as outrider_kv_cache_usage_ratio: 1 is full."},
	} {
		opts := prometheus.GaugeOpts{Name: "vllm:" + name, Help: g.help, ConstLabels: prometheus.Labels{"model_name": model}}
		reg.MustRegister(prometheus.NewGaugeFunc(opts, func() float64 {
			var v dto.Metric
			if g.gauge.Write(&v) != nil {
				return 0
			}
			return v.GetGauge().GetValue()
		}))
	}
}
