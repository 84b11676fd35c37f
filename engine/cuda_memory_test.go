//go:build cuda && linux

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/compute/cuda/emulation"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// What requests take of a device's memory is in use when the engine is ready, also for
// those whose tokens the device draws with all that a request may ask for: the KV cache
// has grown into the rest. (A GPU's driver has memory of its own that it may take later.)
func TestRequestsTakeNoMemory(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	free := func() int64 {
		n, _, err := cuda.Memory(0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const running, length = 2, 96 // all numbers of decodes are recorded at the start
	e := start(t, Config{Device: DeviceCUDA, Model: "model/testdata/fixtures/llama", Algorithm: AlgorithmNone, MaxRunningRequests: running, ContextLength: length, MaxTotalTokens: 1 << 15})
	before := free()
	var bias []sampling.Bias
	for id := range int32(e.Info().VocabSize) {
		bias = append(bias, sampling.Bias{ID: id, Value: float64(id%7) / 10})
	}
	var wg sync.WaitGroup
	for i := range running + 2 {
		wg.Go(func() {
			prompt := make([]int32, 20+10*i) // prompts are not recorded
			for k := range prompt {
				prompt[k] = int32(3 + (7*i+5*k)%300)
			}
			got := complete(t, e, scheduler.Request{PromptIDs: prompt, MaxTokens: 24, IgnoreEOS: true, Logprobs: 20,
				Sampling: sampling.Params{Temperature: 1, TopP: 0.9, Repetition: 1.2, Presence: 0.5, Bias: bias, Seed: uint64(i)}})
			if got.Finish != scheduler.FinishLength {
				t.Errorf("request %d ended with %q, %v", i, got.Finish, got.Err)
			}
		})
	}
	wg.Wait()
	if after := free(); after != before {
		t.Errorf("the requests took %d bytes of the device's memory", before-after)
	}
}

// loadVariable has TestLoadsOnGPU load with its value, a Config.
const loadVariable = "OUTRIDER_TEST_LOAD"

// TestLoadsOnGPU is a load in a process of its own, with as much memory as a GPU then has.
func TestLoadsOnGPU(t *testing.T) {
	var cfg Config
	if text := os.Getenv(loadVariable); text == "" {
		t.Skip("NOT RUN: it is a part of TestAdviceOnGPUs")
	} else if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		t.Fatal(err)
	}
	e, err := New(cfg, quiet(), telemetry.NewMetrics(prometheus.NewRegistry(), "m", time.Now), telemetry.NewProgress(1, time.Now))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.load(t.Context(), func() {}); err != nil {
		fmt.Printf("\nended %s\n", err)
	}
}

// Where the KV cache does not grow to one request, each value that the error names
// would have it grow, by itself.
func TestAdviceOnGPUs(t *testing.T) {
	if err := emulation.Loaded(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	load := func(cfg Config) (ended string) {
		text, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, ended, _ = strings.Cut(again(t, "^TestLoadsOnGPU$", fmt.Sprintf("OUTRIDER_EMULATION_MEMORY=%d", 60<<20), loadVariable+"="+string(text)), "\nended ")
		ended, _, _ = strings.Cut(ended, "\n")
		return ended
	}
	cfg := Config{Device: DeviceCUDA, Model: "model/testdata/fixtures/llama", Algorithm: AlgorithmNone, MaxRunningRequests: 64, ContextLength: 512}
	ended := load(cfg)
	said, _, _ := strings.Cut(ended, ": give it ")
	if !strings.HasPrefix(said, "the KV cache does not fit: ") || !strings.Contains(said, "of the 60 that were free are left on GPU 0 (Emulated GPU)") {
		t.Fatalf("the load ended with %q", ended)
	}
	tried := takesAdvice(t, ended, cfg, func(with Config, float8 bool, length int) error {
		if float8 {
			with.KVCacheDType = "fp8"
		}
		if length > 0 {
			with.ContextLength = length
		}
		if ended := load(with); ended != "" {
			return errors.New(ended)
		}
		return nil
	})
	if tried == 0 {
		t.Errorf("no value would help: %s", ended)
	}
}
