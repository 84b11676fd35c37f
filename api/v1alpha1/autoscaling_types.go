package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// AutoscalingSpec makes a HorizontalPodAutoscaler, named like the server, which
// sets spec.replicas through the scale subresource: one replica more a minute at
// most, after 30 seconds of need, and one fewer in five minutes. With replicas: 0 it rests.
//
// +kubebuilder:validation:XValidation:rule="(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",message="minReplicas (default 1) is above maxReplicas: write minReplicas at most maxReplicas"
type AutoscalingSpec struct {
	// minReplicas is the fewest replicas. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// maxReplicas is the most replicas.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxReplicas int32 `json:"maxReplicas,omitempty"`

	// metrics say how much each replica is to have on average, 1 to 4; the one that asks for most replicas counts.
	// Default: 16 of outrider_requests_running, 64 where the pods have GPUs, and 1 of outrider_requests_waiting.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	Metrics []AutoscalingMetric `json:"metrics,omitempty"`

	// scaleDownDelaySeconds is for how long fewer replicas must be enough before one goes. Default 900: a model is
	// loaded for minutes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	ScaleDownDelaySeconds *int32 `json:"scaleDownDelaySeconds,omitempty"`
}

// AutoscalingMetric is a metric by which replicas are counted, from an API that
// the cluster must serve.
//
// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self.averageValue)) || quantity(string(self.averageValue)).isGreaterThan(quantity('0'))",message="averageValue is divided by: write more than 0"
// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || (has(self.source) && self.source == 'External')",message="matchLabels select series of an external metric: leave them out, or write source: External"
type AutoscalingMetric struct {
	// name is the metric's name, as the API has it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_]([A-Za-z0-9_.:-]*[A-Za-z0-9_])?$`
	Name string `json:"name,omitempty"`

	// source is Pods (custom.metrics.k8s.io, a value for each pod that serves) or External (external.metrics.k8s.io,
	// one value of the whole, which is divided by the replicas). Default Pods.
	// +optional
	// +kubebuilder:validation:Enum=Pods;External
	Source string `json:"source,omitempty"`

	// averageValue is what each replica is to have, more than 0.
	// +required
	AverageValue resource.Quantity `json:"averageValue,omitempty,omitzero"`

	// matchLabels are labels of the series of an external metric, at most 16. Default: server, the server's name.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`
}
