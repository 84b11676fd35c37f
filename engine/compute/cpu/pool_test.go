package cpu

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// counted counts the runs of each part; part bad panics.
type counted struct {
	runs [64]atomic.Int64
	bad  int
}

func (c *counted) run(part, parts int) {
	c.runs[part].Add(1)
	if part == c.bad {
		panic("out of range")
	}
}

func TestPoolRunsEveryPartOnce(t *testing.T) {
	p := newPool(3, runtime.Gosched)
	defer p.close()
	for i := range 20000 {
		c := &counted{bad: -1}
		p.do(c)
		for part := range p.parts {
			if n := c.runs[part].Load(); n != 1 {
				t.Fatalf("task %d: part %d of %d ran %d times", i, part, p.parts, n)
			}
		}
		if i%5000 == 0 {
			time.Sleep(10 * time.Millisecond) // the workers sleep
		}
	}
}

// A panic in any part, on whichever thread, is the caller's, and the pool goes on.
func TestPoolPanics(t *testing.T) {
	p := newPool(2, runtime.Gosched)
	defer p.close()
	for bad := range p.parts {
		func() {
			defer func() {
				if v, ok := recover().(string); !ok || !strings.Contains(v, "out of range") {
					t.Errorf("part %d: recovered %v", bad, v)
				}
			}()
			p.do(&counted{bad: bad})
			t.Errorf("part %d: no panic", bad)
		}()
		p.do(&counted{bad: -1})
	}
}
