package alerts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/hack/chart/check"
	"github.com/outrider-dev/outrider/hack/chart/known"
)

const (
	root = "../../../"
	file = root + "charts/outrider/alerts/outrider.yaml"
)

func read(t *testing.T) []Rule {
	t.Helper()
	rules, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) < 10 {
		t.Fatalf("only %d alerts", len(rules))
	}
	return rules
}

// Every expression has known names, and every alert what a person needs who is
// woken by it: a summary, a description, and a section of the runbooks.
func TestAlerts(t *testing.T) {
	m, err := known.All()
	if err != nil {
		t.Fatal(err)
	}
	values, err := known.AllValues(root)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(root + "docs/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^## (Outrider\w+)$`).FindAllStringSubmatch(string(doc), -1) {
		sections[h[1]] = true
	}
	for _, r := range read(t) {
		if err := errors.Join(check.Expr(r.Expr, m), check.Values(r.Expr, values)); err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		if s := r.Labels["severity"]; s != "warning" && s != "critical" {
			t.Errorf("%s has the severity %q: warning or critical", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", r.Alert)
		}
		want := "https://github.com/outrider-dev/outrider/blob/main/docs/runbooks.md#" + strings.ToLower(r.Alert)
		if got := r.Annotations["runbook_url"]; got != want {
			t.Errorf("%s has the runbook %q, want %q", r.Alert, got, want)
		}
		if !sections[r.Alert] {
			t.Errorf("docs/runbooks.md has no section ## %s", r.Alert)
		}
		delete(sections, r.Alert)
	}
	for s := range sections {
		t.Errorf("docs/runbooks.md has a section ## %s, which is no alert", s)
	}
}

// promtool is the path of Debian's, or of another that is there.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(root + "bin/promtool")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath("promtool"); err != nil {
			t.Fatal("no promtool in bin or on the PATH: hack/prometheus.sh brings it")
		}
	}
	return path
}

// TestRules runs promtool: each alert of the table fires when it should, with
// its texts, and not when it should not.
func TestRules(t *testing.T) {
	byName := map[string]Rule{}
	for _, r := range read(t) {
		byName[r.Alert] = r
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	var tests []any
	for _, c := range cases {
		r, ok := byName[c.alert]
		if !ok {
			t.Fatalf("a case of %s, which is no alert", c.alert)
		}
		expected := []any{}
		if c.fires == nil {
			quiet[c.alert] = true
		}
		if c.fires != nil {
			fires[c.alert] = true
			labels := map[string]string{"severity": r.Labels["severity"]}
			for k, v := range c.fires {
				labels[k] = v
			}
			description := r.Annotations["description"]
			for k, v := range labels {
				description = strings.ReplaceAll(description, "{{ $labels."+k+" }}", v)
			}
			expected = append(expected, map[string]any{"exp_labels": labels, "exp_annotations": map[string]string{
				"summary": c.summary, "description": description, "runbook_url": r.Annotations["runbook_url"]}})
		}
		var series []any
		for _, s := range c.series {
			name, values, _ := strings.Cut(s, " = ")
			series = append(series, map[string]string{"series": name, "values": values})
		}
		tests = append(tests, map[string]any{"name": c.alert + ": " + c.name, "interval": "1m", "input_series": series,
			"alert_rule_test": []any{map[string]any{"eval_time": c.at, "alertname": c.alert, "exp_alerts": expected}}})
	}
	for name := range byName {
		if !fires[name] || !quiet[name] {
			t.Errorf("%s needs a case in which it fires and one in which it does not", name)
		}
	}
	raw, err := yaml.Marshal(map[string]any{"rule_files": []string{abs}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "tests.yaml")
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", abs}, {"test", "rules", name}} {
		if out, err := exec.Command(promtool(t), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", args[0], err, out)
		}
	}
}
