// Package sampling turns a row of target logits into a token. Randomness is
// keyed by (request seed, position) and never by batch, step or draft depth,
// so a request's text is the same with speculation on or off and beside any
// other requests.
package sampling

import (
	"fmt"
	"math"
)

// Params are one request's sampling settings.
type Params struct {
	Temperature float64 // 0 is greedy; at most 2
	TopP        float64 // nucleus mass, in (0, 1]
	TopK        int     // keep the k most likely tokens; 0 or -1 keeps all
	MinP        float64 // drop tokens less likely than MinP × the most likely one; in [0, 1]
	Seed        uint64  // key of the request's randomness

	// Penalties change the logits before anything else looks at them.
	Repetition float64 // divides positive and multiplies negative logits of tokens of the prompt and the answer; 0 or 1 is none
	Presence   float64 // taken from the logits of tokens of the answer; −2 to 2
	Frequency  float64 // taken once for each time that a token is in the answer; −2 to 2
	Bias       []Bias  // added to logits; at most MaxBiases, no token twice
}

// Bias is added to a token's logit.
type Bias struct {
	ID    int32
	Value float64 // −100 to 100
}

// MaxBiases is the largest number of biases of a request.
const MaxBiases = 1024

// plain tells whether the logits are used as they are.
func (p *Params) plain() bool {
	return !p.Penalizes() && len(p.Bias) == 0
}

// Penalizes tells whether the logits depend on the tokens before.
func (p *Params) Penalizes() bool {
	return p.Repetition != 0 && p.Repetition != 1 || p.Presence != 0 || p.Frequency != 0
}

// Greedy tells whether the token is simply the one with the highest logit.
func (p *Params) Greedy() bool { return p.plain() && (p.Temperature == 0 || p.TopK == 1) }

// minus is what the penalties take from the logit of a token that is in the
// answer n times.
func (p *Params) minus(n int32) float32 {
	return float32(p.Presence + float64(p.Frequency*float64(n)))
}

// Validate reports the first value out of range, by its name in the API.
func (p Params) Validate() error {
	switch {
	case math.IsNaN(p.Temperature) || p.Temperature < 0 || p.Temperature > 2:
		return fmt.Errorf("temperature is %v: allowed is 0 to 2", p.Temperature)
	case math.IsNaN(p.TopP) || p.TopP <= 0 || p.TopP > 1:
		return fmt.Errorf("top_p is %v: allowed is above 0, up to 1", p.TopP)
	case p.TopK < -1:
		return fmt.Errorf("top_k is %d: allowed is 1 or more, or 0 or -1 for all tokens", p.TopK)
	case math.IsNaN(p.MinP) || p.MinP < 0 || p.MinP > 1:
		return fmt.Errorf("min_p is %v: allowed is 0 to 1", p.MinP)
	case p.Repetition != 0 && !(p.Repetition >= 0.01 && p.Repetition <= 100):
		return fmt.Errorf("repetition_penalty is %v: allowed is 0.01 to 100; 1 is none", p.Repetition)
	case !(math.Abs(p.Presence) <= 2):
		return fmt.Errorf("presence_penalty is %v: allowed is -2 to 2", p.Presence)
	case !(math.Abs(p.Frequency) <= 2):
		return fmt.Errorf("frequency_penalty is %v: allowed is -2 to 2", p.Frequency)
	case len(p.Bias) > MaxBiases:
		return fmt.Errorf("logit_bias has %d tokens: allowed are %d", len(p.Bias), MaxBiases)
	}
	for _, b := range p.Bias {
		if !(math.Abs(b.Value) <= 100) {
			return fmt.Errorf("logit_bias of token %d is %v: allowed is -100 to 100", b.ID, b.Value)
		}
	}
	return nil
}

// Hash is equal for parameters that give the same token for the same text.
func (p *Params) Hash() uint64 {
	h := p.Seed
	if p.Temperature == 0 {
		h = 0
	}
	add := func(v uint64) { h = (h ^ v) * 0x9e3779b97f4a7c15; h ^= h >> 29 }
	for _, v := range [...]float64{p.Temperature, p.TopP, p.MinP, p.Repetition, p.Presence, p.Frequency, float64(p.TopK)} {
		add(math.Float64bits(v))
	}
	for _, b := range p.Bias {
		add(uint64(uint32(b.ID)))
		add(math.Float64bits(b.Value))
	}
	return h
}
