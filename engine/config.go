package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// Config is what an engine is started with. Zero values mean the default.
type Config struct {
	Model      string // reference of the target; see fetch.Open
	DraftModel string // reference of the draft head or model; empty for a builtin model's own head

	DownloadDir string // cache of downloaded models; fetch.DefaultDir
	HubEndpoint string // of hf://; fetch.DefaultEndpoint
	HubToken    string // of hf://; empty: none

	DType        string // of the computation, one of DTypes; FormatAuto
	Quantization string // of the model's files, one of Quantizations; FormatAuto
	KVCacheDType string // one of KVCacheDTypes; FormatAuto

	Device string // DeviceAuto, DeviceCPU or DeviceCUDA; DeviceAuto
	TPSize int    // ranks, on all nodes; 1

	Nodes       int           // processes that have the ranks, as many each; 1
	Node        int           // this one's number; node 0 leads and serves
	Leader      string        // host:port at which node 0 listens for the others
	GroupSecret []byte        // that nodes prove to have; empty: none
	JoinTimeout time.Duration // for all nodes to be there; 10 min
	NodeTimeout time.Duration // without a sign of life after which a node is lost; 10 s
	CheckRanks  bool          // compare before each pass what the ranks are about to compute

	NCCL              collective.NCCL // of more than one GPU
	AllReduce         string          // one of AllReduces; AllReduceAuto
	CollectiveTimeout time.Duration   // of more than one GPU: a wait for the other ranks that is longer is a fault; 30 s

	Algorithm      string           // one of Algorithms; empty: EAGLE-3 if there is a head
	NumSteps       int              // draft tokens after each other; 3
	TopK           int              // branches of a draft step; 1, which is chains
	NumDraftTokens int              // rows of a verify pass; NumSteps + 1, or with trees defaultTree if they have as many
	NGramMin       int              // shortest run of tokens that AlgorithmNGram looks for; DefaultNGramMin
	NGramMax       int              // longest run; DefaultNGramMax
	Mode           speculation.Mode // who decides the depth; ModeAuto

	ContextLength      int     // tokens of a prompt and its answer; the model's own
	PageSize           int     // positions in a KV page; 16
	MaxTotalTokens     int     // positions of the KV pool at most, and at least those of one longest request; 0: as the memory allows
	MaxRunningRequests int     // computed at once; as the device has it: see width
	MaxQueuedRequests  int     // waiting; 1024
	ChunkedPrefillSize int     // prompt rows in a pass; as the device has it: see width
	MemFractionStatic  float64 // share of the memory for weights and KV cache; 0.8
	ServedModelName    string  // what clients call the model; from Model
	ChatTemplate       string  // Jinja source that takes the place of the model's own; empty: the model's

	// AsyncScheduling has plain decoding on one GPU queue the next pass before the
	// host knows the tokens of the present one; see ahead.go. The command has it on.
	AsyncScheduling bool

	// CheckInvariants has the engine check the books of its KV pages each time
	// that it becomes idle, and end with a fault if they do not add up.
	CheckInvariants bool

	SimulateFault fault.Reason // for tests: one of SimulatedFaults; see faults.go
	SimulateHang  string       // for tests: a file; while it is there no pass begins

	StallTimeout time.Duration // a pass that takes longer is a stall; 60 s
	LoadRate     int64         // for tests: bytes of weights read in a second; 0 is no limit

	// SimulateAccept, for tests and benchmarks, is how often draft tokens of
	// texts computed before are accepted; see speculation.ParseAcceptance.
	SimulateAccept string

	// LearnInAuto, for benchmarks, has the choice of the depth learn nothing from
	// the modes fixed and off, so that it can take turns with them.
	LearnInAuto bool

	// TimeDevices, for benchmarks, has the devices' clocks run, where they have one:
	// see telemetry.RankReport.
	TimeDevices bool

	Version string // of the binary, for /server_info
}

// Most values that are sized by a flag.
const (
	MaxNumSteps  = 16
	MaxPageSize  = 1 << 14
	MaxRunning   = 4096
	MaxChunk     = 1 << 16
	MaxTPSize    = 64
	MaxNodes     = 64
	MaxQueuedMax = 1 << 20
	MaxTopK      = 16
	// MaxDraftTokens and MaxExpanded bound a tree: its nodes with the row before
	// them, and TopK · (NumSteps − 1).
	MaxDraftTokens = compute.MaxNodes
	MaxExpanded    = compute.MaxNodes
)

// Who adds up over GPUs: the values of Config.AllReduce.
const (
	AllReduceAuto = "auto" // for each size what was fastest at start: NCCL, or kernels that reach into the other GPUs' memory
	AllReduceNCCL = "nccl"
	AllReduceHost = "host" // in the host's memory: slow, and without NCCL
)

// AllReduces are the values of Config.AllReduce.
var AllReduces = []string{AllReduceAuto, AllReduceNCCL, AllReduceHost}

// Lengths of the runs of tokens that AlgorithmNGram looks for.
const (
	DefaultNGramMin = 2
	DefaultNGramMax = 8
)

// defaultTree is NumDraftTokens of trees: what a small batch verifies at little
// more than the cost of one row.
const defaultTree = 8

// withDefaults fills in what is zero, but for what the device decides.
func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.TPSize, 1)
	def(&c.Nodes, 1)
	if c.JoinTimeout == 0 {
		c.JoinTimeout = 10 * time.Minute
	}
	if c.NodeTimeout == 0 {
		c.NodeTimeout = 10 * time.Second
	}
	def(&c.NumSteps, 3)
	def(&c.TopK, 1)
	def(&c.NGramMin, DefaultNGramMin)
	def(&c.NGramMax, max(DefaultNGramMax, c.NGramMin))
	if c.TopK > 1 {
		def(&c.NumDraftTokens, min(max(defaultTree, c.NumSteps+1), c.mostDraftTokens()))
	}
	def(&c.NumDraftTokens, c.NumSteps+1)
	def(&c.PageSize, 16)
	def(&c.MaxQueuedRequests, 1024)
	if c.MemFractionStatic == 0 {
		c.MemFractionStatic = 0.8
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = time.Minute
	}
	if c.Mode == "" {
		c.Mode = speculation.ModeAuto
	}
	if c.Device == "" {
		c.Device = DeviceAuto
	}
	if c.AllReduce == "" {
		c.AllReduce = AllReduceAuto
	}
	if c.CollectiveTimeout == 0 {
		c.CollectiveTimeout = 30 * time.Second
	}
	return c
}

// localRanks is the number of each process's ranks.
func (c Config) localRanks() int { return c.TPSize / max(c.Nodes, 1) }

// validate reports the first value out of range, by its flag.
func (c Config) validate() error {
	for _, v := range []struct {
		flag         string
		value, least int
		most         int
	}{
		{"tp-size", c.TPSize, 1, MaxTPSize},
		{"nnodes", c.Nodes, 1, MaxNodes},
		{"node-rank", c.Node, 0, c.Nodes - 1},
		{"speculative-num-steps", c.NumSteps, 1, MaxNumSteps},
		{"speculative-eagle-topk", c.TopK, 1, MaxTopK},
		{"speculative-ngram-min-match-window-size", c.NGramMin, 1, speculation.MaxRun},
		{"speculative-ngram-max-match-window-size", c.NGramMax, 1, speculation.MaxRun},
		{"page-size", c.PageSize, 1, MaxPageSize},
		{"max-running-requests", cmp.Or(c.MaxRunningRequests, DefaultRunning), 1, MaxRunning},
		{"max-queued-requests", c.MaxQueuedRequests, 1, MaxQueuedMax},
		{"chunked-prefill-size", cmp.Or(c.ChunkedPrefillSize, DefaultChunk), 1, MaxChunk},
	} {
		if v.value < v.least || v.value > v.most {
			return fault.Errorf(fault.InvalidConfig, "--%s is %d: allowed is %d to %d", v.flag, v.value, v.least, v.most)
		}
	}
	invalid := func(format string, args ...any) error {
		return &fault.Error{Reason: fault.InvalidConfig, Err: fmt.Errorf(format, args...)}
	}
	if c.SimulateAccept != "" {
		if _, err := speculation.ParseAcceptance(c.SimulateAccept, c.NumSteps); err != nil {
			return invalid("--simulate-accept is %w", err)
		}
	}
	switch {
	case c.TPSize%c.Nodes != 0:
		return invalid("--tp-size is %d: with --nnodes %d allowed is a multiple of %d, since every node has as many ranks", c.TPSize, c.Nodes, c.Nodes)
	case c.Nodes > 1 && c.Leader == "":
		return invalid("--nnodes is %d without --dist-init-addr: give the HOST:PORT at which node 0 listens for the others", c.Nodes)
	case c.NodeTimeout < time.Second:
		return invalid("--dist-node-timeout is %s: allowed is 1s or more", c.NodeTimeout)
	case c.JoinTimeout < 0:
		return invalid("--dist-timeout is %s: allowed is above 0s", c.JoinTimeout)
	case c.MaxTotalTokens < 0:
		return invalid("--max-total-tokens is %d: allowed is --context-length or more, or 0 for what the memory allows", c.MaxTotalTokens)
	case c.ContextLength < 0 || c.ContextLength == 1:
		return invalid("--context-length is %d: allowed is 2 or more, or 0 for the model's own", c.ContextLength)
	case !(c.MemFractionStatic > 0 && c.MemFractionStatic <= 1):
		return invalid("--mem-fraction-static is %v: allowed is above 0, up to 1", c.MemFractionStatic)
	case c.Mode != speculation.ModeAuto && c.Mode != speculation.ModeFixed && c.Mode != speculation.ModeOff:
		return invalid("--speculative-mode is %q: allowed are %q, %q and %q", c.Mode, speculation.ModeAuto, speculation.ModeFixed, speculation.ModeOff)
	case c.Device != DeviceAuto && c.Device != DeviceCPU && c.Device != DeviceCUDA:
		return invalid("--device is %q: allowed are auto, cpu and cuda", c.Device)
	case c.NCCL.Check() != nil:
		return invalid("%w", c.NCCL.Check())
	case !slices.Contains(AllReduces, c.AllReduce):
		return invalid("--all-reduce is %q: allowed are %s", c.AllReduce, strings.Join(AllReduces, ", "))
	case c.CollectiveTimeout < time.Second:
		return invalid("--collective-timeout is %s: allowed is 1s or more", c.CollectiveTimeout)
	case c.Device == DeviceCUDA && cudaBuilt() != nil:
		return notThere(c.Device, cudaBuilt())
	}
	if err := c.validateFormats(); err != nil {
		return err
	}
	return c.validateSpeculation()
}

// mostDraftTokens is NumDraftTokens of a tree that keeps all its nodes, as far as
// that is allowed.
func (c Config) mostDraftTokens() int {
	all := speculation.Shape{TopK: c.TopK, Nodes: MaxDraftTokens - 1}
	return 1 + all.At(c.NumSteps)
}

// validateSpeculation is validate for how drafts are made.
func (c Config) validateSpeculation() error {
	invalid := func(format string, args ...any) error {
		return &fault.Error{Reason: fault.InvalidConfig, Err: fmt.Errorf(format, args...)}
	}
	a := algorithms[c.Algorithm]
	switch {
	case c.Algorithm != "" && !slices.Contains(Algorithms, c.Algorithm):
		return invalid("--speculative-algorithm is %q: allowed are %s", c.Algorithm, strings.Join(Algorithms, ", "))
	case c.DraftModel != "" && c.Algorithm != "" && (a == nil || !a.files):
		return invalid("--draft-model is %s but --speculative-algorithm is %q, which has none: leave one of them out", c.DraftModel, c.Algorithm)
	case c.TopK > 1 && a != nil && !a.trees:
		return invalid("--speculative-eagle-topk is %d, but --speculative-algorithm %s drafts chains: allowed is 1", c.TopK, c.Algorithm)
	case c.TopK == 1 && c.NumDraftTokens != c.NumSteps+1:
		return invalid("--speculative-num-draft-tokens is %d: with --speculative-eagle-topk 1 it is --speculative-num-steps + 1, which is %d", c.NumDraftTokens, c.NumSteps+1)
	case c.TopK*(c.NumSteps-1) > MaxExpanded:
		return invalid("--speculative-eagle-topk %d times --speculative-num-steps %d less one is %d: allowed are %d", c.TopK, c.NumSteps, c.TopK*(c.NumSteps-1), MaxExpanded)
	case c.TopK > 1 && (c.NumDraftTokens < 2 || c.NumDraftTokens > c.mostDraftTokens()):
		return invalid("--speculative-num-draft-tokens is %d: with --speculative-eagle-topk %d and --speculative-num-steps %d allowed is 2 to %d", c.NumDraftTokens, c.TopK, c.NumSteps, c.mostDraftTokens())
	case c.NGramMax < c.NGramMin:
		return invalid("--speculative-ngram-max-match-window-size is %d, less than --speculative-ngram-min-match-window-size, which is %d", c.NGramMax, c.NGramMin)
	}
	return nil
}
