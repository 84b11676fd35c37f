package telemetry

import "time"

// Info are the facts of an engine, the answer of /server_info.
type Info struct {
	Version            string    `json:"version"`
	StartTime          time.Time `json:"start_time"`
	Model              string    `json:"model"`
	ServedModelName    string    `json:"served_model_name"`
	DraftModel         string    `json:"draft_model,omitempty"`
	Device             string    `json:"device"`
	DeviceReason       string    `json:"device_reason"`   // why that device: with --device auto, why not a GPU
	Links              string    `json:"links,omitempty"` // how the ranks' devices meet
	GPUs               []GPU     `json:"gpus,omitempty"`  // of this process, by rank; left out where NVML does not tell
	TPSize             int       `json:"tp_size"`
	Nodes              int       `json:"nnodes"`
	Node               int       `json:"node_rank"`
	VocabSize          int       `json:"vocab_size"`
	ContextLength      int       `json:"context_length"`
	PageSize           int       `json:"page_size"`
	KVCacheDType       string    `json:"kv_cache_dtype"`
	KVPagesTotal       int       `json:"kv_pages_total"`
	KVPagesFree        int       `json:"kv_pages_free"`
	MaxRunningRequests int       `json:"max_running_requests"`
	MaxQueuedRequests  int       `json:"max_queued_requests"`
	ChunkedPrefillSize int       `json:"chunked_prefill_size"`
	Algorithm          string    `json:"speculative_algorithm"`
	NumSteps           int       `json:"speculative_num_steps"`
	TopK               int       `json:"speculative_eagle_topk"`
	NumDraftTokens     int       `json:"speculative_num_draft_tokens"`
}

// GPU is what NVML says of a device.
type GPU struct {
	Name  string   `json:"name"`
	UUID  string   `json:"uuid"`
	PCI   string   `json:"pci_bus_id"`
	Links []string `json:"links,omitempty"` // to each of this process's GPUs: self, nvlink, pcie-board, pcie-switch, pcie-host, numa-node, system
}

// Speculation is how an engine speculates now, the answer of /v1/speculation.
type Speculation struct {
	Mode     string    `json:"mode"`           // auto, fixed or off
	MinSteps int       `json:"min_steps"`      // bounds of mode auto
	MaxSteps int       `json:"max_steps"`      // also the depth of mode fixed
	NumSteps int       `json:"num_steps"`      // in force: 0 is plain decoding
	Reason   string    `json:"reason"`         // of the last choice: goodput, probe, fixed, off, bounds, draft does not help
	Since    time.Time `json:"since,omitzero"` // when num_steps changed
	Gain     float64   `json:"gain,omitzero"`  // estimated tokens in a second over those of plain decoding, in the last cycle; left out before the first
	Switches int       `json:"switches"`       // between plain decoding and speculation, by choice, probes left out
	Probes   int       `json:"probes"`         // short trials of another depth
	Useless  bool      `json:"useless"`        // hardly any draft token is accepted, at any depth
}
