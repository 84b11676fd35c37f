//go:build soak

package server

import (
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// TestSoak: 32 clients for SOAK (5m unless set), completions and chats, whole
// and streamed, of which some give up. More run at once than the KV cache holds, so
// that requests are retracted. Every request ends, and nothing is left behind: no
// pages, no goroutines, no memory, of the host or the device. SOAK_DEVICE is the
// engine's device.
func TestSoak(t *testing.T) {
	last := 5 * time.Minute
	if s := os.Getenv("SOAK"); s != "" {
		var err error
		if last, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	in := newInstance(t, engine.Config{Device: os.Getenv("SOAK_DEVICE"), MaxRunningRequests: 64, ContextLength: 512, MaxTotalTokens: 1024, CheckInvariants: true, AsyncScheduling: true}, nil)
	g := golden.Cases()
	use := func(end time.Time) (requests int64) {
		var n atomic.Int64
		var wg sync.WaitGroup
		for client := range 32 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(client), uint64(end.UnixNano())))
				for time.Now().Before(end) {
					in.anyRequest(t, g[rng.IntN(len(g))].Text, rng)
					n.Add(1)
				}
			})
		}
		wg.Wait()
		in.idle(t)
		http.DefaultClient.CloseIdleConnections()
		return n.Load()
	}
	// After a tenth of the time caches are full and pools are grown.
	first := use(time.Now().Add(last / 10))
	routines, memory, free := runtime.NumGoroutine(), heap(), deviceFree(t, in)
	second := use(time.Now().Add(last - last/10))
	waitFor(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= routines+5 })
	after := heap()
	if after > memory+memory/4+(8<<20) {
		t.Errorf("%d MB in use after %d requests, %d MB after %d: something is kept", after>>20, first+second, memory>>20, first)
	}
	freeAfter := deviceFree(t, in)
	if freeAfter < free-deviceSpare {
		t.Errorf("the device has %d MiB free after %d requests, %d MiB after %d: something is kept", freeAfter>>20, first+second, free>>20, first)
	}
	retractions := int(testutil.ToFloat64(in.metrics.Retractions))
	if retractions == 0 {
		t.Error("no request was retracted")
	}
	ends := 0.0
	for _, o := range []telemetry.Outcome{telemetry.OutcomeLength, telemetry.OutcomeStop, telemetry.OutcomeAbort} {
		ends += testutil.ToFloat64(in.metrics.Outcome(o))
	}
	if failed := testutil.ToFloat64(in.metrics.Outcome(telemetry.OutcomeError)); failed != 0 || ends < float64(first+second) {
		t.Errorf("%d requests, of which %v ended and %v failed", first+second, ends, failed)
	}
	t.Logf("%d requests in %s, as many as %.2f a second are in an hour; heap %d MB, then %d MB; the device's free memory %d MiB, then %d MiB; %d retractions",
		first+second, last, float64(first+second)/3600, memory>>20, after>>20, free>>20, freeAfter>>20, retractions)
}

// deviceSpare is what a driver may take of the device's memory for itself, and passes
// of shapes that come for the first time for their recordings.
const deviceSpare = 64 << 20

// anyRequest asks for something, and reads the answer or gives up.
func (in *instance) anyRequest(t *testing.T, prompt string, rng *rand.Rand) {
	t.Helper()
	most := 1 + rng.IntN(120)
	if rng.IntN(6) == 0 { // longer than the scheduler's headroom, as a rule
		most = 300
	}
	f := fields{"prompt": prompt, "max_tokens": most, "seed": rng.IntN(1000), "n": 1 + rng.IntN(2)}
	if rng.IntN(3) == 0 {
		f["logprobs"] = rng.IntN(3)
	}
	chat := ask(prompt).with(fields{"max_tokens": most, "seed": rng.IntN(1000), "stop": "return"})
	switch rng.IntN(5) {
	case 0:
		in.giveUp(t, f, rng.IntN(20))
	case 1:
		in.streamed(t, f)
	case 2:
		in.chat(t, chat)
	case 3:
		in.chatStream(t, chat)
	default:
		in.post(t, f)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
