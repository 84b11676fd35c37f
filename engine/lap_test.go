package engine

import (
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/telemetry"
)

// BenchmarkLap is what noting one phase costs; a cycle has five or six.
func BenchmarkLap(b *testing.B) {
	e := newEngine(b, Config{})
	start := time.Now()
	for b.Loop() {
		start = e.lap(telemetry.PhaseVerify, start)
	}
}
