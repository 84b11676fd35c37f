// Package dashboards has the Grafana dashboards as values: what each panel asks
// Prometheus and how it is drawn. They are written as JSON for the chart, checked
// against the metrics that the programs have, and drawn by hack/chart/preview.
package dashboards

// Kind is how a panel draws its queries.
type Kind int

// The kinds of panels.
const (
	Lines   Kind = iota // each series a line over time
	Stacked             // the same, one on another
	Stat                // the last value of each series as a figure
	Table               // the last values, a column for each query, a row for each set of labels
	Scatter             // the second query over the first, a point for each moment
)

// Query is an expression and what its series are called, with labels in {{ }};
// for a Table the column's name, for a Scatter the axis.
type Query struct{ Expr, Legend string }

// Panel is one panel. Width is of 24 columns.
type Panel struct {
	Title, Text string // Text says how to read it
	Kind        Kind
	Unit        string // Grafana's name of a unit: s, bytes, percentunit, percent, reqps, short
	Width       int
	Min, Max    *float64 // of the axis, where the data does not give them
	Mark        *float64 // a line across the panel, what crosses it deserves a look
	Queries     []Query
	Open        string // UID of the dashboard that a row's server opens, of a Table
}

// Row is a headed row of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Dashboard is one dashboard. Its variables depend on each other from left to right.
type Dashboard struct {
	UID, Title, Text string
	Variables        []Variable
	Rows             []Row
}

// Variable is a choice at the head of a dashboard: the values of a label.
type Variable struct {
	Name, Label string
	Metric      string // a selector of the series whose label gives the values
	Multi       bool   // several, and all
}

// All are the dashboards, by the name of their file.
func All() map[string]Dashboard {
	return map[string]Dashboard{"fleet": fleet(), "server": server(), "operator": operator()}
}

// height of a panel, in Grafana's rows.
func (p Panel) height() uint32 {
	switch p.Kind {
	case Stat:
		return 4
	default:
		return 8
	}
}
