package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"
)

func TestPhases(t *testing.T) {
	var p Phases
	if rows := p.Report(); len(rows) != 0 {
		t.Errorf("before the first cycle: %+v", rows)
	}
	now := time.Unix(1000, 0)
	step := func(phase PhaseName, took time.Duration) {
		now = now.Add(took)
		p.Observe(phase, now, took)
	}
	for range 2000 { // long ago, plain decoding alone
		step(PhaseDecode, 50*time.Millisecond)
	}
	for i := range 1000 {
		step(PhaseVerify, time.Duration(6+i%100/98*10)*time.Millisecond) // two of a hundred take 16
		step(PhaseSample, time.Millisecond)
		step(PhaseDraft, 2*time.Millisecond)
		p.Observe(PhaseExchange, now, 3*time.Millisecond)
	}
	rows := map[string]PhaseReport{}
	for _, r := range p.Report() {
		rows[r.Phase] = r
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.02*want+1e-9 }
	v := rows["verify"]
	if v.Count != 1000 || !near(v.Total, 6.2) || !near(v.P50, 0.006) || !near(v.P99, 0.016) || !near(v.Mean, 0.0062) {
		t.Errorf("verify: %+v", v)
	}
	for phase, share := range map[string]float64{"verify": 6.2 / 9.2, "draft": 2 / 9.2, "sample": 1 / 9.2, "collective": 3 / 9.2, "decode": 0} {
		if got := rows[phase].Share; !near(got, share) {
			t.Errorf("%s has a share of %.3f, want %.3f", phase, got, share)
		}
	}
	if _, ok := rows["prefill"]; ok || rows["decode"].Count != 2000 {
		t.Errorf("%+v", rows)
	}
	if n := testing.AllocsPerRun(100, func() { step(PhaseVerify, time.Millisecond) }); n != 0 {
		t.Errorf("noting a phase allocates %v times", n)
	}
}

func BenchmarkPhasesObserve(b *testing.B) {
	var p Phases
	for b.Loop() {
		p.Observe(PhaseVerify, time.Now(), time.Millisecond)
	}
}

func TestTracer(t *testing.T) {
	var tr Tracer
	at := time.Now()
	tr.Event(0, "before", at, at, 1)
	if n := testing.AllocsPerRun(100, func() { tr.Event(0, "before", at, at, 1) }); n != 0 {
		t.Errorf("while nobody asks, an event allocates %v times", n)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		for tr.running.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		if _, err := tr.Capture(ctx, time.Minute); !errors.Is(err, ErrTracing) {
			t.Errorf("a second trace: %v, want %v", err, ErrTracing)
		}
		tr.Event(1, "early", at, at, 1) // began before the trace
		begin := time.Now()
		tr.Event(1, "forward", begin, begin.Add(1500*time.Microsecond), 4)
		for range MaxTraceEvents + 5 {
			tr.Event(0, "all_reduce", begin, begin.Add(time.Microsecond), 0)
		}
	}()
	trace, err := tr.Capture(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	n, err := trace.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
	}
	var got struct {
		OtherData   map[string]string
		TraceEvents []struct {
			Name, Ph string
			TS, Dur  float64
			TID      int
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.OtherData["dropped_events"] != "6" || len(got.TraceEvents) != MaxTraceEvents+2 {
		t.Fatalf("%d events, %v; want %d and two names of ranks", len(got.TraceEvents), got.OtherData, MaxTraceEvents)
	}
	if e := got.TraceEvents[0]; e.Ph != "M" || e.TID != 1 || e.Args["name"] != "rank 1" {
		t.Errorf("first %+v, want the name of rank 1", e)
	}
	if e := got.TraceEvents[1]; e.Name != "forward" || e.Ph != "X" || e.TID != 1 || e.Dur != 1500 || e.TS < 0 || e.Args["rows"] != 4.0 {
		t.Errorf("then %+v", e)
	}
	if _, err := (&Trace{trace.c}).WriteTo(failing{}); err == nil {
		t.Error("a writer's error is lost")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }
