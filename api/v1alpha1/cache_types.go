package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelCacheSpec is a volume claim into which models are downloaded once for all
// pods, by a Job that ends before they are made: exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="has(self.claimName) != has(self.template)",message="set exactly one of claimName and template"
type ModelCacheSpec struct {
	// claimName is a PersistentVolumeClaim of the same namespace, which several servers may share. It must be
	// writable, and pods on several nodes need ReadWriteMany.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ClaimName string `json:"claimName,omitempty"`

	// template makes a claim for this server, named <name>-models. Without it the claim goes, as whenDeleted says, when
	// no pod mounts it any more; until then another template must have its storage class and access mode.
	// +optional
	Template *CacheTemplate `json:"template,omitempty"`
}

// CacheTemplate is the claim that a server's downloads go to.
//
// +kubebuilder:validation:XValidation:rule="(has(self.storageClassName) ? self.storageClassName : \"\") == (has(oldSelf.storageClassName) ? oldSelf.storageClassName : \"\") && (has(self.accessMode) ? self.accessMode : 'ReadWriteOnce') == (has(oldSelf.accessMode) ? oldSelf.accessMode : 'ReadWriteOnce')",message="a claim's storage class and access mode cannot be changed: name another claim with modelCache.claimName"
// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self.size)) || !isQuantity(string(oldSelf.size)) || quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",message="a claim cannot shrink: write at least the size from before"
// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self.size)) || quantity(string(self.size)).isGreaterThan(quantity('0'))",message="size is not above 0: write for example 100Gi"
type CacheTemplate struct {
	// size is how much the claim holds: the files of the model and of the draft, and those of the next revision
	// beside them. It can be raised where the storage class allows that.
	// +required
	Size resource.Quantity `json:"size,omitempty,omitzero"`

	// storageClassName is the claim's storage class. It cannot be changed. Default: the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	StorageClassName string `json:"storageClassName,omitempty"`

	// accessMode is ReadWriteOnce (the pods are on one node) or ReadWriteMany. It cannot be changed. Default
	// ReadWriteOnce.
	// +optional
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadWriteMany
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode,omitempty"`

	// whenDeleted is what happens to the claim when the server is deleted or asks for it no more: Delete or Retain.
	// Default Delete.
	// +optional
	// +kubebuilder:validation:Enum=Delete;Retain
	WhenDeleted string `json:"whenDeleted,omitempty"`
}

// CacheClaimStatus is the claim that modelCache.template has made, as long as it
// is there: what it has and cannot change. A template that is left out and written
// again is held to it.
type CacheClaimStatus struct {
	// uid is the claim's UID.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`

	// size is how much it was asked to hold.
	// +required
	Size resource.Quantity `json:"size,omitempty,omitzero"`

	// storageClassName is the storage class that it was asked of; absent for the cluster's default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`

	// accessMode is ReadWriteOnce or ReadWriteMany.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	AccessMode string `json:"accessMode,omitempty"`
}

// FetchStatus is the download of the model's files into the claim of
// spec.modelCache, by the Job <name>-fetch. Deleting the Job makes another, which
// looks whether a branch or a bucket has changed, and downloads what is missing.
type FetchStatus struct {
	// sources is the hash of what is downloaded and where to.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Sources string `json:"sources,omitempty"`

	// claimUID is the claim that the files are in; absent where that is not made from a template. In another claim of its
	// name they are not.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ClaimUID string `json:"claimUID,omitempty"`

	// phase is Pending, Pulling, WaitingForCapacity or another phase of a pod before it runs, Fetching, Crashed (it is
	// tried again), Failed (it is not) or Ready.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// percent is how much is downloaded, 0 to 100; only while it is known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`

	// bytesPerSecond is how fast files come, in bytes a second; only while it is known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	BytesPerSecond *int64 `json:"bytesPerSecond,omitempty"`

	// reason is Unauthorized, ModelNotFound, NoSpace, FetchFailed or another word for how the last try failed; absent
	// when it did not.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message is one line: how far it is, or what is wrong and what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// model is the model's folder in the claim; absent before it is whole.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Model string `json:"model,omitempty"`

	// draft is the draft's folder in the claim, likewise.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Draft string `json:"draft,omitempty"`

	// draftError is why the pods are made without the draft, where its source does not have it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	DraftError string `json:"draftError,omitempty"`

	// completionTime is when the files were whole.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}
