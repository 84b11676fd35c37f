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
	TPSize             int       `json:"tp_size"`
	VocabSize          int       `json:"vocab_size"`
	ContextLength      int       `json:"context_length"`
	PageSize           int       `json:"page_size"`
	KVPagesTotal       int       `json:"kv_pages_total"`
	KVPagesFree        int       `json:"kv_pages_free"`
	MaxRunningRequests int       `json:"max_running_requests"`
	Algorithm          string    `json:"speculative_algorithm"`
	NumSteps           int       `json:"speculative_num_steps"`
	TopK               int       `json:"speculative_eagle_topk"`
	NumDraftTokens     int       `json:"speculative_num_draft_tokens"`
}
