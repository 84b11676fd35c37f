//go:build apiserver

package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// scaledObject is as much of KEDA's ScaledObject as the sample uses.
type scaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef  autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount int                                       `json:"minReplicaCount"`
		MaxReplicaCount int                                       `json:"maxReplicaCount"`
		PollingInterval int                                       `json:"pollingInterval"`
		CooldownPeriod  int                                       `json:"cooldownPeriod"`
		Triggers        []struct {
			Type     string            `json:"type"`
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// TestAutoscalingSamples: the manifests of the guide are what their kinds read,
// name the scale subresource's resource, and metrics that are documented.
func TestAutoscalingSamples(t *testing.T) {
	read := func(name string, into any) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "autoscaling", name))
		if err == nil {
			err = yaml.UnmarshalStrict(b, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return string(b)
	}
	hpa, keda := &autoscalingv2.HorizontalPodAutoscaler{}, &scaledObject{}
	text := read("hpa.yaml", hpa) + read("keda.yaml", keda)
	hpa.Namespace = "default"
	if err := k8s.Create(t.Context(), hpa, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
		t.Error(err)
	}
	for _, ref := range []autoscalingv2.CrossVersionObjectReference{hpa.Spec.ScaleTargetRef, keda.Spec.ScaleTargetRef} {
		if ref.APIVersion != "inference.outrider.dev/v1alpha1" || ref.Kind != "SpeculativeServer" {
			t.Errorf("scales %+v", ref)
		}
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`outrider_[a-z_]+`).FindAllString(text, -1)
	if len(names) == 0 {
		t.Error("no metric")
	}
	for _, name := range names {
		if !strings.Contains(string(doc), "| `"+name+"` |") {
			t.Errorf("docs/metrics.md does not have %s", name)
		}
	}
}

// TestAutoscaling: the operator makes an autoscaler, leaves replicas to it, and
// takes it away again.
func TestAutoscaling(t *testing.T) {
	p := begin(t)
	fake.serves(3, 3.31, 118, "")
	text := manifest + "  autoscaling: {minReplicas: 1, maxReplicas: 3, metrics: [{name: outrider_requests_running, averageValue: '8000m'}, {name: queue, source: External, averageValue: 2}]}\n"
	p.serving(text)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "s"}}
	has := func(what string, f func() string) {
		t.Helper()
		p.eventually(what, func() string {
			if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(hpa), hpa); err != nil {
				return err.Error()
			}
			return f()
		})
	}
	has("autoscaler", func() string { return "" })
	if !metav1.IsControlledBy(hpa, p.server()) || hpa.Spec.ScaleTargetRef.Kind != "SpeculativeServer" || hpa.Spec.ScaleTargetRef.Name != "s" || len(hpa.Spec.Metrics) != 2 {
		t.Errorf("owners %v, spec %+v", hpa.OwnerReferences, hpa.Spec)
	}
	p.quiet()

	p.scale(2) // as the autoscaler does
	second := p.pod(1, "")
	p.bind(second)
	p.ready(second)
	p.phase(v1alpha1.PhaseReady, "")
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetNamespace(p.namespace)
	// Whoever applies a manifest without replicas again leaves them as they are.
	if err := k8s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("someone"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	hpa.Status.DesiredReplicas = 2
	if err := k8s.Status().Update(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	p.quiet()
	if n := p.server().Spec.Replicas; n == nil || *n != 2 {
		t.Errorf("spec.replicas is %v, and the autoscaler wrote 2", n)
	}

	change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"maxReplicas":9}}`))
	if err := k8s.Patch(t.Context(), hpa, change, client.FieldOwner("someone")); err != nil {
		t.Fatal(err)
	}
	has("autoscaler put right", func() string {
		if hpa.Spec.MaxReplicas != 3 {
			return fmt.Sprint("maxReplicas is ", hpa.Spec.MaxReplicas)
		}
		return ""
	})
	p.patch(`{"spec":{"autoscaling":{"maxReplicas":1}}}`) // fewer than there are: the autoscaler's to lower
	has("autoscaler of one replica", func() string {
		if hpa.Spec.MaxReplicas != 1 {
			return fmt.Sprint("maxReplicas is ", hpa.Spec.MaxReplicas)
		}
		return ""
	})
	p.patch(`{"spec":{"autoscaling":null}}`)
	p.eventually("no autoscaler", func() string {
		if err := k8s.Get(t.Context(), client.ObjectKeyFromObject(hpa), hpa); !apierrors.IsNotFound(err) {
			return fmt.Sprint("it is there: ", err)
		}
		return ""
	})
	if n := p.server().Spec.Replicas; n == nil || *n != 2 {
		t.Errorf("spec.replicas is %v after the autoscaler went", n)
	}
}

// TestAutoscalingValidation: what cannot be is refused, with what to write.
func TestAutoscalingValidation(t *testing.T) {
	for _, tt := range []struct{ name, spec, want string }{
		{"the least", "{maxReplicas: 3}", ""},
		{"all", "{minReplicas: 2, maxReplicas: 3, scaleDownDelaySeconds: 0, metrics: [{name: a, averageValue: '1.5', source: External, matchLabels: {team: a}}]}", ""},
		{"no maximum", "{minReplicas: 2}", "maxReplicas"},
		{"minimum of none", "{minReplicas: 0, maxReplicas: 2}", "minReplicas"},
		{"minimum above the maximum", "{minReplicas: 4, maxReplicas: 3}", "write minReplicas at most maxReplicas"},
		{"no metric", "{maxReplicas: 3, metrics: []}", "at least 1 items"},
		{"a metric twice", "{maxReplicas: 3, metrics: [{name: a, averageValue: 1}, {name: a, averageValue: 2}]}", "Duplicate value"},
		{"a metric's name", "{maxReplicas: 3, metrics: [{name: 'a b', averageValue: 1}]}", "name"},
		{"no value", "{maxReplicas: 3, metrics: [{name: a}]}", "averageValue"},
		{"value of 0", "{maxReplicas: 3, metrics: [{name: a, averageValue: 0}]}", "write more than 0"},
		{"negative value", "{maxReplicas: 3, metrics: [{name: a, averageValue: '-1'}]}", "write more than 0"},
		{"labels of pods", "{maxReplicas: 3, metrics: [{name: a, averageValue: 1, matchLabels: {team: a}}]}", "write source: External"},
		{"a long delay", "{maxReplicas: 3, scaleDownDelaySeconds: 3601}", "scaleDownDelaySeconds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(manifest+"  autoscaling: "+tt.spec+"\n"), &u.Object); err != nil {
				t.Fatal(err)
			}
			u.SetNamespace("default")
			err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
