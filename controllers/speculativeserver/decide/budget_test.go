package decide

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// groupPlay goes through what the operator sees of a server of two nodes.
type groupPlay struct {
	*testing.T
	server *v1alpha1.SpeculativeServer
	now    time.Time
	rev    string
}

func playGroups(t *testing.T, replicas int32, budget *int32) *groupPlay {
	s := newServer(replicas)
	s.Spec.Health = &v1alpha1.HealthSpec{CrashBudget: budget}
	s.Spec.Speculation.OnDraftFailure = "Fail"
	return &groupPlay{T: t, server: s, now: t0, rev: "new"}
}

// sees decides once, and keeps the status as written.
func (p *groupPlay) sees(leaders []Pod, workers ...Worker) Decision {
	p.Helper()
	in := input(p.server, leaders...)
	in.Nodes, in.Workers, in.Now, in.Revision = 2, workers, p.now, p.rev
	d := Decide(in)
	if again := Decide(in); Compare(&d.Status, &again.Status) != Same {
		p.Fatalf("the same decision twice differs: %+v, %+v", d.Status.Pods, again.Status.Pods)
	}
	p.server.Status = d.Status
	return d
}

// has checks how many groups are asked for, and the phase of the row of a pod.
func (p *groupPlay) has(d Decision, groups int32, pod string, phase v1alpha1.Phase, says string) {
	p.Helper()
	if d.Groups != groups {
		p.Errorf("%d groups, want %d", d.Groups, groups)
	}
	for _, row := range d.Status.Pods {
		if row.Name == pod && (row.Phase != phase || !strings.Contains(row.Message, says)) {
			p.Errorf("%s is %s, %q; want %s, %q", pod, row.Phase, row.Message, phase, says)
		}
	}
}

// as gives a pod another UID.
func as(u string, p Pod) Pod {
	p.UID = types.UID(u)
	return p
}

// other is the second node of the first group, with another UID.
func other(u string, changes ...func(*Pod)) Worker {
	return Worker{Pod: as(u, newNode(0, 1, changes...)), Node: 1}
}

// TestGroupBudget: which ends of a group are its last, whichever pod has them.
func TestGroupBudget(t *testing.T) {
	for _, c := range []struct {
		name   string
		budget *int32
		row    int32 // failures in a row so far
		end    func(*Pod)
		change func(*groupPlay)
		final  bool
	}{
		{"below", nil, DefaultCrashBudget - 2, restarted(1, "boom"), nil, false},
		{"spent", nil, DefaultCrashBudget - 1, restarted(1, "boom"), nil, true},
		{"spent, by a pod that goes already", nil, DefaultCrashBudget - 1, func(p *Pod) { restarted(1, "boom")(p); terminatingUntil(t0)(p) }, nil, true},
		{"own budget", ptr(int32(2)), 1, restarted(14, ""), nil, true},
		{"no end", ptr(int32(0)), 999, restarted(1, "boom"), nil, false},
		{"from outside", ptr(int32(2)), 50, restarted(10, `{"reason":"FetchFailed","message":"connection reset"}`), nil, false},
		{"a new start would end the same way", nil, 0, restarted(2, `{"reason":"InvalidConfig","message":"--page-size"}`), nil, true},
		{"of another spec", ptr(int32(2)), 50, restarted(1, "boom"), func(p *groupPlay) { p.rev = "newer" }, false},
		{"the draft, without which it can serve", nil, 0, restarted(11, `{"reason":"DraftMismatch","message":"vocabulary"}`), func(p *groupPlay) { p.server.Spec.Speculation.OnDraftFailure = "" }, false},
		{"the draft, without which it must not", nil, 0, restarted(11, `{"reason":"DraftMismatch","message":"vocabulary"}`), nil, true},
	} {
		for _, node := range []int{0, 1} {
			t.Run(c.name, func(t *testing.T) {
				p := playGroups(t, 1, c.budget)
				name := []string{"s-nodes-0", "s-nodes-0-1"}[node]
				p.server.Status.Pods = []v1alpha1.PodStatus{{Name: name, Restarts: c.row, FailuresInRow: c.row,
					LastFailure: &v1alpha1.PodFailure{PodUID: "before", Revision: "new", Reason: "Error"}}}
				if c.change != nil {
					c.change(p)
				}
				pods := [][]func(*Pod){{loads(Progress{Phase: "load", LastAdvance: t0})}, {healthy}}
				pods[node] = append(pods[node], c.end)
				see := func() Decision {
					return p.sees([]Pod{newNode(0, 0, pods[0]...)}, worker(0, 1, pods[1]...))
				}
				want := v1alpha1.PhaseCrashed
				if c.final {
					want = v1alpha1.PhaseFailed
				}
				d := see()
				p.has(d, 1, name, want, "")
				if c.final && d.Requeue != time.Second {
					t.Errorf("looks again after %s, which is to leave the group out", d.Requeue)
				}
				groups := int32(1)
				if c.final {
					groups = 0
				}
				d = see()
				if d.Groups != groups || (d.Status.Phase == v1alpha1.PhaseFailed) != c.final {
					t.Errorf("then %d groups, want %d; %s: %s", d.Groups, groups, d.Status.Phase, d.Status.Message)
				}
			})
		}
	}
}

// TestGroupStaysFailed: what is Failed stays so with no pod, or with one that was
// made meanwhile, until the spec changes.
func TestGroupStaysFailed(t *testing.T) {
	p := playGroups(t, 1, ptr(int32(2)))
	crash := restarted(1, "boom")
	p.has(p.sees([]Pod{as("a", newNode(0, 0, crash))}), 1, "s-nodes-0", v1alpha1.PhaseCrashed, "once: ")
	p.has(p.sees([]Pod{as("b", newNode(0, 0, crash))}), 1, "s-nodes-0", v1alpha1.PhaseFailed, "2 times in a row: ")
	made := as("c", newNode(0, 0, loads(Progress{Phase: "load", Percent: 40, LastAdvance: t0})))
	p.has(p.sees([]Pod{made}), 0, "s-nodes-0", v1alpha1.PhaseFailed, "is not made again until the spec changes")
	if row := p.server.Status.Pods[0]; row.Percent != nil {
		t.Errorf("Failed, and %d %% loaded", *row.Percent)
	}
	p.now = t0.Add(24 * time.Hour)
	d := p.sees(nil)
	p.has(d, 0, "s-nodes-0", v1alpha1.PhaseFailed, "budget of spec.health.crashBudget")
	p.has(d, 0, "s-nodes-0-1", v1alpha1.PhasePending, "s-nodes-0 of its group is Failed")
	if d.Status.Phase != v1alpha1.PhaseFailed || d.Requeue != 0 {
		t.Errorf("%s, requeue %s", d.Status.Phase, d.Requeue)
	}
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == v1alpha1.ConditionProgressing && c.Reason != v1alpha1.ReasonBlocked,
			c.Type == v1alpha1.ConditionDegraded && c.Reason != v1alpha1.ReasonFailed:
			t.Errorf("%+v", c)
		}
	}

	p.server.Generation++ // one more try, although the pod that ended is still going
	gone := as("b", newNode(0, 0, crash, terminatingUntil(p.now.Add(time.Minute))))
	p.has(p.sees([]Pod{gone}), 1, "s-nodes-0", v1alpha1.PhaseCrashed, "")
	p.has(p.sees([]Pod{gone}), 1, "s-nodes-0", v1alpha1.PhaseCrashed, "")
	p.has(p.sees(nil), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees(nil), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("d", newNode(0, 0, crash))}), 1, "s-nodes-0", v1alpha1.PhaseFailed, "3 times in a row")
	p.has(p.sees(nil), 0, "s-nodes-0", v1alpha1.PhaseFailed, "")

	p.rev = "newer" // other pods, of the operator's own accord: a new row
	newer := func(p *Pod) { p.Labels[v1alpha1.LabelRevision] = "newer" }
	p.has(p.sees(nil), 1, "s-nodes-0", v1alpha1.PhasePending, "")
	p.has(p.sees([]Pod{as("e", newNode(0, 0, newer, crash))}), 1, "s-nodes-0", v1alpha1.PhaseCrashed, "once: ")
}

// TestGroupFailsWhileOthersServe: only the last groups can be left out, and none
// while a rollout would go on to the next.
func TestGroupFailsWhileOthersServe(t *testing.T) {
	terminal := restarted(2, `{"reason":"InvalidConfig","message":"--page-size"}`)
	serving := []func(*Pod){verifiedAt(t0.Add(-time.Hour))}
	failing := []func(*Pod){terminal}
	old := []func(*Pod){verifiedAt(t0.Add(-time.Hour)), stale}
	for _, c := range []struct {
		name   string
		pods   [3][]func(*Pod)
		groups int32
		phases [3]v1alpha1.Phase
		mixed  bool // the second nodes are of the new spec, whatever the first is of
	}{
		{"the last", [3][]func(*Pod){serving, serving, failing}, 2, [3]v1alpha1.Phase{v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.PhaseFailed}, false},
		{"all but the first", [3][]func(*Pod){serving, failing, failing}, 1, [3]v1alpha1.Phase{v1alpha1.PhaseReady, v1alpha1.PhaseFailed, v1alpha1.PhaseFailed}, false},
		{"all", [3][]func(*Pod){failing, failing, failing}, 0, [3]v1alpha1.Phase{v1alpha1.PhaseFailed, v1alpha1.PhaseFailed, v1alpha1.PhaseFailed}, false},
		{"the first", [3][]func(*Pod){failing, serving, serving}, 3, [3]v1alpha1.Phase{v1alpha1.PhaseCrashed, v1alpha1.PhaseReady, v1alpha1.PhaseReady}, false},
		{"the first and the last", [3][]func(*Pod){failing, serving, failing}, 2, [3]v1alpha1.Phase{v1alpha1.PhaseCrashed, v1alpha1.PhaseReady, v1alpha1.PhaseFailed}, false},
		{"the first of a new spec, the others by half", [3][]func(*Pod){old, old, failing}, 3, [3]v1alpha1.Phase{v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.PhaseCrashed}, true},
		{"the first of a new spec", [3][]func(*Pod){old, old, failing}, 3, [3]v1alpha1.Phase{v1alpha1.PhaseReady, v1alpha1.PhaseReady, v1alpha1.PhaseCrashed}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := playGroups(t, 3, nil)
			see := func() Decision {
				var pods []Pod
				var workers []Worker
				for n, changes := range c.pods {
					pods = append(pods, newNode(n, 0, changes...))
					workers = append(workers, worker(n, 1, computes))
					if !c.mixed {
						workers[n].Labels[v1alpha1.LabelRevision] = pods[n].Labels[v1alpha1.LabelRevision]
					}
				}
				return p.sees(pods, workers...)
			}
			if d := see(); d.Groups != 3 {
				t.Errorf("%d groups before the failure is written", d.Groups)
			}
			d := see()
			if d.Groups != c.groups {
				t.Errorf("%d groups, want %d", d.Groups, c.groups)
			}
			for n, want := range c.phases {
				row := d.Status.Pods[2*n]
				if row.Phase != want || want == v1alpha1.PhaseCrashed && !strings.Contains(row.Message, "starts again all the same") {
					t.Errorf("group %d is %s, %q; want %s", n, row.Phase, row.Message, want)
				}
			}
		})
	}
}

// A group that serves after all is not left out.
func TestGroupFailedButServes(t *testing.T) {
	p := playGroups(t, 1, nil)
	p.has(p.sees([]Pod{as("a", newNode(0, 0, restarted(2, `{"reason":"InvalidConfig","message":"m"}`)))}), 1, "s-nodes-0", v1alpha1.PhaseFailed, "")
	p.now = t0.Add(time.Minute)
	p.has(p.sees([]Pod{as("b", newNode(0, 0, verifiedAt(t0.Add(time.Second))))}, worker(0, 1, computes)), 1, "s-nodes-0", v1alpha1.PhaseReady, "")
}

// TestGroupRow: ten minutes in which the group serves end the row of each of its
// pods, of which only the first has the gate.
func TestGroupRow(t *testing.T) {
	p := playGroups(t, 1, nil)
	row := func(d Decision) int32 { return d.Status.Pods[1].FailuresInRow }
	crash := restarted(1, "boom")
	lead := newNode(0, 0, verifiedAt(t0.Add(-time.Minute)))
	for n, u := range []string{"a", "b"} {
		if got := row(p.sees([]Pod{lead}, other(u, crash))); got != int32(n+1) {
			t.Errorf("%d failures in a row, want %d", got, n+1)
		}
	}
	d := p.sees([]Pod{lead}, other("c", computes))
	if row(d) != 2 || d.Requeue != 9*time.Minute {
		t.Errorf("after a minute: %d in a row, requeue %s", row(d), d.Requeue)
	}
	p.now = t0.Add(9 * time.Minute)
	if d := p.sees([]Pod{lead}, other("c", computes)); row(d) != 0 {
		t.Errorf("after ten minutes: %d in a row", row(d))
	}
	// An operator that was not there to see the ten minutes counts likewise.
	p.server.Status.Pods[1].FailuresInRow = 5
	late := newNode(0, 0, verifiedAt(t0.Add(-time.Hour)))
	if got := row(p.sees([]Pod{late}, other("d", crash))); got != 1 {
		t.Errorf("after an hour: %d in a row", got)
	}
}
