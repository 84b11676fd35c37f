package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	prom "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

// asker asks Prometheus as Grafana does.
type asker struct {
	api      prom.API
	values   map[string]string // of variables
	rate     time.Duration
	from, to time.Time
}

// series is one line, or one row of a table's column.
type series struct {
	name   string
	labels model.Metric
	points []model.SamplePair
}

// last is the last value.
func (s series) last() float64 { return float64(s.points[len(s.points)-1].Value) }

var variable = regexp.MustCompile(`\$[a-z_]+`)

// expand puts values in the place of Grafana's variables; all where there is none.
func (a asker) expand(expr string) string {
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		switch v {
		case "$__rate_interval":
			return model.Duration(a.rate).String()
		case "$__range":
			return model.Duration(a.to.Sub(a.from)).String()
		}
		return cmp.Or(a.values[v[1:]], ".*")
	})
}

// of is the asker for a dashboard: where a variable takes several values it stands
// for all that there are, as Grafana's All does.
func (a asker) of(ctx context.Context, d dashboards.Dashboard) (asker, error) {
	given := a.values
	a.values = maps.Clone(given)
	for _, v := range d.Variables {
		if !v.Multi {
			continue
		}
		found, _, _, err := a.api.LabelValues(ctx, v.Name, []string{a.expand(v.Metric)}, a.from, a.to)
		if err != nil {
			return a, fmt.Errorf("values of the variable %s: %w", v.Name, err)
		}
		var all []string
		for _, value := range found {
			all = append(all, strings.ReplaceAll(regexp.QuoteMeta(string(value)), `\`, `\\`)) // within a string
		}
		a.values[v.Name] = strings.Join(all, "|")
	}
	return a, nil
}

// lacksGPUs says whether a row is of panels for GPUs alone, and there is nothing
// of them.
func (a asker) lacksGPUs(ctx context.Context, r dashboards.Row) (bool, error) {
	for _, p := range r.Panels {
		if !p.OnGPU {
			return false, nil
		}
		found, err := a.query(ctx, p.Queries[0], false)
		if err != nil || len(found) > 0 {
			return false, err
		}
	}
	return len(r.Panels) > 0, nil
}

var label = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)

// query gives the series of a query that have any number, in a fixed order.
func (a asker) query(ctx context.Context, q dashboards.Query, instant bool) ([]series, error) {
	expr := a.expand(q.Expr)
	var value model.Value
	var err error
	if instant {
		value, _, _, err = a.api.Query(ctx, expr, a.to)
	} else {
		step := max(time.Second, a.to.Sub(a.from)/200)
		value, _, _, err = a.api.QueryRange(ctx, expr, prom.Range{Start: a.from, End: a.to, Step: step})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var all []series
	add := func(m model.Metric, points []model.SamplePair) {
		points = slices.DeleteFunc(points, func(p model.SamplePair) bool {
			return math.IsNaN(float64(p.Value)) || math.IsInf(float64(p.Value), 0)
		})
		if len(points) == 0 {
			return
		}
		name := label.ReplaceAllStringFunc(q.Legend, func(l string) string {
			return string(m[model.LabelName(strings.Trim(l, "{} "))])
		})
		all = append(all, series{name, m, points})
	}
	switch v := value.(type) {
	case model.Matrix:
		for _, s := range v {
			add(s.Metric, s.Values)
		}
	case model.Vector:
		for _, s := range v {
			add(s.Metric, []model.SamplePair{{Timestamp: s.Timestamp, Value: s.Value}})
		}
	default:
		return nil, fmt.Errorf("%s: Prometheus answers with a %s, want series", expr, value.Type())
	}
	slices.SortFunc(all, func(a, b series) int { return strings.Compare(a.labels.String(), b.labels.String()) })
	return all, nil
}
