package decide

import (
	"fmt"
	"math"
	"time"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// DefaultLoadBudget is how long a load may stand still, where the spec does not
// say.
const DefaultLoadBudget = 10 * time.Minute

func loadBudget(s *v1alpha1.SpeculativeServer) time.Duration {
	if r := s.Spec.Rollout; r != nil && r.LoadBudgetSeconds != nil {
		return time.Duration(*r.LoadBudgetSeconds) * time.Second
	}
	return DefaultLoadBudget
}

// loadDeadline is when a load that does not move any more has failed: it grows
// with each byte, shard and phase, so that no load is too large for it and none
// hangs for ever. ok is false of an engine that is not loading, or did not say
// when it last advanced.
func loadDeadline(p *Progress, budget time.Duration) (deadline time.Time, ok bool) {
	if p.Phase == "serving" || p.Phase == "draining" || p.LastAdvance.IsZero() {
		return time.Time{}, false
	}
	return p.LastAdvance.Add(budget), true
}

// nothingToFetch is true of an engine in its phase fetch that has found nothing
// to download: not yet, or because its model is in its image or on a volume.
func (p *Progress) nothingToFetch() bool {
	return p.BytesTotal <= 0 && p.ShardsTotal <= 0 && !(p.Percent > 0)
}

// pace words how fast a load goes and how long it will take; "" when that is
// not known.
func pace(p *Progress) string {
	rate := finite(p.BytesPerSecond)
	if rate < 1 {
		return ""
	}
	s := ", " + bytes(rate) + "/s"
	left := float64(p.BytesTotal - p.BytesDone)
	if p.BytesTotal <= 0 || left <= 0 || left/rate > 1e6 {
		return s
	}
	d := time.Duration(left / rate * float64(time.Second))
	// Rounded up to what is worth reading; a load of a few seconds needs no estimate.
	switch {
	case d < 10*time.Second:
		return s
	case d < 2*time.Minute:
		d = d.Round(10 * time.Second)
	default:
		d = d.Round(time.Minute)
	}
	return fmt.Sprintf("%s, about %s left", s, plain(d))
}

func plain(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// bytes words a number of bytes with two significant digits, so that its noise
// is no news.
func bytes(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	i := 0
	for n >= 999.5 && i < len(units)-1 {
		n /= 1000
		i++
	}
	if n < 9.95 && i > 0 {
		return fmt.Sprintf("%.1f %s", n, units[i])
	}
	digits := math.Pow(10, math.Max(0, math.Floor(math.Log10(math.Max(n, 1)))-1))
	return fmt.Sprintf("%.0f %s", math.Round(n/digits)*digits, units[i])
}
