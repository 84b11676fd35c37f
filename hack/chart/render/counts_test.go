package render

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// everything has all that can be switched on.
const everything = `{replicas: 2, priorityClass: {create: true}, alerts: {enabled: true}, dashboards: {enabled: true}, networkPolicy: {enabled: true}, metrics: {certSecret: cert, readers: [{namespace: a, name: b}], serviceMonitor: {enabled: true}}}`

// others are values unlike those in values.yaml, by path, where flipping or
// counting up gives none that the schema takes.
var others = map[string]string{
	"fullnameOverride": `other`, "commonLabels": `{a: b}`, "image.registry": `mirror.example.com`, "image.digest": `sha256:` + digest, "image.pullPolicy": `Always`,
	"imagePullSecrets": `[s]`, "engine.image.registry": `mirror.example.com`, "engine.image.digest": `sha256:` + digest, "engine.image.cuda.digest": `sha256:` + digest,
	"watchNamespaces": `[a]`, "probeInterval": `2m`, "logLevel": `warn`, "logFormat": `text`, "extraArgs": `["--pprof-bind-address=:6060"]`, "extraEnv": `[{name: a, value: b}]`,
	"podAnnotations": `{a: b}`, "podLabels": `{a: b}`, "nodeSelector": `{a: b}`, "tolerations": `[{operator: Exists}]`, "affinity": `{nodeAffinity: {}}`,
	"topologySpreadConstraints": `[{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]`, "serviceAccount.annotations": `{a: b}`, "metrics.readers": `[{namespace: c, name: d}]`, "metrics.serviceMonitor.labels": `{a: b}`,
	"metrics.serviceMonitor.interval": `5s`, "metrics.serviceMonitor.caKey": `root.crt`, "alerts.labels": `{a: b}`, "alerts.alertLabels": `{a: b}`, "alerts.disabled": `[OutriderCrashLoop]`, "dashboards.labels": `{a: b}`,
	"dashboards.annotations": `{a: b}`, "networkPolicy.metricsFrom": `[{podSelector: {}}]`, "networkPolicy.apiServerPorts": `[8443]`, "networkPolicy.extraEgress": `[{ports: [{port: 1}]}]`,
	"resources": `{limits: {memory: 1Gi}}`,
}

var digest = strings.Repeat("a", 64)

// leaves are the paths of the values, and the values. An object that others has is
// one value: its members are the user's own.
func leaves(at string, values map[string]any, into map[string]any) {
	for name, v := range values {
		if sub, ok := v.(map[string]any); ok && others[at+name] == "" {
			leaves(at+name+".", sub, into)
			continue
		}
		into[at+name] = v
	}
}

// another is the YAML of a value unlike v.
func another(path string, v any) string {
	if s := others[path]; s != "" {
		return s
	}
	switch v := v.(type) {
	case bool:
		return fmt.Sprint(!v)
	case float64:
		return fmt.Sprint(int(v) + 1)
	}
	return "another"
}

// with is values with one of them changed.
func with(t *testing.T, values, path, value string) string {
	t.Helper()
	var all map[string]any
	if err := yaml.Unmarshal([]byte(values), &all); err != nil {
		t.Fatal(err)
	}
	at, names := all, strings.Split(path, ".")
	for _, n := range names[:len(names)-1] {
		next, ok := at[n].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[n] = next
		}
		at = next
	}
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		t.Fatal(err)
	}
	at[names[len(names)-1]] = v
	out, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestEveryValueCounts: each value of values.yaml changes what the chart renders.
func TestEveryValueCounts(t *testing.T) {
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	leaves("", c.Values, all)
	if len(all) < 50 {
		t.Errorf("only %d values", len(all))
	}
	for path, v := range all {
		changes := false
		tries := []string{another(path, v)}
		if _, flag := v.(bool); flag || path == "replicas" {
			tries = append(tries, fmt.Sprint(v)) // everything has another one than values.yaml
		}
		values := everything
		if path == "metrics.enabled" || path == "metrics.secure" {
			values = `{}` // a ServiceMonitor and a certificate need both
		}
		if !strings.HasPrefix(path, "crds.") {
			values = with(t, values, "crds.enabled", "false") // rendering them is most of the work
		}
		before, err := files(values)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range tries {
			after, err := files(with(t, values, path, value))
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			changes = changes || !maps.Equal(before, after)
		}
		if !changes {
			t.Errorf("%s: %s in place of %v changes nothing", path, another(path, v), v)
		}
	}
}

// operatorFlags are the names of the operator's flags, by the reference that is made
// of its help.
func operatorFlags(t *testing.T) []string {
	t.Helper()
	reference, err := os.ReadFile(root + "docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(reference), "\n## Flags of `outrider`\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var names []string
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z0-9-]+)").FindAllStringSubmatch(section, -1) {
		names = append(names, m[1])
	}
	if !found || len(names) < 10 {
		t.Fatalf("docs/reference.md has %d flags under the heading \"## Flags of `outrider`\" (there is one: %t)", len(names), found)
	}
	return names
}

// TestArgumentsAreFlags: the operator has every flag that the chart gives it.
func TestArgumentsAreFlags(t *testing.T) {
	flags := operatorFlags(t)
	for _, values := range []string{``, everything, `{watchNamespaces: [a]}`, `{metrics: {enabled: false}}`} {
		args := container(t, objects(t, values)).Args
		if len(args) < 5 {
			t.Errorf("only %d arguments", len(args))
		}
		for _, arg := range args {
			name, _, _ := strings.Cut(arg, "=")
			if name, ok := strings.CutPrefix(name, "--"); !ok || !slices.Contains(flags, name) {
				t.Errorf("with %q the chart gives %s, and the operator has the flags %v", values, arg, flags)
			}
		}
	}
}

// TestPorts: what is scraped, probed and let through are ports that there are.
func TestPorts(t *testing.T) {
	s := objects(t, everything)
	c := container(t, s)
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if ports[p.HTTPGet.Port.StrVal] == 0 {
			t.Errorf("a probe asks the port %s, and the container has %v", p.HTTPGet.Port.StrVal, ports)
		}
	}
	if c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the operator may write to its image's files")
	}
	svc := get[*corev1.Service](t, s, "Service/outrider-metrics")
	if p := svc.Spec.Ports[0]; p.Name != "metrics" || ports[p.TargetPort.StrVal] == 0 || p.Port != ports[p.TargetPort.StrVal] {
		t.Errorf("the Service has the port %+v, the container %v", p, ports)
	}
	pod := get[*appsv1.Deployment](t, s, "Deployment/outrider").Spec.Template.Labels
	for k, v := range svc.Spec.Selector {
		if pod[k] != v {
			t.Errorf("the Service selects %s=%s, the pod has %v", k, v, pod)
		}
	}
	n := get[*networkingv1.NetworkPolicy](t, s, "NetworkPolicy/outrider")
	for k, v := range n.Spec.PodSelector.MatchLabels {
		if pod[k] != v {
			t.Errorf("the NetworkPolicy selects %s=%s, the pod has %v", k, v, pod)
		}
	}
	if in := n.Spec.Ingress[0].Ports; len(in) != 1 || ports[in[0].Port.StrVal] == 0 || in[0].Port.StrVal != "metrics" {
		t.Errorf("in are let %v, the container has %v", in, ports)
	}
	var out []int32
	for _, e := range n.Spec.Egress {
		for _, p := range e.Ports {
			out = append(out, p.Port.IntVal)
		}
	}
	if want := []int32{53, 53, 443, 6443, build.AdminPort}; !slices.Equal(out, want) {
		t.Errorf("out are let %v, want %v", out, want)
	}
	last := n.Spec.Egress[len(n.Spec.Egress)-1]
	if e := last.To[0].PodSelector.MatchExpressions; len(e) != 1 || e[0].Key != "inference.outrider.dev/server" {
		t.Errorf("engines are let through by %+v", last.To)
	}
}
