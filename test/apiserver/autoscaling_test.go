//go:build apiserver

package apiserver

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
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
