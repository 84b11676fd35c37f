package model

import (
	"fmt"
	"math"
)

// Rope says how positions turn queries and keys.
type Rope struct {
	// Freqs are the inverse frequencies, HeadDim/2 of them: dimension pair i
	// turns by position · Freqs[i] radians.
	Freqs []float32
}

// rawRope is rope_scaling of the older configs and rope_parameters of the newer.
type rawRope struct {
	Theta        *float64 `json:"rope_theta"`
	Type         string   `json:"rope_type"`
	OldType      string   `json:"type"`
	Factor       float64  `json:"factor"`
	LowFreq      float64  `json:"low_freq_factor"`
	HighFreq     float64  `json:"high_freq_factor"`
	OriginalMax  float64  `json:"original_max_position_embeddings"`
	PartialShare *float64 `json:"partial_rotary_factor"`
}

// rope computes the frequencies of a head of dim dimensions.
func (raw *rawConfig) rope(dim int) (Rope, error) {
	theta, scaling := or(raw.RopeTheta, 10000), raw.RopeScaling
	if raw.RopeParameters != nil {
		scaling = raw.RopeParameters
		theta = or(scaling.Theta, theta)
	}
	if !(theta > 1) || math.IsInf(theta, 0) {
		return Rope{}, fmt.Errorf("rope_theta is %v: it must be above 1", theta)
	}
	freqs := make([]float32, dim/2)
	for i := range freqs {
		freqs[i] = float32(math.Pow(theta, -2*float64(i)/float64(dim)))
	}
	if scaling == nil {
		return Rope{freqs}, nil
	}
	if or(scaling.PartialShare, 1) != 1 {
		return Rope{}, fmt.Errorf("partial_rotary_factor is %v: supported is 1", *scaling.PartialShare)
	}
	kind := scaling.Type
	if kind == "" {
		kind = scaling.OldType
	}
	switch kind {
	case "", "default":
		return Rope{freqs}, nil
	case "llama3":
		if err := scaling.llama3(freqs); err != nil {
			return Rope{}, err
		}
		return Rope{freqs}, nil
	}
	return Rope{}, fmt.Errorf("rope_type is %q: supported are \"default\" and \"llama3\"", kind)
}

// llama3 slows long waves by Factor and leaves short ones, with a smooth part
// between (huggingface transformers, modeling_rope_utils.py, _compute_llama3_parameters).
func (r *rawRope) llama3(freqs []float32) error {
	if !(r.Factor >= 1) || !(r.LowFreq > 0) || !(r.HighFreq > r.LowFreq) || !(r.OriginalMax >= 1) {
		return fmt.Errorf("rope scaling llama3 has factor %v, low_freq_factor %v, high_freq_factor %v, original_max_position_embeddings %v: "+
			"the factor must be 1 or more, 0 < low < high, and the length 1 or more", r.Factor, r.LowFreq, r.HighFreq, r.OriginalMax)
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
