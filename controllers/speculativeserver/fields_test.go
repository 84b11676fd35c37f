package speculativeserver

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestFieldsAreDocumented: every field of the spec says what it is and, where it
// can be left out, what then holds; every list, map and text has a bound.
func TestFieldsAreDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "inference.outrider.dev_speculativeservers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(b, &crd); err != nil {
		t.Fatal(err)
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	fields := 0
	var walk func(path string, s apiextensionsv1.JSONSchemaProps)
	walk = func(path string, s apiextensionsv1.JSONSchemaProps) {
		if problem := unbounded(s); problem != "" {
			t.Errorf("%s: %s", path, problem)
		}
		for name, f := range s.Properties {
			fields++
			if f.Description == "" {
				t.Errorf("%s.%s has no description", path, name)
			}
			if !slices.Contains(s.Required, name) && !oneOf(s, name) && !ownDefaults(f) && !strings.Contains(f.Description, "Default") {
				t.Errorf("%s.%s can be left out, and does not say what then holds: write its default, %q", path, name, f.Description)
			}
			walk(path+"."+name, f)
		}
		if s.Items != nil {
			walk(path+"[]", *s.Items.Schema)
		}
		if s.AdditionalProperties != nil {
			walk(path+"{}", *s.AdditionalProperties.Schema)
		}
	}
	walk("spec", schema.Properties["spec"])
	if fields < 100 {
		t.Errorf("looked at %d fields of the spec", fields)
	}
}

// TestQuantitiesAreQuantities: the API server takes no text for a quantity that the parser
// refuses. One object with such a text would keep the operator from reading any.
func TestQuantitiesAreQuantities(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "inference.outrider.dev_speculativeservers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)pattern: (.*)\n +x-kubernetes-int-or-string: true$`).FindAllSubmatch(b, -1)
	if all := strings.Count(string(b), "x-kubernetes-int-or-string: true"); len(found) != all || all < 5 {
		t.Fatalf("%d patterns of %d quantities", len(found), all)
	}
	patterns := map[string]bool{}
	for _, f := range found {
		patterns[string(f[1])] = true
	}
	for p := range patterns {
		pattern := regexp.MustCompile(p)
		var try func(text string)
		try = func(text string) {
			if _, err := resource.ParseQuantity(text); err != nil && pattern.MatchString(text) {
				t.Errorf("%s takes %s: %v", p, text, err)
			}
			for _, c := range "+-09.eEKimn" {
				if len(text) < 5 {
					try(text + string(c))
				}
			}
		}
		try("")
		for _, exponent := range []string{"1.5", "99999999999999999999", "-99999999999999999999", "1000000000"} {
			if pattern.MatchString("1e" + exponent) {
				t.Errorf("%s takes 1e%s", p, exponent)
			}
		}
		for _, text := range []string{"1", "-0", "+1.5", ".5", "5.", "100m", "2Gi", "1E", "16e9", "1E-3", "1e+999"} {
			if !pattern.MatchString(text) {
				t.Errorf("%s refuses %s", p, text)
			}
		}
	}
}

// unbounded says what of a value has no bound.
func unbounded(s apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.Type == "array" && s.MaxItems == nil:
		return "a list without MaxItems"
	case s.AdditionalProperties != nil && s.MaxProperties == nil:
		return "a map without MaxProperties"
	case s.Type == "string" && s.MaxLength == nil && len(s.Enum) == 0:
		return "a text without MaxLength"
	case s.Type == "integer" && (s.Minimum == nil || s.Maximum == nil):
		return "a number without Minimum and Maximum"
	}
	return ""
}

// oneOf says that a field is one of several of which exactly one is to be set.
func oneOf(s apiextensionsv1.JSONSchemaProps, name string) bool {
	return slices.ContainsFunc(s.XValidations, func(r apiextensionsv1.ValidationRule) bool {
		_, names, found := strings.Cut(r.Message, "set exactly one of ")
		return found && slices.Contains(strings.FieldsFunc(names, func(c rune) bool { return c == ',' || c == ' ' }), name)
	})
}

// ownDefaults says that a value is a struct, which the defaults of its fields say
// all of when it is left out.
func ownDefaults(s apiextensionsv1.JSONSchemaProps) bool {
	return len(s.Properties) > 0 && len(s.Required) == 0
}
