// Package engine runs a model: it loads and warms it, computes the requests
// step by step (schedule, run, settle), and says at any time how it is.
package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch"
	"github.com/outrider-dev/outrider/engine/internal/tick"
	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
	"github.com/outrider-dev/outrider/engine/tokenizer"
)

// Engine is one served model.
type Engine struct {
	cfg      Config
	chosen   chosenWidth
	log      *slog.Logger
	metrics  *telemetry.Metrics
	progress *telemetry.Progress

	mu        sync.Mutex
	phase     telemetry.Phase
	tokenizer *tokenizer.Tokenizer
	chat      *chat.Template // nil: none, for the reason chatErr
	chatErr   error
	scheduler *scheduler.Scheduler // nil until loaded
	info      telemetry.Info

	backend  backend
	wrap     func(compute.Device) compute.Device // for tests; nil
	gpuFault chan error                          // capacity 1: a GPU's end, that it reported itself
	nodes    *collective.Nodes                   // the other processes that have ranks; nil: there are none

	// Of the step loop.
	ranks            *model.Ranks
	algorithm        *algorithm             // nil: plain decoding
	drafter          speculation.Drafter    // nil: plain decoding
	keeper           speculation.Keeper     // the drafter, if it is one; otherwise nil
	learns           *speculation.Simulated // the same, with --simulate-accept; otherwise nil
	pool             *kvcache.Pool
	sampler          sampling.Sampler
	draws            draws
	ahead            ahead
	batch            *scheduler.Batch
	drafts           []speculation.Sequence
	drafted          []*scheduler.Sequence // of the entries of drafts
	accepted         int                   // draft tokens of the pass
	emitted          int                   // tokens of the pass
	depth            depthControl
	moveTo, moveFrom []int32 // cache slots of accepted nodes of trees; see Sequence.Moves

	report   loadReport
	captured captured

	work workspaces

	phases   telemetry.Phases
	tracer   telemetry.Tracer
	extended time.Duration // of the step under way: rank 0 brought the draft's cache up to the text

	stats    stats
	ready    atomic.Bool
	draining atomic.Bool
	idle     chan struct{} // closed when drained
	idleOnce sync.Once
	beat     atomic.Int64 // tick of the last finished step, or of being idle
	busy     atomic.Bool  // a step is due or under way
	proof    atomic.Int64 // tick of a client's last pass that proves()
}

// New makes an engine; Run starts it. The error is a wrong cfg.
func New(cfg Config, log *slog.Logger, m *telemetry.Metrics, p *telemetry.Progress) (*Engine, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.ServedModelName == "" {
		cfg.ServedModelName = fetch.ServedName(cfg.Model)
	}
	e := &Engine{cfg: cfg, log: log, metrics: m, progress: p, phase: telemetry.PhaseFetch, idle: make(chan struct{}), chatErr: errChatLoading, gpuFault: make(chan error, 1)}
	e.beat.Store(tick.Of(time.Now()))
	e.chosen = chosenWidth{chunk: cfg.ChunkedPrefillSize != 0, running: cfg.MaxRunningRequests != 0}
	e.stats.init(m)
	e.info = telemetry.Info{
		Model: cfg.Model, ServedModelName: cfg.ServedModelName, TPSize: cfg.TPSize,
		Nodes: cfg.Nodes, Node: cfg.Node, PageSize: cfg.PageSize, MaxRunningRequests: cfg.MaxRunningRequests, MaxQueuedRequests: cfg.MaxQueuedRequests, ChunkedPrefillSize: cfg.ChunkedPrefillSize,
		Version: cfg.Version, StartTime: time.Now(),
	}
	return e, nil
}

// Run loads the model and serves until ctx is cancelled, which is no error. A
// fault ends it: the error carries the reason. A process that follows node 0
// also ends, without an error, when that does.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancelAll := context.WithCancel(ctx)
	defer cancelAll()
	err := e.load(ctx, cancelAll)
	switch {
	case err != nil:
		err = e.end(ctx, e.groupError(err))
	case e.follows():
		err = e.end(ctx, e.groupError(e.followLeader(ctx)))
	default:
		err = e.lead(ctx)
	}
	e.leaveGroup(err)
	return err
}

// lead runs the step loop; this process decides what the ranks compute.
func (e *Engine) lead(ctx context.Context) error {
	loop, warm := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { loop <- e.loop(ctx) }()
	go func() {
		if err := e.warmUp(ctx); err != nil {
			warm <- err
		}
	}()
	select {
	case err := <-loop:
		e.ranks.Close()
		return e.end(ctx, e.groupError(err))
	case err := <-warm:
		cancel()
		if ended := <-loop; ended != nil {
			e.log.Debug("the step loop has ended", "error", ended)
		}
		return e.end(ctx, e.groupError(err))
	case err := <-e.watch(ctx):
		// The loop is stuck: it cannot be waited for, and what it holds is left alone.
		e.ready.Store(false)
		e.scheduler.Abandon(err)
		return err
	}
}

// end closes the door behind a run.
func (e *Engine) end(ctx context.Context, err error) error {
	e.ready.Store(false)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	gone := err
	if gone == nil {
		gone = errors.New("the server has stopped")
	}
	e.mu.Lock()
	s := e.scheduler
	e.mu.Unlock()
	if s != nil {
		s.Fail(gone)
	}
	return err
}

// enter moves to the next phase. A drain that came before the start was over
// stays a drain.
func (e *Engine) enter(phase telemetry.Phase) {
	if e.draining.Load() {
		phase = telemetry.PhaseDraining
	}
	e.mu.Lock()
	e.phase = phase
	e.mu.Unlock()
	e.progress.Enter(phase)
}

// load brings the model from its source to the ranks. cancel ends ctx.
func (e *Engine) load(ctx context.Context, cancel func()) error {
	start := time.Now()
	lap := func(phase telemetry.Phase) {
		e.metrics.LoadPhase(phase).Set(time.Since(start).Seconds())
		start = time.Now()
	}
	e.enter(telemetry.PhaseFetch)
	if err := e.breaks(fetchFaults); err != nil {
		return err
	}
	spec, tok, err := e.sources(ctx)
	if err != nil {
		return err
	}
	lap(telemetry.PhaseFetch)
	if err := e.join(ctx, &spec, cancel); err != nil {
		return err
	}
	e.enter(telemetry.PhaseLoad)
	if err := e.breaks(loadFaults); err != nil {
		return err
	}
	throttle := newThrottle(ctx, e.cfg.LoadRate, e.cfg.Node*e.cfg.localRanks(), e.cfg.localRanks())
	spec.Plan = func(bytes int64, shards int) (model.Limits, error) {
		e.progress.Expect(bytes, shards)
		return e.plan(spec, bytes)
	}
	spec.Loaded = func(rank int, bytes int64, lastOfShard bool) {
		throttle.wait(rank, bytes)
		e.progress.Advance(rank, bytes)
		if lastOfShard {
			e.progress.ShardDone(rank)
		}
	}
	spec.Stepped = e.progress.Step
	spec.Timed = e.timed
	ranks, err := model.Load(ctx, spec)
	if err != nil {
		return err
	}
	lap(telemetry.PhaseLoad)
	e.enter(telemetry.PhaseCollective)
	if err := ranks.Join(); err != nil {
		return err
	}
	lap(telemetry.PhaseCollective)
	e.enter(telemetry.PhaseKernels)
	if err := ranks.Build(); err != nil {
		return err
	}
	lap(telemetry.PhaseKernels)
	if e.cfg.TimeDevices {
		ranks.StartClocks()
	}
	if links := ranks.Links(); links != "" {
		e.log.Info("ranks joined", "by", links, "environment", collective.NCCLInForce(os.Environ()))
	}
	limits := ranks.Limits()
	e.start(spec, ranks, tok)
	e.log.Info("model loaded", "model", e.cfg.Model, "speculation", e.info.Algorithm, "draft", spec.Draft.Name, "device", ranks.DeviceName(), "tp_size", e.cfg.TPSize,
		"context_length", e.info.ContextLength, "chunked_prefill_size", e.cfg.ChunkedPrefillSize, "max_running_requests", e.cfg.MaxRunningRequests, "kv_pages", limits.Pages, "page_size", limits.PageSize, "kv_cache_dtype", e.backend.cacheFormat(), "node", e.cfg.Node, "nodes", e.cfg.Nodes)
	if e.follows() {
		return nil // node 0 has the others record and warm up with it
	}
	e.captured.of = e.captureParts()
	e.progress.Captured(0, e.captured.of)
	e.enter(telemetry.PhaseCapture) // a shape's first passes record it
	if err := e.growPool(); err != nil {
		return err
	}
	if err := e.calibrate(); err != nil {
		return err
	}
	lap(telemetry.PhaseCapture)
	e.enter(telemetry.PhaseWarmup)
	return nil
}

// sources finds or downloads the folders and reads their configurations and the
// tokenizer.
func (e *Engine) sources(ctx context.Context) (model.Spec, *tokenizer.Tokenizer, error) {
	spec := model.Spec{Ranks: e.cfg.TPSize, CheckRanks: e.cfg.CheckRanks}
	var err error
	if e.backend, err = chooseBackend(e.cfg, e.progress.Built, e.log); err != nil {
		return spec, nil, err
	}
	e.log.Info("device chosen", "device", e.backend.name, "why", e.backend.why)
	e.mu.Lock()
	e.info.DeviceReason = e.backend.why
	e.mu.Unlock()
	e.widen(widths(e.backend.name)[0])
	e.progress.On(e.backend.name, e.backend.why)
	e.watchGPUs(ctx)
	spec.NewDevice = e.backend.newDevice
	if e.wrap != nil {
		spec.NewDevice = func(comm collective.Communicator) (compute.Device, error) {
			d, err := e.backend.newDevice(comm)
			return e.wrap(d), err
		}
	}
	target, err := e.open(ctx, e.cfg.Model)
	if err != nil {
		return spec, nil, err
	}
	spec.Target = model.Source(target)
	if spec.Config, err = model.ReadConfig(target.Files, target.Name); err != nil {
		return spec, nil, err
	}
	if err := e.checkFormats(spec.Config.Quantization); err != nil {
		return spec, nil, err
	}
	tok, err := loadTokenizer(target)
	if err != nil {
		return spec, nil, err
	}
	if err := e.loadChat(target); err != nil {
		return spec, nil, err
	}
	return spec, tok, e.openDraft(ctx, &spec, tok)
}

// open finds or downloads a model's folder.
func (e *Engine) open(ctx context.Context, ref string) (fetch.Source, error) {
	return fetch.Open(ctx, ref, fetch.Options{
		Dir: e.cfg.DownloadDir, Endpoint: e.cfg.HubEndpoint, Token: e.cfg.HubToken, Log: e.log,
		Expect: e.progress.ExpectFetch, Advance: e.progress.AdvanceFetch, Done: e.progress.FetchDone,
	})
}

// plan decides the context length and sizes the workspaces and the KV pool for
// model files of bytes.
func (e *Engine) plan(spec model.Spec, bytes int64) (model.Limits, error) {
	own, length := spec.Config.MaxPositions, e.cfg.ContextLength
	if length == 0 {
		length = own
	}
	if own < 2 {
		return model.Limits{}, fault.Errorf(fault.Unsupported, "%s: config.json: max_position_embeddings is %d: a prompt and its answer take 2 or more", e.cfg.Model, own)
	}
	if length < 2 || length > own {
		return model.Limits{}, fault.Errorf(fault.InvalidConfig,
			"--context-length is %d: allowed is 2 (a token of prompt and one of answer) to %d, the model's own", length, own)
	}
	e.mu.Lock()
	e.info.ContextLength = length
	e.mu.Unlock()
	return e.fit(spec, length, bytes)
}

// limits are what passes take, all but the pages of the KV pool, and the bytes of
// their workspaces.
func (e *Engine) limits(spec model.Spec) (limits model.Limits, work int64) {
	running, chunk := e.cfg.MaxRunningRequests, e.cfg.ChunkedPrefillSize
	return e.limitsOf(spec, running, chunk), e.workspaces(spec)(running, chunk)
}

// workspaces are those of passes of any width.
func (e *Engine) workspaces(spec model.Spec) workspaces {
	return func(running, chunk int) int64 {
		return model.WorkspaceBytes(spec, e.limitsOf(spec, running, chunk), e.backend.element)
	}
}

// limitsOf are limits with so many running requests and rows of prompts.
func (e *Engine) limitsOf(spec model.Spec, running, chunk int) model.Limits {
	s := e.schedulerConfig(spec, nil)
	s.MaxRunning, s.ChunkSize = running, chunk
	limits := model.Limits{MaxRows: s.MaxRows(), MaxLogits: s.MaxLogits(), PageSize: e.cfg.PageSize, Float8: e.backend.float8}
	if spec.DraftConfig != nil {
		limits.MaxDrafts = s.Slots() * e.cfg.TopK
		if e.cfg.TopK > 1 && e.cfg.TopK <= compute.MaxTops {
			limits.Tops = e.cfg.TopK
		}
		limits.MaxRows = max(limits.MaxRows, limits.MaxDrafts)
		limits.Kept = speculation.KeptRows(s.Slots())
	}
	return limits
}

// schedulerConfig is the scheduler's part of the configuration.
func (e *Engine) schedulerConfig(spec model.Spec, tok *tokenizer.Tokenizer) scheduler.Config {
	c := scheduler.Config{
		MaxRunning: e.cfg.MaxRunningRequests, MaxQueued: e.cfg.MaxQueuedRequests, ChunkSize: e.cfg.ChunkedPrefillSize,
		ContextLength: e.info.ContextLength, Vocab: spec.Config.Vocab, EOS: spec.Config.EOS, Now: time.Now,
	}
	if a := e.algorithm; a != nil {
		c.MaxDepth, c.MaxDraft, c.TreeRoom, c.Redrafts = e.cfg.NumSteps, e.cfg.NumDraftTokens-1, e.cfg.treeRoom(), a.whole
		c.DraftWindow = a.window
	}
	c.Released = func(q *scheduler.Sequence) {
		if state, ok := q.DraftState.(*speculation.State); ok {
			e.drafter.Forget(state)
		}
	}
	if tok != nil {
		c.Decoder = func(shown []int32) scheduler.Decoder { return tok.NewDecoder(true, shown...) }
	}
	return c
}

// start sets up what the step loop works with.
func (e *Engine) start(spec model.Spec, ranks *model.Ranks, tok *tokenizer.Tokenizer) {
	limits := ranks.Limits()
	pages := limits.Pages
	if ranks.Grows() {
		pages = min(pages, e.cfg.firstPages())
	}
	e.pool = kvcache.NewPool(pages, limits.PageSize)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ranks, e.tokenizer = ranks, tok
	e.info.Links = ranks.Links()
	e.info.Device, e.info.VocabSize, e.info.Algorithm = ranks.DeviceName(), spec.Config.Vocab, AlgorithmNone
	e.info.KVPagesTotal, e.info.KVCacheDType = pages, e.backend.cacheFormat()
	if e.follows() {
		return
	}
	e.scheduler = scheduler.New(e.schedulerConfig(spec, tok), e.pool)
	if a := e.algorithm; a != nil {
		drafter := a.drafter(e.cfg, e.scheduler.Slots(), ranks)
		e.keeper, _ = drafter.(speculation.Keeper)
		e.drafter = e.simulate(drafter, spec.Config.Vocab)
		e.info.Algorithm, e.info.DraftModel = a.name, spec.Draft.Name
		e.info.NumSteps, e.info.TopK, e.info.NumDraftTokens = e.cfg.NumSteps, e.cfg.TopK, e.cfg.NumDraftTokens
	}
	e.depth.mu.Lock()
	defer e.depth.mu.Unlock()
	e.depth.bounds = speculation.Bounds{Mode: e.cfg.Mode, Max: e.info.NumSteps}
	e.depth.current = telemetry.Speculation{Mode: string(e.cfg.Mode), MaxSteps: e.info.NumSteps}
	if e.drafter == nil {
		e.depth.current.Mode, e.depth.current.Reason = string(speculation.ModeOff), "no draft"
	}
}

// calibrate profiles the engine, which the choice of depths starts from.
func (e *Engine) calibrate() error {
	if e.drafter == nil {
		return nil
	}
	costs, err := e.profile()
	if err != nil {
		return err
	}
	e.extended = 0
	e.depth.mu.Lock()
	e.depth.times = make([]telemetry.DepthTime, 1+e.cfg.NumSteps)
	for i := range e.depth.times {
		e.depth.times[i].Depth = i
	}
	e.depth.chooser = speculation.NewChooser(costs, speculation.NewAcceptance(e.cfg.NumSteps))
	e.depth.mu.Unlock()
	return nil
}

// loadTokenizer reads the model's tokenizer; a model without one serves token ids.
func loadTokenizer(s fetch.Source) (*tokenizer.Tokenizer, error) {
	tok, err := tokenizer.Load(s.Files)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Errorf(fault.Unsupported, "%s: %w", s.Name, err)
	}
	return tok, nil
}
