package build

import (
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Kinds that may not be installed.
var (
	// PodMonitorKind is the Prometheus operator's.
	PodMonitorKind = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"}
	// InferencePoolKind is that of the Gateway API's inference extension.
	InferencePoolKind = schema.GroupVersionKind{Group: "inference.networking.k8s.io", Version: "v1", Kind: "InferencePool"}
	// HTTPRouteKind is the Gateway API's.
	HTTPRouteKind = schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: "HTTPRoute"}
)

// Optional is an object of a kind that may not be installed.
type Optional struct {
	Kind schema.GroupVersionKind
	From string                     // field of the spec that asks for it
	Of   string                     // what installs the kind
	Want *unstructured.Unstructured // nil: it is not asked for
}

// Optionals are all of them, also those that are not asked for.
func Optionals(s *v1alpha1.SpeculativeServer) []Optional {
	return []Optional{
		{PodMonitorKind, "spec.monitoring", "the Prometheus operator", Monitor(s)},
		{InferencePoolKind, "spec.routing.inferencePool", "the Gateway API's inference extension", Pool(s)},
		{HTTPRouteKind, "spec.routing.httpRoute", "the Gateway API", Route(s)},
	}
}

// object is one of the server's name, which goes with it.
func object(s *v1alpha1.SpeculativeServer, kind schema.GroupVersionKind, all map[string]string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{
			"ownerReferences": []any{map[string]any{
				"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "SpeculativeServer",
				"name": s.Name, "uid": string(s.UID), "controller": true, "blockOwnerDeletion": true,
			}},
		},
		"spec": spec,
	}}
	u.SetGroupVersionKind(kind)
	u.SetName(s.Name)
	u.SetNamespace(s.Namespace)
	u.SetLabels(all)
	return u
}

// selector is Selector for an object without a type.
func selector(s *v1alpha1.SpeculativeServer) map[string]any { return labelsOf(Selector(s.Name)) }

func labelsOf(labels map[string]string) map[string]any {
	all := map[string]any{}
	for k, v := range labels {
		all[k] = v
	}
	return all
}

// pooled says that an endpoint picker reads the engines' metrics.
func pooled(s *v1alpha1.SpeculativeServer) bool {
	return s.Spec.Routing != nil && s.Spec.Routing.InferencePool != nil
}

// Pool is the InferencePool; nil when it is not asked for.
func Pool(s *v1alpha1.SpeculativeServer) *unstructured.Unstructured {
	if !pooled(s) {
		return nil
	}
	picker := s.Spec.Routing.InferencePool.EndpointPicker
	port, mode := int64(9002), "FailClose"
	if picker.Port != nil {
		port = int64(*picker.Port)
	}
	if picker.FailureMode != "" {
		mode = picker.FailureMode
	}
	return object(s, InferencePoolKind, Labels(s.Name), map[string]any{
		"selector":    map[string]any{"matchLabels": labelsOf(Served(s))},
		"targetPorts": []any{map[string]any{"number": int64(HTTPPort)}},
		"endpointPickerRef": map[string]any{
			"group": "", "kind": "Service", "name": picker.Name, "port": map[string]any{"number": port}, "failureMode": mode,
		},
	})
}

// Route is the HTTPRoute; nil when it is not asked for.
func Route(s *v1alpha1.SpeculativeServer) *unstructured.Unstructured {
	if s.Spec.Routing == nil || s.Spec.Routing.HTTPRoute == nil {
		return nil
	}
	r := s.Spec.Routing.HTTPRoute
	var parents []any
	for _, g := range r.Gateways {
		p := map[string]any{"group": HTTPRouteKind.Group, "kind": "Gateway", "name": g.Name}
		if g.Namespace != "" {
			p["namespace"] = g.Namespace
		}
		if g.SectionName != "" {
			p["sectionName"] = g.SectionName
		}
		parents = append(parents, p)
	}
	backend := map[string]any{"group": "", "kind": "Service", "name": s.Name, "port": int64(Port(s)), "weight": int64(1)}
	if pooled(s) {
		backend = map[string]any{"group": InferencePoolKind.Group, "kind": InferencePoolKind.Kind, "name": s.Name, "weight": int64(1)}
	}
	spec := map[string]any{
		"parentRefs": parents,
		"rules": []any{map[string]any{
			"matches":     []any{map[string]any{"path": map[string]any{"type": "PathPrefix", "value": "/"}}},
			"backendRefs": []any{backend},
		}},
	}
	if len(r.Hostnames) > 0 {
		names := make([]any, len(r.Hostnames))
		for i, n := range r.Hostnames {
			names[i] = n
		}
		spec["hostnames"] = names
	}
	return object(s, HTTPRouteKind, Labels(s.Name), spec)
}

// Monitor is the PodMonitor; nil when it is not asked for. It scrapes the admin
// port, which the Service does not have.
func Monitor(s *v1alpha1.SpeculativeServer) *unstructured.Unstructured {
	m := s.Spec.Monitoring
	if m == nil {
		return nil
	}
	interval := int32(15)
	if m.IntervalSeconds != nil {
		interval = *m.IntervalSeconds
	}
	all := texts(m.Labels)
	maps.Copy(all, Labels(s.Name))
	return object(s, PodMonitorKind, all, map[string]any{
		"selector": map[string]any{"matchLabels": selector(s)},
		"podMetricsEndpoints": []any{map[string]any{
			"port": "admin", "path": "/metrics", "interval": seconds(interval),
			// The label by which dashboards and alerts join the engine's metrics with the operator's.
			"relabelings": []any{map[string]any{
				"action": "replace", "targetLabel": "server",
				"sourceLabels": []any{"__meta_kubernetes_pod_label_inference_outrider_dev_server"},
			}},
		}},
	})
}
