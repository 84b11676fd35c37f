package known

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// Values are the values that a label of a metric can have, by metric and label, of
// those labels whose values the source lists. Why an engine ended has others too,
// which Kubernetes or the operator says where the engine did not: no expression
// may ask for one of them.
type Values map[string]map[string]map[string]bool

// AllValues reads them: those of the engine from its packages, those of statuses
// from the API's source in the repository at root.
func AllValues(root string) (Values, error) {
	phases, conditions, reasons, err := declared(filepath.Join(root, "api/v1alpha1/speculativeserver_status.go"))
	if err != nil {
		return nil, err
	}
	var passes, outcomes, faults []string
	for p := telemetry.PhasePrefill; p <= telemetry.PhaseExchange; p++ {
		passes = append(passes, p.String())
	}
	for o := telemetry.OutcomeStop; o <= telemetry.OutcomeRejected; o++ {
		outcomes = append(outcomes, o.String())
	}
	for _, r := range fault.Reasons() {
		faults = append(faults, string(r))
	}
	of := func(values []string) map[string]bool {
		set := map[string]bool{}
		for _, v := range values {
			set[v] = true
		}
		return set
	}
	return Values{
		"outrider_server_condition":                          {"condition": of(conditions), "reason": of(reasons)},
		"outrider_server_phase":                              {"phase": of(phases)},
		"outrider_server_pods":                               {"phase": of(phases)},
		"outrider_server_device":                             {"device": of([]string{"CPU", "CUDA", "Mixed"})},
		"outrider_server_pod_last_failure_timestamp_seconds": {"reason": of(faults)},
		"outrider_phase_seconds":                             {"phase": of(passes)},
		"outrider_requests_total":                            {"outcome": of(outcomes)},
		// As controller-runtime has them.
		"controller_runtime_reconcile_total": {"result": of([]string{"success", "error", "requeue", "requeue_after"})},
	}, nil
}

// Of are the values of a label of a series, those of histograms' parts among
// them; nil where the source does not list them.
func (v Values) Of(series, label string) map[string]bool {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && v[base] != nil {
			return v[base][label]
		}
	}
	return nil
}

// declared are the constants of phases, conditions and reasons in a Go file.
func declared(name string) (phases, conditions, reasons []string, err error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		lit, ok := spec.Values[0].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		value, bad := strconv.Unquote(lit.Value)
		if bad != nil {
			return true
		}
		for prefix, list := range map[string]*[]string{"Phase": &phases, "Condition": &conditions, "Reason": &reasons} {
			if strings.HasPrefix(spec.Names[0].Name, prefix) {
				*list = append(*list, value)
			}
		}
		return true
	})
	if len(phases) == 0 || len(conditions) == 0 || len(reasons) == 0 {
		return nil, nil, nil, fmt.Errorf("%s declares %d phases, %d conditions and %d reasons: mend this package", name, len(phases), len(conditions), len(reasons))
	}
	return phases, conditions, reasons, nil
}
