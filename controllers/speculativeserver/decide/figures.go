package decide

import (
	"math"
	"strconv"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// speculation sums up the ready pods' metrics. A figure that is within five per
// cent of the one last written keeps it, so that noise is no write.
func speculation(in Input, members []member) *v1alpha1.SpeculationStatus {
	var depth, rate float64
	var accept, gain, verify mean
	n := 0
	anyReady := false
	for i := range members {
		m := &members[i]
		if m.row.Phase != v1alpha1.PhaseReady {
			continue
		}
		anyReady = true
		if m.pod.Engine == nil || m.pod.Engine.Metrics == nil {
			continue
		}
		n++
		x := m.pod.Engine.Metrics
		depth = max(depth, finite(x.Depth))
		rate += finite(x.TokensPerSecond)
		accept.add(x.AcceptLength)
		gain.add(x.Gain)
		verify.add(x.VerifySeconds)
	}
	last := in.Server.Status.Speculation
	if n == 0 {
		if anyReady {
			return last.DeepCopy() // not asked yet by this operator process
		}
		return nil
	}
	if last == nil {
		last = &v1alpha1.SpeculationStatus{}
	}
	steps := int32(min(depth, 1000))
	s := &v1alpha1.SpeculationStatus{NumSteps: &steps, AcceptLength: last.AcceptLength, Gain: last.Gain, VerifyMilliseconds: last.VerifyMilliseconds}
	if accept.n > 0 {
		s.AcceptLength = steady(last.AcceptLength, accept.value(), 2)
	}
	if gain.n > 0 {
		s.Gain = steady(last.Gain, gain.value(), 2)
	}
	if verify.n > 0 {
		s.VerifyMilliseconds = steady(last.VerifyMilliseconds, 1000*verify.value(), 1)
	}
	decimals := 0
	if rate < 10 {
		decimals = 1
	}
	s.TokensPerSecond = steady(last.TokensPerSecond, rate, decimals)
	return s
}

// finite is x, or 0 for what is no figure.
func finite(x float64) float64 {
	if math.IsNaN(x) || x < 0 || x > 1e12 {
		return 0
	}
	return x
}

// steady is x with a number of decimals, or last when that is near enough.
func steady(last string, x float64, decimals int) string {
	if old, err := strconv.ParseFloat(last, 64); err == nil && math.Abs(x-old) <= 0.05*old {
		return last
	}
	if x == 0 {
		return "0"
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}
