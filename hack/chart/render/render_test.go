package render

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	root      = "../../../"
	chartDir  = root + "charts/outrider"
	namespace = "outrider-system"
)

// set are rendered objects, by Kind/name, and Kind/namespace/name outside the release's namespace.
type set map[string]runtime.Object

func (s set) keys() []string { return slices.Sorted(maps.Keys(s)) }

// get is the object of a type under a key; the test ends without it.
func get[T runtime.Object](t *testing.T, s set, key string) T {
	t.Helper()
	o, ok := s[key].(T)
	if !ok {
		t.Fatalf("no %s, want one: there are %s", key, strings.Join(s.keys(), ", "))
	}
	return o
}

// decoder refuses fields and kinds that there are not.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// files renders the chart's templates with values, a YAML text.
func files(values string) (map[string]string, error) { return filesOf("outrider", namespace, values) }

// filesOf is files of another release.
func filesOf(release, namespace, values string) (map[string]string, error) {
	c, top, err := input(common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}, values)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, top)
}

// input is what the chart's templates get, and the chart.
func input(release common.ReleaseOptions, values string) (*chart.Chart, common.Values, error) {
	c, err := loader.Load(chartDir)
	if err != nil {
		return nil, nil, err
	}
	var v map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &v); err != nil {
		return nil, nil, err
	}
	top, err := util.ToRenderValues(c, v, release, nil)
	return c, top, err
}

// objects renders and decodes.
func objects(t *testing.T, values string) set {
	t.Helper()
	return objectsOf(t, "outrider", namespace, values)
}

// objectsOf is objects of another release, in its namespace.
func objectsOf(t *testing.T, release, namespace, values string) set {
	t.Helper()
	rendered, err := filesOf(release, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	s := set{}
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if path.Ext(name) == ".yaml" {
			s.decode(t, name, rendered[name], namespace)
		}
	}
	for key, o := range s {
		m, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		if m.GetLabels()["app.kubernetes.io/instance"] != release {
			t.Errorf("%s has no label app.kubernetes.io/instance", key)
		}
	}
	return s
}

// decode adds the objects of a YAML text, which name is the name of.
func (s set) decode(t *testing.T, name, text, namespace string) {
	t.Helper()
	d := decoder(t)
	for r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(strings.TrimSpace(strings.Trim(string(doc), "-\n"))) == 0 {
			continue
		}
		o, gvk, err := d.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, doc)
		}
		m, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		key := gvk.Kind + "/" + m.GetName()
		if ns := m.GetNamespace(); ns != "" && ns != namespace {
			key = gvk.Kind + "/" + ns + "/" + m.GetName()
		}
		if _, ok := s[key]; ok {
			t.Errorf("%s has %s a second time", name, key)
		}
		s[key] = o
	}
}

func TestLint(t *testing.T) {
	result := lint.RunAll(chartDir, map[string]any{}, namespace)
	for _, m := range result.Messages {
		if !strings.Contains(m.Error(), "icon is recommended") {
			t.Error(m)
		}
	}
	if len(result.Messages) == 0 {
		t.Error("no message, not even the one about an icon: was the chart read?")
	}
}
