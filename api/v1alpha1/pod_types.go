package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// LabelValue is the value of a label: at most 63 letters, digits, '-', '_' and
// '.', a letter or digit first and last; or nothing.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// AnnotationValue is the value of an annotation: at most 4096 characters.
// +kubebuilder:validation:MaxLength=4096
type AnnotationValue string

// Device is what the engine computes on.
// +kubebuilder:validation:Enum=Auto;CPU;CUDA
type Device string

// The devices.
const (
	// DeviceAuto takes GPUs where the engine has been built for them and finds some, otherwise the CPU.
	DeviceAuto Device = "Auto"
	// DeviceCPU computes on the CPU.
	DeviceCPU Device = "CPU"
	// DeviceCUDA computes on NVIDIA GPUs, one for each rank.
	DeviceCUDA Device = "CUDA"
)

// Resources are a container's requests and limits.
//
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || ['cpu', 'memory', 'ephemeral-storage'].all(k, !(k in self.requests) || !(k in self.limits) || !isQuantity(string(self.requests[k])) || !isQuantity(string(self.limits[k])) || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",message="a request is above its limit: raise the limit, or leave the request out"
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || self.requests.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || (has(self.limits) && k in self.limits && string(self.requests[k]) == string(self.limits[k])))",message="devices and huge pages cannot be overcommitted: write nvidia.com/gpu and the like under limits, and leave them out of requests"
// +kubebuilder:validation:XValidation:rule="!has(self.limits) || !self.limits.exists(k, k.startsWith('hugepages-')) || 'cpu' in self.limits || 'memory' in self.limits || (has(self.requests) && ('cpu' in self.requests || 'memory' in self.requests))",message="huge pages come beside cpu or memory: write one of them too"
type Resources struct {
	// requests are what the scheduler sets aside, at most 8 kinds. Default: the limits.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || k.matches('^hugepages-[0-9]+[KMGTP]i$') || (k.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && !k.contains('kubernetes.io/')))",message="a resource is no container's: write cpu, memory, ephemeral-storage, hugepages-<size>, or a device as vendor/name, for example nvidia.com/gpu"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-') || string(self[k]) == '-0')",message="a quantity is below 0: write 0 or more"
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || type(self[k]) == int || !isQuantity(self[k]) || quantity(self[k]).isInteger())",message="devices and huge pages are not shared out in parts: write a whole number"
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`

	// limits are what the container may use at most, at most 8 kinds. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || k.matches('^hugepages-[0-9]+[KMGTP]i$') || (k.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$') && !k.contains('kubernetes.io/')))",message="a resource is no container's: write cpu, memory, ephemeral-storage, hugepages-<size>, or a device as vendor/name, for example nvidia.com/gpu"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-') || string(self[k]) == '-0')",message="a quantity is below 0: write 0 or more"
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'] || type(self[k]) == int || !isQuantity(self[k]) || quantity(self[k]).isInteger())",message="devices and huge pages are not shared out in parts: write a whole number"
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
}

// EnvVar is an environment variable, with a literal value or one from a Secret.
//
// +kubebuilder:validation:XValidation:rule="!self.name.startsWith('OUTRIDER_NCCL_') && !(self.name in ['NCCL_ALGO','NCCL_PROTO','NCCL_P2P_LEVEL','NCCL_MIN_NCHANNELS','NCCL_MAX_NCHANNELS','NCCL_IB_HCA','NCCL_SOCKET_IFNAME','NCCL_DEBUG'])",messageExpression="self.name + ' has a field of its own: set it under spec.nccl'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_MODEL','OUTRIDER_SERVED_MODEL_NAME','OUTRIDER_CONTEXT_LENGTH','OUTRIDER_DTYPE','OUTRIDER_QUANTIZATION'])",messageExpression="self.name + ' has a field of its own: set it under spec.model'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_TP_SIZE'])",messageExpression="self.name + ' has a field of its own: set spec.parallelism.tensor'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_NNODES','OUTRIDER_NODE_RANK','OUTRIDER_DIST_INIT_ADDR']) && !self.name.startsWith('LWS_')",messageExpression="self.name + ' follows from a field: set spec.parallelism.nodes'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_DIST_SECRET_FILE'])",messageExpression="self.name + ' has a field of its own: set spec.parallelism.nodeSecretRef'"
// +kubebuilder:validation:XValidation:rule="!(self.name == 'OUTRIDER_DRAFT_MODEL' || self.name.startsWith('OUTRIDER_SPECULATIVE_'))",messageExpression="self.name + ' has a field of its own: set it under spec.speculation'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_PAGE_SIZE','OUTRIDER_MEM_FRACTION_STATIC','OUTRIDER_MAX_TOTAL_TOKENS','OUTRIDER_KV_CACHE_DTYPE'])",messageExpression="self.name + ' has a field of its own: set it under spec.kvCache'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_DEVICE','OUTRIDER_STALL_TIMEOUT','OUTRIDER_DRAIN_TIMEOUT','OUTRIDER_API_KEY_FILE','OUTRIDER_TLS_CERT_FILE','OUTRIDER_TLS_KEY_FILE'])",messageExpression="self.name + ' has a field of its own: set spec.device, spec.health.stallTimeoutSeconds, spec.rollout.drainSeconds, spec.security.apiKeySecretRef or spec.security.tlsSecretName'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['HF_ENDPOINT','HF_TOKEN','OUTRIDER_HF_TOKEN_FILE','AWS_ENDPOINT_URL','AWS_ENDPOINT_URL_S3','AWS_REGION','AWS_SHARED_CREDENTIALS_FILE'])",messageExpression="self.name + ' has a field of its own: set it under huggingFace or s3 of spec.model.source or spec.speculation.draft.source'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_HOST','OUTRIDER_PORT','OUTRIDER_ADMIN_HOST','OUTRIDER_ADMIN_PORT','OUTRIDER_ADMIN_TOKEN_FILE','OUTRIDER_DOWNLOAD_DIR','OUTRIDER_TERMINATION_LOG'])",messageExpression="self.name + ' is set by the operator, which relies on it: leave it out'"
// +kubebuilder:validation:XValidation:rule="!has(self.value) || !has(self.secretKeyRef)",message="write value or secretKeyRef, not both"
type EnvVar struct {
	// name is the variable's name: letters, digits and '_', no digit first.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name,omitempty"`

	// value is taken literally, at most 4096 bytes; $(VAR) is not expanded. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`

	// secretKeyRef takes the value from a Secret instead. Default: value is taken.
	// +optional
	SecretKeyRef *SecretKeyRef `json:"secretKeyRef,omitempty"`
}

// Volume is a further volume of the engine, and where it is mounted: exactly one
// of emptyDir, configMap, secret, pvc and hostPath.
//
// +kubebuilder:validation:XValidation:rule="[has(self.emptyDir), has(self.configMap), has(self.secret), has(self.pvc), has(self.hostPath)].filter(x, x).size() == 1",message="set exactly one of emptyDir, configMap, secret, pvc and hostPath"
type Volume struct {
	// name is the volume's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// mountPath is the absolute path in the container, at most 1024 bytes, another for each volume; not /, /tmp,
	// /models, /dev, /proc, /sys or /var/run/outrider, or below these, and not what /var/run/outrider is in.
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.contains('//') && !self.endsWith('/') && !self.split('/').exists(e, e in ['.', '..']) && !(self.split('/')[1] in ['', 'tmp', 'models', 'dev', 'proc', 'sys']) && !self.contains(':') && !(self + '/').startsWith('/var/run/outrider/') && !(self + '/').startsWith('/run/outrider/') && !(self in ['/var', '/var/run', '/run'])",message="write an absolute path without '.', '..', '//', ':' and '/' at its end that is not in /tmp, /models, /dev, /proc, /sys or /var/run/outrider, and not /var, /var/run or /run, for example /data"
	MountPath string `json:"mountPath,omitempty"`

	// access is ReadWrite or ReadOnly. Default ReadWrite; a ConfigMap or Secret is always ReadOnly.
	// +optional
	// +kubebuilder:validation:Enum=ReadWrite;ReadOnly
	Access string `json:"access,omitempty"`

	// emptyDir is a folder that lives as long as the pod.
	// +optional
	EmptyDir *EmptyDir `json:"emptyDir,omitempty"`

	// configMap is a ConfigMap's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ConfigMap string `json:"configMap,omitempty"`

	// secret is a Secret's name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Secret string `json:"secret,omitempty"`

	// pvc is a folder in a volume claim.
	// +optional
	PVC *ClaimSource `json:"pvc,omitempty"`

	// hostPath is a folder on the node.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`
}

// EmptyDir is a folder that lives as long as the pod.
//
// +kubebuilder:validation:XValidation:rule="!has(self.sizeLimit) || !string(self.sizeLimit).startsWith('-') || self.sizeLimit == '-0'",message="sizeLimit is below 0: write for example 1Gi, or leave it out"
type EmptyDir struct {
	// sizeLimit is how much it may hold. Default: as much as the node has.
	// +optional
	SizeLimit *resource.Quantity `json:"sizeLimit,omitempty"`
}

// PodMetadata are labels and annotations of the pods, besides the operator's own.
//
// +kubebuilder:validation:XValidation:rule="!has(self.labels) || !self.labels.exists(k, k.startsWith('inference.outrider.dev/') || k in ['app.kubernetes.io/name', 'app.kubernetes.io/instance', 'app.kubernetes.io/managed-by'])",message="labels of inference.outrider.dev/ and app.kubernetes.io/name, instance and managed-by are the operator's: leave them out"
type PodMetadata struct {
	// labels of the pods, at most 32. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// annotations of the pods, at most 32, of 4096 characters each. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="an annotation's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/owner"
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`
}

// SchedulingSpec is where the pods may run.
type SchedulingSpec struct {
	// nodeSelector are labels that a node must have, at most 32. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="a label's key is no key: write a name of up to 63 letters, digits, '-', '_' and '.', with a domain and '/' before it or without, for example example.com/team"
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`

	// nodeAffinity are rules about the labels of nodes, at most 16. A node must meet all that are required. Default:
	// none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	NodeAffinity []NodeRule `json:"nodeAffinity,omitempty"`

	// tolerations let the pods run on tainted nodes, at most 32. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// topologySpread spreads the pods of this server, at most 8 rules. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MaxItems=8
	TopologySpread []TopologySpread `json:"topologySpread,omitempty"`

	// priorityClassName is the pods' priority class. Default: the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// runtimeClassName is the pods' runtime class, for example nvidia. Default: the node's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	RuntimeClassName string `json:"runtimeClassName,omitempty"`

	// schedulerName is the scheduler that places the pods. Default: default-scheduler.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	SchedulerName string `json:"schedulerName,omitempty"`
}

// NodeRule is a rule about one label of nodes.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) : (has(self.values) && self.values.size() > 0)",message="In, NotIn, Gt and Lt need values; Exists and DoesNotExist have none"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Gt', 'Lt']) || !has(self.values) || (self.values.size() == 1 && self.values[0].matches('^[0-9]{1,18}$'))",message="Gt and Lt compare with one whole number: write it as the only value"
type NodeRule struct {
	// key is the label's key.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 253",message="the key's domain is longer than 253 bytes: write a shorter one"
	Key string `json:"key,omitempty"`

	// operator is In, NotIn, Exists, DoesNotExist, Gt or Lt.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`

	// values are what the label is compared with, at most 64. Default: none, as Exists and DoesNotExist have it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Values []string `json:"values,omitempty"`

	// weight makes the rule a preference, of 1 to 100. Default: it is required.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight *int32 `json:"weight,omitempty"`
}

// Toleration lets pods run on nodes with a taint.
//
// +kubebuilder:validation:XValidation:rule="self.operator != 'Exists' || !has(self.value)",message="with operator Exists leave value out"
// +kubebuilder:validation:XValidation:rule="has(self.key) || self.operator == 'Exists'",message="without a key write operator: Exists, which tolerates every taint"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",message="tolerationSeconds is for taints that evict: write effect: NoExecute, or leave tolerationSeconds out"
type Toleration struct {
	// key is the taint's key. Default: all keys.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 253",message="the key's domain is longer than 253 bytes: write a shorter one"
	Key string `json:"key,omitempty"`

	// operator is Equal or Exists.
	// +required
	// +kubebuilder:validation:Enum=Equal;Exists
	Operator corev1.TolerationOperator `json:"operator,omitempty"`

	// value is the taint's value. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Value string `json:"value,omitempty"`

	// effect is NoSchedule, PreferNoSchedule or NoExecute. Default: all effects.
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`

	// tolerationSeconds is how long the pod stays on a node that gets the taint, with effect NoExecute. Default: for
	// ever.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// TopologySpread spreads the pods of a server over the values of a node label.
type TopologySpread struct {
	// topologyKey is the label, for example kubernetes.io/hostname.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self.indexOf('/') <= 253",message="the key's domain is longer than 253 bytes: write a shorter one"
	TopologyKey string `json:"topologyKey,omitempty"`

	// maxSkew is by how many pods two of its values may differ. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxSkew *int32 `json:"maxSkew,omitempty"`

	// whenUnsatisfiable is ScheduleAnyway or DoNotSchedule. Default ScheduleAnyway.
	// +optional
	// +kubebuilder:validation:Enum=ScheduleAnyway;DoNotSchedule
	WhenUnsatisfiable corev1.UnsatisfiableConstraintAction `json:"whenUnsatisfiable,omitempty"`
}
