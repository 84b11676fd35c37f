package decide

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

func TestFailureOf(t *testing.T) {
	contract := func(reason, message string) string {
		return `{"reason":"` + reason + `","message":"` + message + `","rank":0}` + "\n"
	}
	for _, tt := range []struct {
		name     string
		pod      Pod
		reason   string
		terminal bool
		says     string
	}{
		{"bad flag", newPod(0, exited(t0, 2, "Error", contract("InvalidConfig", "--tp-size 0: write 1 or more"))), "InvalidConfig", true, "--tp-size 0"},
		{"bad flag, log only", newPod(0, exited(t0, 2, "Error", "Error: unknown flag: --nope")), "InvalidConfig", true, "unknown flag: --nope"},
		{"panic has exit code 2", newPod(0, exited(t0, 2, "Error", "panic: oops\n\ngoroutine 1 [running]:\nmain.main()")), "Error", false, "panic: oops"},
		{"exit code 2 and silence", newPod(0, exited(t0, 2, "Error", "")), "Error", false, "panicked"},
		{"no model", newPod(0, exited(t0, 10, "Error", contract("ModelNotFound", "x"))), "ModelNotFound", true, "x"},
		{"no permission", newPod(0, exited(t0, 10, "Error", contract("Unauthorized", "x"))), "Unauthorized", true, "x"},
		{"fetch broke off", newPod(0, exited(t0, 10, "Error", contract("FetchFailed", "x"))), "FetchFailed", false, "x"},
		{"disk full", newPod(0, exited(t0, 10, "Error", contract("NoSpace", "x"))), "NoSpace", false, "x"},
		{"source, silence", newPod(0, exited(t0, 10, "Error", "")), "FetchFailed", false, "could not be fetched"},
		{"wrong weights", newPod(0, exited(t0, 11, "Error", contract("DraftMismatch", "x"))), "DraftMismatch", true, "x"},
		{"engine out of memory", newPod(0, exited(t0, 12, "Error", contract("OutOfMemory", "x"))), "OutOfMemory", false, "x"},
		{"lost device", newPod(0, exited(t0, 13, "Error", contract("DeviceFault", "XID 79"))), "DeviceFault", false, "XID 79"},
		{"stall", newPod(0, exited(t0, 15, "Error", contract("Stalled", "x"))), "Stalled", false, "x"},
		{"message after log lines", newPod(0, exited(t0, 13, "Error", "a log line\n"+contract("DeviceMissing", "x"))), "DeviceMissing", false, "x"},
		{"kernel", newPod(0, exited(t0, 137, "OOMKilled", "last log line")), "OutOfMemory", false, "raise spec.resources.limits.memory"},
		{"kill -9", newPod(0, exited(t0, 137, "Error", "")), "Killed", false, "signal 9"},
		{"kill -9, with a log", newPod(0, exited(t0, 137, "Error", "level=INFO msg=ready")), "Killed", false, "signal 9"},
		{"stopped", newPod(0, exited(t0, 0, "Completed", "")), "Stopped", false, "told to stop"},
		{"anything else", newPod(0, exited(t0, 1, "Error", "boom")), "Error", false, "boom"},
		{"hostile reason", newPod(0, exited(t0, 1, "Error", `{"reason":"<script>","message":"x"}`)), "Error", false, "<script>"},
		{"evicted", newPod(0, func(p *Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on memory."
		}), "Evicted", false, "low on memory"},
		{"refused by the node", newPod(0, func(p *Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "UnexpectedAdmissionError"
		}), "UnexpectedAdmissionError", false, "kubectl describe pod"},
		{"failed, nothing said", newPod(0, func(p *Pod) { p.Status.Phase = corev1.PodFailed }), "Error", false, "no message"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := FailureOf(tt.pod.Pod)
			if f == nil {
				t.Fatal("no failure")
			}
			if f.Reason != tt.reason || f.Terminal != tt.terminal || !strings.Contains(f.Message, tt.says) {
				t.Errorf("%s, terminal %v, %q; want %s, %v, with %q", f.Reason, f.Terminal, f.Message, tt.reason, tt.terminal, tt.says)
			}
		})
	}
	running := newPod(0)
	if f := FailureOf(running.Pod); f != nil {
		t.Errorf("a running pod failed: %+v", f)
	}
}

func TestBackoff(t *testing.T) {
	want := []time.Duration{5, 5, 10, 20, 40, 80, 160, 300, 300}
	for n, w := range want {
		if got := Backoff(int32(n)); got != w*time.Second {
			t.Errorf("after %d crashes: %s, want %s", n, got, w*time.Second)
		}
	}
	if got := Backoff(1 << 30); got != BackoffMax {
		t.Errorf("after very many crashes: %s", got)
	}
}

// TestCrashLoop follows one ordinal through crashes: counted once each, the
// back-off doubles, a stable run or another revision resets it.
func TestCrashLoop(t *testing.T) {
	s := newServer(1)
	crash := func(uid string, at time.Time, changes ...func(*Pod)) v1alpha1.PodStatus {
		t.Helper()
		p := newPod(0, exited(at, 1, "Error", "boom"))
		for _, c := range changes {
			c(&p)
		}
		p.UID = types.UID(uid)
		in := input(s, p)
		in.Now = at
		first := Decide(in)
		s.Status = first.Status
		again := Decide(in)
		if got := Compare(&first.Status, &again.Status); got != Same {
			t.Fatalf("the same crash seen twice changes the status (%d): %+v", got, again.Status.Pods)
		}
		return again.Status.Pods[0]
	}
	check := func(row v1alpha1.PodStatus, restarts, inRow int32, next time.Time) {
		t.Helper()
		if row.Restarts != restarts || row.FailuresInRow != inRow || !row.NextStartTime.Time.Equal(next) {
			t.Errorf("restarts %d, in a row %d, next %v; want %d, %d, %v", row.Restarts, row.FailuresInRow, row.NextStartTime, restarts, inRow, next)
		}
	}
	check(crash("a", t0), 1, 1, t0.Add(5*time.Second))
	check(crash("b", t0.Add(time.Minute)), 2, 2, t0.Add(time.Minute+10*time.Second))
	check(crash("c", t0.Add(2*time.Minute), verifiedAt(t0.Add(time.Minute))), 3, 3, t0.Add(2*time.Minute+20*time.Second))
	check(crash("d", t0.Add(30*time.Minute), verifiedAt(t0.Add(10*time.Minute))), 4, 1, t0.Add(30*time.Minute+5*time.Second))
	check(crash("e", t0.Add(31*time.Minute)), 5, 2, t0.Add(31*time.Minute+10*time.Second))
	check(crash("f", t0.Add(32*time.Minute), stale), 6, 1, t0.Add(32*time.Minute+5*time.Second))
}

// TestStableRunClearsBackoff: ten minutes of serving end a row of failures.
func TestStableRunClearsBackoff(t *testing.T) {
	s := newServer(1)
	s.Status.Pods = []v1alpha1.PodStatus{{Name: "s-0", Restarts: 4, FailuresInRow: 3}}
	d := Decide(input(s, newPod(0, verifiedAt(t0.Add(-StableAfter+time.Second)))))
	if d.Status.Pods[0].FailuresInRow != 3 || d.Requeue != time.Second {
		t.Errorf("before ten minutes: %+v, requeue %s", d.Status.Pods[0], d.Requeue)
	}
	d = Decide(input(s, newPod(0, verifiedAt(t0.Add(-StableAfter)))))
	if row := d.Status.Pods[0]; row.FailuresInRow != 0 || row.Restarts != 4 {
		t.Errorf("after ten minutes: %+v", row)
	}
}

func FuzzParseTermination(f *testing.F) {
	for _, s := range []string{"", "x", `{"reason":"Stalled","message":"m","rank":1}`, "log\n" + `{"reason":"A","message":"\u0000"}`, "\xff", `{"reason":1}`, `{`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, ok := ParseTermination(s)
		if ok != reasonPattern.MatchString(m.Reason) || len(m.Message) > 1000 || !utf8.ValidString(m.Message) || strings.ContainsAny(m.Message, "\n\x00") {
			t.Errorf("%q: ok %v, %+v", s, ok, m)
		}
		if c := clean(s, 100); len(c) > 100 || !utf8.ValidString(c) {
			t.Errorf("clean(%q) = %q", s, c)
		}
	})
}
