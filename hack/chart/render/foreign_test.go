package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)

// keda is the folder of the KEDA that hack/keda pins.
func keda(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/kedacore/keda/v2")
	cmd.Dir = root + "hack/keda"
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if e := json.Unmarshal(out, &module); err != nil || e != nil || module.Dir == "" {
		t.Fatalf("go mod download in hack/keda: %v, %v, %s", err, e, module.Error)
	}
	return module.Dir
}

var kedaTag = regexp.MustCompile("`keda:\"name=([a-zA-Z]+),([^\"]*)\"`")

// triggerFaults are what KEDA's Prometheus trigger would not take of metadata. Its
// parameters are tags of a struct in its source: the CRD takes any.
func triggerFaults(source string, metadata map[string]any) []string {
	var all []string
	known := map[string]bool{}
	for _, m := range kedaTag.FindAllStringSubmatch(source, -1) {
		known[m[1]] = true
		if needed := !strings.Contains(m[2], "optional") && !strings.Contains(m[2], "default="); needed && metadata[m[1]] == nil {
			all = append(all, "lacks "+m[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if !known[name] {
			all = append(all, fmt.Sprintf("unknown parameter %s: KEDA has %q", name, slices.Sorted(maps.Keys(known))))
		}
	}
	return all
}

// KEDA takes the sample: its CRD, and its trigger for Prometheus.
func TestScaledObject(t *testing.T) {
	dir := keda(t)
	s, v := schemaOf(t, filepath.Join(dir, "config/crd/bases/keda.sh_scaledobjects.yaml"))
	source, err := os.ReadFile(filepath.Join(dir, "pkg/scalers/prometheus_scaler.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := func(object map[string]any) []string {
		found := faults(t, s, v, object)
		spec, _ := object["spec"].(map[string]any)
		triggers, _ := spec["triggers"].([]any)
		if len(triggers) == 0 {
			found = append(found, "no trigger")
		}
		for _, trigger := range triggers {
			fields, _ := trigger.(map[string]any)
			metadata, _ := fields["metadata"].(map[string]any)
			if fields["type"] != "prometheus" {
				found = append(found, fmt.Sprintf("a trigger %v, which no test knows", fields["type"]))
			}
			found = append(found, triggerFaults(string(source), metadata)...)
		}
		return found
	}
	raw, err := os.ReadFile(root + "config/samples/autoscaling/keda.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all(read(t, raw)) {
		t.Errorf("config/samples/autoscaling/keda.yaml: %s", f)
	}
	// The check itself refuses what is wrong.
	for change, want := range map[[2]string]string{
		{"cooldownPeriod:", "coolDownPeriod:"}:          "unknown field spec.coolDownPeriod",
		{"maxReplicaCount: 4", "maxReplicaCount: many"}: "maxReplicaCount",
		{"serverAddress:", "serverAdress:"}:             "lacks serverAddress",
		{"query: ", "queries: "}:                        "unknown parameter queries",
		{"threshold: \"16\"", "threshold: 16"}:          "threshold",
		{"type: prometheus", "type: promethius"}:        "promethius",
	} {
		if !strings.Contains(string(raw), change[0]) {
			t.Fatalf("the sample has no %q to make wrong", change[0])
		}
		object := read(t, []byte(strings.Replace(string(raw), change[0], change[1], 1)))
		if got := strings.Join(all(object), "; "); !strings.Contains(got, want) {
			t.Errorf("%s: faults %q, want %q", change[1], got, want)
		}
	}
}

// Golden files of the objects that the operator makes of kinds that it has no
// types of, beside those that the API server's tests decode.
func TestPodMonitor(t *testing.T) {
	raw, err := os.ReadFile(root + "controllers/speculativeserver/build/testdata/all-monitor.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o, _, err := decoder(t).Decode(raw, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := o.(*monitoringv1.PodMonitor)
	if !ok || len(m.Spec.PodMetricsEndpoints) != 1 || len(m.Spec.Selector.MatchLabels) == 0 {
		t.Errorf("%+v", o)
	}
}

var (
	yamlFence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	hereDoc   = regexp.MustCompile(`(?ms)^helm [^\n]*-f - <<EOF\n(.*?)^EOF$`)
)

// pages are the texts of the documentation, by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names := []string{"README.md", "charts/outrider/README.md"}
	more, err := filepath.Glob(root + "docs/*.md")
	if err != nil || len(more) < 10 {
		t.Fatalf("%d pages, %v", len(more), err)
	}
	for _, m := range more {
		names = append(names, "docs/"+filepath.Base(m))
	}
	texts := map[string]string{}
	for _, name := range names {
		b, err := os.ReadFile(root + name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = string(b)
	}
	return texts
}

// The API server takes each whole resource that a page shows, and of each part of
// a server what does not need the rest.
func TestResourcesInPages(t *testing.T) {
	s, v := schemaOf(t, root+"config/crd/inference.outrider.dev_speculativeservers.yaml")
	found := 0
	for name, text := range pages(t) {
		for _, m := range yamlFence.FindAllStringSubmatch(text, -1) {
			part := strings.HasPrefix(m[1], "spec:\n")
			if !part && !strings.Contains(m[1], "\nkind: ") && !strings.HasPrefix(m[1], "kind: ") {
				continue
			}
			found++
			object := read(t, []byte(m[1]))
			if part {
				object["apiVersion"], object["kind"], object["metadata"] = "inference.outrider.dev/v1alpha1", "SpeculativeServer", map[string]any{"name": "s"}
				spec, _ := object["spec"].(map[string]any)
				if spec["model"] == nil {
					spec["model"] = map[string]any{"source": map[string]any{"builtin": map[string]any{"name": "gocode-7m"}}}
				}
			}
			if object["kind"] != "SpeculativeServer" {
				if _, _, err := decoder(t).Decode([]byte(m[1]), nil, nil); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			for _, f := range faults(t, s, v, object) {
				t.Errorf("%s: %s in\n%s", name, f, m[1])
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d resources were found in the pages", found)
	}
}

// Values that pages give to Helm render, and make what they say.
func TestValuesInPages(t *testing.T) {
	found := 0
	for name, text := range pages(t) {
		for _, m := range hereDoc.FindAllStringSubmatch(text, -1) {
			found++
			s := objects(t, m[1])
			for _, key := range []string{"ServiceMonitor/outrider", "PrometheusRule/outrider", "ConfigMap/outrider-dashboard-fleet", "ClusterRoleBinding/outrider-metrics-reader"} {
				if s[key] == nil {
					t.Errorf("%s: no %s of\n%s", name, key, m[1])
				}
			}
		}
	}
	if found < 2 {
		t.Errorf("only %d texts of values were found in the pages", found)
	}
}
