package render

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// What is refused before anything is sent to a cluster, each with a part of the error.
func TestValuesAreChecked(t *testing.T) {
	for values, want := range map[string]string{
		`{replica: 2}`:                                                 "replica",
		`{replicas: 0}`:                                                "replicas",
		`{replicas: 11}`:                                               "replicas",
		`{replicas: "2"}`:                                              "want integer",
		`{replicas: null}`:                                             "missing property 'replicas'",
		`{metrics: null}`:                                              "missing property 'metrics'",
		`{image: outrider}`:                                            "want object",
		`{workers: 65}`:                                                "workers",
		`{kubeAPIQPS: 10001}`:                                          "kubeAPIQPS",
		`{logLevel: loud}`:                                             "logLevel",
		`{image: {pullPolicy: Sometimes}}`:                             "pullPolicy",
		`{image: {digest: "sha256:12"}}`:                               "digest",
		`{image: {tag: "v1@sha256:12"}}`:                               "tag",
		`{image: {tag: 1.0}}`:                                          "tag",
		`{image: {registry: ""}}`:                                      "registry",
		`{image: {registry: "https://r.io"}}`:                          "registry",
		`{image: {registry: "r.io/You"}}`:                              "registry",
		`{image: {registry: "r.io:"}}`:                                 "registry",
		`{image: {registry: "r.io//you"}}`:                             "registry",
		`{image: {repository: "outrider:v1"}}`:                         "repository",
		`{image: {repository: /outrider}}`:                             "repository",
		`{engine: {image: {repository: "a b"}}}`:                       "repository",
		`{engine: {image: {cuda: {repository: A}}}}`:                   "repository",
		`{fullnameOverride: ` + strings.Repeat("a", 56) + `}`:          "fullnameOverride",
		`{fullnameOverride: "1a"}`:                                     "fullnameOverride",
		`{serviceAccount: {name: My_Account}}`:                         "serviceAccount/name",
		`{priorityClass: {value: 1000000001}}`:                         "priorityClass/value",
		`{priorityClass: {name: a_b}}`:                                 "priorityClass/name",
		`{imagePullSecrets: [{name: mirror}]}`:                         "imagePullSecrets",
		`{imagePullSecrets: ["a b"]}`:                                  "imagePullSecrets",
		`{watchNamespaces: [Team_A]}`:                                  "watchNamespaces",
		`{watchNamespaces: ["team-*"]}`:                                "watchNamespaces",
		`{watchNamespaces: ["a,b"]}`:                                   "watchNamespaces",
		`{watchNamespaces: [a, a]}`:                                    "watchNamespaces",
		`{watchNamespaces: team-a}`:                                    "watchNamespaces",
		`{probeInterval: often}`:                                       "probeInterval",
		`{probeInterval: 0s}`:                                          "probeInterval",
		`{probeInterval: 500ms}`:                                       "probeInterval",
		`{probeInterval: 999999h}`:                                     "probeInterval",
		`{metrics: {readers: [{name: a}]}}`:                            "namespace",
		`{metrics: {readers: [{namespace: a, name: "A b"}]}}`:          "readers/0/name",
		`{metrics: {certSecret: A}}`:                                   "certSecret",
		`{metrics: {serviceMonitor: {interval: 30m1h}}}`:               "interval",
		`{metrics: {serviceMonitor: {caKey: a/b}}}`:                    "caKey",
		`{metrics: {enabled: false, serviceMonitor: {enabled: true}}}`: "there is nothing to scrape",
		`{metrics: {secure: false, certSecret: cert}}`:                 "not served over TLS",
		`{alerts: {disabled: [OutriderFoo]}}`:                          "'OutriderServerNotReady'",
		`{alerts: {alertLabels: {a-b: c}}}`:                            "a-b",
		`{dashboards: {namespace: A}}`:                                 "dashboards/namespace",
		`{networkPolicy: {apiServerPorts: []}}`:                        "apiServerPorts",
		`{networkPolicy: {apiServerPorts: [0]}}`:                       "apiServerPorts",
		`{extraArgs: [workers=3]}`:                                     "extraArgs",
		`{extraArgs: [--no-such-flag]}`:                                "--(leader-election-namespace|",
		`{extraArgs: [--workers=9]}`:                                   "extraArgs/0",
		`{extraArgs: ["--metrics-bind-address=:9090"]}`:                "extraArgs/0",
		`{extraEnv: [{name: A, vale: b}]}`:                             "vale",
		`{extraEnv: [{name: A, value: 1}]}`:                            "want string",
		`{extraEnv: [{name: POD_NAMESPACE, value: a}]}`:                "extraEnv sets POD_NAMESPACE",
		`{resources: {limit: {memory: 1Gi}}}`:                          "limit",
		`{resources: {limits: {memory: 1 GB}}}`:                        "limits/memory",
		`{affinity: {nodes: {}}}`:                                      "nodes",
		`{tolerations: [{keys: a}]}`:                                   "keys",
		`{topologySpreadConstraints: [{}]}`:                            "topologyKey",
		`{nodeSelector: {gpu: true}}`:                                  "want string",
		`{nodeSelector: {"a b": c}}`:                                   "a b",
		`{commonLabels: {a: b c}}`:                                     "commonLabels/a",
		`{podAnnotations: {"a b": c}}`:                                 "a b",
		`{commonLabels: {app.kubernetes.io/instance: a}}`:              "the chart's own: leave it out",
		`{podLabels: {app.kubernetes.io/name: a}}`:                     "the chart's own: leave it out",
		`{dashboards: {enabled: true, labels: {helm.sh/chart: a}}}`:    "the chart's own: leave it out",
	} {
		if _, err := files(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one about %s", values, err, want)
		}
	}
}

// What is unusual and allowed: each is rendered, decoded strictly, and quoted where YAML would read something else.
func TestUnusualValues(t *testing.T) {
	long := strings.Repeat("a", 253)
	for _, tt := range []struct {
		values string
		check  func(*testing.T, set)
	}{
		{`{image: {registry: "[::1]:5000/"}}`, func(t *testing.T, s set) {
			if got := container(t, s).Image; !strings.HasPrefix(got, "[::1]:5000/outrider:") {
				t.Errorf("image %s", got)
			}
		}},
		{`{image: {registry: "localhost:5000", repository: a/b, tag: "1.0"}}`, func(t *testing.T, s set) {
			if got := container(t, s).Image; got != "localhost:5000/a/b:1.0" {
				t.Errorf("image %s", got)
			}
		}},
		{`{serviceAccount: {name: "123"}}`, func(t *testing.T, s set) { get[*corev1.ServiceAccount](t, s, "ServiceAccount/123") }},
		{`{serviceAccount: {name: "` + long + `", annotations: {a/b: "c: \"d\"\n- e"}}, metrics: {certSecret: "` + long + `", readers: [{namespace: "1", name: "` + long + `"}]}}`, func(t *testing.T, s set) {
			if a := get[*corev1.ServiceAccount](t, s, "ServiceAccount/"+long).Annotations["a/b"]; a != "c: \"d\"\n- e" {
				t.Errorf("annotation %q", a)
			}
		}},
		{`{priorityClass: {create: true, name: "1e3", value: -2147483648}}`, func(t *testing.T, s set) {
			if n := get[*appsv1.Deployment](t, s, "Deployment/outrider").Spec.Template.Spec.PriorityClassName; n != "1e3" {
				t.Errorf("priority class %q", n)
			}
		}},
		{`{watchNamespaces: ["123", "true"]}`, func(t *testing.T, s set) { wantArg(t, s, "--watch-namespaces=123,true", true) }},
		{`{extraArgs: ["--otlp-endpoint=http://\"x\"\n: '#{{ .Values }}'"]}`, func(t *testing.T, s set) {
			wantArg(t, s, "--otlp-endpoint=http://\"x\"\n: '#{{ .Values }}'", true)
		}},
		{`{probeInterval: 1h30m, metrics: {serviceMonitor: {interval: 90s}}}`, func(t *testing.T, s set) { wantArg(t, s, "--probe-interval=1h30m", true) }},
		{`{podLabels: {team: a}, commonLabels: {team: b}}`, func(t *testing.T, s set) {
			if d := get[*appsv1.Deployment](t, s, "Deployment/outrider"); d.Labels["team"] != "b" || d.Spec.Template.Labels["team"] != "a" {
				t.Errorf("labels %v, of the pod %v", d.Labels, d.Spec.Template.Labels)
			}
		}},
		{`{alerts: {enabled: true, disabled: [` + strings.Join(alerts(t), ", ") + `]}}`, func(t *testing.T, s set) {
			if g := get[*monitoringv1.PrometheusRule](t, s, "PrometheusRule/outrider").Spec.Groups; len(g) != 0 {
				t.Errorf("%d groups without an alert", len(g))
			}
		}},
		// A null takes a value away: with those that may be empty it is as good as nothing.
		{`{commonLabels: null, imagePullSecrets: null, watchNamespaces: null, extraArgs: null, extraEnv: null, resources: null, podAnnotations: null, podLabels: null,
		   nodeSelector: null, tolerations: null, affinity: null, topologySpreadConstraints: null, fullnameOverride: null,
		   image: {tag: null, digest: null}, engine: {image: {registry: null, tag: null, digest: null, cuda: {digest: null}}},
		   priorityClass: {name: null}, serviceAccount: {name: null, annotations: null}, metrics: {certSecret: null, readers: null, serviceMonitor: {enabled: true, labels: null}},
		   alerts: {enabled: true, labels: null, alertLabels: null, disabled: null}, dashboards: {enabled: true, namespace: null, labels: null, annotations: null},
		   networkPolicy: {enabled: true, metricsFrom: null, extraEgress: null}}`, nil},
	} {
		t.Run(tt.values, func(t *testing.T) {
			s := objects(t, tt.values)
			if tt.check != nil {
				tt.check(t, s)
			}
		})
	}
}

// Releases and namespaces have names that Kubernetes takes for Services too.
func TestNames(t *testing.T) {
	for release, want := range map[string]string{
		"outrider":                    "outrider",
		"llm":                         "llm-outrider",
		"my-outrider-x":               "my-outrider-x",
		"out.rider":                   "out-rider-outrider",
		"123":                         "outrider-123",
		"true":                        "true-outrider",
		strings.Repeat("a", 53):       strings.Repeat("a", 53) + "-o",
		strings.Repeat("a", 54) + "-": strings.Repeat("a", 54),
	} {
		s := objectsOf(t, release, "123", `{dashboards: {enabled: true}, replicas: 2, networkPolicy: {enabled: true}, priorityClass: {create: true}}`)
		d := get[*appsv1.Deployment](t, s, "Deployment/"+want)
		service := get[*corev1.Service](t, s, "Service/"+want+"-metrics")
		if errs := validation.IsDNS1035Label(service.Name); len(errs) > 0 {
			t.Errorf("release %s: Service %s: %v", release, service.Name, errs)
		}
		if !reflect.DeepEqual(service.Spec.Selector, d.Spec.Selector.MatchLabels) {
			t.Errorf("release %s: the Service selects %v, the Deployment %v", release, service.Spec.Selector, d.Spec.Selector.MatchLabels)
		}
	}
}

// alerts are the names of all.
func alerts(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile(chartDir + "/alerts/outrider.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(raw, &rules); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			names = append(names, r.Alert)
		}
	}
	return names
}

// schema is values.schema.json.
func schema(t *testing.T) (all, values map[string]any) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(c.Schema, &all); err != nil {
		t.Fatal(err)
	}
	return all, c.Values
}

// The schema has each value, and no other. What a template cannot do without is
// required: a null, or the values of an older chart (helm upgrade
// --reuse-values), are then refused by name.
func TestSchemaIsOfTheValues(t *testing.T) {
	all, values := schema(t)
	var compare func(at string, schema, values map[string]any)
	compare = func(at string, schema, values map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		for name := range values {
			if properties[name] == nil {
				t.Errorf("values.schema.json does not have %s%s", at, name)
			}
		}
		for name, p := range properties {
			v, ok := values[name]
			if !ok {
				if at+name != "global" { // Helm's own
					t.Errorf("values.yaml does not have %s%s", at, name)
				}
				continue
			}
			sub, _ := p.(map[string]any)
			inner, isMap := v.(map[string]any)
			section := isMap && at+name != "resources" && sub["properties"] != nil && at+name != "affinity"
			list, isList := v.([]any)
			need := section || isList && len(list) > 0 || !isMap && !isList && v != ""
			if got := slices.Contains(required, any(name)); got != need {
				t.Errorf("values.schema.json requires %s%s: %t, want %t", at, name, got, need)
			}
			if section {
				compare(fmt.Sprintf("%s%s.", at, name), sub, inner)
			}
		}
	}
	compare("", all, values)
}

// extraArgs are flags of the operator, and none of those that the chart gives it:
// two would contradict each other, and the ports and roles that go with them.
func TestSchemaHasTheFlags(t *testing.T) {
	own := map[string]bool{"health-probe-bind-address": true} // its port is that of the probes
	for _, values := range []string{everything, `{watchNamespaces: [a]}`, `{metrics: {enabled: false}}`} {
		for _, arg := range container(t, objects(t, values)).Args {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			own[name] = true
		}
	}
	free := slices.DeleteFunc(operatorFlags(t), func(name string) bool { return own[name] })
	at, _ := schema(t)
	for _, step := range []string{"properties", "extraArgs", "items"} {
		at, _ = at[step].(map[string]any)
	}
	if want := "^--(" + strings.Join(free, "|") + ")(=|$)"; at["pattern"] != want {
		t.Errorf("values.schema.json takes flags of the pattern\n%v\nwant\n%s", at["pattern"], want)
	}
}

// The schema knows the alerts that can be left out.
func TestSchemaHasTheAlerts(t *testing.T) {
	at, _ := schema(t)
	for _, step := range []string{"properties", "alerts", "properties", "disabled", "items"} {
		at, _ = at[step].(map[string]any)
	}
	var got []string
	names, _ := at["enum"].([]any)
	for _, n := range names {
		got = append(got, fmt.Sprint(n))
	}
	if want := alerts(t); !slices.Equal(got, want) {
		t.Errorf("values.schema.json has the alerts\n%q\nwant\n%q", got, want)
	}
}
