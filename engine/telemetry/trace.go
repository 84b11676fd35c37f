package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Tracer records what each rank does when, while somebody asks for it.
type Tracer struct {
	running atomic.Pointer[capture]
}

// MaxTraceEvents bounds a trace: about 16 MiB while it is taken.
const MaxTraceEvents = 1 << 18

// ErrTracing says that a trace is being taken for somebody else.
var ErrTracing = errors.New("another trace is being taken: try again when it is over")

type capture struct {
	begin time.Time

	mu      sync.Mutex
	events  []event
	dropped int // events beyond MaxTraceEvents
}

type event struct {
	rank       int
	name       string
	start, end time.Duration // since begin
	rows       int
}

// Event notes that rank was busy with name, over rows rows (0: it has none). It
// may be called from all ranks at once.
func (t *Tracer) Event(rank int, name string, start, end time.Time, rows int) {
	c := t.running.Load()
	if c == nil || start.Before(c.begin) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == MaxTraceEvents {
		c.dropped++
		return
	}
	c.events = append(c.events, event{rank, name, start.Sub(c.begin), end.Sub(c.begin), rows})
}

// Trace is a recorded stretch of time.
type Trace struct{ c *capture }

// Capture records for d, or until ctx is done. The error is ErrTracing.
func (t *Tracer) Capture(ctx context.Context, d time.Duration) (*Trace, error) {
	c := &capture{begin: time.Now()}
	if !t.running.CompareAndSwap(nil, c) {
		return nil, ErrTracing
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	t.running.Store(nil)
	return &Trace{c}, nil
}

// chromeEvent is an event of the Trace Event Format, which chrome://tracing and
// ui.perfetto.dev read; times are microseconds.
type chromeEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	TS    float64        `json:"ts"`
	Dur   float64        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// WriteTo writes the trace as JSON in the Trace Event Format. A rank is a thread.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	c := t.c
	c.mu.Lock() // a pass that began before the end may still add its events
	events := c.events[:len(c.events):len(c.events)]
	dropped := c.dropped
	c.mu.Unlock()
	out := &counting{w: w}
	fmt.Fprintf(out, `{"displayTimeUnit":"ms","otherData":{"begin":%q,"dropped_events":"%d"},"traceEvents":[`, c.begin.UTC().Format(time.RFC3339Nano), dropped)
	separator := "\n"
	put := func(e chromeEvent) {
		b, err := json.Marshal(e)
		if err != nil {
			out.fail(err)
		}
		fmt.Fprintf(out, "%s%s", separator, b)
		separator = ",\n"
	}
	ranks := map[int]bool{}
	for _, e := range events {
		if !ranks[e.rank] {
			ranks[e.rank] = true
			put(chromeEvent{Name: "thread_name", Phase: "M", TID: e.rank, Args: map[string]any{"name": fmt.Sprintf("rank %d", e.rank)}})
		}
		row := chromeEvent{Name: e.name, Phase: "X", TS: micros(e.start), Dur: micros(e.end - e.start), TID: e.rank}
		if e.rows > 0 {
			row.Args = map[string]any{"rows": e.rows}
		}
		put(row)
	}
	fmt.Fprint(out, "\n]}\n")
	return out.n, out.err
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// counting counts what goes through it and stops at the first error.
type counting struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counting) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.fail(err)
	return n, err
}

func (c *counting) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}
