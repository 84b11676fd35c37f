package rollout

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// pods reads "0:ready 1:ready,stale,busy=3 2:-", an ordinal and what is so of it.
func pods(t *testing.T, text string) []Pod {
	t.Helper()
	var list []Pod
	for _, field := range strings.Fields(text) {
		p := Pod{Exists: true, Requests: -1}
		name, marks, _ := strings.Cut(field, ":")
		if _, err := fmt.Sscan(name, &p.Ordinal); err != nil {
			t.Fatal(err)
		}
		for mark := range strings.SplitSeq(marks, ",") {
			key, value, _ := strings.Cut(mark, "=")
			n := 0
			if value != "" {
				if _, err := fmt.Sscan(value, &n); err != nil {
					t.Fatal(err)
				}
			}
			switch key {
			case "-":
				p.Exists = false
			case "starting", "":
			case "ready":
				p.Ready = true
			case "stale":
				p.Stale = true
			case "faulty":
				p.Faulty = true
			case "noroom":
				p.NoRoom = true
			case "terminating":
				p.Terminating = true
			case "overdue":
				p.Terminating, p.Overdue = true, true
			case "busy":
				p.Requests = n
			case "awaited": // for n seconds
				p.IdleSince = t0.Add(-time.Duration(n) * time.Second)
			case "restart": // in n seconds
				p.RestartAt, p.Recorded, p.Faulty = t0.Add(time.Duration(n)*time.Second), true, true
			case "unrecorded":
				p.Recorded = false
			default:
				t.Fatalf("mark %q", key)
			}
		}
		list = append(list, p)
	}
	return list
}

func says(p Plan) string {
	var parts []string
	for _, d := range p.Delete {
		force := ""
		if d.Force {
			force = "!"
		}
		parts = append(parts, fmt.Sprintf("delete %d%s %s", d.Ordinal, force, d.Reason))
	}
	for _, n := range p.Create {
		parts = append(parts, fmt.Sprintf("create %d", n))
	}
	for _, n := range p.Await {
		parts = append(parts, fmt.Sprintf("await %d", n))
	}
	if p.Wake > 0 {
		parts = append(parts, "wake "+p.Wake.String())
	}
	if p.Halted != "" {
		pod, _, _ := strings.Cut(strings.TrimPrefix(p.Halted, "pod "), " ")
		parts = append(parts, "halted by "+pod)
	}
	return strings.Join(parts, ", ")
}

// Configurations of the cases below.
var (
	plain = Config{Desired: 2, MaxUnavailable: 1}
	surge = Config{Desired: 2, MaxSurge: 1}
	both  = Config{Desired: 2, MaxSurge: 1, MaxUnavailable: 1}
	idle  = Config{Desired: 2, MaxUnavailable: 1, WaitForIdle: time.Minute}
)

// plans has situations, and what is planned in each.
var plans = []struct {
	name string
	c    Config
	pods string
	want string
}{
	{"nothing yet", plain, "0:- 1:-", "create 0, create 1"},
	{"complete", plain, "0:ready 1:ready", ""},
	{"scaled up", plain, "0:ready 1:-", "create 1"},
	{"scaled down", plain, "0:ready 1:ready 2:ready 3:starting", "delete 2 ScaledDown, delete 3 ScaledDown"},
	{"to zero", Config{MaxUnavailable: 1}, "0:ready", "delete 0 ScaledDown"},
	{"to zero, with a surge", Config{MaxSurge: 2}, "0:ready,stale", "delete 0 ScaledDown"},
	{"to zero, with a surge that is over", Config{MaxSurge: 2}, "0:ready", "delete 0 ScaledDown"},
	{"scaled down, without room for one", plain, "0:noroom 1:ready 2:ready", "delete 2 ScaledDown"},
	{"a pod too many terminates", plain, "0:- 1:ready 2:terminating", ""},
	{"a pod too many terminates, two are missing", Config{Desired: 3, MaxUnavailable: 1}, "0:- 1:- 2:ready 3:terminating", "create 0"},
	{"a new spec", plain, "0:ready,stale 1:ready,stale", "delete 0 Outdated"},
	{"unordered", plain, "1:ready,stale 0:ready,stale", "delete 0 Outdated"},
	{"the first is on its way", plain, "0:starting 1:ready,stale", ""},
	{"the first terminates", plain, "0:ready,stale,terminating 1:ready,stale", ""},
	{"not ready goes at once", plain, "0:ready,stale 1:starting,stale", "delete 1 Outdated"},
	{"none is ready", plain, "0:starting,stale 1:faulty,stale", "delete 0 Outdated, delete 1 Outdated"},
	{"the new one fails", Config{Desired: 3, MaxUnavailable: 2}, "0:faulty 1:ready,stale 2:ready,stale", "halted by 0"},
	{"two new ones fail", Config{Desired: 3, MaxUnavailable: 2}, "0:ready,stale 1:faulty 2:faulty", "halted by 1"},
	{"the new one fails, roll back", plain, "0:faulty,stale 1:ready", "delete 0 Outdated"},
	{"a fault without a rollout", plain, "0:faulty 1:ready", ""},
	{"two may be missing", Config{Desired: 3, MaxUnavailable: 2}, "0:ready,stale 1:ready,stale 2:ready,stale", "delete 0 Outdated, delete 1 Outdated"},
	{"two may be missing, one serves no one", Config{Desired: 3, MaxUnavailable: 2}, "0:ready,stale 1:ready,stale 2:starting,stale", "delete 2 Outdated, delete 0 Outdated"},
	{"two may be missing, one is", Config{Desired: 3, MaxUnavailable: 2}, "0:starting 1:ready,stale 2:ready,stale", "delete 1 Outdated"},
	{"all may be missing", Config{Desired: 2, MaxUnavailable: 9}, "0:ready,stale 1:ready,stale", "delete 0 Outdated, delete 1 Outdated"},

	{"surge first", surge, "0:ready,stale 1:ready,stale", "create 2"},
	{"surge on its way", surge, "0:ready,stale 1:ready,stale 2:starting", ""},
	{"surge ready", surge, "0:ready,stale 1:ready,stale 2:ready", "delete 0 Outdated"},
	{"surge, the old one gone", surge, "0:- 1:ready,stale 2:ready", "create 0"},
	{"surge, the old one going", surge, "0:ready,stale,terminating 1:ready,stale 2:ready", ""},
	{"surge, the last", surge, "0:ready 1:ready,stale 2:ready", "delete 1 Outdated"},
	{"surge, nearly done", surge, "0:ready 1:starting 2:ready", ""},
	{"surge, nearly done, with one more that may be missing", both, "0:starting 1:ready 2:ready", ""},
	{"surge, one terminates", surge, "0:ready,terminating 1:ready 2:ready", ""},
	{"surge, the last old one terminates", surge, "0:stale,terminating 1:ready", ""},
	{"surge, done", surge, "0:ready 1:ready 2:ready", "delete 2 RolloutEnded"},
	{"surge, done before it is ready", surge, "0:ready 1:ready 2:starting", "delete 2 RolloutEnded"},
	{"surge, done, of a spec in between", surge, "0:ready 1:ready 2:ready,stale", "delete 2 RolloutEnded"},
	{"surge has no room", surge, "0:ready,stale 1:ready,stale 2:noroom", "halted by 2"},
	{"surge has no room, and one may be missing", both, "0:ready,stale 1:ready,stale 2:noroom", "delete 0 Outdated"},
	{"surge took the last room", both, "0:noroom 1:ready 2:ready", "delete 2 RolloutEnded"},
	{"surge took the last room, none may be missing", surge, "0:noroom 1:ready 2:ready", ""},
	{"surge took the last room, and an old one is there", both, "0:noroom 1:ready,stale 2:ready", "delete 1 Outdated"},
	{"surge has no room, and one that may be missing is", both, "0:starting 1:ready,stale 2:noroom", ""},
	{"surge took the last room, and is not ready", surge, "0:noroom 1:ready 2:starting", "delete 2 RolloutEnded"},
	{"surge took the last room, of two one goes", Config{Desired: 2, MaxSurge: 2, MaxUnavailable: 1}, "0:noroom 1:ready 2:ready 3:ready", "delete 2 RolloutEnded"},
	{"surge alone has no room", both, "0:starting 1:ready 2:noroom", ""},
	{"no room for one asked for is no surge's matter", surge, "0:noroom 1:ready,stale 2:ready", ""},
	{"surge and one may be missing", both, "0:ready,stale 1:ready,stale", "delete 0 Outdated, create 2"},
	{"surge fails", surge, "0:ready,stale 1:ready,stale 2:faulty", "halted by 2"},
	{"surge fails, and another might be made", Config{Desired: 3, MaxSurge: 2}, "0:ready,stale 1:ready,stale 2:ready,stale 3:faulty", "halted by 3"},
	{"another spec meanwhile", surge, "0:ready,stale 1:ready,stale 2:starting,stale", "delete 2 Outdated"},
	{"another spec meanwhile, the surge ready", surge, "0:ready,stale 1:ready,stale 2:ready,stale", "delete 0 Outdated"},
	{"no more surge than pods to replace", Config{Desired: 2, MaxSurge: 5}, "0:ready 1:ready,stale", "create 2"},
	{"a surge for each", Config{Desired: 2, MaxSurge: 2}, "0:ready,stale 1:ready,stale 2:starting", "create 3"},
	{"a surge for each, and no more", Config{Desired: 2, MaxSurge: 2}, "0:ready,stale 1:ready 2:starting", ""},
	{"no surge for a surge", Config{Desired: 2, MaxSurge: 2}, "0:ready,stale 1:starting 2:ready,stale", ""},
	{"surge beyond what is allowed now", surge, "0:ready,stale 1:ready,stale 2:ready 3:ready", "delete 3 ScaledDown, delete 0 Outdated"},

	{"idle first", idle, "0:ready,stale,busy=2 1:ready,stale,busy=0", "delete 1 Outdated"},
	{"all busy", idle, "0:ready,stale,busy=2 1:ready,stale,busy=1", "await 1, await 0, wake 1m0s"},
	{"busy for long", idle, "0:ready,stale,busy=2,awaited=60 1:ready,stale,busy=3,awaited=30", "delete 0 Outdated"},
	{"busy, some time left", idle, "0:ready,stale,busy=2,awaited=59 1:ready", "await 0, wake 1s"},
	{"busy for long, another for less", Config{Desired: 3, MaxUnavailable: 2, WaitForIdle: time.Minute}, "0:ready,stale,busy=1,awaited=90 1:ready,stale,busy=2,awaited=30 2:ready", "delete 0 Outdated, await 1, wake 30s"},
	{"not known is not idle", idle, "0:ready,stale 1:ready", "await 0, wake 1m0s"},
	{"no room to wait for", idle, "0:ready,stale,busy=0 1:starting", ""},

	{"back-off runs", plain, "0:restart=5 1:ready", "wake 5s"},
	{"back-offs run", plain, "0:restart=5 1:restart=3", "wake 3s"},
	{"back-offs run, the first is shorter", plain, "0:restart=3 1:restart=5", "wake 3s"},
	{"back-off over", plain, "0:restart=0 1:ready", "delete 0 Restarting"},
	{"not recorded", plain, "0:restart=0,unrecorded 1:ready", "wake 1s"},
	{"crashed and outdated", plain, "0:restart=5,stale 1:ready,stale", "delete 0 Outdated"},
	{"does not stop", plain, "0:overdue 1:ready", "delete 0! Forced"},
}

func TestNext(t *testing.T) {
	for _, tt := range plans {
		t.Run(tt.name, func(t *testing.T) {
			if got := says(Next(tt.c, pods(t, tt.pods), t0)); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestNextBounds: of any pods, a plan never makes more than are allowed, takes no
// ready pod that is needed, and touches none twice.
func TestNextBounds(t *testing.T) {
	for seed := range int64(20000) {
		r := rand.New(rand.NewSource(seed))
		flip := func() bool { return r.Intn(2) == 0 }
		c := Config{Desired: int32(r.Intn(5)), MaxSurge: int32(r.Intn(3)), MaxUnavailable: int32(r.Intn(3))}
		var list []Pod
		total, ready := int32(0), int32(0)
		for n := range c.Desired + int32(r.Intn(4)) {
			p := Pod{Ordinal: n, Exists: n >= c.Desired || r.Intn(4) > 0, Requests: r.Intn(3) - 1}
			if p.Exists {
				p.Stale, p.Ready, p.Terminating, p.Faulty = flip(), flip(), r.Intn(4) == 0, r.Intn(6) == 0
				total++
				if p.Ready && !p.Terminating {
					ready++
				}
			}
			list = append(list, p)
		}
		plan := Next(c, list, t0)
		touched := map[int32]bool{}
		for _, d := range plan.Delete {
			p := list[d.Ordinal]
			if touched[d.Ordinal] || !p.Exists || p.Terminating && !d.Force {
				t.Fatalf("seed %d: deletes %d: %+v", seed, d.Ordinal, plan)
			}
			touched[d.Ordinal] = true
			if p.Ready {
				ready--
			}
			if d.Reason == "Outdated" && p.Ready && ready < c.Desired-c.MaxUnavailable {
				t.Fatalf("seed %d: %d of %d ready after %+v", seed, ready, c.Desired, plan)
			}
		}
		for _, n := range plan.Create {
			if touched[n] || int(n) < len(list) && list[n].Exists {
				t.Fatalf("seed %d: makes %d: %+v", seed, n, plan)
			}
			touched[n] = true
			total++
		}
		if len(plan.Create) > 0 && total > c.Desired+c.MaxSurge {
			t.Fatalf("seed %d: %d pods for %+v: %+v", seed, total, c, plan)
		}
		shuffled := slices.Clone(list)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if a, b := says(plan), says(Next(c, shuffled, t0)); a != b {
			t.Fatalf("seed %d: %q, in another order %q", seed, a, b)
		}
	}
}
