package build

import (
	"encoding/json"
	"testing"

	inferencev1 "sigs.k8s.io/gateway-api-inference-extension/api/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// TestRouting: the objects without types are what the kinds' own types read,
// without a member that they do not have.
func TestRouting(t *testing.T) {
	s := everything()
	pool := &inferencev1.InferencePool{}
	decode(t, Pool(s).Object, pool)
	if pool.Spec.EndpointPickerRef.Name != "picker" || pool.Spec.EndpointPickerRef.Port.Number != 9003 || pool.Spec.TargetPorts[0].Number != HTTPPort ||
		pool.Spec.Selector.MatchLabels[v1alpha1.LabelServer] != "all" {
		t.Errorf("%+v", pool.Spec)
	}
	route := &gatewayv1.HTTPRoute{}
	decode(t, Route(s).Object, route)
	if ref := route.Spec.Rules[0].BackendRefs[0]; *ref.Kind != "InferencePool" || ref.Name != "all" || ref.Port != nil {
		t.Errorf("%+v", ref)
	}
	s.Spec.Routing.InferencePool, s.Spec.Routing.HTTPRoute.Gateways = nil, []v1alpha1.GatewayRef{{Name: "edge"}}
	decode(t, Route(s).Object, route)
	if ref := route.Spec.Rules[0].BackendRefs[0]; *ref.Kind != "Service" || ref.Name != "all" || *ref.Port != 80 || Pool(s) != nil {
		t.Errorf("%+v", ref)
	}
}

func decode(t *testing.T, object map[string]any, into any) {
	t.Helper()
	b, err := json.Marshal(object)
	if err == nil {
		err = yaml.UnmarshalStrict(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
