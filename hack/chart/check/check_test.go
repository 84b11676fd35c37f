package check

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
	"github.com/outrider-dev/outrider/hack/chart/known"
)

func metrics(t *testing.T) known.Metrics {
	t.Helper()
	m, err := known.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"outrider_spec_depth", "outrider_server_condition", "controller_runtime_reconcile_total", "rest_client_requests_total"} {
		if m[name] == nil {
			t.Fatalf("%s is not among the %d known metrics", name, len(m))
		}
	}
	return m
}

func TestExpr(t *testing.T) {
	m := metrics(t)
	for _, tt := range []struct{ expr, want string }{
		{`sum by (pod) (rate(outrider_generation_tokens_total{server="a"}[$__rate_interval]))`, ""},
		{`histogram_quantile(0.9, sum by (le) (rate(outrider_queue_seconds_bucket[5m])))`, ""},
		{`outrider_spec_acceptlength`, "no metric outrider_spec_acceptlength"},
		{`outrider_spec_depth_bucket > 1`, "no metric outrider_spec_depth_bucket"},
		{`outrider_spec_depth{position="0"}`, "outrider_spec_depth has no label position"},
		{`sum by (reason) (outrider_server_phase)`, "by (reason): the metrics there have"},
		{`outrider_spec_depth / on (phase) outrider_server_replicas`, "on (phase)"},
		{`rate(outrider_spec_depth[5m])`, "only counters have rates"},
		{`sum(outrider_spec_depth`, "parse error"},
	} {
		err := Expr(tt.expr, m)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want one with %q", tt.expr, err, tt.want)
		}
	}
}

func values(t *testing.T) known.Values {
	t.Helper()
	v, err := known.AllValues("../../..")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestValues(t *testing.T) {
	v := values(t)
	for _, tt := range []struct{ expr, want string }{
		{`outrider_server_condition{condition="Degraded", reason=~"NameTaken|PodRefused"} == 1`, ""},
		{`rate(outrider_phase_seconds_sum{phase!~"prefill|collective"}[5m])`, ""},
		{`outrider_server_condition{condition="Degrade"}`, `outrider_server_condition never has the condition "Degrade"`},
		{`outrider_server_condition{reason=~"NameTaken|PodRefusd"}`, `never has the reason "PodRefusd"`},
		{`rate(outrider_phase_seconds_sum{phase!="collectives"}[5m])`, `never has the phase "collectives"`},
		{`outrider_requests_total{outcome="errors"}`, `never has the outcome "errors"`},
		{`outrider_requests_total{pod="any"}`, ""},
	} {
		err := Values(tt.expr, v)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want one with %q", tt.expr, err, tt.want)
		}
	}
}

// series is the name of the first metric of an expression.
func series(t *testing.T, expr string) string {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(Expand(expr))
	if err != nil {
		t.Fatal(err)
	}
	for _, sel := range parser.ExtractSelectors(e) {
		for _, m := range sel {
			if m.Name == model.MetricNameLabel {
				return m.Value
			}
		}
	}
	t.Fatalf("%s has no metric", expr)
	return ""
}

// A colour is for a series that there can be: a value of the label that the legend
// shows, or the legend of a query. Where one value has a colour all have.
func TestColors(t *testing.T) {
	v := values(t)
	colored := 0
	for name, d := range dashboards.All() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				if len(p.Colors) == 0 {
					continue
				}
				colored++
				all := map[string]bool{}
				for _, q := range p.Queries {
					if l := q.Column(); l != "" {
						for value := range v.Of(series(t, q.Expr), l) {
							all[value] = true
						}
						continue
					}
					all[q.Legend] = true
				}
				for value := range all {
					if p.Colors[value] == "" {
						t.Errorf("%s, %s: %q has no colour of its own", name, p.Title, value)
					}
				}
				if len(all) == 0 {
					t.Errorf("%s, %s has colours for series whose names nobody knows", name, p.Title)
				}
			}
		}
	}
	if colored < 10 {
		t.Errorf("only %d panels have colours", colored)
	}
}

func TestDashboards(t *testing.T) {
	m, v := metrics(t), values(t)
	uids := map[string]bool{"": true}
	for _, d := range dashboards.All() {
		uids[d.UID] = true
	}
	for name, d := range dashboards.All() {
		if len(d.Rows) == 0 {
			t.Errorf("%s has no rows", name)
		}
		for _, v := range d.Variables {
			if err := Expr("count by ("+v.Name+") ("+v.Metric+")", m); err != nil {
				t.Errorf("%s, variable %s: %v", name, v.Name, err)
			}
		}
		seen := map[string]bool{}
		for _, r := range d.Rows {
			width := 0
			for _, p := range r.Panels {
				width += p.Width
				if seen[p.Title] || p.Title == "" || p.Text == "" {
					t.Errorf("%s: panel %q is there twice, or has no title or text", name, p.Title)
				}
				seen[p.Title] = true
				if len(p.Queries) == 0 || p.Kind == dashboards.Scatter && len(p.Queries) != 2 {
					t.Errorf("%s, %s: %d queries", name, p.Title, len(p.Queries))
				}
				if !uids[p.Open] {
					t.Errorf("%s, %s opens %s, which is no dashboard", name, p.Title, p.Open)
				}
				for _, q := range p.Queries {
					if err := errors.Join(Expr(q.Expr, m), Values(q.Expr, v)); err != nil {
						t.Errorf("%s, %s: %v", name, p.Title, err)
					}
				}
			}
			if width%24 != 0 {
				t.Errorf("%s, row %s is %d columns wide, which are not full rows of 24", name, r.Title, width)
			}
		}
	}
}
