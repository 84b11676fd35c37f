package check

import (
	"strings"
	"testing"

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

func TestDashboards(t *testing.T) {
	m := metrics(t)
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
					if err := Expr(q.Expr, m); err != nil {
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
