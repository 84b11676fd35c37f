package main

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/chat/answer"
	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch"
	"github.com/outrider-dev/outrider/engine/server"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// defaultModel is what serve serves unless told otherwise.
const defaultModel = fetch.Builtin + "gocode-7m"

// envPrefix begins the environment variable of each flag.
const envPrefix = "OUTRIDER_"

// options are the flags of serve. What the engine checks itself is not checked
// here.
type options struct {
	engine       engine.Config
	host         string
	adminHost    string
	port         int
	adminPort    int
	adminOnly    bool
	adminTokens  string // file
	drainTimeout time.Duration
	apiKeyFile   string
	logLevel     string

	chatTemplate    string // file
	toolParser      string
	reasoningParser string

	tlsCert, tlsKey string // files
	logRequests     string
	logFormat       string
	metricsCompat   string
	otlpEndpoint    string
	otlpShare       float64

	hubTokenFile   string
	distSecretFile string
	inSet          bool // a LeaderWorkerSet gives this process its place

	flags *pflag.FlagSet
	env   map[string]string // flag name to variable, of the flags that the environment set
}

func newOptions(f *pflag.FlagSet) *options {
	o := &options{flags: f, env: map[string]string{}}
	c := &o.engine
	f.SortFlags = false
	f.StringVar(&c.Model, "model", defaultModel, "model `reference`: a folder in Hugging Face layout, hf://OWNER/NAME[@REVISION], s3://BUCKET/PREFIX, or builtin:NAME")
	f.StringVar(&c.DraftModel, "draft-model", "", "`reference` of the draft head or model; a builtin model brings its own head")
	f.StringVar(&c.DownloadDir, "download-dir", "", "`folder` that models of hf:// and s3:// are downloaded into, and kept in; by default outrider/models in the user's cache folder")
	f.StringVar(&o.hubTokenFile, "hf-token-file", "", "`file` with the access token of hf://; by default HF_TOKEN is the token")
	f.StringVar(&c.ServedModelName, "served-model-name", "", "`name` that clients call the model; by default the last part of --model")
	f.StringVar(&o.chatTemplate, "chat-template", "", "`file` with a Jinja chat template; by default the model's own")
	f.StringVar(&o.toolParser, "tool-call-parser", server.ParserAuto, "how the model writes calls of tools: auto (by its chat template), none, "+strings.Join(answer.ToolFormats(), ", "))
	f.StringVar(&o.reasoningParser, "reasoning-parser", server.ParserAuto, "how the model writes reasoning: auto (by its chat template), none or think (between <think> and </think>)")
	f.StringVar(&c.DType, "dtype", engine.FormatAuto, "number format of the computation: auto (the device's), bfloat16 or float32; one that the device does not compute in is refused")
	f.StringVar(&c.Quantization, "quantization", engine.FormatAuto, "how the model's files code weights: auto (as they say), none, compressed-tensors or fp8; anything else than what they say is refused")
	f.StringVar(&c.KVCacheDType, "kv-cache-dtype", engine.FormatAuto, "number format of the KV cache: auto (float8 if the model's files are made for it, otherwise that of the computation), bfloat16 or float32 (that of the computation, or refused), fp8 or fp8_e4m3 (float8, with the files' scales or 1)")
	f.StringVar(&c.Device, "device", "auto", "auto, cpu or cuda: auto takes GPUs where the binary has CUDA and there is one for each rank that it can compute on, otherwise the CPU")
	f.IntVar(&c.TPSize, "tp-size", 1, "tensor parallel ranks")
	f.StringVar(&c.AllReduce, "all-reduce", engine.AllReduceAuto, "who adds up over GPUs: auto (for each size what is fastest at start), nccl or host")
	f.StringVar(&c.NCCL.Algorithm, "nccl-algorithm", "", "NCCL_ALGO: "+strings.Join(collective.NCCLAlgorithms, ", ")+"; by default the environment's, or what NCCL chooses")
	f.StringVar(&c.NCCL.Protocol, "nccl-protocol", "", "NCCL_PROTO: "+strings.Join(collective.NCCLProtocols, ", "))
	f.StringVar(&c.NCCL.P2PLevel, "nccl-p2p-level", "", "NCCL_P2P_LEVEL, the farthest pair of GPUs that talk directly: "+strings.Join(collective.NCCLP2PLevels, ", ")+"; LOC also keeps --all-reduce auto to NCCL")
	f.IntVar(&c.NCCL.MinChannels, "nccl-min-channels", 0, "NCCL_MIN_NCHANNELS, the fewest channels of a collective")
	f.IntVar(&c.NCCL.MaxChannels, "nccl-max-channels", 0, "NCCL_MAX_NCHANNELS, the most channels of a collective")
	f.StringVar(&c.NCCL.Debug, "nccl-debug", "", "NCCL_DEBUG, what NCCL prints: "+strings.Join(collective.NCCLDebugs, ", "))
	f.DurationVar(&c.CollectiveTimeout, "collective-timeout", 30*time.Second, "a GPU that waits longer for the others ends the process")
	f.IntVar(&c.Nodes, "nnodes", 1, "processes that share the ranks, as many each; by default LWS_GROUP_SIZE in a LeaderWorkerSet")
	f.IntVar(&c.Node, "node-rank", 0, "number of this process, from 0 on; node 0 decides and serves; by default LWS_WORKER_INDEX in a LeaderWorkerSet")
	f.StringVar(&c.Leader, "dist-init-addr", "", "`host:port` at which node 0 listens for the others; by default port 8002 of LWS_LEADER_ADDRESS in a LeaderWorkerSet")
	f.StringVar(&o.distSecretFile, "dist-secret-file", "", "`file` with a secret that nodes prove to each other to have; without one whoever reaches --dist-init-addr may join")
	f.DurationVar(&c.JoinTimeout, "dist-timeout", 10*time.Minute, "time for all nodes to be there")
	f.DurationVar(&c.NodeTimeout, "dist-node-timeout", 10*time.Second, "a node without a sign of life for so long is lost, and ends the others")
	f.BoolVar(&c.CheckRanks, "check-ranks", false, "have the ranks compare each pass before they compute it; one that differs ends all processes")
	f.StringVar(&o.host, "host", "127.0.0.1", "`address` of the public port; 0.0.0.0 for all")
	f.IntVar(&o.port, "port", 8000, "public port: OpenAI API and health")
	f.StringVar(&o.adminHost, "admin-host", "", "`address` of the admin port; by default --host")
	f.IntVar(&o.adminPort, "admin-port", 8001, "admin port: health, metrics, progress, drain, pprof")
	f.BoolVar(&o.adminOnly, "admin-only", false, "keep /metrics, /progress and /server_info off the public port")
	f.StringVar(&o.adminTokens, "admin-token-file", "", "`file` of tokens, one a line, that the admin port asks for, but for health, /metrics and /progress; read again when it changes")
	f.StringVar(&c.Algorithm, "speculative-algorithm", "", "eagle3 (a draft head), draft (a small model), ngram (runs of tokens that repeat) or none; by default eagle3 if there is a draft head")
	f.StringVar((*string)(&c.Mode), "speculative-mode", string(speculation.ModeAuto), "auto (as many as pay, up to --speculative-num-steps, or none), fixed (always as many) or off (plain decoding)")
	f.IntVar(&c.NumSteps, "speculative-num-steps", 3, "draft steps of a cycle: draft tokens after each other")
	f.IntVar(&c.TopK, "speculative-eagle-topk", 1, "branches of a draft step; 1 drafts chains, more draft trees")
	f.IntVar(&c.NumDraftTokens, "speculative-num-draft-tokens", 0, "tokens of a verify pass; by default steps + 1, of trees 8 or more")
	f.IntVar(&c.NGramMin, "speculative-ngram-min-match-window-size", engine.DefaultNGramMin, "shortest run of tokens that ngram looks for")
	f.IntVar(&c.NGramMax, "speculative-ngram-max-match-window-size", engine.DefaultNGramMax, "longest run of tokens that ngram looks for")
	f.IntVar(&c.ContextLength, "context-length", 0, "most tokens of a prompt and its answer; by default the model's own")
	f.IntVar(&c.PageSize, "page-size", 16, "tokens of a KV cache page")
	f.IntVar(&c.MaxRunningRequests, "max-running-requests", 0, fmt.Sprintf("requests computed at once; by default %d on GPUs, fewer where their memory is short, and %d on the CPU", engine.DefaultGPURunning, engine.DefaultRunning))
	f.IntVar(&c.MaxQueuedRequests, "max-queued-requests", 1024, "requests that wait; more are answered 429")
	f.IntVar(&c.ChunkedPrefillSize, "chunked-prefill-size", 0, fmt.Sprintf("prompt tokens computed in a pass; by default %d on GPUs, fewer where their memory is short, and %d on the CPU", engine.DefaultGPUChunk, engine.DefaultChunk))
	f.Float64Var(&c.MemFractionStatic, "mem-fraction-static", 0.8, "share of the memory for weights, workspaces and KV cache")
	f.IntVar(&c.MaxTotalTokens, "max-total-tokens", 0, "tokens that the KV cache holds at most; by default as the memory allows")
	f.BoolVar(&c.AsyncScheduling, "async-scheduling", true, "plain decoding on one GPU queues the next pass before the host knows the tokens of the present one")
	f.BoolVar(&c.CheckInvariants, "check-invariants", false, "check the KV cache's books whenever the engine is idle; what does not add up ends the process")
	f.DurationVar(&c.StallTimeout, "stall-timeout", time.Minute, "a step that takes longer is a stall, and ends the process")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 25*time.Second, "time that running requests get to end after SIGTERM")
	f.StringVar(&o.apiKeyFile, "api-key-file", "", "`file` of API keys, one a line, that the public port asks for; read again when it changes")
	f.StringVar(&o.tlsCert, "tls-cert-file", "", "PEM `file` of the public port's TLS certificate; read again when it changes")
	f.StringVar(&o.tlsKey, "tls-key-file", "", "PEM `file` of the certificate's key")
	f.StringVar(&o.metricsCompat, "metrics-compat", "", "vllm: also the three metrics that the Gateway API's endpoint picker reads, under vLLM's names")
	f.StringVar(&o.otlpEndpoint, "otlp-endpoint", "", "`URL` that OpenTelemetry traces are sent to, over OTLP/HTTP, such as http://collector:4318")
	f.Float64Var(&o.otlpShare, "otlp-sample-ratio", 1, "share of the requests that are traced where their caller has not decided")
	f.StringVar(&o.logRequests, "log-requests", server.LogOff, "off, on (a line for each request) or text (with prompts and answers)")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.String("termination-log", "", "`file` for a JSON line that says why the process ended")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.Int64Var(&c.LoadRate, "simulate-load-rate", 0, "for tests: bytes of weights read in a second; 0 is no limit")
	f.StringVar(&c.SimulateAccept, "simulate-accept", "", "for tests and benchmarks: mean accept length, or rates by position, of drafts of texts computed before")
	f.StringVar((*string)(&c.SimulateFault), "simulate-fault", "", "for tests: the reason of an exit to bring about")
	f.StringVar(&c.SimulateHang, "simulate-hang", "", "for tests: a `file`; while it is there no pass begins")
	_, _, _, _ = f.MarkHidden("simulate-load-rate"), f.MarkHidden("simulate-accept"), f.MarkHidden("simulate-fault"), f.MarkHidden("simulate-hang")
	return o
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnv sets the flags that the command line left alone from the
// environment; an empty variable counts as none.
func (o *options) fromEnv(lookup func(string) (string, bool)) error {
	var wrong []error
	o.flags.VisitAll(func(f *pflag.Flag) {
		name := variable(f.Name)
		value, ok := lookup(name)
		if !ok || value == "" || f.Changed || f.Name == "help" {
			return
		}
		if err := o.flags.Set(f.Name, value); err == nil {
			o.env[f.Name] = name
			return
		}
		hint := ""
		if strings.Contains(value, "://") && f.Value.Type() == "int" {
			hint = " (Kubernetes sets such a variable for a Service of that name: give the flag, or set enableServiceLinks: false)"
		}
		wrong = append(wrong, invalid("%s is %q: allowed is %s%s", name, value, kind(f), hint))
	})
	if len(wrong) > 0 {
		return wrong[0]
	}
	return nil
}

// source ranks where a flag's value is from: 0 the default, 1 the
// environment, 2 the command line.
func (o *options) source(flag string) int {
	switch {
	case !o.flags.Changed(flag):
		return 0
	case o.env[flag] != "":
		return 1
	}
	return 2
}

// check reports the first value that is wrong whatever the engine says.
func (o *options) check() error {
	for _, v := range []struct {
		flag string
		most int
	}{
		{"tp-size", engine.MaxTPSize}, {"nnodes", engine.MaxNodes}, {"speculative-num-steps", engine.MaxNumSteps}, {"speculative-num-draft-tokens", engine.MaxDraftTokens},
		{"speculative-eagle-topk", engine.MaxTopK},
		{"speculative-ngram-min-match-window-size", speculation.MaxRun}, {"speculative-ngram-max-match-window-size", speculation.MaxRun},
		{"page-size", engine.MaxPageSize}, {"max-running-requests", engine.MaxRunning},
		{"max-queued-requests", engine.MaxQueuedMax}, {"chunked-prefill-size", engine.MaxChunk},
	} {
		// To the engine 0 is "not given".
		if o.flags.Changed(v.flag) && o.flags.Lookup(v.flag).Value.String() == "0" {
			return invalid("--%s is 0: allowed is 1 to %d", v.flag, v.most)
		}
	}
	c := &o.engine
	switch {
	case c.Model == "":
		return invalid("--model is empty: give a model folder, or %s", defaultModel)
	case o.flags.Changed("mem-fraction-static") && c.MemFractionStatic == 0:
		return invalid("--mem-fraction-static is 0: allowed is above 0, up to 1")
	case c.StallTimeout < time.Second:
		return invalid("--stall-timeout is %s: allowed is 1s or more", c.StallTimeout)
	case o.drainTimeout < 0:
		return invalid("--drain-timeout is %s: allowed is 0s or more", o.drainTimeout)
	case c.LoadRate < 0:
		return invalid("--simulate-load-rate is %d: allowed is 0 or more", c.LoadRate)
	}
	if _, err := o.level(); err != nil {
		return err
	}
	if err := o.checkPorts(); err != nil {
		return err
	}
	if err := o.checkChat(); err != nil {
		return err
	}
	if err := o.checkOperations(); err != nil {
		return err
	}
	if err := o.readHub(os.Getenv); err != nil {
		return err
	}
	if err := o.readNodes(os.Getenv); err != nil {
		return err
	}
	if name := o.servedName(); !showable(name) {
		return invalid("--served-model-name is %q: allowed is 1 to %d bytes of UTF-8 without control characters", name, maxName)
	}
	return o.checkSpeculation()
}

func invalid(format string, args ...any) error {
	return fault.Errorf(fault.InvalidConfig, format, args...)
}

// checkChat reads the file of --chat-template and checks the parsers' names.
func (o *options) checkChat() error {
	tools := append([]string{server.ParserAuto, server.ParserNone}, answer.ToolFormats()...)
	if !slices.Contains(tools, o.toolParser) {
		return invalid("--tool-call-parser is %q: allowed are %s", o.toolParser, strings.Join(tools, ", "))
	}
	if thinks := []string{server.ParserAuto, server.ParserNone, server.Think}; !slices.Contains(thinks, o.reasoningParser) {
		return invalid("--reasoning-parser is %q: allowed are %s", o.reasoningParser, strings.Join(thinks, ", "))
	}
	if o.chatTemplate == "" {
		return nil
	}
	b, err := os.ReadFile(o.chatTemplate)
	if err != nil {
		return invalid("--chat-template: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return invalid("--chat-template: %s is empty: give a file with a Jinja template", o.chatTemplate)
	}
	o.engine.ChatTemplate = string(b)
	return nil
}

func (o *options) checkOperations() error {
	for _, v := range []struct {
		flag, value string
		allowed     []string
	}{
		{"metrics-compat", cmp.Or(o.metricsCompat, "vllm"), []string{"vllm"}}, {"log-format", o.logFormat, []string{"text", "json"}},
		{"log-requests", o.logRequests, []string{server.LogOff, server.LogOn, server.LogText}},
	} {
		if !slices.Contains(v.allowed, v.value) {
			return invalid("--%s is %q: allowed are %s", v.flag, v.value, strings.Join(v.allowed, ", "))
		}
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return invalid("--tls-cert-file and --tls-key-file belong together: give both or neither")
	}
	if r := o.engine.SimulateFault; r != "" && !slices.Contains(engine.SimulatedFaults(), r) {
		return invalid("--simulate-fault is %q: allowed are %v", r, engine.SimulatedFaults())
	}
	return nil
}

func (o *options) checkPorts() error {
	for _, p := range []struct {
		flag string
		port int
	}{{"port", o.port}, {"admin-port", o.adminPort}} {
		if p.port < 0 || p.port > 65535 {
			return invalid("--%s is %d: allowed is 1 to 65535, or 0 for any free port", p.flag, p.port)
		}
	}
	if o.port == o.adminPort && o.port != 0 {
		return invalid("--port and --admin-port are both %d: they must differ", o.port)
	}
	return nil
}

// checkSpeculation refuses settings of a speculation that is switched off, or is
// another one.
func (o *options) checkSpeculation() error {
	shape := []string{"speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"}
	runs := []string{"speculative-ngram-min-match-window-size", "speculative-ngram-max-match-window-size"}
	var idle []string
	switch o.engine.Algorithm {
	case engine.AlgorithmNGram:
	case engine.AlgorithmNone:
		idle = append(shape, runs...)
	default:
		idle = runs
	}
	for _, flag := range idle {
		switch {
		case !o.flags.Changed(flag) || o.source(flag) < o.source("speculative-algorithm"):
		case o.engine.Algorithm == "":
			return invalid("--%s is given without --speculative-algorithm %s", flag, engine.AlgorithmNGram)
		default:
			return invalid("--%s is given but --speculative-algorithm is %q: leave one of them out", flag, o.engine.Algorithm)
		}
	}
	return nil
}

// config is the engine's configuration.
func (o *options) config() engine.Config {
	c := o.engine
	c.Version = buildVersion()
	if !o.flags.Changed("speculative-ngram-max-match-window-size") {
		c.NGramMax = max(c.NGramMax, c.NGramMin)
	}
	c.ServedModelName = o.servedName()
	return c
}

func (o *options) servedName() string {
	return cmp.Or(o.engine.ServedModelName, fetch.ServedName(o.engine.Model))
}

func (o *options) level() (slog.Level, error) {
	var level slog.Level
	levels := []string{"debug", "info", "warn", "error"}
	if !slices.Contains(levels, o.logLevel) {
		return level, invalid("--log-level is %q: allowed are %s", o.logLevel, strings.Join(levels, ", "))
	}
	return level, level.UnmarshalText([]byte(o.logLevel))
}

// named adds to a message about flags which of them the environment set.
func (o *options) named(err error) error {
	if err == nil || fault.ReasonOf(err) != fault.InvalidConfig {
		return err
	}
	for _, word := range strings.FieldsFunc(err.Error(), func(r rune) bool { return r == ' ' || r == ':' || r == ',' }) {
		flag, ok := strings.CutPrefix(word, "--")
		if name := o.env[flag]; ok && name != "" {
			return fault.Errorf(fault.InvalidConfig, "%w (--%s is set by %s)", err, flag, name)
		}
	}
	return err
}

// maxToken is the longest access token, in bytes.
const maxToken = 4096

// readHub takes the hub's address and access token from where its own clients
// have them, or the token from --hf-token-file.
func (o *options) readHub(getenv func(string) string) error {
	c := &o.engine
	c.HubEndpoint, c.HubToken = getenv("HF_ENDPOINT"), strings.TrimSpace(getenv("HF_TOKEN"))
	if o.hubTokenFile == "" {
		return nil
	}
	b, err := os.ReadFile(o.hubTokenFile)
	if err != nil {
		return invalid("--hf-token-file: %w", err)
	}
	if c.HubToken = string(bytes.TrimSpace(b)); c.HubToken == "" || len(c.HubToken) > maxToken {
		return invalid("--hf-token-file: %s has %d bytes: allowed is one access token of 1 to %d bytes", o.hubTokenFile, len(c.HubToken), maxToken)
	}
	return nil
}

// maxName is the longest served model name, in bytes.
const maxName = 256

func showable(s string) bool {
	return s != "" && len(s) <= maxName && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
