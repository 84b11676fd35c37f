package poll

import (
	"context"
	"errors"
	"time"

	"github.com/outrider-dev/outrider/controllers/engineclient"
	"github.com/outrider-dev/outrider/controllers/speculativeserver/decide"
)

// paceWindow is the least time over which a load's rate is measured.
const paceWindow = 5 * time.Second

// pace measures how fast the bytes of a load come in.
type pace struct {
	phase string
	bytes int64
	at    time.Time
	rate  float64
}

// observe is the rate in bytes a second; 0 until it is known.
func (p *pace) observe(phase string, bytes int64, now time.Time) float64 {
	if phase != p.phase || bytes < p.bytes {
		*p = pace{phase: phase, bytes: bytes, at: now}
		return 0
	}
	if since := now.Sub(p.at); since >= paceWindow {
		p.rate = float64(bytes-p.bytes) / since.Seconds()
		p.bytes, p.at = bytes, now
	}
	return p.rate
}

// behind is the rank that has loaded least, when it is 20 points or more behind
// the one that has loaded most.
func behind(ranks []engineclient.Rank) *decide.Rank {
	if len(ranks) < 2 {
		return nil
	}
	least, most := ranks[0], ranks[0]
	for _, r := range ranks[1:] {
		if r.Percent < least.Percent {
			least = r
		}
		if r.Percent > most.Percent {
			most = r
		}
	}
	if most.Percent-least.Percent < 20 {
		return nil
	}
	return &decide.Rank{Rank: least.Rank, Percent: least.Percent}
}

// window is the mean of a timing between two scrapes.
type window struct{ last engineclient.Timing }

// since is the mean of what was timed since the last call; 0 when nothing was,
// or the engine has begun anew.
func (w *window) since(t engineclient.Timing) float64 {
	seconds, count := t.Seconds-w.last.Seconds, t.Count-w.last.Count
	w.last = t
	if count <= 0 || seconds < 0 {
		return 0
	}
	return seconds / count
}

// hold makes an engine keep to bounds, and returns those that it confirms; nil
// when it did not answer. refused says that it asked for another token.
func (p *Poller) hold(ctx context.Context, address string, want decide.Bounds) (bounds *decide.Bounds, refused bool) {
	now, err := p.client.Speculation(ctx, address)
	if err == nil && !want.Agrees(now.Mode, now.MinSteps, now.MaxSteps) {
		now, err = p.client.SetSpeculation(ctx, address, want.Mode, want.Min, want.Max)
	}
	if err != nil {
		return nil, errors.Is(err, engineclient.ErrUnauthorized)
	}
	return &decide.Bounds{Mode: now.Mode, Min: now.MinSteps, Max: now.MaxSteps}, false
}
