package engine

import (
	"context"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/engine/speculation"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

func TestConfigErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		code int
		says string
	}{
		{Config{TPSize: 65}, 2, "--tp-size is 65: allowed is 1 to 64"},
		{Config{NumSteps: 17}, 2, "--speculative-num-steps is 17"},
		{Config{NumSteps: 2, NumDraftTokens: 4}, 2, "which is 3"},
		{Config{TopK: 17}, 2, "--speculative-eagle-topk is 17: allowed is 1 to 16"},
		{Config{TopK: 2, Algorithm: "ngram"}, 2, "--speculative-algorithm ngram drafts chains: allowed is 1"},
		{Config{TopK: 10, NumSteps: 8}, 2, "--speculative-eagle-topk 10 times --speculative-num-steps 8 less one is 70: allowed are 64"},
		{Config{TopK: 2, NumSteps: 2, NumDraftTokens: 8}, 2, "--speculative-num-draft-tokens is 8: with --speculative-eagle-topk 2 and --speculative-num-steps 2 allowed is 2 to 7"},
		{Config{TopK: 4, NumSteps: 5, NumDraftTokens: 65}, 2, "allowed is 2 to 64"},
		{Config{NGramMin: 65}, 2, "--speculative-ngram-min-match-window-size is 65"},
		{Config{NGramMin: 4, NGramMax: 3}, 2, "--speculative-ngram-max-match-window-size is 3, less than"},
		{Config{Algorithm: "medusa"}, 2, `--speculative-algorithm is "medusa": allowed are eagle3, ngram, draft, none`},
		{Config{Algorithm: "none", DraftModel: "x"}, 2, "leave one of them out"},
		{Config{Algorithm: "ngram", DraftModel: "x"}, 2, "leave one of them out"},
		{Config{Device: "cuda"}, 13, "without CUDA"},
		{Config{Device: "tpu"}, 2, "allowed are auto, cpu and cuda"},
		{Config{MemFractionStatic: 1.5}, 2, "--mem-fraction-static is 1.5"},
		{Config{ContextLength: -1}, 2, "--context-length is -1: allowed is 2 or more"},
		{Config{ContextLength: 1}, 2, "--context-length is 1: allowed is 2 or more"},
		{Config{MaxTotalTokens: -1}, 2, "--max-total-tokens is -1: allowed is --context-length or more"},
	} {
		_, err := New(c.cfg, quiet(), telemetry.NewMetrics(prometheus.NewRegistry(), "m", time.Now), telemetry.NewProgress(1, time.Now))
		if err == nil || fault.ReasonOf(err).ExitCode() != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v (exit code %d); want %d saying %q", c.cfg, err, fault.ReasonOf(err).ExitCode(), c.code, c.says)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		cfg    Config
		reason fault.Reason
		says   string
	}{
		{Config{Model: "builtin:none"}, fault.ModelNotFound, "builtin:gocode-7m"},
		{Config{Model: "/no/such/folder"}, fault.ModelNotFound, "no such folder"},
		{Config{TPSize: 3}, fault.InvalidConfig, "--tp-size is 3: this model (4 heads"},
		{Config{ContextLength: 4096}, fault.InvalidConfig, "--context-length is 4096: allowed is 2"},
		{Config{ContextLength: 100, MaxTotalTokens: 111}, fault.InvalidConfig, "--max-total-tokens is 111: one request of --context-length 100 takes 7 pages of --page-size 16: allowed is 112 or more"},
		{Config{Model: "model/testdata/fixtures/llama", Algorithm: AlgorithmEagle3}, fault.InvalidConfig, "needs --draft-model"},
		{Config{DraftModel: "model/testdata/fixtures/llama"}, fault.Unsupported, "num_hidden_layers is 3"},
		{Config{Model: "model/testdata/fixtures/llama", DraftModel: "builtin:gocode-7m-eagle3"}, fault.DraftMismatch, "vocab_size is 4096, but the target's is 320"},
		{Config{Algorithm: AlgorithmDraft}, fault.InvalidConfig, "--speculative-algorithm draft needs --draft-model"},
		{Config{Algorithm: AlgorithmDraft, DraftModel: "builtin:gocode-7m-eagle3"}, fault.Unsupported, "is an EAGLE-3 head, not a whole model"},
		{Config{Algorithm: AlgorithmDraft, DraftModel: "model/testdata/fixtures/llama"}, fault.DraftMismatch, "vocab_size is 320, but the target's is 4096"},
		{Config{MemFractionStatic: 1e-9}, fault.OutOfMemory, "not fit: "},
	} {
		if c.cfg.Model == "" {
			c.cfg.Model = "builtin:gocode-7m"
		}
		err := newEngine(t, c.cfg).Run(context.Background())
		if fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v with reason %s; want %s saying %q", c.cfg, err, fault.ReasonOf(err), c.reason, c.says)
		}
	}
}

// withNaNs is a copy of a model folder whose weights are all bfloat16 NaNs, but for
// the tensor named.
func withNaNs(t *testing.T, files fs.FS, but string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, files); err != nil {
		t.Fatal(err)
	}
	changeWeights(t, dir, func(b []byte, at func(name string) (from, to uint64)) {
		from, to := at(but)
		for i := range b {
			if uint64(i) < from || uint64(i) >= to {
				b[i] = 0xff
			}
		}
	})
	return dir
}

// A model that cannot answer ends the start with a reason, as it would load
// forever; so does a draft that cannot propose.
func TestFailedWarmUpIsAFault(t *testing.T) {
	head, err := builtin.Open("gocode-7m-eagle3")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cfg    Config
		reason fault.Reason
		says   string
	}{
		{Config{Model: withNaNs(t, os.DirFS("model/testdata/fixtures/llama"), "")}, fault.WeightsMismatch, "logits that are not numbers"},
		{Config{Model: "builtin:gocode-7m", DraftModel: withNaNs(t, head, "d2t")}, fault.DraftMismatch, "check the draft's weights"},
		{Config{Model: "builtin:gocode-7m", DraftModel: withNaNs(t, head, "d2t"), Mode: speculation.ModeAuto, TopK: 4}, fault.DraftMismatch, "check the draft's weights"},
	} {
		err := newEngine(t, c.cfg).Run(context.Background())
		if fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), "does not answer its first request") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v with reason %s; want %s saying %q", c.cfg, err, fault.ReasonOf(err), c.reason, c.says)
		}
	}
}
