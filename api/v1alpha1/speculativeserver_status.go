package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ModelVerified is the readiness gate of every pod: the operator sets it on the
// pod after its own deep probe has made the model generate.
const ModelVerified = "inference.outrider.dev/model-verified"

// StartGate is the scheduling gate of every pod of a replica of several nodes: the
// operator removes it when the replica may start, which after a crash is when its
// back-off has ended, and never when its tries are over.
const StartGate = "inference.outrider.dev/start"

// EngineContainer is the name of the engine's container in its pods.
const EngineContainer = "engine"

// Labels of the pods.
const (
	// LabelServer carries the name of the SpeculativeServer; the Service and the scale subresource select by it.
	LabelServer = "inference.outrider.dev/server"
	// LabelOrdinal carries the pod's ordinal, from 0.
	LabelOrdinal = "inference.outrider.dev/ordinal"
	// LabelRevision carries the hash of the pod template that the pod was made from.
	LabelRevision = "inference.outrider.dev/revision"
	// LabelFetch carries the name of the SpeculativeServer on the Job that downloads for it, and on the Job's pods.
	LabelFetch = "inference.outrider.dev/fetch"
	// LabelSources carries the hash of what such a Job downloads, and where to.
	LabelSources = "inference.outrider.dev/sources"
)

// Condition types of a SpeculativeServer. The operator sets all of them, from
// the pods that it observes, each with the generation it was computed for.
const (
	// ConditionAvailable is True while at least one replica is ready.
	// Reasons: Serving; NotReady, ScaledToZero.
	ConditionAvailable = "Available"
	// ConditionProgressing is True while the operator or the pods move towards the spec.
	// Reasons: Starting, Scaling, RollingOut, Retrying; Complete, Blocked.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True while something is wrong that the spec does not ask for.
	// Reasons: Crashed, Failed, Stalled, ImageUnavailable, VolumeUnavailable, ContainerRefused,
	// Unschedulable, NodeLost, VerificationFailed, NameTaken, PodRefused, VolumeConflict, NoLeaderWorkerSet, Unauthorized,
	// ModelNotFound, NoSpace, FetchFailed, GPUUnused; AsExpected.
	ConditionDegraded = "Degraded"
	// ConditionModelLoaded is True while a replica of the current revision holds the whole model.
	// Reasons: Loaded; Loading, NotStarted, LoadFailed, ScaledToZero.
	ConditionModelLoaded = "ModelLoaded"
	// ConditionSpeculationActive is True while a ready replica drafts. Unknown while no metrics could be read.
	// Reasons: Drafting; Disabled, NotServing, Off, DraftFailed; NoMetrics.
	ConditionSpeculationActive = "SpeculationActive"
)

// Reasons of conditions and events.
const (
	ReasonServing      = "Serving"
	ReasonNotReady     = "NotReady"
	ReasonScaledToZero = "ScaledToZero"

	ReasonStarting   = "Starting"
	ReasonScaling    = "Scaling"
	ReasonRollingOut = "RollingOut"
	ReasonRetrying   = "Retrying"
	ReasonComplete   = "Complete"
	ReasonBlocked    = "Blocked"

	ReasonAsExpected         = "AsExpected"
	ReasonCrashed            = "Crashed"
	ReasonFailed             = "Failed"
	ReasonStalled            = "Stalled"
	ReasonImageUnavailable   = "ImageUnavailable"
	ReasonVolumeUnavailable  = "VolumeUnavailable"
	ReasonContainerRefused   = "ContainerRefused"
	ReasonUnschedulable      = "Unschedulable"
	ReasonNodeLost           = "NodeLost"
	ReasonVerificationFailed = "VerificationFailed"
	ReasonNameTaken          = "NameTaken"
	ReasonPodRefused         = "PodRefused"
	ReasonVolumeConflict     = "VolumeConflict"
	ReasonNoLeaderWorkerSet  = "NoLeaderWorkerSet"
	// ReasonGPUUnused: pods serve on the CPU although the spec gives them GPUs; the phase does not change for it.
	ReasonGPUUnused = "GPUUnused"

	// What an engine or a fetch says of a model's source.
	ReasonUnauthorized  = "Unauthorized"
	ReasonModelNotFound = "ModelNotFound"
	ReasonNoSpace       = "NoSpace"
	ReasonFetchFailed   = "FetchFailed"

	ReasonLoaded     = "Loaded"
	ReasonLoading    = "Loading"
	ReasonNotStarted = "NotStarted"
	ReasonLoadFailed = "LoadFailed"

	ReasonDrafting   = "Drafting"
	ReasonDisabled   = "Disabled"
	ReasonNotServing = "NotServing"
	ReasonOff        = "Off"
	ReasonNoMetrics  = "NoMetrics"

	ReasonDraftFailed = "DraftFailed"
)

// Phase is where a pod, or a whole SpeculativeServer, is.
// +kubebuilder:validation:Enum=Pending;WaitingForCapacity;Pulling;ImageUnavailable;VolumeUnavailable;ContainerRefused;Starting;Fetching;Loading;WarmingUp;Verifying;Ready;Unverified;Stalled;Crashed;Failed;NodeLost;Terminating;Updating;Degraded;Stopped
type Phase string

// The phases. Those from Updating on are only a server's; a server with no ready
// pod otherwise has the phase of the pod that says most about it.
const (
	// PhasePending: not scheduled yet, no reason to worry.
	PhasePending Phase = "Pending"
	// PhaseWaitingForCapacity: the scheduler finds no node; the message is the scheduler's.
	PhaseWaitingForCapacity Phase = "WaitingForCapacity"
	// PhasePulling: on a node, its volumes and image are being made ready.
	PhasePulling Phase = "Pulling"
	// PhaseImageUnavailable: the image cannot be pulled; the kubelet goes on trying.
	PhaseImageUnavailable Phase = "ImageUnavailable"
	// PhaseVolumeUnavailable: a volume cannot be mounted; the kubelet goes on trying.
	PhaseVolumeUnavailable Phase = "VolumeUnavailable"
	// PhaseContainerRefused: the kubelet cannot make the container; the message is the kubelet's.
	PhaseContainerRefused Phase = "ContainerRefused"
	// PhaseStarting: the engine's process runs and has not said where it is.
	PhaseStarting Phase = "Starting"
	// PhaseFetching: the engine brings the model's files to the node.
	PhaseFetching Phase = "Fetching"
	// PhaseLoading: the engine reads the weights.
	PhaseLoading Phase = "Loading"
	// PhaseWarmingUp: weights are there; collectives, kernels, graphs and the first batches are made.
	PhaseWarmingUp Phase = "WarmingUp"
	// PhaseVerifying: the engine says that it is ready; the operator's deep probe has not passed yet.
	PhaseVerifying Phase = "Verifying"
	// PhaseReady: verified and serving.
	PhaseReady Phase = "Ready"
	// PhaseUnverified: it was ready, and the deep probe fails now.
	PhaseUnverified Phase = "Unverified"
	// PhaseStalled: the process runs and nothing moves in it.
	PhaseStalled Phase = "Stalled"
	// PhaseCrashed: the engine ended; the operator starts it again when the back-off ends.
	PhaseCrashed Phase = "Crashed"
	// PhaseFailed: the engine ended for a reason that a new start would not heal.
	PhaseFailed Phase = "Failed"
	// PhaseNodeLost: the node does not report.
	PhaseNodeLost Phase = "NodeLost"
	// PhaseTerminating: being deleted.
	PhaseTerminating Phase = "Terminating"
	// PhaseUpdating: serving, while pods are added or replaced.
	PhaseUpdating Phase = "Updating"
	// PhaseDegraded: serving, with fewer pods than asked for because of a fault.
	PhaseDegraded Phase = "Degraded"
	// PhaseStopped: scaled to zero.
	PhaseStopped Phase = "Stopped"
)

// DeviceMixed is in status.device where the pods compute on different devices. No
// spec can ask for it.
const DeviceMixed = "Mixed"

// SpeculativeServerStatus is what the operator observed. It is computed from the
// pods each time; only restarts, back-off and last failures are carried on.
type SpeculativeServerStatus struct {
	// conditions are Available, Progressing, Degraded, ModelLoaded and SpeculationActive, each with the generation
	// that it was computed for.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// observedGeneration is the generation of the spec that this status was computed for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is Ready when every replica asked for is ready and up to date; Updating or Degraded when only some are;
	// otherwise the phase of the pod that says most about it, or Stopped.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// message is one line for people: what is going on, and what to do about it when something is wrong.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// ready is ready replicas over replicas asked for, as "1/2".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Ready string `json:"ready,omitempty"`

	// replicas is how many pods exist, terminating ones included.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// readyReplicas is how many pods are verified and serving.
	// +optional
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`

	// updatedReplicas is how many pods have the current revision.
	// +optional
	UpdatedReplicas *int32 `json:"updatedReplicas,omitempty"`

	// selector selects the pods, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Selector string `json:"selector,omitempty"`

	// revision is the hash of the pod template that the spec gives.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Revision string `json:"revision,omitempty"`

	// model is the name that clients give as "model".
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Model string `json:"model,omitempty"`

	// device is what the engines compute on: CUDA or CPU, or Mixed where the pods differ. Absent until one has said so.
	// +optional
	// +kubebuilder:validation:Enum=CPU;CUDA;Mixed
	Device string `json:"device,omitempty"`

	// fetch is the download into spec.modelCache. Absent without one.
	// +optional
	Fetch *FetchStatus `json:"fetch,omitempty"`

	// modelCache is the claim that spec.modelCache.template has made, as long as it is there.
	// +optional
	ModelCache *CacheClaimStatus `json:"modelCache,omitempty"`

	// speculation is what drafting does and is worth, over the ready pods. Absent while none could be asked.
	// +optional
	Speculation *SpeculationStatus `json:"speculation,omitempty"`

	// draftFailure is set while the pods serve without a draft that failed, as spec.speculation.onDraftFailure has it.
	// +optional
	DraftFailure *DraftFailure `json:"draftFailure,omitempty"`

	// pods has a row for each ordinal that is asked for or still exists.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=2000
	Pods []PodStatus `json:"pods,omitempty"`
}

// SpeculationStatus is what drafting does and is worth, over the ready pods. The
// figures are rounded and written at intervals, so that load does not become
// writes to the API server.
type SpeculationStatus struct {
	// numSteps is the depth in use: tokens drafted a cycle, the most over the pods; 0 is plain decoding.
	// +optional
	NumSteps *int32 `json:"numSteps,omitempty"`

	// acceptLength is the mean number of tokens that one verification yields, as "3.31". It keeps the last figure
	// while no request runs.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	AcceptLength string `json:"acceptLength,omitempty"`

	// tokensPerSecond is the rate of generated tokens, summed over the pods; "0" while no request runs.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	TokensPerSecond string `json:"tokensPerSecond,omitempty"`

	// verifyMilliseconds is the mean time of a target pass that verifies drafts, as "12.3"; absent before the first.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	VerifyMilliseconds string `json:"verifyMilliseconds,omitempty"`

	// gain is the engines' estimate of tokens a second over those of plain decoding, as "1.42"; absent before the
	// first draft.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Gain string `json:"gain,omitempty"`

	// mode is the mode that the operator has asked the engines for.
	// +optional
	Mode AdaptationMode `json:"mode,omitempty"`

	// minSteps is the least depth that the engines are held to; only in mode Auto.
	// +optional
	MinSteps *int32 `json:"minSteps,omitempty"`

	// maxSteps is the greatest depth that the engines are held to.
	// +optional
	MaxSteps *int32 `json:"maxSteps,omitempty"`

	// confirmed is how many ready pods have confirmed mode and bounds, over the ready pods, as "2/2".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Confirmed string `json:"confirmed,omitempty"`

	// reason is why maxSteps is what it is: Unrestricted, Recovering, KVCacheFull, DraftUnused, DraftTooSlow,
	// LatencyBound or RequestsQueue; only in mode Auto.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// detail has the figures that decided.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Detail string `json:"detail,omitempty"`

	// since is when maxSteps last changed.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// DraftFailure is a draft that the pods are made without.
type DraftFailure struct {
	// revision is that of the pods with the draft: another spec tries its draft again.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Revision string `json:"revision,omitempty"`

	// time is when it failed.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// message is the engine's explanation.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PodStatus is one row of the table of pods.
type PodStatus struct {
	// name is the pod's name, <server>-<ordinal>; with several nodes <server>-nodes-<ordinal> of the first, and that with
	// -<node> of the others.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// uid is the pod's UID; absent while there is no pod of this name.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`

	// nodeRank is the pod's number among the nodes of its replica; absent for the first, which serves, and with one node.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=63
	NodeRank *int32 `json:"nodeRank,omitempty"`

	// phase is where the pod is.
	// +optional
	Phase Phase `json:"phase,omitempty"`

	// percent is how much of the current load is done, 0 to 100; only while fetching or loading.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent *int32 `json:"percent,omitempty"`

	// message says more: "Loading 43 %, shard 3 of 8", the scheduler's reason, how the engine ended.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// restarts is how many times the engine of this ordinal ended by itself.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Restarts int32 `json:"restarts,omitempty"`

	// failuresInRow is how many of those followed one another without ten minutes of serving between; the back-off
	// doubles with each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FailuresInRow int32 `json:"failuresInRow,omitempty"`

	// failingSince is when the trouble began from which this ordinal has not come back to serving yet.
	// +optional
	FailingSince *metav1.Time `json:"failingSince,omitempty"`

	// nextStartTime is when a crashed pod is replaced. The pod stays until then, for its log. Of several nodes it is when
	// the group starts again, whose pods have been made anew and wait for it.
	// +optional
	NextStartTime *metav1.Time `json:"nextStartTime,omitempty"`

	// idleWaitSince is since when a rollout waits for this pod to be idle.
	// +optional
	IdleWaitSince *metav1.Time `json:"idleWaitSince,omitempty"`

	// node is the node that the pod is on.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// device is what the engine computes on, CUDA or CPU; absent until it has said so.
	// +optional
	// +kubebuilder:validation:Enum=CPU;CUDA
	Device string `json:"device,omitempty"`

	// deviceMessage is why an engine that has GPUs computes on the CPU, in its own words; only then.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	DeviceMessage string `json:"deviceMessage,omitempty"`

	// lastProbeTime is when the operator last made the model generate, as known when this status was last written.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`

	// lastFailure is how the engine of this ordinal last ended by itself.
	// +optional
	LastFailure *PodFailure `json:"lastFailure,omitempty"`
}

// PodFailure is how an engine ended.
type PodFailure struct {
	// time is when it ended.
	// +required
	Time metav1.Time `json:"time,omitempty,omitzero"`

	// podUID is the UID of the pod that it ended in.
	// +required
	// +kubebuilder:validation:MaxLength=64
	PodUID string `json:"podUID,omitempty"`

	// node is the node that it ended on. After a device fault the next pod prefers others.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// rank is the rank that failed, where the engine said so and it is not the first.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Rank *int32 `json:"rank,omitempty"`

	// revision is the revision of that pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Revision string `json:"revision,omitempty"`

	// exitCode is the exit code; 128 plus the signal's number for one that a signal ended.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// reason is the engine's own word (ModelNotFound, WeightsMismatch, DeviceFault …), or OutOfMemory, Killed,
	// Evicted, Stopped or Error when it left none; LoadStalled and VerificationFailed are the operator's own findings
	// in an engine that ran on.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message is the engine's own explanation.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
