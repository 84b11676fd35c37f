package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/scheduler"
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
		complete(t, e, scheduler.Request{PromptIDs: golden.Cases()[0].Prompt, MaxTokens: 100, IgnoreEOS: true, Logprobs: scheduler.NoLogprobs})
		stop() // the step loop has ended: what follows is alone with its figures
		var log logged
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		e.report.last = e.report.last.Add(-2 * reportEvery)
		e.reportLoad()
		for msg, has := range map[string][]string{
			"Prefill batch": {"rank=0", "new_seq=1", "new_token=", "cached_token=", "token_usage=", "running_req=", "queue_req=", "input_throughput="},
			"Decode batch":  {"rank=0", "running_req=", "token=", "token_usage=", "depth=", "accept_len=", "accept_rate=0.", "gen_throughput=", "queue_req="},
		} {
			lines := log.lines(msg)
			if len(lines) != 1 {
				t.Errorf("%d ranks: %d lines of %s, want one", ranks, len(lines), msg)
				continue
			}
			for _, part := range has {
				if !strings.Contains(lines[0], " "+part) {
					t.Errorf("%d ranks: %s is not in %s", ranks, part, lines[0])
				}
			}
		}
		if lines := log.lines("Rank"); len(lines) != perRank {
			t.Errorf("%d ranks: lines %q, want one for each of several", ranks, lines)
		}
	}
}
