package telemetry

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PhaseName is a part of the decode cycle, a value of the label phase.
type PhaseName int

const (
	PhasePrefill  PhaseName = iota // a target pass of prompts alone
	PhaseDecode                    // a target pass without drafts
	PhaseVerify                    // a target pass that verifies drafts
	PhaseSample                    // drawing tokens from logits, handing them out
	PhaseDraft                     // all draft passes of a cycle
	PhaseSchedule                  // planning a pass
	PhaseExtend                    // bringing the draft's cache up to the verified text
	PhaseExchange                  // collectives: waiting for the other ranks
	phaseNames                     // their number
)

var phaseNameStrings = [phaseNames]string{"prefill", "decode", "verify", "sample", "draft", "schedule", "extend", "collective"}

func (p PhaseName) String() string { return phaseNameStrings[p] }

// MaxPositions is the number of draft positions that are counted apart.
const MaxPositions = 16

// Outcome is how a request ended, a value of the label outcome.
type Outcome int

const (
	OutcomeStop     Outcome = iota // EOS, a stop token or string
	OutcomeLength                  // max_tokens or the context length
	OutcomeAbort                   // given up by the client
	OutcomeError                   // failed in the engine
	OutcomeRejected                // refused before it began
	outcomes                       // their number
)

var outcomeStrings = [outcomes]string{"stop", "length", "abort", "error", "rejected"}

func (o Outcome) String() string { return outcomeStrings[o] }

// Metrics are an engine's Prometheus metrics, all with the label model and in
// base units (seconds, tokens, ratios of 0 to 1). The label children that the
// step loop uses are resolved once, so counting allocates nothing. What was not
// measured yet has no series rather than a zero.
type Metrics struct {
	Running, Waiting, KVUsage         prometheus.Gauge
	PrefixHitRatio                    prometheus.Gauge
	PromptTokens, GenerationTokens    prometheus.Counter
	CachedTokens, Retractions         prometheus.Counter
	TokensPerSecond                   prometheus.GaugeFunc
	SpecDepth, SpecActive             prometheus.Gauge
	SpecAcceptLength                  prometheus.GaugeFunc
	SpecVerifies, SpecDraftTokens     prometheus.Counter
	TimeToFirstToken, InterToken      prometheus.Observer
	RequestSeconds, QueueSeconds      prometheus.Observer
	RequestPrompt, RequestGeneration  prometheus.Observer
	outcomes                          [outcomes]prometheus.Counter
	accepted                          [MaxPositions]prometheus.Counter
	phases                            [phaseNames]func() prometheus.Observer
	load, gain, helps                 *prometheus.GaugeVec
	gpu                               gpuMetrics
	Tokens, acceptedWindow, verWindow *Meter
	draftedWindow                     *Meter
	lastAccept, lastRate              atomic.Uint64 // bits of float64s
}

// Buckets, in seconds: phases last microseconds on a small model and tens of
// milliseconds on a large one; requests up to minutes. Lengths are in tokens.
var (
	phaseBuckets   = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1}
	tokenBuckets   = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5}
	requestBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	lengthBuckets  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072}
)

// window is how far back rates look: long enough to be steady, short enough to
// return to zero soon after the last request.
const window = 10 * time.Second

// NewMetrics makes the metrics of a served model and registers them; now gives
// the time for rates.
func NewMetrics(reg prometheus.Registerer, model string, now func() time.Time) *Metrics {
	tokens, accepted, verifies := NewMeter(window, now), NewMeter(window, now), NewMeter(window, now)
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"model": model}, reg)
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "outrider_" + name, Help: help})
		reg.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "outrider_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "outrider_" + name, Help: help}, []string{label})
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "outrider_" + name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	derived := func(name, help string, f func() float64) prometheus.GaugeFunc {
		g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "outrider_" + name, Help: help}, f)
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		Running:           gauge("requests_running", "Requests that are computed now."),
		Waiting:           gauge("requests_waiting", "Requests that wait to be computed."),
		KVUsage:           gauge("kv_cache_usage_ratio", "Share of the KV pages that requests hold, 0 to 1."),
		PrefixHitRatio:    gauge("prefix_cache_hit_ratio", "Share of the prompt tokens found in the cache, 0 to 1."),
		PromptTokens:      counter("prompt_tokens_total", "Tokens of the prompts of admitted requests."),
		GenerationTokens:  counter("generation_tokens_total", "Tokens generated, as in usage.completion_tokens."),
		CachedTokens:      counter("cached_tokens_total", "Prompt tokens found in the cache."),
		Retractions:       counter("retractions_total", "Running requests put back in the queue for lack of KV pages."),
		SpecDepth:         gauge("spec_depth", "Draft steps of a cycle now; 0 is plain decoding."),
		SpecActive:        gauge("spec_active", "1 while drafts are proposed, otherwise 0."),
		SpecVerifies:      counter("spec_verifies_total", "Drafts verified: one for each request of a verify pass."),
		SpecDraftTokens:   counter("spec_draft_tokens_total", "Draft tokens proposed and verified."),
		TimeToFirstToken:  histogram("time_to_first_token_seconds", "Time from a request's arrival to its first token.", requestBuckets),
		InterToken:        histogram("inter_token_seconds", "Time between tokens: of tokens that came together, each has its share.", tokenBuckets),
		RequestSeconds:    histogram("request_seconds", "Time from a request's arrival to its end.", requestBuckets),
		QueueSeconds:      histogram("queue_seconds", "Time from a request's arrival to its admission.", requestBuckets),
		RequestPrompt:     histogram("request_prompt_tokens", "Tokens of a request's prompt.", lengthBuckets),
		RequestGeneration: histogram("request_generation_tokens", "Tokens that a request was answered with.", lengthBuckets),
		Tokens:            tokens, acceptedWindow: accepted, verWindow: verifies, draftedWindow: NewMeter(window, now),
	}
	m.TokensPerSecond = derived("generation_tokens_per_second", "Tokens generated in a second, over the last seconds.", tokens.Rate)
	m.SpecAcceptLength = derived("spec_accept_length", "Tokens settled by a verified draft, the target's own included, of the last seconds in which there was one; 0 before the first.", m.acceptLength)

	requests := vec("requests_total", "Requests that have ended, by outcome.", "outcome")
	for o := range m.outcomes {
		m.outcomes[o] = requests.WithLabelValues(Outcome(o).String())
	}
	acceptedTokens := vec("spec_accepted_tokens_total", "Draft tokens accepted, by their position in the draft, from 0.", "position")
	for i := range m.accepted {
		m.accepted[i] = acceptedTokens.WithLabelValues(strconv.Itoa(i))
	}
	phases := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "outrider_phase_seconds", Help: "Time of the parts of a cycle.", Buckets: phaseBuckets,
	}, []string{"phase"})
	m.load = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outrider_load_seconds", Help: "Time that the phases of the start took.",
	}, []string{"phase"})
	m.gain = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outrider_spec_gain_ratio", Help: "Estimated tokens in a second at the depth in force over those of plain decoding, under the load of the last cycle; absent before the first draft.",
	}, nil)
	m.helps = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "outrider_spec_draft_helps", Help: "0 while hardly any draft token is accepted at any depth; absent until that was found once, 1 when the draft is right again.",
	}, nil)
	reg.MustRegister(phases, m.load, m.gain, m.helps)
	m.gpu = newGPUMetrics(reg)
	for p := range m.phases {
		m.phases[p] = sync.OnceValue(func() prometheus.Observer { return phases.WithLabelValues(PhaseName(p).String()) })
	}
	return m
}

// acceptLength is the mean number of tokens that a verify settled: over the
// window, or as it was last when there was none.
func (m *Metrics) acceptLength() float64 {
	if verifies := m.verWindow.Sum(); verifies > 0 {
		m.lastAccept.Store(math.Float64bits(1 + m.acceptedWindow.Sum()/verifies))
	}
	return math.Float64frombits(m.lastAccept.Load())
}

// Figures are how fast the engine is and what drafting does for it, over the
// last seconds.
type Figures struct {
	TokensPerSecond float64
	AcceptLength    float64 // tokens that a verify settles, as the metric has it
	AcceptRate      float64 // of drafted tokens, those accepted
}

// Figures are those of now; what drafting did is as it was last when it rests.
func (m *Metrics) Figures() Figures {
	if drafted := m.draftedWindow.Sum(); drafted > 0 {
		m.lastRate.Store(math.Float64bits(m.acceptedWindow.Sum() / drafted))
	}
	return Figures{m.Tokens.Rate(), m.acceptLength(), math.Float64frombits(m.lastRate.Load())}
}

// Outcome counts the ends of requests.
func (m *Metrics) Outcome(o Outcome) prometheus.Counter { return m.outcomes[o] }

// Phase is the histogram of a part of the cycle.
func (m *Metrics) Phase(p PhaseName) prometheus.Observer { return m.phases[p]() }

// SpecGain sets the measured ratio of decoding with speculation to without.
func (m *Metrics) SpecGain(ratio float64) { m.gain.WithLabelValues().Set(ratio) }

// SpecHelps notes whether the draft was found to be of use.
func (m *Metrics) SpecHelps(helps bool) {
	v := 0.0
	if helps {
		v = 1
	}
	m.helps.WithLabelValues().Set(v)
}

// LoadPhase is how long a phase of the start took.
func (m *Metrics) LoadPhase(p Phase) prometheus.Gauge { return m.load.WithLabelValues(string(p)) }

// Accepted counts the draft tokens accepted at a position, from 0 up to
// MaxPositions - 1.
func (m *Metrics) Accepted(position int) prometheus.Counter { return m.accepted[position] }

// Verified counts a draft of drafted tokens of which accepted became text.
func (m *Metrics) Verified(drafted, accepted int) {
	m.SpecVerifies.Inc()
	m.SpecDraftTokens.Add(float64(drafted))
	for i := range min(accepted, MaxPositions) {
		m.accepted[i].Inc()
	}
	m.verWindow.Add(1)
	m.acceptedWindow.Add(float64(accepted))
	m.draftedWindow.Add(float64(drafted))
}
