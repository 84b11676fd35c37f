package dashboards

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/xychart"
)

// source is the data source that the reader of a dashboard chooses.
var source = common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}

// JSON is the dashboard as Grafana imports it.
func (d Dashboard) JSON() ([]byte, error) {
	//nolint:staticcheck // the second schema is not what Grafana's importers and side cars read
	b := dashboard.NewDashboardBuilder(d.Title).Uid(d.UID).Description(d.Text).Tags([]string{"outrider"}).
		Editable().Tooltip(dashboard.DashboardCursorSyncCrosshair).Refresh("30s").Time("now-1h", "now").
		Link(dashboard.NewDashboardLinkBuilder("Outrider").Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{"outrider"}).IncludeVars(true).KeepTime(true)).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"))
	for _, v := range d.Variables {
		q := fmt.Sprintf("label_values(%s, %s)", v.Metric, v.Name)
		vb := dashboard.NewQueryVariableBuilder(v.Name).Label(v.Label).Query(dashboard.StringOrMap{String: &q}).Datasource(source).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortNaturalAsc).Multi(v.Multi).IncludeAll(v.Multi)
		if v.Multi {
			// All are the values that there are: .* would also match the job of any other process.
			vb.Current(dashboard.VariableOption{
				Selected: new(true), Text: dashboard.StringOrArrayOfString{String: new("All")}, Value: dashboard.StringOrArrayOfString{String: new("$__all")},
			})
		}
		b.WithVariable(vb)
	}
	for _, r := range d.Rows {
		b.WithRow(dashboard.NewRowBuilder(r.Title))
		for _, p := range r.Panels {
			b.WithPanel(p)
		}
	}
	built, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", d.UID, err)
	}
	for i := range built.Panels { // ids, so that a panel keeps its address
		if p := built.Panels[i].Panel; p != nil {
			p.Id = new(uint32(i + 1))
		} else if r := built.Panels[i].RowPanel; r != nil {
			r.Id = uint32(i + 1)
		}
	}
	out, err := json.MarshalIndent(built, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", d.UID, err)
	}
	return append(out, '\n'), nil
}

// Build is the panel as Grafana has it.
func (p Panel) Build() (dashboard.Panel, error) {
	var built dashboard.Panel
	var err error
	switch p.Kind {
	case Stat:
		b := stat.NewPanelBuilder()
		if p.Mark == nil { // Grafana's own thresholds make every figure above 80 red
			b.ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdFixed).FixedColor("text"))
		} else {
			b.Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).
				Steps([]dashboard.Threshold{{Color: "green"}, {Value: p.Mark, Color: "red"}}))
		}
		built, err = b.GraphMode(common.BigValueGraphModeArea).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).Build()
	case Table:
		built, err = table.NewPanelBuilder().Build()
		built.Transformations = p.columns()
	case Scatter:
		built, err = xychart.NewPanelBuilder().Mapping(xychart.SeriesMappingAuto).Show(xychart.XYShowModePoints).
			AxisLabel(p.Queries[1].Legend).Build()
		built.Transformations = []dashboard.DataTransformerConfig{{Id: "joinByField", Options: map[string]any{"byField": "Time", "mode": "inner"}}}
	default:
		built, err = p.overTime().Build()
	}
	if err != nil {
		return built, fmt.Errorf("panel %q: %w", p.Title, err)
	}
	built.Title, built.Description, built.Datasource = &p.Title, &p.Text, &source
	built.GridPos = &dashboard.GridPos{W: uint32(p.Width), H: p.height()}
	if built.FieldConfig == nil {
		built.FieldConfig = dashboard.NewFieldConfigSource()
	}
	if p.Open != "" {
		built.FieldConfig.Overrides = append(built.FieldConfig.Overrides, dashboard.DashboardFieldConfigSourceOverrides{
			Matcher: dashboard.MatcherConfig{Id: "byName", Options: "server"},
			Properties: []dashboard.DynamicConfigValue{{Id: "links", Value: []map[string]any{{
				"title": "Open its dashboard",
				"url":   "/d/" + p.Open + "?var-namespace=${__data.fields.namespace}&var-server=${__data.fields.server}&${datasource:queryparam}&${__url_time_range}",
			}}}},
		})
	}
	for _, name := range slices.Sorted(maps.Keys(p.Colors)) {
		built.FieldConfig.Overrides = append(built.FieldConfig.Overrides, dashboard.DashboardFieldConfigSourceOverrides{
			Matcher:    dashboard.MatcherConfig{Id: "byName", Options: name},
			Properties: []dashboard.DynamicConfigValue{{Id: "color", Value: map[string]any{"mode": "fixed", "fixedColor": p.Colors[name]}}},
		})
	}
	f := &built.FieldConfig.Defaults
	f.Unit, f.Min, f.Max = &p.Unit, p.Min, p.Max
	for i, q := range p.Queries {
		t := prometheus.NewDataqueryBuilder().Expr(q.Expr).RefId(refID(i)).Datasource(source).LegendFormat(q.Legend)
		if p.Kind == Table {
			t.Instant().Format(prometheus.PromQueryFormatTable)
		} else {
			t.Range()
		}
		target, err := t.Build()
		if err != nil {
			return built, fmt.Errorf("panel %q: %w", p.Title, err)
		}
		built.Targets = append(built.Targets, target)
	}
	return built, nil
}

func refID(i int) string { return string(rune('A' + i)) }

// overTime is a panel of lines.
func (p Panel) overTime() *timeseries.PanelBuilder {
	b := timeseries.NewPanelBuilder().LineWidth(1).ShowPoints(common.VisibilityModeNever).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom))
	if p.Kind == Stacked {
		b.FillOpacity(60).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	} else {
		b.FillOpacity(8)
	}
	if p.Shades != "" {
		b.ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdShades).FixedColor(p.Shades))
	}
	if p.Mark != nil {
		b.ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed)).
			Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).
				Steps([]dashboard.Threshold{{Color: "transparent"}, {Value: p.Mark, Color: "orange"}}))
	}
	return b
}

// columns merges a table's queries into one row for each set of the labels that
// they share, in their order, and names the columns. Labels that a query shows
// come in the place of its value.
func (p Panel) columns() []dashboard.DataTransformerConfig {
	names, hidden, order := map[string]string{}, map[string]bool{"Time": true}, map[string]int{}
	place := func(column string) { order[column] = len(order) }
	for _, l := range []string{"namespace", "server", "pod"} {
		place(l)
	}
	for i, q := range p.Queries {
		column := "Value"
		if len(p.Queries) > 1 {
			column += " #" + refID(i)
		}
		if l := q.Column(); l != "" {
			hidden[column] = true
			names[l] = q.Heading()
			place(l)
			continue
		}
		names[column] = q.Heading()
		place(column)
	}
	return []dashboard.DataTransformerConfig{
		{Id: "merge", Options: map[string]any{}},
		{Id: "organize", Options: map[string]any{"excludeByName": hidden, "renameByName": names, "indexByName": order}},
	}
}
