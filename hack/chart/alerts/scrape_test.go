package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"
)

// scrape is what the guide tells people to put into a Prometheus of their own.
type scrape struct {
	Rules []string `yaml:"rule_files"`
	Jobs  []struct {
		Name    string            `yaml:"job_name"`
		Honor   bool              `yaml:"honor_labels"`
		Relabel []*relabel.Config `yaml:"relabel_configs"`
		Rest    map[string]any    `yaml:",inline"`
	} `yaml:"scrape_configs"`
}

// TestScrape: the guide's configuration finds the pods of operator and engines by
// their ports, no others, and gives them the labels that dashboards and alerts
// ask for.
func TestScrape(t *testing.T) {
	doc, err := os.ReadFile(root + "docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^```yaml\n(rule_files:.*?)^```$").FindSubmatch(doc)
	if block == nil {
		t.Fatal("docs/monitoring.md has no block of YAML that begins with rule_files")
	}
	check := func(text string) string {
		file := filepath.Join(t.TempDir(), "prometheus.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), promtool(t), "check", "config", "--syntax-only", file).CombinedOutput()
		return string(out)
	}
	// Prometheus takes it. Debian's is built without Kubernetes' discovery, which has no other settings here.
	text := strings.ReplaceAll(string(block[1]), "kubernetes_sd_configs: [{role: pod}]", "static_configs: [{targets: [pod]}]")
	if out := check(text); !strings.Contains(out, "is valid prometheus config file syntax") {
		t.Errorf("promtool: %s", out)
	}
	if out := check(strings.Replace(text, "honor_labels", "honour_labels", 1)); !strings.Contains(out, "honour_labels not found") {
		t.Errorf("promtool takes a field that there is not: %s", out)
	}
	var s scrape
	if err := yaml.Unmarshal(block[1], &s); err != nil {
		t.Fatal(err)
	}
	const meta = "__meta_kubernetes_"
	pod := func(port string, more ...string) labels.Labels {
		return labels.FromStrings(append([]string{
			"__address__", "10.0.0.1:1", meta + "namespace", "team-a", meta + "pod_name", "p-0", meta + "pod_container_port_name", port,
		}, more...)...)
	}
	operator := []string{meta + "pod_label_app_kubernetes_io_name", "outrider", meta + "pod_label_app_kubernetes_io_component", "operator"}
	engine := []string{meta + "pod_label_inference_outrider_dev_server", "chat", meta + "pod_labelpresent_inference_outrider_dev_server", "true"}
	for _, tt := range []struct {
		name, job, server string // no job: not scraped
		pod               labels.Labels
	}{
		{"operator", "outrider", "", pod("metrics", operator...)},
		{"operator's health", "", "", pod("health", operator...)},
		{"engine", "outrider-engines", "chat", pod("admin", engine...)},
		{"engine's API", "", "", pod("http", engine...)},
		{"another pod", "", "", pod("admin")},
	} {
		found := ""
		for _, j := range s.Jobs {
			for _, r := range j.Relabel {
				if err := r.Validate(model.UTF8Validation); err != nil {
					t.Fatalf("%s: %v", j.Name, err)
				}
			}
			b := labels.NewBuilder(tt.pod)
			if !relabel.ProcessBuilder(b, j.Relabel...) {
				continue
			}
			got := b.Labels()
			found += j.Name
			if got.Get("namespace") != "team-a" || got.Get("pod") != "p-0" || got.Get("server") != tt.server {
				t.Errorf("%s has the labels %s", tt.name, got)
			}
		}
		if found != tt.job {
			t.Errorf("%s is scraped by the job %q, want %q", tt.name, found, tt.job)
		}
	}
	for _, j := range s.Jobs {
		// Statuses have a label namespace that the scrape must not rename.
		if want := j.Name == "outrider"; j.Honor != want {
			t.Errorf("%s: honor_labels is %v, want %v", j.Name, j.Honor, want)
		}
	}
	if len(s.Rules) != 1 || len(s.Jobs) != 2 {
		t.Errorf("%d rule files and %d jobs, want 1 and 2", len(s.Rules), len(s.Jobs))
	}
}
