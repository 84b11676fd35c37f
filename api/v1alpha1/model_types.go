package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ModelSpec is the model to serve.
type ModelSpec struct {
	// source is where the model's files come from.
	// +required
	Source ModelSource `json:"source,omitempty,omitzero"`

	// servedName is the name that clients give as "model". Default: the builtin model's name, otherwise the name of
	// the SpeculativeServer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.:/@]*[A-Za-z0-9])?$`
	ServedName string `json:"servedName,omitempty"`

	// maxContextLength bounds prompt plus answer, in tokens. Default: the limit in the model's own configuration.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=16777216
	MaxContextLength *int32 `json:"maxContextLength,omitempty"`

	// dtype is the number format of the computation. It is the device's, Float32 on CPU and BFloat16 on GPUs: naming
	// it makes sure, and an engine that has another ends. Default Auto, what the device has.
	// +optional
	// +kubebuilder:validation:Enum=Auto;BFloat16;Float32
	DType string `json:"dtype,omitempty"`

	// quantization is how the model's files code their weights: None, CompressedTensors (int4, int8, float8) or FP8.
	// Nothing is converted: naming it makes sure, and an engine that finds other files ends. Default Auto, as the
	// files say.
	// +optional
	// +kubebuilder:validation:Enum=Auto;None;CompressedTensors;FP8
	Quantization string `json:"quantization,omitempty"`
}

// ModelSource is where a model's files come from: exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="[has(self.builtin), has(self.pvc), has(self.image), has(self.hostPath), has(self.huggingFace), has(self.s3)].filter(x, x).size() == 1",message="set exactly one of builtin, pvc, image, hostPath, huggingFace and s3"
type ModelSource struct {
	// builtin is a model inside the engine's image, with its draft head.
	// +optional
	Builtin *BuiltinModel `json:"builtin,omitempty"`

	// pvc is a folder in a volume claim of the same namespace, mounted read-only.
	// +optional
	PVC *ClaimSource `json:"pvc,omitempty"`

	// image is an OCI image or artifact that the node mounts read-only (Kubernetes' image volumes, which the node's
	// container runtime must have).
	// +optional
	Image *ImageSource `json:"image,omitempty"`

	// hostPath is a folder on the node, mounted read-only. Namespaces that enforce the baseline or restricted Pod
	// Security Standard refuse such pods.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`

	// huggingFace is a repository of a model hub, which is downloaded: by each pod for itself, or once into
	// spec.modelCache.
	// +optional
	HuggingFace *HubSource `json:"huggingFace,omitempty"`

	// s3 is a folder of an object store, which is downloaded likewise.
	// +optional
	S3 *S3Source `json:"s3,omitempty"`
}

// BuiltinModel names a model inside the engine's image.
type BuiltinModel struct {
	// name is gocode-7m, a small model of Go code.
	// +required
	// +kubebuilder:validation:Enum=gocode-7m
	Name string `json:"name,omitempty"`
}

// ClaimSource is a folder in a volume claim.
//
// +kubebuilder:validation:XValidation:rule="!has(self.path) || (!self.path.startsWith('/') && !self.path.split('/').exists(e, e == '..'))",message="write the path from the volume's root, without '/' first and without '..', for example models/llama"
type ClaimSource struct {
	// claimName is the PersistentVolumeClaim's name. With more than one replica its access mode must let several
	// nodes mount it: ReadOnlyMany or ReadWriteMany.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ClaimName string `json:"claimName,omitempty"`

	// path is the folder in the volume, from its root, at most 1024 bytes. Default: the root.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
}

// ImageSource is an OCI image or artifact with a model's files.
//
// +kubebuilder:validation:XValidation:rule="!has(self.path) || (!self.path.startsWith('/') && !self.path.split('/').exists(e, e == '..'))",message="write the path from the image's root, without '/' first and without '..', for example models/llama"
type ImageSource struct {
	// name is the image's name, with a tag or a digest. Its pull secrets are those of spec.imagePullSecrets.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	Name string `json:"name,omitempty"`

	// pullPolicy is Always, IfNotPresent or Never. Default IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`

	// path is the folder in the image, from its root, at most 1024 bytes. Default: the root.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
}

// HostPath is a folder on the node.
type HostPath struct {
	// path is the folder's absolute path on the node, at most 1024 bytes, without "..". Files must be readable by
	// user 65532, or the one of spec.security.runAsUser.
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.split('/').exists(e, e == '..')",message="write an absolute path without '..', for example /var/lib/models/llama"
	Path string `json:"path,omitempty"`
}

// HubSource is a repository of a model hub.
type HubSource struct {
	// repo is the repository, as owner/name.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$') && !self.contains('..')",message="write the repository as owner/name, for example meta-llama/Llama-3.1-8B-Instruct"
	Repo string `json:"repo,omitempty"`

	// revision is a branch, tag or commit. Default main. A branch or a tag is resolved to its commit by each download.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == '' || (self.matches('^[A-Za-z0-9][A-Za-z0-9._/+-]*$') && !self.contains('..'))",message="write a branch, a tag or a commit, for example main"
	Revision string `json:"revision,omitempty"`

	// endpoint is the hub's address. Default https://huggingface.co.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/?#@ ]+(/[^?# ]*)?$')",message="write the hub's address without credentials, for example https://huggingface.co"
	Endpoint string `json:"endpoint,omitempty"`

	// tokenSecretRef is the key of a Secret that has the access token. It is mounted as a file. Default: none, as for
	// public repositories.
	// +optional
	TokenSecretRef *SecretKeyRef `json:"tokenSecretRef,omitempty"`
}

// S3Source is a folder of an object store.
type S3Source struct {
	// uri is s3://bucket/prefix.
	// +required
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^ ]*)?$')",message="write s3://bucket/prefix, for example s3://models/llama"
	URI string `json:"uri,omitempty"`

	// endpoint is the store's address. Default: that of AWS.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^https?://[^/?#@ ]+/?$')",message="write the store's address without path and credentials, for example https://minio.example.com:9000"
	Endpoint string `json:"endpoint,omitempty"`

	// region is the store's region. Default: the store is asked.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9-]*$`
	Region string `json:"region,omitempty"`

	// credentialsSecretRef is the key of a Secret that has a credentials file as AWS's clients read it, with the
	// profile default. It is mounted as a file. Default: what the platform gives the service account, or none.
	// +optional
	CredentialsSecretRef *SecretKeyRef `json:"credentialsSecretRef,omitempty"`
}

// SecretKeyRef is a key of a Secret in the same namespace.
type SecretKeyRef struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name,omitempty"`

	// key is the key in it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +kubebuilder:validation:XValidation:rule="self != '.' && !self.startsWith('..')",message="a key is not '.', and has no '..' first: write the key as the Secret has it"
	Key string `json:"key,omitempty"`
}

// KVCacheSpec is the memory in which the engine keeps keys and values.
type KVCacheSpec struct {
	// dtype is the number format of keys and values. FP8 keeps them as float8 (e4m3), with the scales that the model's
	// files have, or 1: half the memory of BFloat16, a quarter of Float32, and less exact. BFloat16 and Float32 are that
	// of the computation, see model.dtype. Default Auto: FP8 if the model's files are made for it, otherwise that of the
	// computation.
	// +optional
	// +kubebuilder:validation:Enum=Auto;BFloat16;Float32;FP8
	DType string `json:"dtype,omitempty"`

	// memoryFraction is the share of the memory that weights and cache may take together, above "0", up to "1": of what
	// is free of each GPU's memory when the engine starts, on CPU of the container's limit, or the node's memory where
	// it has none. Default "0.8".
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0\\\\.[0-9]*[1-9][0-9]*|1(\\\\.0*)?)$')",message="write a share above 0 and up to 1 as a string, for example \"0.8\""
	MemoryFraction string `json:"memoryFraction,omitempty"`

	// pageSize is how many tokens a page holds; what two requests share, they share in whole pages. Default 16.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	PageSize *int32 `json:"pageSize,omitempty"`

	// maxTokens bounds the tokens that the cache of one replica holds. Default: as many as the memory allows.
	// +optional
	// +kubebuilder:validation:Minimum=16
	// +kubebuilder:validation:Maximum=1000000000
	MaxTokens *int32 `json:"maxTokens,omitempty"`
}
