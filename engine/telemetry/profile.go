package telemetry

// Profile says where the time goes and what the choice of the depth rests on:
// the answer of /v1/profile. Times are seconds.
type Profile struct {
	Phases      []PhaseReport `json:"phases"`
	Ranks       []RankReport  `json:"ranks"`
	Speculation Speculation   `json:"speculation"`
	Acceptance  []Acceptance  `json:"acceptance,omitempty"` // by position of the draft
	Tokens      []float64     `json:"tokens,omitempty"`     // expected of a cycle and request, by depth
	Costs       *Costs        `json:"costs,omitempty"`
	Depths      []DepthTime   `json:"depths,omitempty"` // where the time of cycles went
}

// DepthTime is what the cycles did since the start that drafted a number of tokens.
type DepthTime struct {
	Depth  int    `json:"depth"`
	Steady Cycles `json:"steady"` // as chosen
	Probe  Cycles `json:"probe"`  // to try the depth
	Moving Cycles `json:"moving"` // that verified drafts of another depth: on the way to this one
	Mixed  Cycles `json:"mixed"`  // with rows of prompts in their passes, or of the engine's own probes
}

// Cycles are a number of cycles, their time and the tokens that they settled.
type Cycles struct {
	Count   int     `json:"count"`
	Seconds float64 `json:"seconds"`
	Tokens  int     `json:"tokens"`
}

// Add counts a cycle.
func (c *Cycles) Add(seconds float64, tokens int) {
	c.Count++
	c.Seconds += seconds
	c.Tokens += tokens
}

// RankReport is what a rank did since the start.
type RankReport struct {
	Rank       int     `json:"rank"`
	Passes     float64 `json:"passes_seconds"`     // in passes of target and draft
	Collective float64 `json:"collective_seconds"` // of these, in collectives: waiting for the other ranks, and adding
	// In passes, and between them, by the device's own clock, which only benchmarks in
	// the engine's process start.
	Busy float64 `json:"-"`
	Idle float64 `json:"-"`
}

// Acceptance is how often a draft token is accepted together with all before it.
type Acceptance struct {
	Position  int     `json:"position"`
	Rate      float64 `json:"rate"`
	Deviation float64 `json:"deviation"` // standard error of the rate
	Drafts    float64 `json:"drafts"`    // that the rate rests on; older ones count less
}

// Costs is the estimate of a decode cycle's time:
// speed × (cell of batch and depth + cached positions × context of the depth).
type Costs struct {
	Speed   float64    `json:"speed"`   // common factor, which follows the machine
	Context []float64  `json:"context"` // seconds for each cached position, by depth
	Cells   []CostCell `json:"cells"`
}

// CostCell is the time of a cycle with empty caches.
type CostCell struct {
	Batch    int     `json:"batch"`
	Depth    int     `json:"depth"`
	Seconds  float64 `json:"seconds"`
	Measured float64 `json:"measured"` // cycles that corrected it since the start's profile
}
