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

	"sigs.k8s.io/yaml"
)

// module is the folder of a module, of the version that the go.mod in dir pins.
func module(t *testing.T, dir, path string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", path)
	cmd.Dir = root + dir
	out, err := cmd.Output()
	var m struct{ Dir, Error string }
	if e := json.Unmarshal(out, &m); err != nil || e != nil || m.Dir == "" {
		t.Fatalf("go mod download %s in %s: %v, %v, %s", path, dir, err, e, m.Error)
	}
	return m.Dir
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
	dir := module(t, "hack/keda", "github.com/kedacore/keda/v2")
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

// Golden files of the objects that the operator makes: those of Kubernetes and of
// the Prometheus operator have only fields that there are, and the API server
// would take the others, by their CRDs with their rules.
func TestObjectsOfTheOperator(t *testing.T) {
	crds := map[string]string{
		"InferencePool":   filepath.Join(module(t, ".", "sigs.k8s.io/gateway-api-inference-extension"), "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"),
		"HTTPRoute":       filepath.Join(module(t, ".", "sigs.k8s.io/gateway-api"), "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"),
		"LeaderWorkerSet": filepath.Join(module(t, "hack/lws", "sigs.k8s.io/lws"), "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
	}
	golden, err := filepath.Glob(root + "controllers/speculativeserver/build/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, name := range golden {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var top struct{ Kind string }
		if err := yaml.Unmarshal(raw, &top); err != nil || top.Kind == "" {
			continue // a list, or no object
		}
		found[top.Kind]++
		if crd := crds[top.Kind]; crd != "" {
			s, v := schemaOf(t, crd)
			for _, f := range faults(t, s, v, read(t, raw)) {
				t.Errorf("%s: %s", name, f)
			}
			if got := faults(t, s, v, read(t, append(raw, "  replica: 1\n"...))); !slices.Contains(got, "unknown field spec.replica") {
				t.Errorf("%s with an unknown field at its end: faults %q", name, got)
			}
		} else if _, _, err := decoder(t).Decode(raw, nil, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, kind := range append(slices.Collect(maps.Keys(crds)), "PodMonitor", "HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "Job", "Pod", "Service") {
		if found[kind] == 0 {
			t.Errorf("no golden file of a %s: %v", kind, found)
		}
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
