// Package check reads PromQL and finds names that no program gives.
package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/outrider-dev/outrider/hack/chart/known"
)

// variables of Grafana that are no labels' values.
var variables = strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h", "$__interval", "15s")

// Expand puts times in the place of Grafana's variables.
func Expand(expr string) string { return variables.Replace(expr) }

// Expr says what is wrong with an expression; nil for nothing: it must parse,
// its metrics must be known with the labels that it selects and groups by, and
// only counters have rates.
func Expr(expr string, m known.Metrics) error {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(Expand(expr))
	if err != nil {
		return fmt.Errorf("%s: %w", expr, err)
	}
	var bad error
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if bad == nil {
			bad = node(n, m)
		}
		return bad
	})
	if bad != nil {
		return fmt.Errorf("%s: %w", expr, bad)
	}
	return nil
}

// counts are the ends of the names of what only grows.
var counts = []string{"_total", "_bucket", "_sum", "_count"}

func node(n parser.Node, m known.Metrics) error {
	switch n := n.(type) {
	case *parser.VectorSelector:
		l, err := m.Labels(n.Name)
		if err != nil {
			return err
		}
		for _, match := range n.LabelMatchers {
			if match.Name != model.MetricNameLabel && !l[match.Name] {
				return fmt.Errorf("%s has no label %s: it has %s", n.Name, match.Name, list(l))
			}
		}
	case *parser.AggregateExpr:
		return grouped("by", n.Grouping, n.Expr, m)
	case *parser.BinaryExpr:
		if v := n.VectorMatching; v != nil {
			for _, side := range []parser.Expr{n.LHS, n.RHS} {
				if err := grouped("on", v.MatchingLabels, side, m); err != nil {
					return err
				}
			}
		}
	case *parser.Call:
		if n.Func.Name != "rate" && n.Func.Name != "increase" && n.Func.Name != "irate" {
			return nil
		}
		sel, ok := n.Args[0].(*parser.MatrixSelector)
		if !ok {
			return fmt.Errorf("%s of something that is no metric", n.Func.Name)
		}
		name := sel.VectorSelector.(*parser.VectorSelector).Name
		if !slices.ContainsFunc(counts, func(s string) bool { return strings.HasSuffix(name, s) }) {
			return fmt.Errorf("%s(%s): only counters have rates", n.Func.Name, name)
		}
	}
	return nil
}

// Values says which label of an expression is compared with a value that it never
// has; nil for none. A regular expression is read as words between bars.
func Values(expr string, v known.Values) error {
	e, err := parser.NewParser(parser.Options{}).ParseExpr(Expand(expr))
	if err != nil {
		return fmt.Errorf("%s: %w", expr, err)
	}
	var bad error
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		sel, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, match := range sel.LabelMatchers {
			have := v.Of(sel.Name, match.Name)
			for value := range strings.SplitSeq(match.Value, "|") {
				if have != nil && !have[value] && bad == nil {
					bad = fmt.Errorf("%s: %s never has the %s %q: it has %s", expr, sel.Name, match.Name, value, list(have))
				}
			}
		}
		return bad
	})
	return bad
}

// grouped checks labels that an operation groups or matches by: some metric
// below it must have each.
func grouped(by string, names []string, below parser.Expr, m known.Metrics) error {
	have, metrics := map[string]bool{}, false
	parser.Inspect(below, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			metrics = true
			l, err := m.Labels(s.Name)
			maps.Copy(have, l)
			return err
		}
		return nil
	})
	for _, l := range names {
		if metrics && !have[l] {
			return fmt.Errorf("%s (%s): the metrics there have %s", by, l, list(have))
		}
	}
	return nil
}

func list(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), ", ") }
