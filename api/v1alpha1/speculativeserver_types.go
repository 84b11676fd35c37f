package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SpeculativeServer is a large language model, served with speculative decoding
// behind an OpenAI-compatible API. It owns its Pods, named <name>-<ordinal>, and
// a Service of its own name, port 8000. A pod is ready only after the operator
// has made the model in it generate tokens.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:shortName=specsrv,categories=outrider
// +kubebuilder:printcolumn:name="PHASE",type=string,JSONPath=".status.phase"
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=".status.ready"
// +kubebuilder:printcolumn:name="DEPTH",type=integer,JSONPath=".status.speculation.numSteps"
// +kubebuilder:printcolumn:name="ACCEPT",type=string,JSONPath=".status.speculation.acceptLength"
// +kubebuilder:printcolumn:name="TOK/S",type=string,JSONPath=".status.speculation.tokensPerSecond"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="MODEL",type=string,priority=1,JSONPath=".status.model"
// +kubebuilder:printcolumn:name="TP",type=integer,priority=1,JSONPath=".spec.parallelism.tensor"
// +kubebuilder:printcolumn:name="DEVICE",type=string,priority=1,JSONPath=".status.device"
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=".status.message"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52 && !self.metadata.name.contains('.') && self.metadata.name >= 'a'",message="metadata.name also names the Service and the Pods: write at most 52 of a-z, 0-9 and '-', a letter first"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.parallelism.nodes) || self.spec.parallelism.nodes <= 1 || self.metadata.name.size() <= 42",message="with parallelism.nodes above 1 metadata.name also begins labels of the LeaderWorkerSet's pods: write at most 42 characters"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.modelCache) || !has(self.spec.modelCache.template) || (has(oldSelf.spec.modelCache) && has(oldSelf.spec.modelCache.template)) || !has(self.status) || !has(self.status.modelCache) || ((has(self.spec.modelCache.template.storageClassName) ? self.spec.modelCache.template.storageClassName : \"\") == (has(self.status.modelCache.storageClassName) ? self.status.modelCache.storageClassName : \"\") && (has(self.spec.modelCache.template.accessMode) ? self.spec.modelCache.template.accessMode : 'ReadWriteOnce') == self.status.modelCache.accessMode && quantity(string(self.spec.modelCache.template.size)).compareTo(quantity(string(self.status.modelCache.size))) >= 0)",messageExpression="'claim ' + self.metadata.name + '-models of the template from before is still there, and a claim cannot be changed: write its storage class, its access mode and at least its size (status.modelCache), name another claim with modelCache.claimName, or wait until it is gone'"
type SpeculativeServer struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what to serve and how.
	// +required
	Spec SpeculativeServerSpec `json:"spec,omitempty,omitzero"`

	// status is what the operator observed; it is never read as input from users.
	// +optional
	Status SpeculativeServerStatus `json:"status,omitempty,omitzero"`
}

// SpeculativeServerList is a list of SpeculativeServers.
//
// +kubebuilder:object:root=true
type SpeculativeServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SpeculativeServer `json:"items"`
}

// SpeculativeServerSpec says what to serve and how. Fields that the pods are made
// of need a restart of the pods when they change: they are then replaced as
// rollout says. The others (replicas, rollout, health, service, networkPolicy,
// monitoring, routing.httpRoute, disruption, autoscaling, speculation.adaptation, modelCache.template) take effect at once.
//
// +kubebuilder:validation:XValidation:rule="!has(self.speculation.algorithm) || self.speculation.algorithm != 'EAGLE3' || has(self.speculation.draft) || !(has(self.model.source.pvc) || has(self.model.source.image) || has(self.model.source.hostPath) || has(self.model.source.huggingFace) || has(self.model.source.s3)) || has(self.model.source.builtin)",message="EAGLE3 needs a draft head for a model that is not builtin: set speculation.draft.source to it, or write speculation.algorithm: NGram or None"
// +kubebuilder:validation:XValidation:rule="!has(self.resources) || !has(self.resources.limits) || !('nvidia.com/gpu' in self.resources.limits) || (has(self.device) && self.device == 'CPU') || !isQuantity(string(self.resources.limits['nvidia.com/gpu'])) || (quantity(string(self.resources.limits['nvidia.com/gpu'])).isInteger() && quantity(string(self.resources.limits['nvidia.com/gpu'])).asInteger() * (has(self.parallelism.nodes) ? self.parallelism.nodes : 1) == self.parallelism.tensor)",message="each rank has one GPU: write resources.limits nvidia.com/gpu with the number of parallelism.tensor, divided by parallelism.nodes"
// +kubebuilder:validation:XValidation:rule="!has(self.extraEnv) || !has(self.nccl) || !has(self.nccl.extra) || !self.nccl.extra.exists(v, self.extraEnv.exists(e, e.name == v.name))",message="a variable is both in nccl.extra and in extraEnv: leave it out of extraEnv"
// +kubebuilder:validation:XValidation:rule="!has(self.device) || self.device != 'CUDA' || (has(self.resources) && has(self.resources.limits) && self.resources.limits.exists(k, k.contains('/')))",message="device CUDA needs GPUs: write resources.limits nvidia.com/gpu with the same number as parallelism.tensor"
// +kubebuilder:validation:XValidation:rule="!has(self.modelCache) || has(self.model.source.huggingFace) || has(self.model.source.s3) || (has(self.speculation.draft) && (has(self.speculation.draft.source.huggingFace) || has(self.speculation.draft.source.s3)))",message="modelCache is for models that are downloaded: leave it out, or set model.source or speculation.draft.source to huggingFace or s3"
// +kubebuilder:validation:XValidation:rule="!has(self.modelCache) || !has(self.modelCache.template) || (has(self.modelCache.template.accessMode) && self.modelCache.template.accessMode == 'ReadWriteMany') || ((!has(self.replicas) || self.replicas <= 1) && (!has(self.autoscaling) || self.autoscaling.maxReplicas <= 1) && (!has(self.parallelism.nodes) || self.parallelism.nodes <= 1) && (!has(self.rollout) || !has(self.rollout.maxSurge) || self.rollout.maxSurge == 0)) || (has(self.scheduling) && has(self.scheduling.nodeSelector) && 'kubernetes.io/hostname' in self.scheduling.nodeSelector)",message="one node can mount a ReadWriteOnce claim: write modelCache.template.accessMode: ReadWriteMany, replicas: 1 without autoscaling, rollout.maxSurge and parallelism.nodes, or a scheduling.nodeSelector with kubernetes.io/hostname"
// +kubebuilder:validation:XValidation:rule="!has(self.model.source.huggingFace) || !has(self.speculation.draft) || !has(self.speculation.draft.source.huggingFace) || ((has(self.model.source.huggingFace.endpoint) ? self.model.source.huggingFace.endpoint : \"\") == (has(self.speculation.draft.source.huggingFace.endpoint) ? self.speculation.draft.source.huggingFace.endpoint : \"\") && (!has(self.model.source.huggingFace.tokenSecretRef) || !has(self.speculation.draft.source.huggingFace.tokenSecretRef) || (self.model.source.huggingFace.tokenSecretRef.name == self.speculation.draft.source.huggingFace.tokenSecretRef.name && self.model.source.huggingFace.tokenSecretRef.key == self.speculation.draft.source.huggingFace.tokenSecretRef.key)))",message="model and draft are of one hub: write the same endpoint for both, and one tokenSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.model.source.s3) || !has(self.speculation.draft) || !has(self.speculation.draft.source.s3) || ((has(self.model.source.s3.endpoint) ? self.model.source.s3.endpoint : \"\") == (has(self.speculation.draft.source.s3.endpoint) ? self.speculation.draft.source.s3.endpoint : \"\") && (has(self.model.source.s3.region) ? self.model.source.s3.region : \"\") == (has(self.speculation.draft.source.s3.region) ? self.speculation.draft.source.s3.region : \"\") && (!has(self.model.source.s3.credentialsSecretRef) || !has(self.speculation.draft.source.s3.credentialsSecretRef) || (self.model.source.s3.credentialsSecretRef.name == self.speculation.draft.source.s3.credentialsSecretRef.name && self.model.source.s3.credentialsSecretRef.key == self.speculation.draft.source.s3.credentialsSecretRef.key)))",message="model and draft are of one store: write the same endpoint and region for both, and one credentialsSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.device) || !((has(self.model.dtype) && self.model.dtype == (self.device == 'CPU' ? 'BFloat16' : 'Float32')) || (has(self.kvCache) && has(self.kvCache.dtype) && self.kvCache.dtype == (self.device == 'CPU' ? 'BFloat16' : 'Float32'))) || self.device == 'Auto'",message="model.dtype and kvCache.dtype are the device's: write Float32 with device CPU, BFloat16 with CUDA, or leave them out"
// +kubebuilder:validation:XValidation:rule="((has(self.replicas) ? self.replicas : 1) + (has(self.rollout) && has(self.rollout.maxSurge) ? self.rollout.maxSurge : 0)) * (has(self.parallelism.nodes) ? self.parallelism.nodes : 1) <= 2000 && (!has(self.autoscaling) || (self.autoscaling.maxReplicas + (has(self.rollout) && has(self.rollout.maxSurge) ? self.rollout.maxSurge : 0)) * (has(self.parallelism.nodes) ? self.parallelism.nodes : 1) <= 2000)",message="the status has a row for each of at most 2000 pods: write fewer replicas or autoscaling.maxReplicas, a smaller rollout.maxSurge or fewer parallelism.nodes"
type SpeculativeServerSpec struct {
	// replicas is how many pods serve the model, each with a whole copy of it. Default 1; 0 stops serving. Leave it
	// out where an autoscaler sets it.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// autoscaling makes a HorizontalPodAutoscaler, which sets replicas. Default: none is made.
	// +optional
	Autoscaling *AutoscalingSpec `json:"autoscaling,omitempty"`

	// model is the model to serve.
	// +required
	Model ModelSpec `json:"model,omitempty,omitzero"`

	// modelCache is a volume claim into which model and draft are downloaded once for all pods, before they are made.
	// Default: each pod downloads for itself, into a folder that lives as long as the pod.
	// +optional
	ModelCache *ModelCacheSpec `json:"modelCache,omitempty"`

	// parallelism is how one replica is spread over devices.
	// +optional
	// +kubebuilder:default={}
	Parallelism ParallelismSpec `json:"parallelism,omitempty,omitzero"`

	// speculation is how tokens are drafted ahead of the model. The text that comes out is the same with any setting.
	// +optional
	// +kubebuilder:default={}
	Speculation SpeculationSpec `json:"speculation,omitempty,omitzero"`

	// nccl tunes the collectives between GPUs. Default: what NCCL chooses itself. On CPU it has no effect.
	// +optional
	NCCL *NCCLSpec `json:"nccl,omitempty"`

	// kvCache is the memory in which the engine keeps keys and values.
	// +optional
	KVCache *KVCacheSpec `json:"kvCache,omitempty"`

	// device is what the engine computes on: CUDA (NVIDIA GPUs, one for each rank), CPU, or Auto, which is CUDA where
	// the engine is built for it and finds GPUs, and otherwise CPU. Default Auto.
	// +optional
	Device Device `json:"device,omitempty"`

	// resources are the engine container's requests and limits, for the engine alone: the operator adds the
	// shared memory of the ranks (256 MiB for each, when parallelism.tensor is above 1) to the memory in both.
	// Default: none.
	// +optional
	Resources *Resources `json:"resources,omitempty"`

	// rollout is how pods are replaced when the spec changes.
	// +optional
	Rollout *RolloutSpec `json:"rollout,omitempty"`

	// health is how pods are probed, and when their tries end.
	// +optional
	Health *HealthSpec `json:"health,omitempty"`

	// image is the engine's container image. Default: the image that the operator was started with: --engine-image,
	// or --cuda-engine-image where device is CUDA, or resources.limits has nvidia.com/gpu or another resource of
	// nvidia.com and device is not CPU.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	Image string `json:"image,omitempty"`

	// imagePullPolicy is Always, IfNotPresent or Never. Default IfNotPresent.
	// +optional
	// +kubebuilder:default=IfNotPresent
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// imagePullSecrets are names of Secrets with credentials of image registries, at most 8. Default: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`

	// scheduling is where the pods may run.
	// +optional
	Scheduling *SchedulingSpec `json:"scheduling,omitempty"`

	// podMetadata are labels and annotations of the pods.
	// +optional
	PodMetadata *PodMetadata `json:"podMetadata,omitempty"`

	// service is how clients reach the pods.
	// +optional
	Service *ServiceSpec `json:"service,omitempty"`

	// security is who may use the server and as whom it runs.
	// +optional
	Security *SecuritySpec `json:"security,omitempty"`

	// networkPolicy makes a NetworkPolicy for the pods. Default: none is made.
	// +optional
	NetworkPolicy *NetworkPolicySpec `json:"networkPolicy,omitempty"`

	// monitoring makes a PodMonitor for the pods. Default: none is made.
	// +optional
	Monitoring *MonitoringSpec `json:"monitoring,omitempty"`

	// routing makes an InferencePool and an HTTPRoute for the pods. Default: none is made.
	// +optional
	Routing *RoutingSpec `json:"routing,omitempty"`

	// disruption makes a PodDisruptionBudget for the pods. Default: none is made.
	// +optional
	Disruption *DisruptionSpec `json:"disruption,omitempty"`

	// extraEnv are further environment variables of the engine, at most 64. Names that a field of this resource sets
	// are refused. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	ExtraEnv []EnvVar `json:"extraEnv,omitempty"`

	// extraArgs are further flags of the engine as --name=value, at most 32. Flags that a field of this resource or the
	// operator sets are refused. Default: none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.matches('(?s)^--[a-z][a-z0-9-]*(=.*)?$'))",message="write each flag as --name=value, or --name alone, one an item, for example --max-running-requests=64"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !(a.split('=')[0] in ['--model','--served-model-name','--context-length','--tp-size','--nnodes','--node-rank','--dist-init-addr','--dist-secret-file','--draft-model','--device','--page-size','--mem-fraction-static','--max-total-tokens','--stall-timeout','--drain-timeout','--api-key-file','--tls-cert-file','--tls-key-file','--dtype','--quantization','--kv-cache-dtype','--download-dir','--hf-token-file','--host','--port','--admin-host','--admin-port','--admin-token-file','--termination-log']) && !a.startsWith('--speculative-') && !a.startsWith('--nccl-'))",message="a flag that a field of this resource sets, or the operator: use the field, and leave out --host, --port, --admin-host, --admin-port, --admin-token-file, --download-dir and --termination-log"
	ExtraArgs []string `json:"extraArgs,omitempty"`

	// extraVolumes are further volumes of the engine, at most 16. Default: none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(v, self.exists_one(w, w.mountPath == v.mountPath))",message="two volumes have one mountPath: write another for each"
	ExtraVolumes []Volume `json:"extraVolumes,omitempty"`
}

// ParallelismSpec is how one replica is spread over devices.
// +kubebuilder:validation:XValidation:rule="!has(self.nodes) || !has(self.tensor) || self.tensor % self.nodes == 0",message="each node has as many ranks: write a tensor that is a multiple of nodes"
// +kubebuilder:validation:XValidation:rule="(has(self.nodes) && self.nodes > 1) == (has(oldSelf.nodes) && oldSelf.nodes > 1)",message="nodes cannot change between one and several, whose pods are others: make another server, and delete this one when that one serves"
// +kubebuilder:validation:XValidation:rule="!has(self.nodeSecretRef) || (has(self.nodes) && self.nodes > 1)",message="nodeSecretRef is for replicas of several nodes: set nodes above 1, or leave it out"
type ParallelismSpec struct {
	// tensor is the tensor parallel degree: the ranks that share each layer, one device each (on CPU, a thread
	// group). Default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Tensor *int32 `json:"tensor,omitempty"`

	// nodes is how many pods, each on a node of its own if there are devices, share the ranks of one replica, as many
	// each; resources and limits are those of one pod. Above 1 the replicas are groups of a LeaderWorkerSet, whose
	// controller (leaderworkerset.x-k8s.io/v1) must be there. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Nodes *int32 `json:"nodes,omitempty"`

	// nodeSecretRef is the key of a Secret with 8 to 4096 bytes that the nodes of a replica prove to each other to have;
	// they are read when a replica starts. Default: a random secret that the operator makes, in a Secret with the
	// server's name and -nodes. With nodes above 1 only.
	// +optional
	NodeSecretRef *SecretKeyRef `json:"nodeSecretRef,omitempty"`
}

// SpeculationAlgorithm is how tokens are drafted.
// +kubebuilder:validation:Enum=EAGLE3;NGram;DraftModel;None
type SpeculationAlgorithm string

// The algorithms.
const (
	// AlgorithmEAGLE3 drafts with an EAGLE-3 head over the target's hidden states.
	AlgorithmEAGLE3 SpeculationAlgorithm = "EAGLE3"
	// AlgorithmNGram drafts what followed the last tokens where they were before in the text.
	AlgorithmNGram SpeculationAlgorithm = "NGram"
	// AlgorithmDraftModel drafts with a small model of the same vocabulary.
	AlgorithmDraftModel SpeculationAlgorithm = "DraftModel"
	// AlgorithmNone decodes plainly: one token a step.
	AlgorithmNone SpeculationAlgorithm = "None"
)

// SpeculationSpec is how tokens are drafted ahead of the model.
//
// +kubebuilder:validation:XValidation:rule="!has(self.algorithm) || self.algorithm != 'NGram' || ((!has(self.topK) || self.topK == 1) && !has(self.draft))",message="NGram drafts chains without a model: leave topK and draft out"
// +kubebuilder:validation:XValidation:rule="!has(self.algorithm) || self.algorithm != 'DraftModel' || (has(self.draft) && !has(self.draft.source.builtin))",message="DraftModel needs a model to draft with: set draft.source to its files: pvc, image, hostPath, huggingFace or s3"
// +kubebuilder:validation:XValidation:rule="!has(self.nGram) || (has(self.algorithm) && self.algorithm == 'NGram')",message="nGram is for algorithm NGram: leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || !has(self.numSteps) || self.topK > 16 || self.numSteps > 16 || self.topK * (self.numSteps - 1) <= 64",message="topK times numSteps less one is above 64, the nodes that a tree may expand: write a smaller topK or numSteps"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || self.topK <= 1 || !has(self.numSteps) || self.numSteps < 1 || !has(self.numDraftTokens) || self.numDraftTokens > 64 || self.numDraftTokens <= 1 + self.topK + (self.numSteps - 1) * self.topK * self.topK",message="numDraftTokens is more than the trees of topK and numSteps have: write at most 1 + topK + (numSteps - 1) * topK * topK"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || self.topK != 1 || !has(self.numSteps) || !has(self.numDraftTokens) || self.numDraftTokens == self.numSteps + 1",message="with topK 1, its default, numDraftTokens must be numSteps + 1: leave numDraftTokens out, which means that"
// +kubebuilder:validation:XValidation:rule="!has(self.adaptation) || !has(self.adaptation.maxSteps) || !has(self.numSteps) || self.adaptation.maxSteps <= self.numSteps",message="adaptation.maxSteps is above numSteps, which the engine has made room for: raise numSteps, or lower adaptation.maxSteps"
// +kubebuilder:validation:XValidation:rule="!has(self.adaptation) || !has(self.adaptation.minSteps) || !has(self.numSteps) || self.adaptation.minSteps <= self.numSteps",message="adaptation.minSteps is above numSteps, which the engine has made room for: raise numSteps, or lower adaptation.minSteps"
type SpeculationSpec struct {
	// algorithm is EAGLE3 (a draft head over the model's hidden states), DraftModel (a small model of the same
	// vocabulary), NGram (what followed the last tokens where they were before in the text, without a draft model) or
	// None (plain decoding: no draft is loaded and the other fields have no effect, so that one can compare without
	// losing them; the condition SpeculationActive names those that are set). Default EAGLE3.
	// +optional
	// +kubebuilder:default=EAGLE3
	Algorithm SpeculationAlgorithm `json:"algorithm,omitempty"`

	// draft is the draft head or model. Default: the builtin model's own head; any other model has none.
	// +optional
	Draft *DraftSpec `json:"draft,omitempty"`

	// numSteps is how many tokens after each other a cycle drafts, one draft step each. More is not better: each costs
	// a step of the draft and a row of verification. Default 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	NumSteps *int32 `json:"numSteps,omitempty"`

	// topK is how many candidates each draft step branches into, from each of as many nodes. Default 1, a chain; more
	// is a tree, which accepts more and costs topK rows in each draft step.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	TopK *int32 `json:"topK,omitempty"`

	// numDraftTokens is how many tokens one verification covers, the last accepted one included: the best nodes of a
	// tree. Default numSteps + 1, and nothing else with topK 1; of trees at least 8, if they have as many.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=64
	NumDraftTokens *int32 `json:"numDraftTokens,omitempty"`

	// nGram is what algorithm NGram looks for.
	// +optional
	NGram *NGramSpec `json:"nGram,omitempty"`

	// adaptation is how the depth of drafts follows the load. Default: each engine chooses by what it measures, up to
	// numSteps, and the operator leaves it be.
	// +optional
	Adaptation *AdaptationSpec `json:"adaptation,omitempty"`

	// onDraftFailure is what happens when the draft does not fit the model or is not there: Serve (the pods serve
	// without it, and SpeculationActive says why) or Fail. Default Serve.
	// +optional
	// +kubebuilder:validation:Enum=Serve;Fail
	OnDraftFailure string `json:"onDraftFailure,omitempty"`
}

// AdaptationMode is who decides how deep drafts are.
// +kubebuilder:validation:Enum=Fixed;Auto;Off
type AdaptationMode string

// The modes.
const (
	// AdaptationFixed drafts numSteps, always.
	AdaptationFixed AdaptationMode = "Fixed"
	// AdaptationAuto lets each engine choose by what it measures, within bounds that the operator sets by the load of
	// all replicas.
	AdaptationAuto AdaptationMode = "Auto"
	// AdaptationOff decodes plainly; the draft stays loaded.
	AdaptationOff AdaptationMode = "Off"
)

// AdaptationSpec is how the depth of drafts follows the load. A change takes
// effect at once, and restarts nothing.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minSteps) || !has(self.maxSteps) || self.minSteps <= self.maxSteps",message="minSteps is above maxSteps: write minSteps at most maxSteps"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode == 'Auto' || (!has(self.minSteps) && !has(self.maxSteps) && !has(self.objective) && !has(self.maxInterTokenMilliseconds))",message="minSteps, maxSteps, objective and maxInterTokenMilliseconds are for mode Auto: write mode: Auto, or leave them out"
type AdaptationSpec struct {
	// mode is Auto (each engine chooses by what it measures, plain decoding included, within bounds that the operator
	// sets by the load of all replicas), Fixed (always numSteps) or Off (plain decoding; the draft stays loaded).
	// Default Auto.
	// +optional
	Mode AdaptationMode `json:"mode,omitempty"`

	// minSteps is the least depth; 0 allows plain decoding. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	MinSteps *int32 `json:"minSteps,omitempty"`

	// maxSteps is the greatest depth, at most numSteps. Default numSteps.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	MaxSteps *int32 `json:"maxSteps,omitempty"`

	// objective is Throughput (drafts make way when requests queue and drafting gains little) or Latency (they do
	// not). Default Throughput.
	// +optional
	// +kubebuilder:validation:Enum=Throughput;Latency
	Objective string `json:"objective,omitempty"`

	// maxInterTokenMilliseconds is the mean time between tokens above which drafts that gain little make way.
	// Default: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=60000
	MaxInterTokenMilliseconds *int32 `json:"maxInterTokenMilliseconds,omitempty"`
}

// NGramSpec is which runs of tokens NGram looks for in the text, the longest first.
//
// +kubebuilder:validation:XValidation:rule="(has(self.minMatchWindow) ? self.minMatchWindow : 2) <= (has(self.maxMatchWindow) ? self.maxMatchWindow : 64)",message="minMatchWindow (default 2) is above maxMatchWindow: write minMatchWindow at most maxMatchWindow"
type NGramSpec struct {
	// minMatchWindow is the shortest run, in tokens. Default 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MinMatchWindow *int32 `json:"minMatchWindow,omitempty"`

	// maxMatchWindow is the longest run, in tokens. Default 8, or minMatchWindow if that is more.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxMatchWindow *int32 `json:"maxMatchWindow,omitempty"`
}

// DraftSpec is a draft head or model.
type DraftSpec struct {
	// source is where its files come from.
	// +required
	Source DraftSource `json:"source,omitempty,omitzero"`
}

// DraftSource is where the files of a draft head or model come from: exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="[has(self.builtin), has(self.pvc), has(self.image), has(self.hostPath), has(self.huggingFace), has(self.s3)].filter(x, x).size() == 1",message="set exactly one of builtin, pvc, image, hostPath, huggingFace and s3"
type DraftSource struct {
	// builtin is a draft head inside the engine's image.
	// +optional
	Builtin *BuiltinDraft `json:"builtin,omitempty"`

	// pvc is a folder in a volume claim of the same namespace, mounted read-only.
	// +optional
	PVC *ClaimSource `json:"pvc,omitempty"`

	// image is an OCI image or artifact that the node mounts read-only.
	// +optional
	Image *ImageSource `json:"image,omitempty"`

	// hostPath is a folder on the node, mounted read-only.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`

	// huggingFace is a repository of a model hub, which is downloaded as that of the model.
	// +optional
	HuggingFace *HubSource `json:"huggingFace,omitempty"`

	// s3 is a folder of an object store, which is downloaded likewise.
	// +optional
	S3 *S3Source `json:"s3,omitempty"`
}

// BuiltinDraft names a draft head inside the engine's image.
type BuiltinDraft struct {
	// name is gocode-7m-eagle3, the head of gocode-7m.
	// +required
	// +kubebuilder:validation:Enum=gocode-7m-eagle3
	Name string `json:"name,omitempty"`
}

// NCCLSpec tunes NVIDIA's collective library; each field is the environment
// variable named with it, and is left to NCCL when absent.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minChannels) || !has(self.maxChannels) || self.minChannels <= self.maxChannels",message="minChannels is above maxChannels: write minChannels at most maxChannels"
type NCCLSpec struct {
	// algorithm is NCCL_ALGO: Ring, Tree, CollnetDirect, CollnetChain, NVLS, NVLSTree or PAT. Default: NCCL chooses.
	// +optional
	// +kubebuilder:validation:Enum=Ring;Tree;CollnetDirect;CollnetChain;NVLS;NVLSTree;PAT
	Algorithm string `json:"algorithm,omitempty"`

	// protocol is NCCL_PROTO: LL (lowest latency), LL128 or Simple (most bandwidth). Default: NCCL chooses.
	// +optional
	// +kubebuilder:validation:Enum=LL;LL128;Simple
	Protocol string `json:"protocol,omitempty"`

	// p2pLevel is NCCL_P2P_LEVEL, the farthest pair of GPUs that talk directly: LOC (none), NVL, PIX, PXB, PHB or SYS
	// (any). Default: NCCL chooses.
	// +optional
	// +kubebuilder:validation:Enum=LOC;NVL;PIX;PXB;PHB;SYS
	P2PLevel string `json:"p2pLevel,omitempty"`

	// minChannels is NCCL_MIN_NCHANNELS, the fewest channels a collective uses. Default: NCCL chooses.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MinChannels *int32 `json:"minChannels,omitempty"`

	// maxChannels is NCCL_MAX_NCHANNELS, the most channels a collective uses. Default: NCCL chooses.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxChannels *int32 `json:"maxChannels,omitempty"`

	// netDevices are NCCL_IB_HCA, the InfiniBand devices to use, at most 16, for example mlx5_0. Default: NCCL chooses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_.:=^-]+$`
	NetDevices []string `json:"netDevices,omitempty"`

	// socketInterface is NCCL_SOCKET_IFNAME, the network interface for what does not go over InfiniBand. Default: NCCL
	// chooses.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_.,:=^-]+$`
	SocketInterface string `json:"socketInterface,omitempty"`

	// debug is NCCL_DEBUG, what NCCL logs: VERSION, WARN, INFO or TRACE. Default: NCCL logs nothing.
	// +optional
	// +kubebuilder:validation:Enum=VERSION;WARN;INFO;TRACE
	Debug string `json:"debug,omitempty"`

	// extra are further variables of NCCL, at most 32, whose names begin with NCCL_ and have no field here. Default:
	// none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Extra []NCCLVar `json:"extra,omitempty"`
}

// NCCLVar is a variable of NCCL that has no field.
//
// +kubebuilder:validation:XValidation:rule="!(self.name in ['NCCL_ALGO','NCCL_PROTO','NCCL_P2P_LEVEL','NCCL_MIN_NCHANNELS','NCCL_MAX_NCHANNELS','NCCL_IB_HCA','NCCL_SOCKET_IFNAME','NCCL_DEBUG'])",messageExpression="self.name + ' has a field of its own: set that'"
type NCCLVar struct {
	// name is the variable's name.
	// +required
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^NCCL_[A-Z0-9_]+$`
	Name string `json:"name,omitempty"`

	// value is the variable's value, at most 1024 bytes. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Value string `json:"value,omitempty"`
}
