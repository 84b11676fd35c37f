package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Rope says how positions turn queries and keys.
type Rope struct {
	// Freqs are the inverse frequencies, HeadDim/2 of them: dimension pair i
	// turns by position · Freqs[i] radians.
	Freqs []float32
	// Scale multiplies sines and cosines, and so the scores by its square.
	Scale float32
	// MaxPositions is the longest sequence for which the frequencies are right;
	// 0 if that is the model's.
	MaxPositions int
}

// rawRope is rope_scaling of the older configs and rope_parameters of the newer.
// Every member with a name is understood.
type rawRope struct {
	Theta           *float64 `json:"rope_theta"`
	Type            string   `json:"rope_type"`
	OldType         string   `json:"type"`
	Factor          float64  `json:"factor"`
	LowFreq         float64  `json:"low_freq_factor"`
	HighFreq        float64  `json:"high_freq_factor"`
	OriginalMax     float64  `json:"original_max_position_embeddings"`
	PartialShare    *float64 `json:"partial_rotary_factor"`
	AttentionFactor *float64 `json:"attention_factor"`
	BetaFast        *float64 `json:"beta_fast"`
	BetaSlow        *float64 `json:"beta_slow"`
	MScale          float64  `json:"mscale"`
	MScaleAllDim    float64  `json:"mscale_all_dim"`
	Truncate        *bool    `json:"truncate"`
	Finetuned       *bool    `json:"finetuned"` // tells how the model was made, and changes nothing

	unknown []string // members that are none of these and not null
}

func (r *rawRope) UnmarshalJSON(b []byte) error {
	type plain rawRope
	if err := json.Unmarshal(b, (*plain)(r)); err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	for field := range reflect.TypeFor[rawRope]().Fields() {
		delete(members, field.Tag.Get("json"))
	}
	maps.DeleteFunc(members, func(_ string, v json.RawMessage) bool { return string(v) == "null" })
	r.unknown = slices.Sorted(maps.Keys(members))
	return nil
}

// kind is the type by either name; both default and none are "default".
func (r *rawRope) kind() string {
	switch {
	case r.Type != "":
		return r.Type
	case r.OldType != "":
		return r.OldType
	}
	return "default"
}

// ropeKinds are the types that are supported.
var ropeKinds = []string{"default", "linear", "dynamic", "llama3", "yarn"}

// ropeScaling is the rope_scaling or rope_parameters that count, nil without
// any; what is not understood in it is refused by name.
func (raw *rawConfig) ropeScaling() (*rawRope, error) {
	name, r := "rope_scaling", raw.RopeScaling
	if raw.RopeParameters != nil {
		name, r = "rope_parameters", raw.RopeParameters
		if old := raw.RopeScaling; old != nil && !r.alike(old) {
			return nil, fmt.Errorf("rope_scaling and rope_parameters are both there and differ: leave one of them out")
		}
	}
	switch share := or(raw.PartialShare, 1); {
	case share != 1:
		return nil, fmt.Errorf("partial_rotary_factor is %v: supported is 1", share)
	case r == nil:
		return nil, nil
	case len(r.unknown) > 0:
		return nil, fmt.Errorf("%s has %.60q, which is not understood: supported are the members of the types %s", name, r.unknown[0], strings.Join(ropeKinds, ", "))
	case !slices.Contains(ropeKinds, r.kind()):
		return nil, fmt.Errorf("%s: rope_type is %.60q: supported are %s", name, r.kind(), strings.Join(ropeKinds, ", "))
	case or(r.PartialShare, 1) != 1:
		return nil, fmt.Errorf("partial_rotary_factor is %v: supported is 1", *r.PartialShare)
	case r.kind() != "default" && !(r.Factor >= 1 && r.Factor <= maxFactor):
		return nil, fmt.Errorf("rope scaling %s has factor %v: allowed is 1 to %d", r.kind(), r.Factor, int(maxFactor))
	}
	return r, nil
}

// alike tells whether two spellings say the same but for the base, which only
// rope_parameters has.
func (r *rawRope) alike(other *rawRope) bool {
	a, b := *r, *other
	a.Type, a.OldType, a.Theta = a.kind(), "", nil
	b.Type, b.OldType, b.Theta = b.kind(), "", nil
	return reflect.DeepEqual(a, b)
}

// rope computes the frequencies of a head of dim dimensions, by the formulas of
// huggingface transformers, modeling_rope_utils.py.
func (raw *rawConfig) rope(dim int) (Rope, error) {
	scaling, err := raw.ropeScaling()
	if err != nil {
		return Rope{}, err
	}
	theta := or(raw.RopeTheta, 10000)
	if scaling != nil {
		theta = or(scaling.Theta, theta)
	}
	if !(theta > 1) || math.IsInf(theta, 0) {
		return Rope{}, fmt.Errorf("rope_theta is %v: it must be above 1", theta)
	}
	r := Rope{Freqs: make([]float32, dim/2), Scale: 1}
	for i := range r.Freqs {
		r.Freqs[i] = float32(math.Pow(theta, -2*float64(i)/float64(dim)))
	}
	if scaling == nil {
		return r, nil
	}
	switch scaling.kind() {
	case "linear":
		for i := range r.Freqs {
			r.Freqs[i] = float32(float64(r.Freqs[i]) / scaling.Factor)
		}
	case "dynamic":
		// Up to the trained length the frequencies are the default; beyond it
		// they would change with every token, and the cached keys with them.
		r.MaxPositions = int(min(max(1, or(nonZero(scaling.OriginalMax), float64(or(raw.MaxPositions, 2048)))), math.MaxInt32))
	case "llama3":
		return r, scaling.llama3(r.Freqs)
	case "yarn":
		return r, scaling.yarn(&r, theta, dim, or(raw.MaxPositions, 2048))
	}
	return r, nil
}

// maxFactor is the largest factor by which a context is stretched, far above any model's.
const maxFactor = 1 << 20

// nonZero is nil for 0, which stands for absent.
func nonZero(v float64) *float64 {
	if v == 0 {
		return nil
	}
	return &v
}

// yarn divides the frequencies of long waves by Factor and leaves those of
// short ones, with a linear part between (Peng et al., "YaRN: efficient context
// window extension of large language models", 2023).
func (r *rawRope) yarn(rope *Rope, theta float64, dim, maxPositions int) error {
	trained := or(nonZero(r.OriginalMax), float64(maxPositions))
	fast, slow := or(r.BetaFast, 32), or(r.BetaSlow, 1)
	if !(trained >= 1) || !(slow > 0) || !(fast >= slow) {
		return fmt.Errorf("rope scaling yarn has original_max_position_embeddings %v, beta_fast %v, beta_slow %v: "+
			"the length must be 1 or more, and 0 < beta_slow <= beta_fast", trained, fast, slow)
	}
	// turns is the dimension whose wave turns n times over the trained length.
	turns := func(n float64) float64 {
		return float64(dim) * math.Log(trained/(n*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := turns(fast), turns(slow)
	if or(r.Truncate, true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i, f := range rope.Freqs {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		rope.Freqs[i] = float32(float64(f)/r.Factor*ramp + float64(f)*(1-ramp))
	}
	rope.Scale = float32(r.attentionFactor())
	if !(rope.Scale > 0 && rope.Scale < 1e4) {
		return fmt.Errorf("rope scaling yarn has attention_factor %v: it must be above 0 and below 10000", rope.Scale)
	}
	return nil
}

// attentionFactor is YaRN's scale of sines and cosines.
func (r *rawRope) attentionFactor() float64 {
	mscale := func(m float64) float64 { return 0.1*m*math.Log(r.Factor) + 1 }
	switch {
	case r.AttentionFactor != nil:
		return *r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return mscale(r.MScale) / mscale(r.MScaleAllDim)
	}
	return mscale(1)
}

// llama3 slows long waves by Factor and leaves short ones, with a smooth part
// between (huggingface transformers, modeling_rope_utils.py, _compute_llama3_parameters).
func (r *rawRope) llama3(freqs []float32) error {
	if !(r.LowFreq > 0) || !(r.HighFreq > r.LowFreq) || !(r.OriginalMax >= 1) {
		return fmt.Errorf("rope scaling llama3 has low_freq_factor %v, high_freq_factor %v, original_max_position_embeddings %v: "+
			"it must be that 0 < low < high, and the length 1 or more", r.LowFreq, r.HighFreq, r.OriginalMax)
	}
	for i, f := range freqs {
		wave := 2 * math.Pi / float64(f)
		switch {
		case wave > r.OriginalMax/r.LowFreq:
			freqs[i] = float32(float64(f) / r.Factor)
		case wave >= r.OriginalMax/r.HighFreq:
			smooth := (r.OriginalMax/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
			freqs[i] = float32((1-smooth)*float64(f)/r.Factor + smooth*float64(f))
		}
	}
	return nil
}
