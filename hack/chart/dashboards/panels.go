// Package dashboards has the Grafana dashboards as values: what each panel asks
// Prometheus and how it is drawn. They are written as JSON for the chart, checked
// against the metrics that the programs have, and drawn by hack/chart/preview.
package dashboards

import (
	"regexp"
	"strings"
)

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
// for a Scatter the axis, for a Table the column's name. A Table's legend that is
// one label in {{ }} has the column show that label, and not the value.
type Query struct{ Expr, Legend string }

var oneLabel = regexp.MustCompile(`^\{\{([a-z_]+)\}\}$`)

// Heading is what stands over the query's column of a Table.
func (q Query) Heading() string {
	if l := q.Column(); l != "" {
		return strings.ToUpper(l[:1]) + l[1:]
	}
	return q.Legend
}

// Column is the label that the query's column of a Table shows; "" where it shows
// the value.
func (q Query) Column() string {
	if m := oneLabel.FindStringSubmatch(q.Legend); m != nil {
		return m[1]
	}
	return ""
}

// Panel is one panel. Width is of 24 columns.
type Panel struct {
	Title, Text string // Text says how to read it
	Kind        Kind
	Unit        string // Grafana's name of a unit: s, bytes, percentunit, percent, reqps, short
	Width       int
	Min, Max    *float64 // of the axis, where the data does not give them
	Mark        *float64 // a line across the panel, what crosses it deserves a look; a Stat is red from there on
	Colors      Colors   // of series whose colour has a meaning; the others have any
	Shades      string   // of which colour all series are shades; any colours if empty
	Queries     []Query
	Open        string // UID of the dashboard that a row's server opens, of a Table
	OnGPU       bool   // there is data only where engines compute on GPUs
}

// Colors are Grafana's names of colours, by the names of series.
type Colors map[string]string

// The same thing has the same colour on all dashboards: red is what is broken,
// orange what deserves a look, green what is as it should be, blue what is on
// its way.
var (
	phaseColors = Colors{
		"Ready": "green", "Updating": "super-light-green",
		"Pending": "super-light-blue", "Pulling": "light-blue", "Starting": "semi-dark-blue", "Fetching": "blue", "Loading": "dark-blue", "WarmingUp": "purple", "Verifying": "light-purple",
		"WaitingForCapacity": "yellow", "Degraded": "orange", "Stalled": "dark-orange", "Unverified": "light-orange",
		"ImageUnavailable": "light-red", "VolumeUnavailable": "light-red", "ContainerRefused": "light-red", "NodeLost": "semi-dark-red", "Crashed": "red", "Failed": "dark-red",
		"Terminating": "text", "Stopped": "text",
	}
	outcomeColors = Colors{"stop": "green", "length": "blue", "abort": "text", "rejected": "orange", "error": "red"}
	resultColors  = Colors{"success": "green", "requeue": "blue", "requeue_after": "light-blue", "error": "red"}
	passColors    = Colors{"verify": "green", "decode": "blue", "prefill": "purple", "draft": "yellow", "extend": "orange", "sample": "light-blue", "schedule": "text", "collective": "red"}
	shareColors   = Colors{"p50": "green", "p90": "yellow", "p99": "orange"}
)

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
