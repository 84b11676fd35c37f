package engine

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/outrider-dev/outrider/engine/scheduler"
)

// reportEvery is how often a busy engine says in its log what it does.
const reportEvery = 10 * time.Second

// loadReport is what the log says of the passes since its last lines.
type loadReport struct {
	last                       time.Time
	newSeqs, newTokens, cached int // prompts completed, prompt tokens computed, and found in the cache
	decodes                    int // passes with sequences past their prompt
	ranks                      []spent
}

type spent struct{ passes, collectives time.Duration }

// pass takes note of a pass that was settled.
func (r *loadReport) pass(b *scheduler.Batch) {
	if b.Decodes > 0 {
		r.decodes++
	}
	for _, s := range b.Sequences {
		if s.Probe {
			continue
		}
		switch prompt := s.Computed <= len(s.PromptIDs); {
		case prompt && s.Logit >= 0 && s.Generated() == 1: // its last part
			r.newSeqs++
			r.cached += s.Usage().CachedTokens
			r.newTokens += s.Count
		case prompt:
			r.newTokens += s.Count
		}
	}
}

// reportLoad logs the load, now and then, under the names that users of other
// servers know: a line of the prompts, one of the decoding, and one for each
// rank.
func (e *Engine) reportLoad() {
	r := &e.report
	now := time.Now()
	if r.last.IsZero() {
		r.last = now
	}
	took := now.Sub(r.last)
	if took < reportEvery {
		return
	}
	running, usage := e.scheduler.Running(), round2(float64(e.stats.pagesHeld.Load())/float64(e.pool.Total()))
	queued, tokens := e.scheduler.Pending(), load(running).Context
	if r.newTokens > 0 {
		e.log.Info("Prefill batch", "rank", 0, "new_seq", r.newSeqs, "new_token", r.newTokens, "cached_token", r.cached,
			"token_usage", usage, "running_req", len(running), "queue_req", queued,
			"input_throughput", math.Round(float64(r.newTokens)/took.Seconds()))
	}
	if r.decodes > 0 {
		f := e.metrics.Figures()
		e.log.Info("Decode batch", "rank", 0, "running_req", len(running), "token", tokens, "token_usage", usage,
			"depth", e.depth.next, "accept_len", round2(f.AcceptLength), "accept_rate", round2(f.AcceptRate),
			"gen_throughput", math.Round(f.TokensPerSecond), "queue_req", queued)
	}
	e.reportRanks()
	*r = loadReport{last: now, ranks: r.ranks}
}

// reportRanks logs what each rank did since the last time: only at debug level
// if there is one alone, whose time is in the other lines.
func (e *Engine) reportRanks() {
	r := &e.report
	if r.ranks == nil {
		r.ranks = make([]spent, e.ranks.Size())
	}
	level := slog.LevelInfo
	if len(r.ranks) == 1 {
		level = slog.LevelDebug
	}
	for i := range r.ranks {
		passes, collectives := e.ranks.Spent(i)
		e.log.Log(context.Background(), level, "Rank", "rank", e.ranks.First()+i, "passes", passes-r.ranks[i].passes, "collectives", collectives-r.ranks[i].collectives)
		r.ranks[i] = spent{passes, collectives}
	}
}

func round2(v float64) float64 { return math.Round(100*v) / 100 }

// account logs, at debug level, what a request that has ended took and what
// drafting did for it.
func (e *Engine) account(s *scheduler.Sequence) {
	ctx := context.Background()
	if !e.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	u := s.Usage()
	e.log.LogAttrs(ctx, slog.LevelDebug, "request", slog.String("id", s.ID), slog.String("finish", string(s.Finish())),
		slog.Int("prompt_tokens", u.PromptTokens), slog.Int("cached_tokens", u.CachedTokens), slog.Int("completion_tokens", u.CompletionTokens),
		slog.Duration("queue", u.Queue), slog.Duration("prefill", u.Prefill), slog.Duration("decode", u.Decode),
		slog.Int("verifies", u.Verifies), slog.Int("drafted", u.Drafted), slog.Int("accepted", u.Accepted), slog.Float64("accept_length", round2(u.AcceptLength())))
}
