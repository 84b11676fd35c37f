package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=".status.message"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 52 && !self.metadata.name.contains('.') && self.metadata.name >= 'a'",message="metadata.name also names the Service and the Pods: write at most 52 of a-z, 0-9 and '-', a letter first"
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

// SpeculativeServerSpec says what to serve and how. Every field but replicas
// needs a restart of the pods when it changes; they are then replaced one at a
// time, those that are not ready first.
//
// +kubebuilder:validation:XValidation:rule="!has(self.speculation.algorithm) || self.speculation.algorithm != 'EAGLE3' || has(self.model.source.builtin) || has(self.speculation.draft)",message="EAGLE3 needs a draft head for a model from hostPath: set speculation.draft.source to it, or write speculation.algorithm: NGram or None"
type SpeculativeServerSpec struct {
	// replicas is how many pods serve the model, each with a whole copy of it. Default 1; 0 stops serving.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// model is the model to serve.
	// +required
	Model ModelSpec `json:"model,omitempty,omitzero"`

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

	// image is the engine's container image. Default: the image that the operator was started with (--engine-image).
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

	// extraEnv are further environment variables of the engine, at most 64. Names that a field of this resource
	// sets are refused.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	ExtraEnv []EnvVar `json:"extraEnv,omitempty"`
}

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
}

// ModelSource is where a model's files come from: exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="(has(self.builtin) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) == 1",message="set exactly one of builtin and hostPath"
type ModelSource struct {
	// builtin is a model inside the engine's image, with its draft head.
	// +optional
	Builtin *BuiltinModel `json:"builtin,omitempty"`

	// hostPath is a folder on the node, mounted read-only. Namespaces that enforce the baseline or restricted Pod
	// Security Standard refuse such pods.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`
}

// BuiltinModel names a model inside the engine's image.
type BuiltinModel struct {
	// name is gocode-7m, a small model of Go code.
	// +required
	// +kubebuilder:validation:Enum=gocode-7m
	Name string `json:"name,omitempty"`
}

// HostPath is a folder on the node.
type HostPath struct {
	// path is the folder's absolute path on the node, at most 1024 bytes, without "..". Files must be readable by
	// user 65532.
	// +required
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/') && !self.split('/').exists(e, e == '..')",message="write an absolute path without '..', for example /var/lib/models/llama"
	Path string `json:"path,omitempty"`
}

// ParallelismSpec is how one replica is spread over devices.
type ParallelismSpec struct {
	// tensor is the tensor parallel degree: the ranks that share each layer, one device each (on CPU, a thread
	// group). Default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Tensor *int32 `json:"tensor,omitempty"`
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
// +kubebuilder:validation:XValidation:rule="!has(self.algorithm) || self.algorithm != 'DraftModel' || (has(self.draft) && has(self.draft.source.hostPath))",message="DraftModel needs a model to draft with: set draft.source.hostPath to its folder"
// +kubebuilder:validation:XValidation:rule="!has(self.nGram) || (has(self.algorithm) && self.algorithm == 'NGram')",message="nGram is for algorithm NGram: leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || !has(self.numSteps) || self.topK * (self.numSteps - 1) <= 64",message="topK times numSteps less one is above 64, the nodes that a tree may expand: write a smaller topK or numSteps"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || self.topK == 1 || !has(self.numSteps) || !has(self.numDraftTokens) || self.numDraftTokens <= 1 + self.topK + (self.numSteps - 1) * self.topK * self.topK",message="numDraftTokens is more than the trees of topK and numSteps have: write at most 1 + topK + (numSteps - 1) * topK * topK"
// +kubebuilder:validation:XValidation:rule="!has(self.topK) || self.topK != 1 || !has(self.numSteps) || !has(self.numDraftTokens) || self.numDraftTokens == self.numSteps + 1",message="with topK 1, numDraftTokens must be numSteps + 1: leave numDraftTokens out, which means that"
type SpeculationSpec struct {
	// algorithm is EAGLE3 (a draft head over the model's hidden states), DraftModel (a small model of the same
	// vocabulary), NGram (what followed the last tokens where they were before in the text, without a draft model) or
	// None (plain decoding, no draft is loaded and the other fields have no effect). Default EAGLE3.
	// +optional
	// +kubebuilder:default=EAGLE3
	Algorithm SpeculationAlgorithm `json:"algorithm,omitempty"`

	// draft is the draft head or model. Default: the builtin model's own head; a model from hostPath has none.
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
}

// NGramSpec is which runs of tokens NGram looks for in the text, the longest first.
//
// +kubebuilder:validation:XValidation:rule="(has(self.minMatchWindow) ? self.minMatchWindow : 2) <= (has(self.maxMatchWindow) ? self.maxMatchWindow : 64)",message="minMatchWindow (default 2) is above maxMatchWindow: write minMatchWindow at most maxMatchWindow"
type NGramSpec struct {
	// minMatchWindow is the shortest run. Default 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MinMatchWindow *int32 `json:"minMatchWindow,omitempty"`

	// maxMatchWindow is the longest run. Default 8, or minMatchWindow if that is more.
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
// +kubebuilder:validation:XValidation:rule="(has(self.builtin) ? 1 : 0) + (has(self.hostPath) ? 1 : 0) == 1",message="set exactly one of builtin and hostPath"
type DraftSource struct {
	// builtin is a draft head inside the engine's image.
	// +optional
	Builtin *BuiltinDraft `json:"builtin,omitempty"`

	// hostPath is a folder on the node, mounted read-only.
	// +optional
	HostPath *HostPath `json:"hostPath,omitempty"`
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
	// algorithm is NCCL_ALGO: Ring, Tree, CollnetDirect, CollnetChain, NVLS, NVLSTree or PAT.
	// +optional
	// +kubebuilder:validation:Enum=Ring;Tree;CollnetDirect;CollnetChain;NVLS;NVLSTree;PAT
	Algorithm string `json:"algorithm,omitempty"`

	// protocol is NCCL_PROTO: LL (lowest latency), LL128 or Simple (most bandwidth).
	// +optional
	// +kubebuilder:validation:Enum=LL;LL128;Simple
	Protocol string `json:"protocol,omitempty"`

	// p2pLevel is NCCL_P2P_LEVEL, the farthest pair of GPUs that talk directly: LOC (none), NVL, PIX, PXB, PHB or
	// SYS (any).
	// +optional
	// +kubebuilder:validation:Enum=LOC;NVL;PIX;PXB;PHB;SYS
	P2PLevel string `json:"p2pLevel,omitempty"`

	// minChannels is NCCL_MIN_NCHANNELS, the fewest channels a collective uses.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MinChannels *int32 `json:"minChannels,omitempty"`

	// maxChannels is NCCL_MAX_NCHANNELS, the most channels a collective uses.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxChannels *int32 `json:"maxChannels,omitempty"`

	// debug is NCCL_DEBUG, what NCCL logs: VERSION, WARN, INFO or TRACE.
	// +optional
	// +kubebuilder:validation:Enum=VERSION;WARN;INFO;TRACE
	Debug string `json:"debug,omitempty"`
}

// Resources are a container's requests and limits.
type Resources struct {
	// requests are what the scheduler sets aside, at most 16 kinds.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Requests map[corev1.ResourceName]resource.Quantity `json:"requests,omitempty"`

	// limits are what the container may use at most, at most 16 kinds.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Limits map[corev1.ResourceName]resource.Quantity `json:"limits,omitempty"`
}

// EnvVar is an environment variable with a literal value.
//
// +kubebuilder:validation:XValidation:rule="!(self.name in ['NCCL_ALGO','NCCL_PROTO','NCCL_P2P_LEVEL','NCCL_MIN_NCHANNELS','NCCL_MAX_NCHANNELS','NCCL_DEBUG'])",messageExpression="self.name + ' has a field of its own: set it under spec.nccl'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_MODEL','OUTRIDER_SERVED_MODEL_NAME','OUTRIDER_CONTEXT_LENGTH'])",messageExpression="self.name + ' has a field of its own: set it under spec.model'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_TP_SIZE'])",messageExpression="self.name + ' has a field of its own: set spec.parallelism.tensor'"
// +kubebuilder:validation:XValidation:rule="!(self.name == 'OUTRIDER_DRAFT_MODEL' || self.name.startsWith('OUTRIDER_SPECULATIVE_'))",messageExpression="self.name + ' has a field of its own: set it under spec.speculation'"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['OUTRIDER_HOST','OUTRIDER_PORT','OUTRIDER_ADMIN_HOST','OUTRIDER_ADMIN_PORT','OUTRIDER_DRAIN_TIMEOUT','OUTRIDER_TERMINATION_LOG','OUTRIDER_STALL_TIMEOUT'])",messageExpression="self.name + ' is set by the operator, whose probes and Service rely on it: leave it out'"
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
}
