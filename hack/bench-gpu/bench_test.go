//go:build linux

package main

import (
	"context"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/model"
)

// A format that there is not must not be measured as another one.
func TestUnknownFormatsAreRefused(t *testing.T) {
	err := run([]string{shapes[0].name}, []string{"bf16", "fp17"}, "decode", "", "", false)
	if err == nil || err.Error() != `-formats: "fp17" is none: known are bf16, fp16, fp8, int4` {
		t.Error(err)
	}
}

// The made-up folders are models that the engine loads, in every format, and
// what they compute is numbers. A GPU is not needed for that.
func TestMadeUpModelsLoad(t *testing.T) {
	for _, architecture := range []string{"LlamaForCausalLM", "Qwen3ForCausalLM"} {
		for _, format := range weightFormats {
			s := shape{name: "small", architecture: architecture, hidden: 256, intermediate: 384, layers: 8, heads: 4, kv: 2, dim: 64, vocab: 512, draftVocab: 128,
				tied: format == "fp8", qkNorm: architecture == "Qwen3ForCausalLM"}
			target, head := s.target(format), s.head()
			config, err := model.ReadConfig(target, "small")
			if err != nil {
				t.Fatal(err)
			}
			draft, err := model.ReadEagle3Config(head, "head", config)
			if err != nil {
				t.Fatal(err)
			}
			r, err := model.Load(context.Background(), model.Spec{
				Target: model.Source{Name: "small", Files: target}, Config: config,
				Draft: model.Source{Name: "head", Files: head}, DraftConfig: draft, Ranks: 1,
				Plan: func(int64, int) (model.Limits, error) {
					return model.Limits{MaxRows: 8, MaxLogits: 8, MaxDrafts: 8, Pages: 80, PageSize: pageSize, Kept: 1}, nil
				},
				NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
			})
			if err != nil {
				t.Fatalf("%s, %s: %v", architecture, format, err)
			}
			rows, want := pass(1, 4)
			if err := r.Forward(rows, want); err != nil {
				t.Fatal(err)
			}
			low, high := r.Logits(3)[0], r.Logits(3)[0]
			for _, v := range r.Logits(3) {
				low, high = min(low, v), max(high, v)
			}
			if !(high-low > 1e-3 && high-low < 1e3) {
				t.Errorf("%s, %s: logits from %v to %v", architecture, format, low, high)
			}
			r.Close()
		}
	}
}
