package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ServiceSpec is how clients reach the pods.
type ServiceSpec struct {
	// type is ClusterIP, NodePort or LoadBalancer. Default ClusterIP.
	// +optional
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// port is the Service's port. Default 8000.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// annotations of the Service, at most 32, of 4096 characters each. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="an annotation's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/owner"
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`

	// headless is whether there is a second Service, <name>-pods, without an address of its own, by which clients and
	// routers find each pod that is ready. Default Disabled.
	// +optional
	Headless Switch `json:"headless,omitempty"`
}

// SecuritySpec is who may use the server and as whom it runs.
type SecuritySpec struct {
	// apiKeySecretRef is the key of a Secret that has the API keys, one a line: clients must then send one of them as a
	// bearer token. Keys can be changed without a restart. Default: all may use the API port.
	// +optional
	APIKeySecretRef *SecretKeyRef `json:"apiKeySecretRef,omitempty"`

	// tlsSecretName is a Secret of the type kubernetes.io/tls: the API port then speaks TLS, and clients need https. A
	// renewed certificate takes effect without a restart. The admin port, in the cluster only, stays without. Default:
	// no TLS.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	TLSSecretName string `json:"tlsSecretName,omitempty"`

	// runAsUser is the engine's user, which must be able to read the model's files. Default 65532.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	RunAsUser *int64 `json:"runAsUser,omitempty"`

	// runAsGroup is the engine's group. Default 65532.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`

	// fsGroup is a group that the files of claims are given. Default: none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	FSGroup *int64 `json:"fsGroup,omitempty"`

	// serviceAccountName is the pods' service account. Its token is not mounted. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

// NetworkPolicySpec makes a NetworkPolicy that lets in clients on the API port,
// and on the admin port the operator, scrapers and the server's own pods. The
// kubelet's probes are always let in.
type NetworkPolicySpec struct {
	// clients may use the API port. Default: everyone.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Clients []Peer `json:"clients,omitempty"`

	// scrapers may use the admin port, where the metrics are. Default: no one but the operator.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Scrapers []Peer `json:"scrapers,omitempty"`
}

// Switch turns something on or off.
// +kubebuilder:validation:Enum=Enabled;Disabled
type Switch string

// The switch's positions.
const (
	// Enabled is on.
	Enabled Switch = "Enabled"
	// Disabled is off.
	Disabled Switch = "Disabled"
)

// Peer is a set of pods: those with the pod labels in the namespaces with the
// namespace labels.
type Peer struct {
	// namespaceLabels are labels of the namespaces, 1 to 16; kubernetes.io/metadata.name is a namespace's name.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	NamespaceLabels map[string]LabelValue `json:"namespaceLabels,omitempty"`

	// podLabels are labels of the pods, at most 16. Default: all pods of the namespaces.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	PodLabels map[string]LabelValue `json:"podLabels,omitempty"`
}

// MonitoringSpec makes a PodMonitor, where the Prometheus operator's CRDs are
// installed.
type MonitoringSpec struct {
	// intervalSeconds is the time between two scrapes. Default 15.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// labels of the PodMonitor, by which a Prometheus selects it, at most 16. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	Labels map[string]LabelValue `json:"labels,omitempty"`
}

// DisruptionSpec makes a PodDisruptionBudget. It never blocks the drain of a node
// for good: at least one pod may always go, and pods that are not ready always.
type DisruptionSpec struct {
	// maxUnavailable is how many pods may be missing at once because nodes are drained. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable *int32 `json:"maxUnavailable,omitempty"`
}

// RoutingSpec makes objects of the Gateway API for the server, where their CRDs
// are installed.
type RoutingSpec struct {
	// inferencePool makes an InferencePool of the pods, among which an endpoint picker chooses by their load. The
	// engines then also have their metrics under the names that it reads. Default: none is made.
	// +optional
	InferencePool *InferencePoolSpec `json:"inferencePool,omitempty"`

	// httpRoute makes an HTTPRoute to the InferencePool, or to the Service if there is none. Default: none is made.
	// +optional
	HTTPRoute *HTTPRouteSpec `json:"httpRoute,omitempty"`
}

// InferencePoolSpec is who picks among the pods.
type InferencePoolSpec struct {
	// endpointPicker is the Service of the endpoint picker, in the server's namespace.
	// +required
	EndpointPicker EndpointPicker `json:"endpointPicker,omitempty,omitzero"`
}

// EndpointPicker is the Service of an endpoint picker.
type EndpointPicker struct {
	// name is the Service's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name,omitempty"`

	// port is the Service's port. Default 9002.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`

	// failureMode is what happens to requests when the picker does not answer: FailOpen (any pod gets them) or
	// FailClose. Default FailClose.
	// +optional
	// +kubebuilder:validation:Enum=FailOpen;FailClose
	FailureMode string `json:"failureMode,omitempty"`
}

// HTTPRouteSpec is which gateways lead to the server.
type HTTPRouteSpec struct {
	// gateways are the Gateways that the route attaches to, 1 to 8.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, has(a.sectionName) ? self.exists_one(b, b.name == a.name && has(b.__namespace__) == has(a.__namespace__) && (!has(a.__namespace__) || b.__namespace__ == a.__namespace__) && has(b.sectionName) && b.sectionName == a.sectionName) : self.exists_one(b, b.name == a.name && has(b.__namespace__) == has(a.__namespace__) && (!has(a.__namespace__) || b.__namespace__ == a.__namespace__)))",message="a gateway is there twice: leave one out, or write another sectionName in each"
	Gateways []GatewayRef `json:"gateways,omitempty"`

	// hostnames are the names by which clients reach the server, at most 16. Default: all of the gateway's.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Hostnames []string `json:"hostnames,omitempty"`
}

// GatewayRef is a Gateway, or one of its listeners.
type GatewayRef struct {
	// name is the Gateway's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name,omitempty"`

	// namespace is the Gateway's. Default: the server's.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`

	// sectionName is the name of one of its listeners. Default: all that take the route.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	SectionName string `json:"sectionName,omitempty"`
}
