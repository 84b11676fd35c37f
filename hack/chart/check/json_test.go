package check

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

// imported is what Grafana reads of a dashboard.
type imported struct {
	Panels []struct {
		ID      int
		Type    string
		Title   string
		Targets []struct {
			RefID      string `json:"refId"`
			Expr       string
			Instant    bool
			Range      bool
			Format     string
			Datasource struct{ UID string }
		}
		FieldConfig struct {
			Defaults struct {
				Custom struct {
					Stacking struct{ Mode string }
				}
			}
		}
	}
	Templating struct {
		List []struct {
			Name       string
			Type       string
			IncludeAll bool
			Current    struct{ Value any }
		}
	}
}

// TestJSON: what Grafana is given asks the chosen data source, under names of its
// own for each query, for the last value where a panel is a table and for a range
// elsewhere, and stacks what is to be stacked.
func TestJSON(t *testing.T) {
	for name, d := range dashboards.All() {
		raw, err := d.JSON()
		if err != nil {
			t.Fatal(err)
		}
		var got imported
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		panels := map[string]dashboards.Panel{}
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				panels[p.Title] = p
			}
		}
		ids := map[int]bool{0: true}
		for _, p := range got.Panels {
			if ids[p.ID] {
				t.Errorf("%s, %s: the id %d is no panel's own", name, p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.Type == "row" {
				continue
			}
			want := panels[p.Title]
			delete(panels, p.Title)
			refs := map[string]bool{"": true}
			for i, q := range p.Targets {
				if refs[q.RefID] || q.Datasource.UID != "${datasource}" || q.Expr != want.Queries[i].Expr {
					t.Errorf("%s, %s: query %+v", name, p.Title, q)
				}
				refs[q.RefID] = true
				if table := want.Kind == dashboards.Table; q.Instant != table || q.Range == table || (q.Format == "table") != table {
					t.Errorf("%s, %s is a table: %v, and its query is %+v", name, p.Title, table, q)
				}
			}
			if stacked := p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"; stacked != (want.Kind == dashboards.Stacked) {
				t.Errorf("%s, %s is stacked: %v", name, p.Title, stacked)
			}
		}
		for title := range panels {
			t.Errorf("%s: the panel %s is not in the JSON", name, title)
		}
		if links := "var-namespace=${__data.fields.namespace}&var-server=${__data.fields.server}&"; name == "fleet" && !strings.Contains(strings.ReplaceAll(string(raw), `\u0026`, "&"), links) {
			t.Errorf("%s does not open a row's server with %s", name, links)
		}
		for _, v := range got.Templating.List {
			if v.IncludeAll && v.Current.Value != "$__all" {
				t.Errorf("%s: the variable %s begins with %v, want all", name, v.Name, v.Current.Value)
			}
		}
		if first := got.Templating.List[0]; first.Name != "datasource" || first.Type != "datasource" {
			t.Errorf("%s: the first variable is %+v, want the data source", name, first)
		}
	}
}
