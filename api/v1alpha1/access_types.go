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

	// annotations of the Service, at most 32.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`

	// headless is whether there is a second Service, <name>-pods, without an address of its own, by which clients and
	// routers find each pod that is ready. Default Disabled.
	// +optional
	Headless Switch `json:"headless,omitempty"`
}

// SecuritySpec is who may use the server and as whom it runs.
type SecuritySpec struct {
	// apiKeySecretRef is the key of a Secret that has the API keys, one a line: clients must then send one of them as
	// a bearer token. Keys can be changed without a restart.
	// +optional
	APIKeySecretRef *SecretKeyRef `json:"apiKeySecretRef,omitempty"`

	// tlsSecretName is a Secret of the type kubernetes.io/tls: the API port then speaks TLS, and clients need https.
	// A renewed certificate takes effect without a restart. The admin port, in the cluster only, stays without.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	TLSSecretName string `json:"tlsSecretName,omitempty"`

	// runAsUser is the engine's user, which must be able to read the model's files. Default 65532.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	RunAsUser *int64 `json:"runAsUser,omitempty"`

	// runAsGroup is the engine's group. Default 65532.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`

	// fsGroup is a group that the files of claims are given. Default: none.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967294
	FSGroup *int64 `json:"fsGroup,omitempty"`

	// serviceAccountName is the pods' service account. Its token is not mounted. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
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
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`

	// podLabels are labels of the pods, at most 16. Default: all pods of the namespaces.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	PodLabels map[string]string `json:"podLabels,omitempty"`
}

// MonitoringSpec makes a PodMonitor, where the Prometheus operator's CRDs are
// installed.
type MonitoringSpec struct {
	// intervalSeconds is the time between two scrapes. Default 15.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// labels of the PodMonitor, by which a Prometheus selects it, at most 16.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Labels map[string]string `json:"labels,omitempty"`
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
