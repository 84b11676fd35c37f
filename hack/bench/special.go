package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/hack/internal/stats"
)

// offArm compares plain decoding on engines that could speculate with engines
// that were started without a draft. Two engines that are started alike differ by
// some hundredths, by where their memory lies: so each turn starts new ones, and
// the engines without a draft are compared with each other too.
type offArm struct {
	Model   string   `json:"model"`
	Streams int      `json:"streams"`
	Off     float64  `json:"off_tokens_per_second"`
	Without float64  `json:"without_draft_tokens_per_second"`
	Step    estimate `json:"step_time_ratio"` // of the off arm to the engine without a draft
	Noise   estimate `json:"noise"`           // of an engine without a draft to another one
}

// offTurns is the number of parts of a turn, in which its engines alternate.
const offTurns = 4

func (r *results) offArms(cfg engine.Config) {
	streams := []int{1, 8}
	cfg.MaxRunningRequests = slices.Max(streams)
	without := cfg
	cfg.Mode, without.Algorithm, without.DraftModel = speculation.ModeOff, engine.AlgorithmNone, ""
	fmt.Println("Plain decoding with a draft that is off against an engine without one: ratio of step times")
	rates := make([][3][]float64, len(streams)) // off, without, without
	for range *rounds {
		servers := [3]*server{serve(cfg), serve(without), serve(without)}
		r.Device = servers[0].Info().Device
		for i, n := range streams {
			var sum [3]float64
			for range offTurns {
				for _, k := range shuffled(len(servers)) {
					l := newLoad(servers[k], 16, *answer)
					l.resize(n)
					l.decodes()
					v, _ := servers[k].turn(*duration)
					sum[k] += v / offTurns
					l.stop()
				}
			}
			for k, v := range sum {
				rates[i][k] = append(rates[i][k], v)
			}
		}
		for _, s := range servers {
			s.stop()
		}
	}
	for i, n := range streams {
		v := &rates[i]
		o := offArm{*model, n, stats.Median(v[0]), stats.Median(v[1]), estimateOf(over(v[1], v[0])), estimateOf(over(v[1], v[2]))}
		fmt.Printf("%9s %3d streams: %.0f and %.0f tokens/s, step time × %v; without a draft, over another one %v\n", o.Model, n, o.Off, o.Without, o.Step, o.Noise)
		r.Off = append(r.Off, o)
	}
}

// plainArms prints how long a step of plain decoding takes, tokens in the host's
// hands.
func (r *results) plainArms(cfg engine.Config) {
	cfg.Mode, cfg.Algorithm, cfg.DraftModel = speculation.ModeOff, engine.AlgorithmNone, ""
	cfg.MaxRunningRequests = max(slices.Max(numbers(*streams)), fewestPrompts)
	s := serve(cfg)
	defer s.stop()
	r.Device = s.Info().Device
	fmt.Println("Plain decoding without a draft")
	for _, context := range numbers(*contexts) {
		for _, n := range numbers(*streams) {
			l := newLoad(s, context, *answer)
			l.resize(n)
			l.decodes()
			var rates []float64
			for range *rounds {
				v, _ := s.turn(*duration)
				rates = append(rates, v)
			}
			l.stop()
			rate := stats.Median(rates)
			fmt.Printf("%9s %3d streams, prompts of %d: %.0f tokens/s, %.3f ms a step\n", *model, n, context, rate, 1e3*float64(n)/rate)
			r.Plain = append(r.Plain, plainArm{*model, n, context, rate})
		}
	}
}

// plainArm is plain decoding on an engine without a draft.
type plainArm struct {
	Model   string  `json:"model"`
	Streams int     `json:"streams"`
	Context int     `json:"context"`
	Rate    float64 `json:"tokens_per_second"`
}

// idleArm is how long the device has nothing to compute between passes, by its own
// clock, while streams decode.
type idleArm struct {
	Model   string   `json:"model"`
	Accept  string   `json:"accept"`
	Arm     string   `json:"arm"`
	Streams int      `json:"streams"`
	Context int      `json:"context"`
	Pass    float64  `json:"busy_ms_per_cycle"` // what the passes of a cycle take
	Idle    estimate `json:"idle_share"`        // of the time from a pass to the next one
}

// idleArms measures plain decoding and the deepest fixed draft. The clock's marks cost
// a pass some microseconds, which count as busy.
func (r *results) idleArms(cfg engine.Config) {
	cfg.TimeDevices = true
	fmt.Println("The device's time between passes, as a share of all, by its own clock")
	r.each(cfg, func(s *server, accept string) {
		for _, context := range numbers(*contexts) {
			for _, n := range numbers(*streams) {
				s.set(arms(*steps)[*steps])
				s.learn(n, context)
				for _, a := range []arm{arms(*steps)[0], arms(*steps)[*steps]} {
					i, ok := s.idle(a, accept, n, context)
					if !ok {
						fmt.Printf("%s has no clock of its own\n", r.Device)
						return
					}
					fmt.Printf("%9s %3d streams, prompts of %d, acceptance %s, %-7s: %.3f ms of passes a cycle, idle %v\n", i.Model, n, context, accept, a.name, i.Pass, i.Idle)
					r.Idle = append(r.Idle, i)
				}
			}
		}
	})
}

// idle is an arm under a load of n streams; not ok on a device without a clock, which
// would have timed the warm-up.
func (s *server) idle(a arm, accept string, n, context int) (i idleArm, ok bool) {
	i = idleArm{Model: *model, Accept: accept, Arm: a.name, Streams: n, Context: context}
	if s.Profile().Ranks[0].Busy == 0 {
		return i, false
	}
	s.set(a)
	l := newLoad(s, context, *answer)
	defer l.stop()
	l.resize(n)
	l.decodes()
	time.Sleep(max(*duration, 100*time.Millisecond)) // the first cycles are of another arm, or have prompts
	var shares, passes []float64
	for range *rounds {
		before := s.Profile()
		after, busy := before, 0.0
		for busy == 0 { // a pass may be longer than a turn
			time.Sleep(*duration)
			after = s.Profile()
			busy = after.Ranks[0].Busy - before.Ranks[0].Busy
		}
		idle := after.Ranks[0].Idle - before.Ranks[0].Idle
		shares = append(shares, idle/(busy+idle))
		passes = append(passes, 1e3*busy/max(1, float64(total(added(nil, after.Depths, before.Depths)).Count)))
	}
	i.Idle, i.Pass = estimateOf(shares), stats.Median(passes)
	return i, true
}
