package failure

import (
	"regexp"
	"strings"
)

// Fields are the engine's flags and environment variables that fields of the spec
// set: the engine knows these only, and who reads the status writes fields.
var Fields = map[string]string{
	"--api-key-file":           "security.apiKeySecretRef",
	"--context-length":         "model.maxContextLength",
	"--device":                 "device",
	"--dist-secret-file":       "parallelism.nodeSecretRef",
	"--download-dir":           "modelCache",
	"--draft-model":            "speculation.draft",
	"--drain-timeout":          "rollout.drainSeconds",
	"--dtype":                  "model.dtype",
	"--hf-token-file":          "model.source.huggingFace.tokenSecretRef",
	"--kv-cache-dtype":         "kvCache.dtype",
	"--max-total-tokens":       "kvCache.maxTokens",
	"--mem-fraction-static":    "kvCache.memoryFraction",
	"--metrics-compat":         "routing.inferencePool",
	"--model":                  "model.source",
	"--page-size":              "kvCache.pageSize",
	"--quantization":           "model.quantization",
	"--served-model-name":      "model.servedName",
	"--speculative-algorithm":  "speculation.algorithm",
	"--speculative-eagle-topk": "speculation.topK",
	"--speculative-ngram-max-match-window-size": "speculation.nGram.maxMatchWindow",
	"--speculative-ngram-min-match-window-size": "speculation.nGram.minMatchWindow",
	"--speculative-num-draft-tokens":            "speculation.numDraftTokens",
	"--speculative-num-steps":                   "speculation.numSteps",
	"--stall-timeout":                           "health.stallTimeoutSeconds",
	"--tls-cert-file":                           "security.tlsSecretName",
	"--tls-key-file":                            "security.tlsSecretName",
	"--tp-size":                                 "parallelism.tensor",

	// The engine's names for what the operator sets as NCCL's variables, below.
	"--nccl-algorithm":    "nccl.algorithm",
	"--nccl-debug":        "nccl.debug",
	"--nccl-max-channels": "nccl.maxChannels",
	"--nccl-min-channels": "nccl.minChannels",
	"--nccl-p2p-level":    "nccl.p2pLevel",
	"--nccl-protocol":     "nccl.protocol",

	"AWS_ENDPOINT_URL":            "model.source.s3.endpoint",
	"AWS_REGION":                  "model.source.s3.region",
	"AWS_SHARED_CREDENTIALS_FILE": "model.source.s3.credentialsSecretRef",
	"HF_ENDPOINT":                 "model.source.huggingFace.endpoint",
	"NCCL_ALGO":                   "nccl.algorithm",
	"NCCL_DEBUG":                  "nccl.debug",
	"NCCL_IB_HCA":                 "nccl.netDevices",
	"NCCL_MAX_NCHANNELS":          "nccl.maxChannels",
	"NCCL_MIN_NCHANNELS":          "nccl.minChannels",
	"NCCL_P2P_LEVEL":              "nccl.p2pLevel",
	"NCCL_PROTO":                  "nccl.protocol",
	"NCCL_SOCKET_IFNAME":          "nccl.socketInterface",
}

// settingPattern takes a flag or a variable, with the value that it is shown with.
var settingPattern = regexp.MustCompile(`(?:--[a-z][a-z0-9-]*|\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b)(?:=[^\s,;"')]*[^\s,;:."')])?`)

// withFields puts behind the first mention of each of Fields, and the value there,
// the field that sets it.
func withFields(message string) string {
	said := map[string]bool{}
	return settingPattern.ReplaceAllStringFunc(message, func(setting string) string {
		name, _, _ := strings.Cut(setting, "=")
		field := Fields[name]
		if field == "" || said[name] {
			return setting
		}
		said[name] = true
		return setting + " (spec." + field + ")"
	})
}
