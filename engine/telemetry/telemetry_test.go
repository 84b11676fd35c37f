package telemetry

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// The JSON is a contract with the operator and the dashboards.
func TestSnapshotJSON(t *testing.T) {
	c := newClock()
	p := NewProgress(2, c.now)
	p.Enter(PhaseLoad)
	p.Expect(1001, 8)
	p.Advance(0, 401)
	p.ShardDone(0)
	p.ShardDone(0)
	c.add(time.Second)
	p.Advance(1, 600)
	p.ShardDone(1)
	p.Built(0, 3, 12)
	p.Built(1, 4, 12)
	c.add(time.Second)
	p.Step(1)
	got, err := json.Marshal(p.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"phase":"load","percent":49.9,"bytes_done":500,"bytes_total":1001,"shards_done":1,"shards_total":8,` +
		`"kernels_done":3,"kernels_total":12,"captures_done":0,"captures_total":0,"last_advance":"2026-01-02T03:04:06Z","ranks":[{"rank":0,"phase":"load","percent":40},` +
		`{"rank":1,"phase":"load","percent":59.9,"last_step":"2026-01-02T03:04:07Z"}]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := p.LastStep(1); !got.Equal(c.now()) {
		t.Errorf("last step of rank 1 is %s, want %s", got, c.now())
	}
	if !p.LastStep(0).IsZero() {
		t.Error("rank 0 made no step but has a last one")
	}
}

func TestProgressNeverGoesBack(t *testing.T) {
	c := newClock()
	p := NewProgress(2, c.now)
	check := func(what string, phase Phase, percent float64, bytes int64, shards int) {
		t.Helper()
		s := p.Snapshot()
		if s.Phase != phase || s.Percent != percent || s.BytesDone != bytes || s.ShardsDone != shards {
			t.Errorf("%s: %s, %v %%, %d bytes, %d shards; want %s, %v %%, %d, %d", what, s.Phase, s.Percent, s.BytesDone, s.ShardsDone, phase, percent, bytes, shards)
		}
	}
	check("at first", PhaseFetch, 0, 0, 0)
	p.Enter(PhaseLoad)
	p.Expect(100, 1)
	p.Advance(0, 60)
	p.Advance(0, -50)
	p.Advance(1, 40)
	check("negative bytes", PhaseLoad, 50, 50, 0)
	p.Enter(PhaseFetch)
	check("an earlier phase", PhaseLoad, 50, 50, 0)
	for rank := range 2 {
		p.Advance(rank, 1<<62)
		p.ShardDone(rank)
		p.ShardDone(rank)
	}
	check("more than there is", PhaseLoad, 99.9, 100, 1)
	p.EnterRank(0, PhaseKernels)
	check("one rank ahead", PhaseLoad, 99.9, 100, 1)
	if r := p.Snapshot().Ranks; r[0].Phase != PhaseKernels || r[0].Percent != 100 || r[1].Phase != PhaseLoad || r[1].Percent != 99.9 {
		t.Errorf("ranks: %+v", r)
	}
	p.EnterRank(1, PhaseWarmup)
	check("both loaded", PhaseKernels, 100, 100, 1)
	p.Enter(PhaseServing)
	p.Enter(PhaseDraining)
	p.Enter(PhaseServing)
	check("serving after the drain", PhaseDraining, 100, 100, 1)
}

// While models are downloaded, progress is the download's; a second one never
// takes the percentage back.
func TestProgressOfDownloads(t *testing.T) {
	p := NewProgress(2, time.Now)
	check := func(percent float64, done, total int64, files int) {
		t.Helper()
		s := p.Snapshot()
		if s.Percent != percent || s.Ranks[1].Percent != percent || s.BytesDone != done || s.BytesTotal != total || s.ShardsDone != files {
			t.Errorf("%v %% (rank 1: %v), %d of %d bytes, %d files: want %v %%, %d of %d, %d", s.Percent, s.Ranks[1].Percent, s.BytesDone, s.BytesTotal, s.ShardsDone, percent, done, total, files)
		}
	}
	p.AdvanceFetch(0)
	check(0, 0, 0, 0)
	p.ExpectFetch(1000, 2)
	p.AdvanceFetch(900)
	p.FetchDone()
	check(90, 900, 1000, 1)
	p.AdvanceFetch(900)
	p.FetchDone()
	check(99.9, 1000, 1000, 2)
	p.ExpectFetch(1000, 1)
	check(99.9, 1000, 2000, 2)
	p.AdvanceFetch(-5)
	check(99.9, 1000, 2000, 2)
	p.Enter(PhaseLoad)
	check(0, 0, 0, 0)
	p.Expect(10, 1)
	p.Advance(0, 10)
	p.AdvanceFetch(7)
	if s := p.Snapshot(); s.BytesDone != 5 || s.BytesTotal != 10 {
		t.Errorf("the load has %d of %d bytes: want 5 of 10", s.BytesDone, s.BytesTotal)
	}
}

// Kernels and captures have their own parts, which percent is of in their phases, and
// which never go back; each is an advance.
func TestProgressOfKernelsAndCaptures(t *testing.T) {
	c := newClock()
	p := NewProgress(2, c.now)
	check := func(what string, advances bool, percent, rank0 float64, want [4]int) {
		t.Helper()
		s := p.Snapshot()
		got := [4]int{s.KernelsDone, s.KernelsTotal, s.CapturesDone, s.CapturesTotal}
		if s.Percent != percent || s.Ranks[0].Percent != rank0 || got != want || s.LastAdvance.Equal(c.now()) != advances {
			t.Errorf("%s: %v %% (rank 0: %v), %v, last advance %s at %s; want %v %% (%v), %v, an advance: %v", what, s.Percent, s.Ranks[0].Percent, got, s.LastAdvance, c.now(), percent, rank0, want, advances)
		}
		c.add(time.Second)
	}
	p.Enter(PhaseLoad)
	p.Expect(100, 1)
	p.Advance(0, 30)
	p.Built(0, 0, 4)
	p.Built(1, 0, 4)
	check("compiled while it loads", true, 15, 30, [4]int{0, 4, 0, 0})
	p.Built(0, 2, 4)
	check("a rank alone", true, 15, 30, [4]int{0, 4, 0, 0})
	p.Enter(PhaseKernels)
	check("the load is over", true, 0, 50, [4]int{0, 4, 0, 0})
	p.Built(1, 1, 4)
	check("both ranks", true, 25, 50, [4]int{1, 4, 0, 0})
	p.Built(0, 1, 4)
	check("fewer than before", false, 25, 50, [4]int{1, 4, 0, 0})
	p.Built(0, 9, 4)
	p.Built(1, 4, 4)
	check("all", true, 100, 100, [4]int{4, 4, 0, 0})
	p.Captured(0, 3)
	p.Enter(PhaseCapture)
	check("captures", true, 0, 0, [4]int{4, 4, 0, 3})
	p.Captured(1, 3)
	check("one", true, 33.3, 33.3, [4]int{4, 4, 1, 3})
	p.Captured(1, 3)
	check("the same", false, 33.3, 33.3, [4]int{4, 4, 1, 3})
	p.Step(1)
	check("a pass", true, 33.3, 33.3, [4]int{4, 4, 1, 3})
	p.Captured(3, 3)
	check("all captures", true, 100, 100, [4]int{4, 4, 3, 3})
	p.Enter(PhaseWarmup)
	check("the first request", true, 100, 100, [4]int{4, 4, 3, 3})
	p.Step(0)
	check("its passes", true, 100, 100, [4]int{4, 4, 3, 3})
	p.Enter(PhaseServing)
	c.add(time.Second)
	p.Step(0)
	check("passes that serve", false, 100, 100, [4]int{4, 4, 3, 3})

	none := NewProgress(1, c.now)
	for _, phase := range []Phase{PhaseKernels, PhaseCapture} {
		if none.Enter(phase); none.Snapshot().Percent != 100 {
			t.Errorf("%s without parts is at %v %%", phase, none.Snapshot().Percent)
		}
	}
}

// An engine that is told to stop while it loads does not claim to be loaded.
func TestDrainWhileLoading(t *testing.T) {
	p := NewProgress(1, newClock().now)
	p.Enter(PhaseLoad)
	p.Expect(100, 1)
	p.Advance(0, 25)
	p.Enter(PhaseDraining)
	if s := p.Snapshot(); s.Phase != PhaseDraining || s.Percent != 25 {
		t.Errorf("%s at %v %%, want draining at 25 %%", s.Phase, s.Percent)
	}
}

// What did not change does not look like an advance: a stalled load shows.
func TestLastAdvance(t *testing.T) {
	c := newClock()
	p := NewProgress(1, c.now)
	p.Enter(PhaseLoad)
	p.Expect(10, 1)
	p.Advance(0, 10)
	p.ShardDone(0)
	want := c.now()
	c.add(time.Minute)
	p.Advance(0, 5)
	p.Advance(0, 0)
	p.ShardDone(0)
	p.Enter(PhaseLoad)
	p.Step(0)
	if got := p.Snapshot().LastAdvance; !got.Equal(want) {
		t.Errorf("last advance is %s, want %s", got, want)
	}
}

func TestConcurrentProgress(t *testing.T) {
	const ranks, shards = 8, 100
	p := NewProgress(ranks, time.Now)
	p.Enter(PhaseLoad)
	p.Expect(shards*10, shards)
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() {
			last := int64(-1)
			for range shards {
				p.Advance(rank, 10)
				p.ShardDone(rank)
				p.Step(rank)
				if done := p.Snapshot().BytesDone; done < last {
					t.Errorf("bytes went back from %d to %d", last, done)
				} else {
					last = done
				}
			}
		})
	}
	wg.Wait()
	if s := p.Snapshot(); s.BytesDone != s.BytesTotal || s.ShardsDone != shards {
		t.Errorf("%d of %d bytes, %d of %d shards", s.BytesDone, s.BytesTotal, s.ShardsDone, shards)
	}
}

func TestMeter(t *testing.T) {
	c := newClock()
	m := NewMeter(10*time.Second, c.now)
	for range 100 { // 20 a second for 10 s
		m.Add(2)
		c.add(100 * time.Millisecond)
	}
	if got := m.Rate(); got < 18 || got > 20 {
		t.Errorf("rate is %v, want 18 to 20", got)
	}
	c.add(5 * time.Second)
	if got := m.Rate(); got < 8 || got > 10 {
		t.Errorf("rate is %v after half a window without events, want 8 to 10", got)
	}
	c.add(6 * time.Second)
	if got := m.Sum(); got != 0 {
		t.Errorf("sum is %v after a window without events, want 0", got)
	}
	c.add(1000 * time.Hour)
	m.Add(3)
	if got := m.Sum(); got != 3 {
		t.Errorf("sum is %v after a long pause, want 3", got)
	}
}

func newMetrics(t *testing.T) (*prometheus.Registry, *Metrics, *clock) {
	t.Helper()
	c := newClock()
	reg := prometheus.NewPedanticRegistry()
	return reg, NewMetrics(reg, "m", c.now), c
}

// touch gives every metric a series.
func touch(m *Metrics) {
	for phase := range phaseNames {
		m.Phase(phase).Observe(0.001)
	}
	m.LoadPhase(PhaseLoad).Set(1)
	m.SpecGain(1.5)
	m.SpecHelps(true)
	m.Verified(3, 2)
	for f := range gpuFigures {
		m.SetGPU(0, f, 1)
	}
	m.GPUEvent(0, 79)
}

func TestMetricsLint(t *testing.T) {
	reg, m, _ := newMetrics(t)
	touch(m)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// The names are a contract with the operator, the dashboards and the alerts;
// docs/metrics.md explains exactly these.
func TestMetricNames(t *testing.T) {
	reg, m, _ := newMetrics(t)
	touch(m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		got = append(got, f.GetName())
		for _, s := range f.GetMetric() {
			if !slices.ContainsFunc(s.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "model" }) {
				t.Errorf("%s has a series without the label model", f.GetName())
			}
		}
	}
	slices.Sort(got)
	want := strings.Fields(`outrider_cached_tokens_total outrider_generation_tokens_per_second outrider_generation_tokens_total
		outrider_gpu_ecc_uncorrected_errors outrider_gpu_memory_total_bytes outrider_gpu_memory_used_bytes outrider_gpu_power_watts
		outrider_gpu_temperature_celsius outrider_gpu_utilization_ratio outrider_gpu_xid_events_total
		outrider_inter_token_seconds outrider_kv_cache_usage_ratio outrider_load_seconds outrider_phase_seconds
		outrider_prefix_cache_hit_ratio outrider_prompt_tokens_total outrider_queue_seconds outrider_request_generation_tokens outrider_request_prompt_tokens outrider_request_seconds
		outrider_requests_running outrider_requests_total outrider_requests_waiting outrider_retractions_total
		outrider_spec_accept_length outrider_spec_accepted_tokens_total outrider_spec_active outrider_spec_depth
		outrider_spec_draft_helps outrider_spec_draft_tokens_total outrider_spec_gain_ratio outrider_spec_verifies_total outrider_time_to_first_token_seconds`)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(outrider_[a-z_]+)").FindAllSubmatch(doc, -1) {
		documented = append(documented, string(row[1]))
	}
	slices.Sort(documented)
	if !slices.Equal(documented, want) {
		t.Errorf("docs/metrics.md explains %v\nwant %v", documented, want)
	}
}

func TestMetricValues(t *testing.T) {
	reg, m, c := newMetrics(t)
	const before = `
# HELP outrider_spec_accept_length Tokens settled by a verified draft, the target's own included, of the last seconds in which there was one; 0 before the first.
# TYPE outrider_spec_accept_length gauge
outrider_spec_accept_length{model="m"} 0
`
	expect := func(want string, names ...string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	}
	expect(before, "outrider_spec_accept_length", "outrider_phase_seconds", "outrider_load_seconds", "outrider_spec_gain_ratio")
	m.Verified(3, 2)
	m.Verified(3, 0)
	m.Accepted(15).Inc()
	m.Tokens.Add(40)
	m.Outcome(OutcomeRejected).Inc()
	if got, want := m.Figures(), (Figures{4, 2, 1.0 / 3}); got != want {
		t.Errorf("the figures are %v, want %v", got, want)
	}
	for name, want := range map[string]float64{
		"outrider_spec_accept_length": 2, "outrider_generation_tokens_per_second": 4,
		"outrider_spec_verifies_total": 2, "outrider_spec_draft_tokens_total": 6,
	} {
		if got := value(t, reg, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for label, want := range map[string]float64{"0": 1, "1": 1, "2": 0, "15": 1} {
		if got := value(t, reg, "outrider_spec_accepted_tokens_total", label); got != want {
			t.Errorf("accepted at position %s is %v, want %v", label, got, want)
		}
	}
	for label, want := range map[string]float64{"stop": 0, "length": 0, "abort": 0, "error": 0, "rejected": 1} {
		if got := value(t, reg, "outrider_requests_total", label); got != want {
			t.Errorf("outcome %s is %v, want %v", label, got, want)
		}
	}
	c.add(time.Hour)
	if got := value(t, reg, "outrider_generation_tokens_per_second", ""); got != 0 {
		t.Errorf("an idle engine generates %v tokens a second", got)
	}
	if got := value(t, reg, "outrider_spec_accept_length", ""); got != 2 {
		t.Errorf("accept length is %v when idle, want the last: 2", got)
	}
	if got, want := m.Figures(), (Figures{0, 2, 1.0 / 3}); got != want {
		t.Errorf("the figures when idle are %v, want %v", got, want)
	}
}

// value is a counter's or gauge's value, of the series with a label of that value.
func value(t *testing.T, g prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, s := range f.GetMetric() {
			for _, l := range s.GetLabel() {
				if label == "" || l.GetValue() == label {
					return s.GetCounter().GetValue() + s.GetGauge().GetValue()
				}
			}
		}
	}
	t.Fatalf("%s{%s}: no such series", name, label)
	return 0
}

// The step loop counts in every step: no garbage, no locks on the heartbeat.
func TestCountingAllocatesNothing(t *testing.T) {
	_, m, _ := newMetrics(t)
	p := NewProgress(1, time.Now)
	if n := testing.AllocsPerRun(100, func() {
		p.Step(0)
		m.Phase(PhaseVerify).Observe(0.001)
		m.Outcome(OutcomeStop).Inc()
		m.Accepted(3).Inc()
		m.Verified(3, 3)
		m.Tokens.Add(4)
		m.InterToken.Observe(0.002)
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	p.mu.Lock() // a reader that is slow must not hold a step up
	defer p.mu.Unlock()
	done := make(chan struct{})
	go func() { p.Step(0); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("Step waits for the lock of Snapshot")
	}
}
