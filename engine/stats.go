package engine

import (
	"sync/atomic"
	"time"

	"github.com/outrider-dev/outrider/engine/kvcache"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// stats feeds the metrics from the step loop. Probes of the engine's own are
// left out, so that the counters equal the sum of the clients' usage.
type stats struct {
	m           *telemetry.Metrics
	pagesHeld   atomic.Int64
	prompt, hit float64 // tokens of prompts, and those of them that the prefix cache had
	retractions int
}

func (s *stats) init(m *telemetry.Metrics) { s.m = m }

// depth notes the draft steps in force.
func (s *stats) depth(steps int) {
	s.m.SpecDepth.Set(float64(steps))
	s.m.SpecActive.Set(min(1, float64(steps)))
}

// verified notes a draft and how much of it became text.
func (s *stats) verified(drafted, accepted int) { s.m.Verified(drafted, accepted) }

// emitted notes n new tokens of q at a time, and its end if it came.
func (s *stats) emitted(q *scheduler.Sequence, n int, now time.Time) {
	if q.Probe {
		return
	}
	if n > 0 {
		s.m.GenerationTokens.Add(float64(n))
		s.m.Tokens.Add(float64(n))
		if q.FirstToken.IsZero() {
			q.FirstToken = now
			if !q.Again {
				s.prompted(q.Usage())
			}
			s.m.QueueSeconds.Observe(q.Admitted.Sub(q.Arrived).Seconds())
			s.m.TimeToFirstToken.Observe(now.Sub(q.Arrived).Seconds())
		} else {
			each := now.Sub(q.LastToken).Seconds() / float64(n)
			for range n {
				s.m.InterToken.Observe(each)
			}
		}
		q.LastToken = now
	}
	if q.Finished() {
		s.ended(q, now)
	}
}

// prompted notes the prompt of a request that has its first token.
func (s *stats) prompted(u scheduler.Usage) {
	s.m.PromptTokens.Add(float64(u.PromptTokens))
	s.m.RequestPrompt.Observe(float64(u.PromptTokens))
	s.m.CachedTokens.Add(float64(u.CachedTokens))
	s.prompt += float64(u.PromptTokens)
	s.hit += float64(u.CachedTokens)
	s.m.PrefixHitRatio.Set(s.hit / s.prompt)
}

// dropped notes a request that was given up.
func (s *stats) dropped(q *scheduler.Sequence) {
	if !q.Probe {
		s.ended(q, time.Now())
	}
}

func (s *stats) ended(q *scheduler.Sequence, now time.Time) {
	s.m.Outcome(outcome(q)).Inc()
	s.m.RequestSeconds.Observe(now.Sub(q.Arrived).Seconds())
	s.m.RequestGeneration.Observe(float64(q.Usage().CompletionTokens))
}

func outcome(q *scheduler.Sequence) telemetry.Outcome {
	switch q.Finish() {
	case scheduler.FinishStop:
		return telemetry.OutcomeStop
	case scheduler.FinishLength:
		return telemetry.OutcomeLength
	case scheduler.FinishAbort:
		return telemetry.OutcomeAbort
	}
	return telemetry.OutcomeError
}

// stepped notes what the engine holds after a step, or when it is idle.
func (s *stats) stepped(sched *scheduler.Scheduler, pool *kvcache.Pool) {
	held := pool.Used()
	s.pagesHeld.Store(int64(held))
	running := 0
	for _, q := range sched.Running() {
		if !q.Probe {
			running++
		}
	}
	s.m.Running.Set(float64(running))
	s.m.Waiting.Set(float64(sched.Pending()))
	s.m.KVUsage.Set(float64(held) / float64(pool.Total()))
	if n := sched.Retractions(); n > s.retractions {
		s.m.Retractions.Add(float64(n - s.retractions))
		s.retractions = n
	}
}
