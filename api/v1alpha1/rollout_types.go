package v1alpha1

// RolloutSpec is how pods of another revision are replaced, and how long the
// steps of it may take.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxUnavailable) || self.maxUnavailable > 0 || (has(self.maxSurge) && self.maxSurge > 0)",message="with maxUnavailable 0 a rollout needs room for one more pod: write maxSurge: 1, or leave maxUnavailable out"
type RolloutSpec struct {
	// maxUnavailable is how many of the replicas asked for may be missing at once while pods are replaced. Default 1,
	// or 0 when maxSurge is set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable *int32 `json:"maxUnavailable,omitempty"`

	// maxSurge is how many pods more than asked for a rollout may make, and so how many spare sets of devices it may
	// take. They are made first, and deleted when the rollout ends. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxSurge *int32 `json:"maxSurge,omitempty"`

	// waitForIdleSeconds is how long a rollout waits for a moment in which a ready pod has no request before it
	// deletes the pod all the same. Default 0: it does not wait, and requests have the drain time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	WaitForIdleSeconds *int32 `json:"waitForIdleSeconds,omitempty"`

	// drainSeconds is how long running requests may go on in a pod that is being stopped; the pod's grace period
	// follows from it. Default 30.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`

	// loadBudgetSeconds is how long a pod that fetches, loads or warms up may go without any progress before it is
	// restarted. Each byte begins it anew, so a load may take as long as it needs. Default 600.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	LoadBudgetSeconds *int32 `json:"loadBudgetSeconds,omitempty"`
}

// HealthSpec is how a pod is found to be well.
type HealthSpec struct {
	// deepProbe is the operator's own probe, which makes the model generate.
	// +optional
	DeepProbe *DeepProbeSpec `json:"deepProbe,omitempty"`

	// stallTimeoutSeconds is how long one step of the engine may take; a longer one is a stall, which ends the engine
	// with exit code 15. Default 60.
	// +optional
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=3600
	StallTimeoutSeconds *int32 `json:"stallTimeoutSeconds,omitempty"`

	// crashBudget is how many crashes in a row, without ten minutes of serving between, end the tries: the pod is
	// then Failed, and stays for its log; one of several nodes goes, with its group. Ends from outside (evictions, a
	// source that is not reached) are not final. 0 is no end. Default 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	CrashBudget *int32 `json:"crashBudget,omitempty"`
}

// DeepProbeSpec is the operator's own probe.
type DeepProbeSpec struct {
	// intervalSeconds is the time between two probes of a pod that serves. Default: the operator's --probe-interval,
	// one minute.
	// +optional
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// timeoutSeconds is how long the model may take to generate a few tokens. Two probes in a row that fail take the
	// pod out of the Service. Default 30.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=600
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}
