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
	}
	return nil
}
