// Package telemetry is what an engine says of itself while it runs: how far the
// start is, when each rank moved last, and the metrics.
package telemetry

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Phase is a part of an engine's life, in the order of the constants.
type Phase string

const (
	PhaseFetch      Phase = "fetch"
	PhaseLoad       Phase = "load"
	PhaseCollective Phase = "collective"
	PhaseKernels    Phase = "kernels"
	PhaseCapture    Phase = "capture"
	PhaseWarmup     Phase = "warmup"
	PhaseServing    Phase = "serving"
	PhaseDraining   Phase = "draining"
)

// Progress is where the start of an engine stands. Its methods may be called
// from all ranks at once.
type Progress struct {
	now   func() time.Time
	steps []atomic.Int64 // by rank: time of the last finished pass, Unix ns

	mu          sync.Mutex
	phase       Phase
	lastAdvance time.Time
	bytes       int64 // to load by each rank
	shards      int
	ranks       []rankProgress
}

type rankProgress struct {
	bytes  int64
	shards int
}

// NewProgress starts in PhaseFetch.
func NewProgress(ranks int, now func() time.Time) *Progress {
	return &Progress{now: now, steps: make([]atomic.Int64, ranks), phase: PhaseFetch, lastAdvance: now(), ranks: make([]rankProgress, ranks)}
}

// Enter moves all ranks to a phase.
func (p *Progress) Enter(phase Phase) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.lastAdvance = phase, p.now()
}

// Expect sets what each rank has to load.
func (p *Progress) Expect(bytes int64, shards int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes, p.shards, p.lastAdvance = bytes, shards, p.now()
}

// Advance notes bytes that a rank has loaded.
func (p *Progress) Advance(rank int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.ranks[rank]
	r.bytes = min(r.bytes+max(bytes, 0), p.bytes)
	p.lastAdvance = p.now()
}

// ShardDone notes a file of weights that a rank has loaded.
func (p *Progress) ShardDone(rank int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.ranks[rank]
	r.shards = min(r.shards+1, p.shards)
	p.lastAdvance = p.now()
}

// Step is a rank's heartbeat: it finished a pass. It takes no lock and
// allocates nothing.
func (p *Progress) Step(rank int) { p.steps[rank].Store(p.now().UnixNano()) }

// Snapshot is the answer of /progress.
type Snapshot struct {
	Phase       Phase          `json:"phase"`
	Percent     float64        `json:"percent"` // of the load, 0 to 100
	BytesDone   int64          `json:"bytes_done"`
	BytesTotal  int64          `json:"bytes_total"`
	ShardsDone  int            `json:"shards_done"`
	ShardsTotal int            `json:"shards_total"`
	LastAdvance time.Time      `json:"last_advance"`
	Ranks       []RankSnapshot `json:"ranks"`
}

// RankSnapshot is one rank's part of a Snapshot.
type RankSnapshot struct {
	Rank     int        `json:"rank"`
	Phase    Phase      `json:"phase"`
	Percent  float64    `json:"percent"`
	LastStep *time.Time `json:"last_step,omitempty"` // of the last finished pass, if there was one
}

// Snapshot is the state now. Bytes are the mean over the ranks, shards those
// that all ranks have.
func (p *Progress) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Snapshot{Phase: p.phase, BytesTotal: p.bytes, ShardsTotal: p.shards, ShardsDone: p.shards, LastAdvance: p.lastAdvance.UTC()}
	for i, r := range p.ranks {
		s.BytesDone += r.bytes / int64(len(p.ranks))
		s.ShardsDone = min(s.ShardsDone, r.shards)
		rank := RankSnapshot{Rank: i, Phase: p.phase, Percent: p.percent(r.bytes)}
		if ns := p.steps[i].Load(); ns != 0 {
			t := time.Unix(0, ns).UTC()
			rank.LastStep = &t
		}
		s.Ranks = append(s.Ranks, rank)
	}
	s.Percent = p.percent(s.BytesDone)
	if s.ShardsDone == s.ShardsTotal && p.loaded() {
		s.BytesDone = s.BytesTotal // the mean was rounded down
	}
	return s
}

// loaded tells whether the phase comes after the load.
func (p *Progress) loaded() bool { return p.phase != PhaseFetch && p.phase != PhaseLoad }

// percent is the share of a load to one decimal, 100 only when it is over.
func (p *Progress) percent(bytes int64) float64 {
	switch {
	case p.loaded():
		return 100
	case p.phase == PhaseFetch || p.bytes == 0:
		return 0
	}
	return min(math.Floor(1000*float64(bytes)/float64(p.bytes))/10, 99.9)
}
