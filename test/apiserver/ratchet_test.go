//go:build apiserver

package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"
)

// TestRatcheting: servers that were stored before there was a rule against them
// can be labelled, and their status written, and scaled where the rule is of
// another field; they can be put right, and made wrong in no other way.
func TestRatcheting(t *testing.T) {
	p := begin(t)
	b, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "inference.outrider.dev_speculativeservers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(b, crd); err != nil {
		t.Fatal(err)
	}
	// In a group of its own, so that the operator and other tests do not see it.
	crd.Spec.Group, crd.Name = "before.outrider.test", "speculativeservers.before.outrider.test"
	strict := crd.Spec.Versions[0].Schema
	yes := true
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}}
	installCRD(t, crd)
	tests := []struct {
		name, spec, says string
		worse, right     string // merge patches of the spec
		scales           bool
	}{
		{"rule of a field", "{model: {source: {hostPath: {path: m/x}}}, speculation: {algorithm: None}}", "write an absolute path",
			`{"model":{"source":{"hostPath":{"path":"m/y"}}}}`, `{"model":{"source":{"hostPath":{"path":"/m/x"}}}}`, true},
		{"rule across fields", "{model: {source: {builtin: {name: gocode-7m}}}, nccl: {extra: [{name: NCCL_IB_TC, value: '1'}]}, extraEnv: [{name: NCCL_IB_TC, value: '2'}]}", "leave it out of extraEnv",
			`{"extraEnv":[{"name":"NCCL_IB_TC","value":"3"}]}`, `{"extraEnv":null}`, false},
		{"bound", "{model: {source: {builtin: {name: gocode-7m}}}, speculation: {numSteps: 1000}}", "spec.speculation.numSteps",
			`{"speculation":{"numSteps":1001}}`, `{"speculation":{"numSteps":3}}`, true},
	}
	stored := func(i int) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte("apiVersion: before.outrider.test/v1alpha1\nkind: SpeculativeServer\nspec: "+tests[i].spec), &u.Object); err != nil {
			t.Fatal(err)
		}
		u.SetNamespace(p.namespace)
		u.SetName(fmt.Sprint("s", i))
		return u
	}
	for i := range tests {
		p.eventually("the kind", func() string { // the client may not know it yet
			if err := k8s.Create(t.Context(), stored(i)); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	crd.Spec.Versions[0].Schema = strict
	if _, err := envtest.InstallCRDs(apiConfig, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fresh := stored(i)
			fresh.SetName("fresh")
			p.eventually("the rule", func() string {
				if err := k8s.Create(t.Context(), fresh.DeepCopy(), client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.says) {
					return fmt.Sprintf("a new server is answered %v", err)
				}
				return ""
			})
			patch := func(json string) error {
				return k8s.Patch(t.Context(), stored(i), client.RawPatch(types.MergePatchType, []byte(json)))
			}
			if err := patch(`{"metadata":{"labels":{"team":"a"}}}`); err != nil {
				t.Errorf("a label: %v", err)
			}
			if err := k8s.Status().Patch(t.Context(), stored(i), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Ready"}}`))); err != nil {
				t.Errorf("the status: %v", err)
			}
			if err := patch(`{"spec":{"replicas":2}}`); tt.scales && err != nil {
				t.Errorf("replicas: %v", err)
			}
			if err := patch(`{"spec":` + tt.worse + `}`); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("as wrong in another way: %v", err)
			}
			if err := patch(`{"spec":` + tt.right + `}`); err != nil {
				t.Errorf("put right: %v", err)
			}
		})
	}
}
