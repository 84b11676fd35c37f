package adapt

import (
	"flag"
	"fmt"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var limits = Limits{Max: 4}

// quiet is a load that gives no ground for anything.
func quiet(changes ...func(*Load)) Load {
	at := Load{Ready: 2, Measured: 2, Running: 4, KVUsage: 0.2, Depth: 3, AcceptLength: 2.5, Gain: 1.4, BetweenToks: 0.02}
	for _, c := range changes {
		c(&at)
	}
	return at
}

func TestNext(t *testing.T) {
	state := func(most int, reason string, ago time.Duration) State {
		return State{Max: most, Reason: reason, Since: t0.Add(-ago)}
	}
	long := time.Hour
	for _, tt := range []struct {
		name   string
		l      Limits
		s      State
		at     Load
		want   int
		reason string
		wait   time.Duration
	}{
		{"begins unrestricted", limits, State{}, Load{}, 4, ReasonUnrestricted, 0},
		{"quiet", limits, state(4, ReasonUnrestricted, long), quiet(), 4, ReasonUnrestricted, 0},

		{"cache full", limits, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.KVUsage = 0.95 }), 0, ReasonKVCache, 0},
		{"cache full, a least depth", Limits{Min: 1, Max: 4}, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.KVUsage = 1 }), 1, ReasonKVCache, 0},
		{"cache nearly full", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.KVUsage = 0.9 }), 4, ReasonUnrestricted, 0},
		{"cache still nearly full", limits, state(0, ReasonKVCache, long), quiet(func(a *Load) { a.KVUsage = 0.9 }), 0, ReasonKVCache, 0},
		{"cache free again", limits, state(0, ReasonKVCache, CoolUp), quiet(func(a *Load) { a.KVUsage = 0.8 }), 1, ReasonRecovering, 0},
		{"cache free for a moment", limits, state(0, ReasonKVCache, CoolUp-time.Second), quiet(), 0, ReasonKVCache, time.Second},

		{"draft never helps", limits, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.AcceptLength = 1.01 }), 0, ReasonNoHelp, 0},
		{"not drafting is no bad draft", limits, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.AcceptLength, a.Depth = 1.01, 0 }), 4, ReasonUnrestricted, 0},
		{"draft just helps", limits, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.AcceptLength = 1.05 }), 4, ReasonUnrestricted, 0},
		{"no acceptance measured", limits, state(4, ReasonUnrestricted, 0), quiet(func(a *Load) { a.AcceptLength = 0 }), 4, ReasonUnrestricted, 0},
		{"a bad draft is tried again", limits, state(0, ReasonNoHelp, Retry), quiet(func(a *Load) { a.Depth = 0 }), 1, ReasonRecovering, 0},
		{"but not soon", limits, state(0, ReasonNoHelp, Retry-time.Minute), quiet(func(a *Load) { a.Depth = 0 }), 0, ReasonNoHelp, time.Minute},

		{"drafting is slower", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Gain = 0.9 }), 3, ReasonNoGain, 0},
		{"drafting is slower, cooling", limits, state(3, ReasonNoGain, CoolDown/2), quiet(func(a *Load) { a.Gain = 0.9 }), 3, ReasonNoGain, CoolDown / 2},
		{"not drafting is no slow draft", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Gain, a.Depth = 0.9, 0 }), 4, ReasonUnrestricted, 0},
		{"drafting is just not slower", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Gain = 0.97 }), 4, ReasonUnrestricted, 0},
		{"drafting is hardly slower", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Gain = 0.98 }), 4, ReasonUnrestricted, 0},

		{"late tokens", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.BetweenToks, a.Gain = 0.051, 1 }), 3, ReasonLatency, 0},
		{"tokens as late as is allowed", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.BetweenToks, a.Gain = 0.05, 1 }), 3, ReasonLatency, 0},
		{"tokens late, and drafting just pays", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.BetweenToks, a.Gain = 0.06, 1.1 }), 4, ReasonUnrestricted, 0},
		{"time between tokens not known", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(3, ReasonLatency, CoolUp), quiet(func(a *Load) { a.BetweenToks, a.Gain = 0, 1 }), 4, ReasonUnrestricted, 0},
		{"tokens just in time, after late ones", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(3, ReasonLatency, CoolDown), quiet(func(a *Load) { a.BetweenToks, a.Gain = 0.045, 1 }), 2, ReasonLatency, 0},
		{"tokens in time", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(3, ReasonLatency, CoolUp), quiet(func(a *Load) { a.BetweenToks = 0.03 }), 4, ReasonUnrestricted, 0},
		{"late tokens, and drafting pays", Limits{Max: 4, BetweenToks: 50 * time.Millisecond}, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.BetweenToks = 0.051 }), 4, ReasonUnrestricted, 0},
		{"no bound", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.BetweenToks = 5 }), 4, ReasonUnrestricted, 0},

		{"queue", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Waiting, a.Gain = 2, 1.02 }), 3, ReasonQueue, 0},
		{"queue, gain not known", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Waiting, a.Gain = 2, 0 }), 3, ReasonQueue, 0},
		{"queue, and drafting pays", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Waiting = 200 }), 4, ReasonUnrestricted, 0},
		{"queue, for latency's sake", Limits{Max: 4, Latency: true}, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Waiting, a.Gain = 200, 1 }), 4, ReasonUnrestricted, 0},
		{"short queue", limits, state(4, ReasonUnrestricted, long), quiet(func(a *Load) { a.Waiting, a.Gain = 1, 1 }), 4, ReasonUnrestricted, 0},
		{"queue all gone", limits, state(2, ReasonQueue, CoolUp), quiet(), 3, ReasonRecovering, 0},
		{"as low as it goes", limits, state(0, ReasonQueue, long), quiet(func(a *Load) { a.Waiting, a.Gain = 9, 1 }), 0, ReasonQueue, 0},
		{"another reason at the bottom", limits, state(0, ReasonQueue, long), quiet(func(a *Load) { a.KVUsage = 1 }), 0, ReasonKVCache, 0},

		{"no metrics", limits, state(2, ReasonQueue, long), Load{Ready: 2}, 2, ReasonQueue, 0},
		{"half of them", limits, state(2, ReasonQueue, long), quiet(func(a *Load) { a.Ready = 4 }), 3, ReasonRecovering, 0},
		{"fewer than half", limits, state(2, ReasonQueue, long), quiet(func(a *Load) { a.Ready = 5 }), 2, ReasonQueue, 0},
		{"no pod", limits, state(2, ReasonQueue, long), Load{}, 2, ReasonQueue, 0},

		{"the spec allows less", Limits{Max: 2}, state(4, ReasonUnrestricted, long), quiet(), 2, ReasonUnrestricted, 0},
		{"the spec allows more", Limits{Max: 6}, state(4, ReasonUnrestricted, 0), quiet(), 6, ReasonUnrestricted, 0},
		{"the spec demands more", Limits{Min: 2, Max: 4}, state(0, ReasonQueue, long), quiet(func(a *Load) { a.Waiting, a.Gain = 9, 1 }), 2, ReasonQueue, 0},
		{"nonsense", Limits{Min: 9, Max: -1}, state(4, ReasonUnrestricted, long), quiet(), 0, ReasonUnrestricted, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, wait := Next(tt.l, tt.s, tt.at, t0)
			if got.Max != tt.want || got.Reason != tt.reason || wait != tt.wait {
				t.Errorf("up to %d, %s (%s), wait %s; want %d, %s, %s", got.Max, got.Reason, got.Detail, wait, tt.want, tt.reason, tt.wait)
			}
		})
	}
}

// cluster plays a server of two pods whose engines choose their depth within the
// bound: a target pass over b rows costs 1 + b/12 units of 20 ms, and each row of
// a draft is accepted with 0.7. Requests come at a rate and have 200 tokens.
type cluster struct {
	rate    float64 // requests a second
	accept  float64
	running float64
	waiting float64
	blind   bool // no metrics
	stuck   bool // the engines always take the bound
}

const (
	slots  = 64.0 // requests that run at once
	tokens = 200.0
)

// speed is tokens a second at a depth, and the time between tokens.
func (c *cluster) speed(depth int) (rate, between float64) {
	b := math.Max(c.running/2, 1) // on each pod
	yield := 1.0
	for k := 1; k <= depth; k++ {
		yield += math.Pow(c.accept, float64(k))
	}
	cycle := 0.02 * (1 + b*float64(1+depth)/12 + 0.05*float64(depth))
	return 2 * b * yield / cycle, cycle / yield
}

func (c *cluster) second(bound int) Load {
	best, between := 0, 0.0
	top := 0.0
	plain, _ := c.speed(0)
	for d := 0; d <= bound; d++ {
		if r, w := c.speed(d); r > top || c.stuck {
			best, top, between = d, r, w
		}
	}
	done := math.Min(top/tokens, c.running)
	if c.running < 1 {
		done, top = c.running, 0
	}
	c.running -= done
	c.waiting += c.rate
	in := math.Min(c.waiting, slots-c.running)
	c.waiting, c.running = c.waiting-in, c.running+in
	at := Load{Ready: 2, Measured: 2, Running: c.running, Waiting: c.waiting, KVUsage: c.running / slots * 0.9,
		Depth: float64(best), BetweenToks: between, Gain: top / plain}
	if best > 0 {
		at.AcceptLength = 1
		for k := 1; k <= best; k++ {
			at.AcceptLength += math.Pow(c.accept, float64(k))
		}
	}
	if c.blind {
		return Load{Ready: 2}
	}
	return at
}

// TestSimulations are whole loads, second by second, as golden logs of the bound.
func TestSimulations(t *testing.T) {
	phase := func(seconds int, set func(*cluster)) func(run func(int, func(*cluster))) {
		return func(run func(int, func(*cluster))) { run(seconds, set) }
	}
	rate := func(r float64) func(*cluster) { return func(c *cluster) { c.rate = r } }
	for _, tt := range []struct {
		name    string
		l       Limits
		changes int // of the bound, at most
		phases  []func(func(int, func(*cluster)))
	}{
		{"rise-and-fall", limits, 16, []func(func(int, func(*cluster))){
			phase(120, rate(1)), phase(150, rate(6)), phase(700, rate(1))}},
		{"steady", limits, 1, []func(func(int, func(*cluster))){phase(1800, rate(3))}},
		{"bad-draft", limits, 6, []func(func(int, func(*cluster))){
			phase(60, rate(2)), phase(1300, func(c *cluster) { c.accept, c.stuck = 0.01, true })}},
		{"blind", limits, 8, []func(func(int, func(*cluster))){
			phase(60, rate(6)), phase(600, func(c *cluster) { c.blind, c.rate = true, 1 }), phase(400, func(c *cluster) { c.blind = false })}},
		{"latency-bound", Limits{Max: 4, BetweenToks: 40 * time.Millisecond, Latency: true}, 30, []func(func(int, func(*cluster))){
			phase(120, rate(1)), phase(100, rate(4)), phase(900, rate(0.5))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &cluster{accept: 0.7}
			var s State
			var log strings.Builder
			now, changes := t0, 0
			for _, p := range tt.phases {
				p(func(seconds int, set func(*cluster)) {
					set(c)
					fmt.Fprintf(&log, "%5ds  -- %.1f requests/s, acceptance %.2f, blind %v\n", int(now.Sub(t0).Seconds()), c.rate, c.accept, c.blind)
					for range seconds {
						at := c.second(s.Max)
						next, _ := Next(tt.l, s, at, now)
						if next.Max != s.Max || next.Reason != s.Reason {
							changes++
							fmt.Fprintf(&log, "%5ds  up to %d, %s: %s\n", int(now.Sub(t0).Seconds()), next.Max, next.Reason, next.Detail)
						}
						s = next
						now = now.Add(time.Second)
					}
				})
			}
			if changes > tt.changes {
				t.Errorf("%d changes, at most %d are calm", changes, tt.changes)
			}
			path := filepath.Join("testdata", tt.name+".log")
			if *update {
				if err := os.WriteFile(path, []byte(log.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), log.String()); d != "" {
				t.Errorf("other bounds than %s (go test -update writes it, if the change is meant):\n%s", path, d)
			}
		})
	}
}

// TestBounds: of any load, the bound stays within the spec, goes up by one step
// at a time, and no step follows another too soon.
func TestBounds(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		l := Limits{Min: r.Intn(3), Latency: r.Intn(2) == 0}
		l.Max = l.Min + r.Intn(5)
		if r.Intn(2) == 0 {
			l.BetweenToks = 30 * time.Millisecond
		}
		var s State
		changed := time.Time{}
		for i := range 500 {
			now := t0.Add(time.Duration(i) * 3 * time.Second)
			at := Load{Ready: 2, Measured: r.Intn(3), Running: r.Float64() * 40, Waiting: r.Float64() * 40, KVUsage: r.Float64(),
				Depth: float64(r.Intn(4)), AcceptLength: r.Float64() * 4, Gain: r.Float64() * 2, BetweenToks: r.Float64() / 10}
			next, wait := Next(l, s, at, now)
			if next.Max < l.Min || next.Max > l.Max || wait < 0 || next.Reason == "" {
				t.Fatalf("seed %d: %+v of %+v, wait %s", seed, next, l, wait)
			}
			if i > 0 && next.Max > s.Max && (next.Max != s.Max+1 || now.Sub(changed) < CoolUp) {
				t.Fatalf("seed %d: from %d to %d after %s", seed, s.Max, next.Max, now.Sub(changed))
			}
			if i > 0 && next.Max < s.Max && next.Max > l.Min && now.Sub(changed) < CoolDown {
				t.Fatalf("seed %d: from %d to %d after %s", seed, s.Max, next.Max, now.Sub(changed))
			}
			if next.Max != s.Max {
				changed = now
			}
			s = next
		}
	}
}
