package telemetry

import (
	"slices"
	"sync"
	"time"
)

// Phases keeps what the parts of recent cycles took. Noting one costs some tens
// of nanoseconds and allocates nothing.
type Phases struct {
	mu    sync.Mutex
	phase [phaseNames]phaseLog
}

// recentSpans is how many of a phase's latest spans are kept.
const recentSpans = 512

type phaseLog struct {
	count  int64
	total  time.Duration
	recent [recentSpans]span // a ring: span n is at n % recentSpans
}

type span struct {
	end  int64 // Unix ns
	took time.Duration
}

// Observe notes a span of a phase that has just ended.
func (p *Phases) Observe(phase PhaseName, end time.Time, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &p.phase[phase]
	l.recent[l.count%recentSpans] = span{end.UnixNano(), took}
	l.count++
	l.total += took
}

// PhaseReport is a phase in the answer of /v1/profile. All but Count and Total
// are of the latest spans.
type PhaseReport struct {
	Phase string  `json:"phase"`
	Count int64   `json:"count"`
	Total float64 `json:"total_seconds"`
	Mean  float64 `json:"mean_seconds"`
	P50   float64 `json:"p50_seconds"`
	P99   float64 `json:"p99_seconds"`
	Share float64 `json:"share"` // of all phases' time; collective is a part of the others and no part of the sum
}

// Report is a row for each phase that there was, in the order of a cycle.
func (p *Phases) Report() []PhaseReport {
	p.mu.Lock()
	phases := p.phase
	p.mu.Unlock()
	// Shares are of the stretch of time that is in memory for every phase.
	var since int64
	for i := range phases {
		if l := &phases[i]; l.count > recentSpans {
			since = max(since, l.recent[l.count%recentSpans].end)
		}
	}
	var sum time.Duration
	within := make([]time.Duration, len(phases))
	for i := range phases {
		for _, s := range phases[i].spans() {
			if s.end > since {
				within[i] += s.took
			}
		}
		if PhaseName(i) != PhaseExchange {
			sum += within[i]
		}
	}
	var rows []PhaseReport
	for _, i := range []PhaseName{PhaseSchedule, PhasePrefill, PhaseDecode, PhaseVerify, PhaseSample, PhaseExtend, PhaseDraft, PhaseExchange} {
		l := &phases[i]
		if l.count == 0 {
			continue
		}
		row := PhaseReport{Phase: i.String(), Count: l.count, Total: l.total.Seconds()}
		took := make([]time.Duration, 0, recentSpans)
		for _, s := range l.spans() {
			took = append(took, s.took)
			row.Mean += s.took.Seconds()
		}
		slices.Sort(took)
		row.Mean /= float64(len(took))
		row.P50, row.P99 = quantile(took, 0.5).Seconds(), quantile(took, 0.99).Seconds()
		if sum > 0 {
			row.Share = float64(within[i]) / float64(sum)
		}
		rows = append(rows, row)
	}
	return rows
}

func (l *phaseLog) spans() []span { return l.recent[:min(l.count, recentSpans)] }

// quantile is the smallest value that a share q of the sorted values does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
