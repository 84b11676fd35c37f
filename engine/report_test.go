package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// logged is a log that several goroutines write.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) lines(msg string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, "msg="+msg+" ") || strings.Contains(line, "msg=\""+msg+"\"") {
			lines = append(lines, line)
		}
	}
	return lines
}

// The lines of a load, under the names that users of other servers know.
func TestLoadIsLogged(t *testing.T) {
	for ranks, perRank := range map[int]int{1: 0, 2: 2} {
		e, stop := startUntil(t, Config{TPSize: ranks})
		prompt := slices.Concat(golden.Cases()[0].Prompt, golden.Cases()[0].Output)
		cached := 0
		for range 2 {
			got := complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: 100, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
			cached += got.Usage.CachedTokens
		}
		stop() // the step loop has ended: what follows is alone with its figures
		var log logged
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		e.report.last = e.report.last.Add(-2 * reportEvery)
		e.reportLoad()
		for msg, has := range map[string][]string{
			"Prefill batch": {"rank=0", "new_seq=2", fmt.Sprintf("new_token=%d", 2*len(prompt)-cached), fmt.Sprintf("cached_token=%d", cached), "token_usage=", "running_req=", "queue_req=", "input_throughput="},
			"Decode batch":  {"rank=0", "running_req=", "token=", "token_usage=", "depth=", "accept_len=", "accept_rate=0.", "gen_throughput=", "queue_req="},
		} {
			lines := log.lines(msg)
			if len(lines) != 1 {
				t.Errorf("%d ranks: %d lines of %s, want one", ranks, len(lines), msg)
				continue
			}
			for _, part := range has {
				if !strings.HasSuffix(part, "=") && !strings.HasSuffix(part, ".") {
					part += " " // the whole number
				}
				if !strings.Contains(lines[0], " "+part) {
					t.Errorf("%d ranks: %s is not in %s", ranks, part, lines[0])
				}
			}
		}
		lines := log.lines("Rank")
		if len(lines) != perRank {
			t.Errorf("%d ranks: lines %q, want one for each of several", ranks, lines)
		}
		for i, line := range lines {
			passes, collectives := e.ranks.Spent(i)
			if want := fmt.Sprintf("rank=%d passes=%s collectives=%s\n", i, passes, collectives); !strings.HasSuffix(line, want) || passes <= collectives {
				t.Errorf("%d ranks: %q, want %q at its end", ranks, line, want)
			}
		}
	}
}

// Each phase of a cycle is in the histogram of the metrics as often as in the
// profile, and its time is the same.
func TestPhasesAreInTheMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	e, err := New(Config{Model: "builtin:gocode-7m", TPSize: 2, Mode: speculation.ModeFixed}, quiet(),
		telemetry.NewMetrics(registry, "test", time.Now), telemetry.NewProgress(2, time.Now))
	if err != nil {
		t.Fatal(err)
	}
	stop := runUntil(t, e)
	r := scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 30, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs}
	complete(t, e, r)
	if err := e.SetSpeculation(speculation.ModeOff, 0, 3); err != nil {
		t.Fatal(err)
	}
	complete(t, e, r)
	stop() // the step loop has ended
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count, sum := map[string]uint64{}, map[string]float64{}
	for _, f := range families {
		if f.GetName() == "outrider_phase_seconds" {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "phase" {
						count[l.GetValue()], sum[l.GetValue()] = m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
					}
				}
			}
		}
	}
	phases := e.Profile().Phases
	if len(phases) != 8 || len(count) != len(phases) {
		t.Errorf("phases %v in the metrics and %+v in the profile: want all eight", count, phases)
	}
	for _, p := range phases {
		if p.Count == 0 || uint64(p.Count) != count[p.Phase] || math.Abs(p.Total-sum[p.Phase]) > 1e-6*p.Total+1e-9 {
			t.Errorf("%s: %d times %v s in the metrics, %d times %v s in the profile", p.Phase, count[p.Phase], sum[p.Phase], p.Count, p.Total)
		}
	}
}
