package main

import (
	"context"
	"testing"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// The next token of the synthetic model is certain by far more than rounding can
// move, wherever a text begins: another depth has no other text on any device.
func TestSyntheticTextsAreCertain(t *testing.T) {
	m := memoryBound
	m.layers, m.intermediate, m.vocab, m.draftVocab = 12, 512, 2048, 512
	target, head, err := m.synthesize(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := serve(engine.Config{Model: target, DraftModel: head, Algorithm: engine.AlgorithmEagle3, TPSize: 1, NumSteps: 2, Mode: speculation.ModeFixed, MaxRunningRequests: 4, ContextLength: 256})
	defer s.stop()
	for _, last := range []int32{0, 77, int32(m.vocab - 3)} {
		stream, err := s.Submit(&scheduler.Request{PromptIDs: []int32{9, 1500, 300, last}, MaxTokens: 40, IgnoreEOS: true, Sampling: sampling.Params{TopP: 1}, Logprobs: 2})
		if err != nil {
			t.Fatal(err)
		}
		want := last
		for done := false; !done; {
			ev, err := stream.Next(context.Background())
			if err != nil || ev.Err != nil {
				t.Fatal(err, ev.Err)
			}
			for i, id := range ev.TokenIDs {
				want = (want + 1) % int32(m.vocab)
				if top := ev.Logprobs[i].Top; id != want || top[0].Logprob-top[1].Logprob < 4 {
					t.Fatalf("after a prompt that ends with %d: token %d, best %v; want %d by 4 at least", last, id, top, want)
				}
			}
			done = ev.Finish != ""
		}
		stream.Close()
	}
}
