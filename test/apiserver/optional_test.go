//go:build apiserver

package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/build"
)

// install installs the CRD that a Go module has, and takes it away after the
// test.
func install(t *testing.T, module, file string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "config", "crd", file))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(b, crd); err != nil {
		t.Fatal(err)
	}
	installCRD(t, crd)
}

func installCRD(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	options := envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}
	if _, err := envtest.InstallCRDs(apiConfig, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := envtest.UninstallCRDs(apiConfig, options); err != nil {
			t.Error(err)
		}
	})
}

// podMonitors is a kind with the name of the Prometheus operator's, whose own
// definition is of no Go module that this one has.
func podMonitors() *apiextensionsv1.CustomResourceDefinition {
	yes := true
	kind := build.PodMonitorKind
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "podmonitors." + kind.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: kind.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "podmonitors", Singular: "podmonitor", Kind: kind.Kind, ListKind: "PodMonitorList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: kind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}}}},
		},
	}
}

// TestOptional: objects of kinds that may not be installed are made once the
// kinds are there, put right when someone changes them, cost no write at rest,
// and go with their fields.
func TestOptional(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	p.create(manifest + "  monitoring: {}\n  routing: {inferencePool: {endpointPicker: {name: picker}}, httpRoute: {gateways: [{name: edge}], hostnames: [llm.test]}}\n")
	p.events("NoInferencePool", "NoHTTPRoute") // and the pods come all the same
	pod := p.pod(0, "")
	p.bind(pod)
	p.ready(pod)
	install(t, "sigs.k8s.io/gateway-api-inference-extension", "bases/inference.networking.k8s.io_inferencepools.yaml")
	install(t, "sigs.k8s.io/gateway-api", "standard/gateway.networking.k8s.io_httproutes.yaml")
	installCRD(t, podMonitors())
	for _, tt := range []struct {
		kind  schema.GroupVersionKind
		patch string // of someone
		field []string
		want  any
	}{
		{build.InferencePoolKind, `{"spec":{"endpointPickerRef":{"name":"mine"}}}`, []string{"spec", "endpointPickerRef", "name"}, "picker"},
		{build.HTTPRouteKind, `{"spec":{"hostnames":["other.test"]}}`, []string{"spec", "hostnames"}, []any{"llm.test"}},
		{build.PodMonitorKind, `{"spec":{"podMetricsEndpoints":[]}}`, []string{"spec", "selector", "matchLabels", "inference.outrider.dev/server"}, "s"},
	} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(tt.kind)
		key := types.NamespacedName{Namespace: p.namespace, Name: "s"}
		right := func() string {
			if err := k8s.Get(t.Context(), key, u); err != nil {
				return err.Error()
			}
			if got, _, err := unstructured.NestedFieldNoCopy(u.Object, tt.field...); err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) {
				return fmt.Sprintf("%v is %v, %v", tt.field, got, err)
			}
			if list, ok, _ := unstructured.NestedSlice(u.Object, "spec", "podMetricsEndpoints"); ok && len(list) != 1 {
				return "no endpoint"
			}
			return ""
		}
		p.eventually(tt.kind.Kind, right)
		if !metav1.IsControlledBy(u, p.server()) {
			t.Errorf("%s is not the server's", tt.kind.Kind)
		}
		if err := k8s.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(tt.patch)), client.FieldOwner("someone")); err != nil {
			t.Fatal(err)
		}
		p.eventually(tt.kind.Kind+" put right", right)
	}
	p.quiet()
	p.patch(`{"spec":{"monitoring":null,"routing":null}}`)
	for _, kind := range []schema.GroupVersionKind{build.InferencePoolKind, build.HTTPRouteKind, build.PodMonitorKind} {
		p.eventually("no "+kind.Kind, func() string {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(kind)
			if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, u); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Sprint("it is there: ", err)
			}
			return ""
		})
	}
}

// TestOptionalGoes: when a kind goes, with the objects of it, the operator says so
// and goes on without it; when it comes back they are made again.
func TestOptionalGoes(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	installCRD(t, podMonitors())
	p.create(manifest + "  monitoring: {}\n")
	monitored := func() {
		t.Helper()
		p.eventually("PodMonitor", func() string {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(build.PodMonitorKind)
			if err := k8s.Get(t.Context(), types.NamespacedName{Namespace: p.namespace, Name: "s"}, u); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	monitored()
	pod := p.pod(0, "")
	p.bind(pod)
	p.ready(pod)
	options := envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{podMonitors()}}
	if err := envtest.UninstallCRDs(apiConfig, options); err != nil {
		t.Fatal(err)
	}
	p.events("NoPodMonitor")
	p.phase(v1alpha1.PhaseReady, "Serving")
	p.quiet()
	installCRD(t, podMonitors())
	monitored()
}
