// Package known has the metrics that engine and operator register, from the
// registries that the programs themselves use.
package known

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	// It registers the metrics of reconciles.
	_ "sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/outrider-dev/outrider/controllers/statusmetrics"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Metrics are names of metrics and the labels of each.
type Metrics map[string]map[string]bool

// targetLabels are given by the scrape: server by the PodMonitor that the
// operator makes, the rest by Prometheus and its operator.
var targetLabels = []string{"namespace", "server", "pod", "job", "instance", "service", "endpoint", "container"}

// All are the metrics of engine and operator, up and ALERTS.
func All() (Metrics, error) {
	reg := prometheus.NewRegistry()
	telemetry.NewMetrics(reg, "m", time.Now)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	operator, ok := ctrlmetrics.Registry.(prometheus.Collector)
	if !ok {
		return nil, fmt.Errorf("controller-runtime's registry is a %T, which does not describe its metrics", ctrlmetrics.Registry)
	}
	m := Metrics{"up": labelSet(nil)}
	for _, c := range []prometheus.Collector{reg, operator, statusmetrics.New(nil, nil, logr.Discard())} {
		if err := m.add(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// A description has no accessors; its text is stable (a client of the library
// would break with it).
var descText = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: .*, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

func (m Metrics) add(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	var bad error
	for d := range ch {
		f := descText.FindStringSubmatch(d.String())
		if f == nil {
			bad = fmt.Errorf("a metric is described as %q, want a text that matches %s", d, descText)
			continue
		}
		var labels []string
		for pair := range strings.SplitSeq(f[2], ",") {
			name, _, _ := strings.Cut(pair, "=")
			labels = append(labels, name)
		}
		m[f[1]] = labelSet(append(labels, strings.Split(f[3], ",")...))
	}
	return bad
}

func labelSet(labels []string) map[string]bool {
	set := map[string]bool{}
	for _, l := range append(labels, targetLabels...) {
		if l != "" {
			set[l] = true
		}
	}
	return set
}

// Labels are the labels of a series' name, those of histograms' parts among them.
func (m Metrics) Labels(series string) (map[string]bool, error) {
	if l, ok := m[series]; ok {
		return l, nil
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && m[base] != nil && (strings.HasSuffix(base, "_seconds") || strings.HasPrefix(base, "outrider_request_")) { // there are no other histograms
			l := map[string]bool{"le": suffix == "_bucket"}
			for name := range m[base] {
				l[name] = true
			}
			return l, nil
		}
	}
	return nil, fmt.Errorf("no metric %s: neither engine nor operator registers it", series)
}
