package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/outrider-dev/outrider/controllers/statusmetrics"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/server"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// paths are those of the engine's two ports.
func paths(w io.Writer) {
	fmt.Fprint(w, "\n## Paths of the engine\n\n¹ With `--admin-only` on the admin port alone.\n\n")
	var rows [][]string
	for _, p := range server.Paths() {
		var ports []string
		switch {
		case p.Public && p.Fact:
			ports = append(ports, "public¹")
		case p.Public:
			ports = append(ports, "public")
		}
		if p.Admin {
			ports = append(ports, "admin")
		}
		path := strings.TrimSuffix(p.Path, "{$}") // in a pattern of net/http: that path alone
		rows = append(rows, []string{quote(p.Method + " " + path), strings.Join(ports, ", "), p.Summary})
	}
	table(w, []string{"path", "port", ""}, rows)
}

// exitCodes are those of the engine and their reasons.
func exitCodes(w io.Writer) {
	fmt.Fprint(w, "\n## Exit codes of the engine\n\n0 is the end of an engine that was told to stop. Otherwise the termination message has the reason.\n\n")
	var rows [][]string
	for _, r := range fault.Reasons() {
		rows = append(rows, []string{strconv.Itoa(r.ExitCode()), quote(string(r)), r.Meaning()})
	}
	table(w, []string{"exit code", "reason", "what ended it"}, rows)
}

// metrics are those that the engine and the operator register.
func metrics(w io.Writer) error {
	engine := prometheus.NewRegistry()
	m := telemetry.NewMetrics(engine, "m", time.Now)
	m.Phase(telemetry.PhaseVerify).Observe(0) // so that its type is seen
	for _, part := range []struct {
		title, text string
		collector   prometheus.Collector
		types       prometheus.Gatherer
	}{
		{"Metrics of the engine", "All have the label `model`.", engine, engine},
		{"Metrics of the operator", "Beside those of controller-runtime and Go.", statusmetrics.New(nil, nil, logr.Discard()), nil},
	} {
		rows, err := metricRows(part.collector, part.types)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "\n## %s\n\n%s\n\n", part.title, part.text)
		table(w, []string{"metric", "type", "labels", ""}, rows)
	}
	return nil
}

// A description has no accessors; its text is stable (a client of the library
// would break with it).
var descText = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"),(?: unit: ".*",)? constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// metricRows are a collector's metrics by name; types has at least one series
// of each histogram.
func metricRows(c prometheus.Collector, types prometheus.Gatherer) ([][]string, error) {
	histograms := map[string]bool{}
	if types != nil {
		families, err := types.Gather()
		if err != nil {
			return nil, err
		}
		for _, f := range families {
			histograms[f.GetName()] = f.GetType() == dto.MetricType_HISTOGRAM
		}
	}
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	var rows [][]string
	var bad error
	for d := range ch {
		f := descText.FindStringSubmatch(d.String())
		if f == nil {
			bad = fmt.Errorf("a metric is described as %q, want a text that matches %s", d, descText)
			continue
		}
		help, err := strconv.Unquote(f[2])
		if err != nil {
			bad = err
		}
		kind := "gauge"
		switch {
		case strings.HasSuffix(f[1], "_total"): // the linter of the metrics' tests holds counters, and no others, to this
			kind = "counter"
		case histograms[f[1]]:
			kind = "histogram"
		}
		var labels []string
		for l := range strings.SplitSeq(f[3], ",") {
			if l != "" {
				labels = append(labels, quote(l))
			}
		}
		rows = append(rows, []string{quote(f[1]), kind, strings.Join(labels, ", "), help})
	}
	slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows, bad
}
