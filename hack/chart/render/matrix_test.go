package render

import (
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

const crd = "CustomResourceDefinition/speculativeservers.inference.outrider.dev"

// The objects that every set of values gives.
var always = []string{
	"ClusterRole/outrider", "ClusterRoleBinding/outrider", "Deployment/outrider", "Role/outrider", "RoleBinding/outrider", "ServiceAccount/outrider",
	"ClusterRole/outrider-edit", "ClusterRole/outrider-view", "ClusterRole/outrider-metrics-reader", "Service/outrider-metrics", crd,
}

// container is the operator's.
func container(t *testing.T, s set) corev1.Container {
	t.Helper()
	return get[*appsv1.Deployment](t, s, "Deployment/outrider").Spec.Template.Spec.Containers[0]
}

func wantArg(t *testing.T, s set, arg string, want bool) {
	t.Helper()
	if args := container(t, s).Args; slices.Contains(args, arg) != want {
		t.Errorf("argument %s: want %t in %q", arg, want, args)
	}
}

var matrix = []struct {
	name, values string
	more, less   []string // objects beyond always, and of it those that are not there
	check        func(*testing.T, set)
}{
	{"nothing given", ``, nil, nil, func(t *testing.T, s set) {
		c := container(t, s)
		if !strings.HasPrefix(c.Image, "ghcr.io/outrider-dev/outrider:") {
			t.Errorf("image %s", c.Image)
		}
		wantArg(t, s, "--metrics-secure", true)
		if a := s[crd].(*apiextensionsv1.CustomResourceDefinition).Annotations; a["helm.sh/resource-policy"] != "keep" {
			t.Errorf("the CRD has the annotations %v, want that it is kept", a)
		}
	}},
	{"no CRDs", `{crds: {enabled: false}}`, nil, []string{crd}, nil},
	{"CRDs go", `{crds: {keep: false}}`, nil, nil, func(t *testing.T, s set) {
		if a := s[crd].(*apiextensionsv1.CustomResourceDefinition).Annotations; a["helm.sh/resource-policy"] != "" {
			t.Errorf("the CRD has the annotations %v", a)
		}
	}},
	{"a mirror", `{image: {registry: mirror.example.com:5000/o, tag: v1}, engine: {image: {tag: v3, digest: "sha256:` + strings.Repeat("a", 64) + `"}}, imagePullSecrets: [mirror]}`, nil, nil, func(t *testing.T, s set) {
		if c := container(t, s); c.Image != "mirror.example.com:5000/o/outrider:v1" {
			t.Errorf("image %s", c.Image)
		}
		wantArg(t, s, "--engine-image=mirror.example.com:5000/o/outrider-engine@sha256:"+strings.Repeat("a", 64), true)
		wantArg(t, s, "--cuda-engine-image=mirror.example.com:5000/o/outrider-engine-cuda:v3", true)
		if p := get[*appsv1.Deployment](t, s, "Deployment/outrider").Spec.Template.Spec.ImagePullSecrets; len(p) != 1 || p[0].Name != "mirror" {
			t.Errorf("pull secrets %v", p)
		}
	}},
	{"some namespaces", `{watchNamespaces: [team-a, team-b]}`,
		[]string{"Role/team-a/outrider-servers", "RoleBinding/team-a/outrider-servers", "Role/team-b/outrider-servers", "RoleBinding/team-b/outrider-servers"}, nil, func(t *testing.T, s set) {
			wantArg(t, s, "--watch-namespaces=team-a,team-b", true)
			// What is left for the whole cluster gives nothing of any namespace.
			for _, r := range get[*rbacv1.ClusterRole](t, s, "ClusterRole/outrider").Rules {
				if !slices.Contains([]string{"authentication.k8s.io", "authorization.k8s.io"}, r.APIGroups[0]) {
					t.Errorf("the ClusterRole has %v", r)
				}
			}
			if len(get[*rbacv1.Role](t, s, "Role/team-a/outrider-servers").Rules) < 5 {
				t.Error("the Role in team-a has hardly any rules")
			}
		}},
	{"no roles", `{rbac: {create: false}}`, nil,
		[]string{"ClusterRole/outrider", "ClusterRoleBinding/outrider", "Role/outrider", "RoleBinding/outrider", "ClusterRole/outrider-edit", "ClusterRole/outrider-view", "ClusterRole/outrider-metrics-reader"}, nil},
	{"no metrics", `{metrics: {enabled: false}}`, nil, []string{"ClusterRole/outrider-metrics-reader", "Service/outrider-metrics"}, func(t *testing.T, s set) {
		wantArg(t, s, "--metrics-bind-address=0", true)
		wantArg(t, s, "--metrics-secure", false)
	}},
	{"Prometheus operator", `{metrics: {readers: [{namespace: monitoring, name: prom}], certSecret: cert, serviceMonitor: {enabled: true, labels: {release: prom}}}, alerts: {enabled: true, alertLabels: {team: ml}, disabled: [OutriderCrashLoop]}}`,
		[]string{"ClusterRoleBinding/outrider-metrics-reader", "ServiceMonitor/outrider", "PrometheusRule/outrider"}, nil, func(t *testing.T, s set) {
			m := get[*monitoringv1.ServiceMonitor](t, s, "ServiceMonitor/outrider")
			if e := m.Spec.Endpoints[0]; !e.HonorLabels || e.Scheme == nil || *e.Scheme != "https" || e.Port != "metrics" || m.Labels["release"] != "prom" {
				t.Errorf("endpoint %+v of a ServiceMonitor with the labels %v", e, m.Labels)
			}
			if c := m.Spec.Endpoints[0].TLSConfig; c == nil || c.CA.Secret == nil || c.CA.Secret.Name != "cert" || c.CA.Secret.Key != "ca.crt" ||
				c.ServerName == nil || *c.ServerName != "outrider-metrics.outrider-system.svc" || c.InsecureSkipVerify != nil {
				t.Errorf("Prometheus checks the certificate by %+v", c)
			}
			//nolint:staticcheck // deprecated, and what every version of the Prometheus operator reads
			if m.Spec.Endpoints[0].BearerTokenFile == "" {
				t.Error("Prometheus asks without a token")
			}
			b := get[*rbacv1.ClusterRoleBinding](t, s, "ClusterRoleBinding/outrider-metrics-reader")
			if who := b.Subjects; len(who) != 1 || who[0].Namespace != "monitoring" || who[0].Name != "prom" {
				t.Errorf("the metrics may be read by %v", who)
			}
			svc := get[*corev1.Service](t, s, "Service/outrider-metrics")
			for k, v := range m.Spec.Selector.MatchLabels {
				if svc.Labels[k] != v {
					t.Errorf("the ServiceMonitor selects %s=%s, the Service has %v", k, v, svc.Labels)
				}
			}
			wantArg(t, s, "--metrics-cert-dir=/certs", true)
			alerts := 0
			for _, g := range get[*monitoringv1.PrometheusRule](t, s, "PrometheusRule/outrider").Spec.Groups {
				for _, r := range g.Rules {
					alerts++
					if r.Alert == "OutriderCrashLoop" || r.Labels["team"] != "ml" || r.Labels["severity"] == "" || !strings.Contains(r.Annotations["summary"], " ") {
						t.Errorf("alert %s with labels %v and the summary %q", r.Alert, r.Labels, r.Annotations["summary"])
					}
				}
			}
			if alerts < 10 {
				t.Errorf("%d alerts", alerts)
			}
		}},
	{"dashboards", `{dashboards: {enabled: true, namespace: grafana}}`,
		[]string{"ConfigMap/grafana/outrider-dashboard-fleet", "ConfigMap/grafana/outrider-dashboard-operator", "ConfigMap/grafana/outrider-dashboard-server"}, nil, func(t *testing.T, s set) {
			c := get[*corev1.ConfigMap](t, s, "ConfigMap/grafana/outrider-dashboard-fleet")
			if c.Labels["grafana_dashboard"] != "1" || !strings.Contains(c.Data["outrider-fleet.json"], `"uid": "outrider-fleet"`) {
				t.Errorf("labels %v, %d bytes", c.Labels, len(c.Data["outrider-fleet.json"]))
			}
			for key, o := range s { // etcd's and the API server's limit
				if m, ok := o.(*corev1.ConfigMap); ok && len(m.Data["outrider-"+strings.TrimPrefix(m.Name, "outrider-dashboard-")+".json"]) > 900<<10 {
					t.Errorf("%s is too large", key)
				}
			}
		}},
	{"three replicas", `{replicas: 3, priorityClass: {create: true}, tolerations: [{operator: Exists}], nodeSelector: {a: b}, topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}], podLabels: {x: "y"}, podAnnotations: {p: q}, extraEnv: [{name: A, value: b}], extraArgs: [--otlp-sample-ratio=0.5], commonLabels: {team: ml}}`,
		[]string{"PodDisruptionBudget/outrider", "PriorityClass/outrider"}, nil, func(t *testing.T, s set) {
			d := get[*appsv1.Deployment](t, s, "Deployment/outrider")
			if p := d.Spec.Template.Spec; p.PriorityClassName != "outrider" || len(p.Tolerations) != 1 || len(p.TopologySpreadConstraints) != 1 || p.NodeSelector["a"] != "b" || d.Labels["team"] != "ml" {
				t.Errorf("pod %+v", p)
			}
			wantArg(t, s, "--otlp-sample-ratio=0.5", true)
			if b := get[*policyv1.PodDisruptionBudget](t, s, "PodDisruptionBudget/outrider"); b.Spec.MinAvailable.IntVal != 1 {
				t.Errorf("budget %+v", b.Spec)
			}
			if c := get[*schedulingv1.PriorityClass](t, s, "PriorityClass/outrider"); c.Value != 1000000 {
				t.Errorf("priority %d", c.Value)
			}
		}},
	{"network policy", `{networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {}}], extraEgress: [{ports: [{port: 4318}]}]}}`, []string{"NetworkPolicy/outrider"}, nil, func(t *testing.T, s set) {
		n := get[*networkingv1.NetworkPolicy](t, s, "NetworkPolicy/outrider")
		if len(n.Spec.Ingress) != 1 || len(n.Spec.Ingress[0].From) != 1 || len(n.Spec.Egress) != 4 {
			t.Errorf("policy %+v", n.Spec)
		}
	}},
}

func TestMatrix(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range matrix {
		t.Run(tt.name, func(t *testing.T) {
			s := objects(t, tt.values)
			want := slices.Concat(always, tt.more)
			want = slices.DeleteFunc(want, func(k string) bool { return slices.Contains(tt.less, k) })
			slices.Sort(want)
			if got := s.keys(); !slices.Equal(got, want) {
				t.Errorf("objects %v\nwant %v", got, want)
			}
			d := get[*appsv1.Deployment](t, s, "Deployment/outrider")
			for k, v := range d.Spec.Selector.MatchLabels {
				if d.Spec.Template.Labels[k] != v {
					t.Errorf("the selector's %s=%s is not among the pod's labels %v", k, v, d.Spec.Template.Labels)
				}
			}
			// The servers' NetworkPolicies let such pods in.
			if l := d.Spec.Template.Labels; l["app.kubernetes.io/name"] != "outrider" || l["app.kubernetes.io/component"] != "operator" {
				t.Errorf("the pod's labels are %v", l)
			}
			level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
			for _, r := range evaluator.EvaluatePod(level, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec) {
				if !r.Allowed {
					t.Errorf("not of the restricted standard: %s %s", r.ForbiddenReason, r.ForbiddenDetail)
				}
			}
			if tt.check != nil {
				tt.check(t, s)
			}
		})
	}
}

// version is the chart's.
func version(t *testing.T) string {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c.Metadata.Version
}

// least is the first version of Kubernetes that the chart takes. Helm's own may be
// older, and "helm template" has no other unless it is told.
func least(t *testing.T) string {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(c.Metadata.KubeVersion, ">="), "-0")
}

// Notes are what a person sees: they must name what there is.
func TestNotes(t *testing.T) {
	const readers, crds = "name its service account in metrics.readers", "The CRDs are not part of this release"
	for _, tt := range []struct {
		values     string
		want, less []string
	}{
		{``, []string{"deployment/outrider --namespace outrider-system", "kubectl apply --namespace default", "kind: SpeculativeServer"}, []string{readers, crds}},
		{`{watchNamespaces: [team-a]}`, []string{"kubectl apply --namespace team-a"}, nil},
		{`{fullnameOverride: other}`, []string{"deployment/other --namespace outrider-system"}, nil},
		{`{crds: {enabled: false}}`, []string{crds, "helm template outrider CHART --version " + version(t) + " --kube-version " + least(t) + " --show-only templates/crds.yaml | kubectl apply --server-side -f -\n"}, nil},
		{`{metrics: {serviceMonitor: {enabled: true}}}`, []string{readers}, nil},
		{`{metrics: {readers: [{namespace: a, name: b}], serviceMonitor: {enabled: true}}}`, nil, []string{readers}},
	} {
		rendered, err := files(tt.values)
		if err != nil {
			t.Fatal(err)
		}
		notes := rendered["outrider/templates/NOTES.txt"]
		for _, want := range tt.want {
			if !strings.Contains(notes, want) {
				t.Errorf("with %s the notes lack %q:\n%s", tt.values, want, notes)
			}
		}
		for _, less := range tt.less {
			if strings.Contains(notes, less) {
				t.Errorf("with %s the notes say %q", tt.values, less)
			}
		}
	}
}
