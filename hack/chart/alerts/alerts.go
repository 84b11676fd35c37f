// Package alerts reads the chart's alerts, a Prometheus rule file. Its tests run
// promtool on each alert, and check names and runbooks.
package alerts

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Rule is one alert.
type Rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Read gives the alerts of a rule file, in its order.
func Read(name string) ([]Rule, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []Rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var all []Rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all, nil
}
