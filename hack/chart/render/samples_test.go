package render

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// schemaOf is the schema of a CRD's only version.
func schemaOf(t *testing.T, file string) (*structural.Structural, validation.SchemaValidator) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &v1); err != nil {
		t.Fatal(err)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil); err != nil {
		t.Fatal(err)
	}
	schema, err := apiextensions.GetSchemaForVersion(&crd, crd.Spec.Versions[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(schema.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	s, err := structural.NewStructural(schema.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return s, validator
}

// faults are what the API server would refuse in a server, with its rules.
func faults(t *testing.T, s *structural.Structural, v validation.SchemaValidator, object map[string]any) []string {
	t.Helper()
	defaulting.Default(object, s)
	var all []string
	for _, path := range pruning.PruneWithOptions(object, s, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		all = append(all, "unknown field "+path)
	}
	for _, e := range validation.ValidateCustomResource(nil, object, v) {
		all = append(all, e.Error())
	}
	errs, _ := cel.NewValidator(s, true, celconfig.PerCallLimit).Validate(t.Context(), nil, s, object, nil, celconfig.RuntimeCELCostBudget)
	for _, e := range errs {
		all = append(all, e.Error())
	}
	return all
}

// read reads numbers as the API server does: whole ones are integers.
func read(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	text, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// The CRD takes each sample, as the API server would.
func TestSamples(t *testing.T) {
	s, v := schemaOf(t, root+"config/crd/inference.outrider.dev_speculativeservers.yaml")
	samples, err := filepath.Glob(root + "config/samples/*.yaml")
	more, e := filepath.Glob(root + "config/samples/*/*.yaml")
	if err := errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	samples = append(samples, more...)
	servers := 0
	for _, name := range samples {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		object := read(t, raw)
		switch object["kind"] {
		case "Kustomization":
		case "ScaledObject": // TestScaledObject
		case "SpeculativeServer":
			servers++
			for _, f := range faults(t, s, v, object) {
				t.Errorf("%s: %s", name, f)
			}
		default:
			if _, _, err := decoder(t).Decode(raw, nil, nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if servers < 8 {
		t.Errorf("only %d samples of servers", servers)
	}
	// The check itself refuses what is wrong.
	for _, bad := range []string{
		"spec: {model: {source: {builtin: {name: gocode-7m}}}, replcas: 2}",
		"spec: {model: {source: {builtin: {name: nobody}}}}",
		"spec: {model: {source: {builtin: {name: gocode-7m}, hostPath: {path: /m}}}}",
	} {
		object := read(t, []byte("apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\nmetadata: {name: s}\n"+bad))
		if len(faults(t, s, v, object)) == 0 {
			t.Errorf("nothing is wrong with %s", bad)
		}
	}
}
