package telemetry

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Phase is a part of an engine's life, in the order of the constants.
type Phase string

const (
	PhaseFetch      Phase = "fetch"      // finding or downloading the model's files
	PhaseJoin       Phase = "join"       // waiting for the other nodes, where there are some
	PhaseLoad       Phase = "load"       // reading the weights
	PhaseCollective Phase = "collective" // joining the ranks
	PhaseKernels    Phase = "kernels"    // compiling for the device that is there
	PhaseCapture    Phase = "capture"    // recording the steps that recur
	PhaseWarmup     Phase = "warmup"     // the first request, the engine's own
	PhaseServing    Phase = "serving"
	PhaseDraining   Phase = "draining" // no new requests
)

var phaseOrder = []Phase{PhaseFetch, PhaseJoin, PhaseLoad, PhaseCollective, PhaseKernels, PhaseCapture, PhaseWarmup, PhaseServing, PhaseDraining}

// after tells whether p comes after q in an engine's life.
func (p Phase) after(q Phase) bool { return slices.Index(phaseOrder, p) > slices.Index(phaseOrder, q) }

// Progress is where the start of an engine stands. Its methods may be called
// from all ranks at once. Nothing in it ever goes back, except that the bytes of
// the load follow those of the download, and that each phase's percentage begins
// at 0.
type Progress struct {
	now   func() time.Time
	first int            // the first of the ranks; all methods take their numbers from there on
	steps []atomic.Int64 // by rank: time of the last finished pass, Unix ns

	mu          sync.Mutex
	lastAdvance time.Time
	device, why string // see On
	bytes       int64  // to load by each rank
	shards      int
	ranks       []rankProgress
	fetch       fetchProgress
	captured    parts // of all ranks, which capture together
}

// parts are how far a phase is that loads nothing.
type parts struct{ done, of int }

// raise notes that done parts of of are over, if that is news.
func (p *parts) raise(done, of int) bool {
	old := *p
	p.of = max(p.of, of)
	p.done = max(p.done, min(done, p.of))
	return *p != old
}

// percent is their share in tenths: of no parts all.
func (p parts) percent() float64 {
	if p.of == 0 {
		return 100
	}
	return math.Floor(1000*float64(p.done)/float64(p.of)) / 10
}

// fetchProgress is how far downloads are, which no rank does of its own.
type fetchProgress struct {
	bytes, total int64
	files, of    int
	percent      float64 // the most that was shown: a second download adds to total
}

type rankProgress struct {
	phase  Phase
	loaded bool // the phase has been one after PhaseLoad, a drain of a half-loaded engine apart
	bytes  int64
	shards int
	built  parts
}

// NewProgress is the progress of an engine of ranks, at least one, in
// PhaseFetch.
func NewProgress(ranks int, now func() time.Time) *Progress { return NewProgressOf(0, ranks, now) }

// NewProgressOf is NewProgress of a process whose ranks are first, first + 1, ….
func NewProgressOf(first, ranks int, now func() time.Time) *Progress {
	ranks = max(ranks, 1)
	p := &Progress{now: now, first: first, steps: make([]atomic.Int64, ranks), lastAdvance: now(), ranks: make([]rankProgress, ranks)}
	for i := range p.ranks {
		p.ranks[i].phase = PhaseFetch
	}
	return p
}

// On notes which device the ranks compute on, cpu or cuda, and why it is that one.
func (p *Progress) On(device, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.device, p.why, p.lastAdvance = device, why, p.now()
}

// Enter moves all ranks to a phase. A rank that is in a later one stays there.
func (p *Progress) Enter(phase Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.ranks {
		p.enter(&p.ranks[i], phase)
	}
}

// EnterRank moves one rank to a phase, unless it is in a later one.
func (p *Progress) EnterRank(rank int, phase Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enter(&p.ranks[rank-p.first], phase)
}

func (p *Progress) enter(r *rankProgress, phase Phase) {
	if !phase.after(r.phase) {
		return
	}
	r.phase, p.lastAdvance = phase, p.now()
	if phase.after(PhaseLoad) && phase != PhaseDraining {
		r.loaded = true
	}
}

// Expect sets what each rank has to load.
func (p *Progress) Expect(bytes int64, shards int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes, p.shards, p.lastAdvance = max(bytes, 0), max(shards, 0), p.now()
}

// Advance notes bytes that a rank has loaded, no more than what Expect set.
func (p *Progress) Advance(rank int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.ranks[rank-p.first]
	if n := min(bytes, p.bytes-r.bytes); n > 0 {
		r.bytes += n
		p.lastAdvance = p.now()
	}
}

// ExpectFetch adds what is to be downloaded.
func (p *Progress) ExpectFetch(bytes int64, files int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.fetch
	f.total, f.of, p.lastAdvance = f.total+max(bytes, 0), f.of+max(files, 0), p.now()
}

// AdvanceFetch notes downloaded bytes, no more than what ExpectFetch set; 0 is
// a sign of life.
func (p *Progress) AdvanceFetch(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.fetch
	f.bytes = min(f.bytes+max(bytes, 0), f.total)
	p.lastAdvance = p.now()
}

// FetchDone notes a file that is downloaded.
func (p *Progress) FetchDone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetch.files = min(p.fetch.files+1, p.fetch.of)
	p.lastAdvance = p.now()
}

// snapshot puts the download in the place of the load.
func (f *fetchProgress) snapshot(s *Snapshot) {
	if f.total > 0 {
		f.percent = max(f.percent, min(math.Floor(1000*float64(f.bytes)/float64(f.total))/10, 99.9))
	}
	s.Percent, s.BytesDone, s.BytesTotal, s.ShardsDone, s.ShardsTotal = f.percent, f.bytes, f.total, f.files, f.of
	for i := range s.Ranks {
		s.Ranks[i].Percent = f.percent
	}
}

// Built notes that a rank has done of its sources of kernels compiled: they are
// while it loads, too.
func (p *Progress) Built(rank, done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ranks[rank-p.first].built.raise(done, of) {
		p.lastAdvance = p.now()
	}
}

// Captured notes that done parts of PhaseCapture are over, of as many as of.
func (p *Progress) Captured(done, of int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.captured.raise(done, of) {
		p.lastAdvance = p.now()
	}
}

// Touch notes that a rank's start goes on, in whatever phase.
func (p *Progress) Touch(int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastAdvance = p.now()
}

// ShardDone notes a file of weights that a rank has loaded.
func (p *Progress) ShardDone(rank int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := &p.ranks[rank-p.first]; r.shards < p.shards {
		r.shards++
		p.lastAdvance = p.now()
	}
}

// Step is a rank's heartbeat: it finished a pass. It takes no lock and
// allocates nothing.
func (p *Progress) Step(rank int) { p.steps[rank-p.first].Store(p.now().UnixNano()) }

// LastStep is the time of a rank's last heartbeat; zero when there was none.
func (p *Progress) LastStep(rank int) time.Time {
	if ns := p.steps[rank-p.first].Load(); ns != 0 {
		return time.Unix(0, ns).UTC()
	}
	return time.Time{}
}

// Snapshot is the answer of /progress.
type Snapshot struct {
	Phase         Phase          `json:"phase"`         // of the rank that is least far
	Percent       float64        `json:"percent"`       // of the download, the kernels or the passes in their phases, otherwise of the load; 0 to 100, in tenths
	BytesDone     int64          `json:"bytes_done"`    // mean over the ranks; of the download
	BytesTotal    int64          `json:"bytes_total"`   // for each rank; of the download
	ShardsDone    int            `json:"shards_done"`   // by all ranks; files that are downloaded
	ShardsTotal   int            `json:"shards_total"`  // files of weights; files to download
	KernelsDone   int            `json:"kernels_done"`  // sources that all ranks have compiled
	KernelsTotal  int            `json:"kernels_total"` // for each rank; 0 where none are compiled
	CapturesDone  int            `json:"captures_done"` // parts of PhaseCapture: a shape of passes that is recorded, or measured
	CapturesTotal int            `json:"captures_total"`
	LastAdvance   time.Time      `json:"last_advance"`            // when any of this last changed, or in PhaseCapture and PhaseWarmup a pass ended
	Device        string         `json:"device,omitempty"`        // cpu or cuda; left out until it is chosen
	DeviceReason  string         `json:"device_reason,omitempty"` // why that one: with --device auto, why not a GPU
	Ranks         []RankSnapshot `json:"ranks"`
}

// RankSnapshot is one rank's part of a Snapshot.
type RankSnapshot struct {
	Rank     int        `json:"rank"`
	Phase    Phase      `json:"phase"`
	Percent  float64    `json:"percent"`
	LastStep *time.Time `json:"last_step,omitempty"` // of the last finished pass, if there was one
}

// Snapshot is the state now.
func (p *Progress) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Snapshot{
		Phase: p.ranks[0].phase, BytesTotal: p.bytes, ShardsDone: p.shards, ShardsTotal: p.shards,
		CapturesDone: p.captured.done, CapturesTotal: p.captured.of,
		LastAdvance: p.lastAdvance.UTC(), Device: p.device, DeviceReason: p.why, Ranks: make([]RankSnapshot, 0, len(p.ranks)),
	}
	loaded, built := true, p.ranks[0].built
	var quotient, remainder int64 // of the sum of bytes: the sum itself could overflow
	n := int64(len(p.ranks))
	for i := range p.ranks {
		r := &p.ranks[i]
		quotient, remainder = quotient+r.bytes/n, remainder+r.bytes%n
		s.ShardsDone = min(s.ShardsDone, r.shards)
		loaded = loaded && r.loaded
		built = parts{min(built.done, r.built.done), max(built.of, r.built.of)}
		if s.Phase.after(r.phase) {
			s.Phase = r.phase
		}
		rank := RankSnapshot{Rank: p.first + i, Phase: r.phase, Percent: p.percent(r.phase, r.bytes, r.loaded, r.built)}
		if t := p.LastStep(p.first + i); !t.IsZero() {
			rank.LastStep = &t
		}
		s.Ranks = append(s.Ranks, rank)
	}
	s.BytesDone, s.KernelsDone, s.KernelsTotal = quotient+remainder/n, built.done, built.of
	s.Percent = p.percent(s.Phase, s.BytesDone, loaded, built)
	if s.Phase == PhaseFetch {
		p.fetch.snapshot(&s)
	}
	s.advanceByPasses()
	return s
}

// advanceByPasses has passes count where the start consists of them: one of a wide
// batch, or the first request, can take as long as it likes between two parts.
func (s *Snapshot) advanceByPasses() {
	if s.Phase != PhaseCapture && s.Phase != PhaseWarmup {
		return
	}
	for _, r := range s.Ranks {
		if r.LastStep != nil && r.LastStep.After(s.LastAdvance) {
			s.LastAdvance = *r.LastStep
		}
	}
}

// percent is the share of what a phase does, in tenths. 100 comes only when it is
// over.
func (p *Progress) percent(phase Phase, bytes int64, loaded bool, built parts) float64 {
	switch {
	case phase == PhaseKernels:
		return built.percent()
	case phase == PhaseCapture:
		return p.captured.percent()
	case loaded:
		return 100
	case p.bytes == 0:
		return 0
	}
	return min(math.Floor(1000*float64(bytes)/float64(p.bytes))/10, 99.9)
}
