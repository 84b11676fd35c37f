package engine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/outrider-dev/outrider/engine/sampling"
	"github.com/outrider-dev/outrider/engine/scheduler"
)

// poison is a token whose embedding is no numbers, so that whatever a model computes
// of a text with it is none either.
const poison = synthVocab - 1

// poisoned changes a synthetic model's files so that it has poison.
func poisoned(t *testing.T, dir string) {
	t.Helper()
	changeWeights(t, dir, func(b []byte, at func(name string) (from, to uint64)) {
		from, _ := at("model.embed_tokens.weight")
		row := b[from+4*poison*synthHidden:]
		for i := range synthHidden {
			binary.LittleEndian.PutUint32(row[4*i:], math.Float32bits(float32(math.NaN())))
		}
	})
}

// changeWeights has change alter the numbers of a model folder's safetensors file, in
// which at says where a tensor's are; 0 and 0 if there is none of that name.
func changeWeights(t *testing.T, dir string, change func(numbers []byte, at func(name string) (from, to uint64))) {
	t.Helper()
	file := filepath.Join(dir, "model.safetensors")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin := 8 + binary.LittleEndian.Uint64(b)
	var header map[string]struct {
		Offsets []uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(b[8:begin], &header); err != nil {
		t.Fatal(err)
	}
	change(b[begin:], func(name string) (from, to uint64) {
		if o := header[name].Offsets; o != nil {
			return o[0], o[1]
		}
		return 0, 0
	})
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Logits that are no numbers fail the request whose text they are of, and no other:
// not those beside it in a pass, or that get its pages afterwards, or share its
// prompt's beginning, or whose drafts come to such a token.
func TestNoNumbersFailOneRequestOnly(t *testing.T) {
	m := synthesise(t, 7, 2, 0)
	poisoned(t, m.target)
	poisoned(t, m.small)
	rng := rand.New(rand.NewPCG(3, 3))
	var requests []scheduler.Request
	for i := range 28 {
		r := randomSynthRequest(rng, requests)
		r.PromptIDs = slices.Clone(r.PromptIDs)
		for k, id := range r.PromptIDs {
			r.PromptIDs[k] = min(id, poison-1)
		}
		if i%4 == 0 { // another one's prompt, which goes on with the poison
			if i > 0 {
				r.PromptIDs = append(slices.Clone(requests[i-1].PromptIDs), r.PromptIDs...)
			}
			at := len(r.PromptIDs) / 2
			r.PromptIDs = slices.Insert(r.PromptIDs, at, poison)
		} else if i%4 != 1 { // the others may come to it: then they fail too, wherever they are computed
			r.Sampling.Bias = append(r.Sampling.Bias, sampling.Bias{ID: poison, Value: -100})
		}
		r.PromptIDs = r.PromptIDs[:min(len(r.PromptIDs), synthContext/2)]
		r.MaxTokens = min(r.MaxTokens, 30)
		r.MinTokens = min(r.MinTokens, r.MaxTokens)
		requests = append(requests, r)
	}
	for _, ranks := range []int{1, 2} {
		want := make([]scheduler.Event, len(requests))
		for i, r := range requests { // each by an engine in which nothing else was
			run(t, Config{Model: m.target, Algorithm: AlgorithmNone, TPSize: ranks, MaxRunningRequests: 1}, 1, func(e *Engine, _ int) {
				want[i] = complete(t, e, r)
			}, 1)
		}
		failed := 0
		for _, w := range want {
			if w.Err != nil {
				failed++
			}
		}
		if failed < 7 || failed > 20 {
			t.Fatalf("%d of %d requests fail: the test does not test both", failed, len(requests))
		}
		for _, c := range []Config{
			{Algorithm: AlgorithmNone},
			{Algorithm: AlgorithmNone, PageSize: 4, ChunkedPrefillSize: 7, MaxTotalTokens: synthContext + 8},
			{Algorithm: AlgorithmEagle3, DraftModel: m.head, PageSize: 1},
			{Algorithm: AlgorithmEagle3, DraftModel: m.head, TopK: 4, NumDraftTokens: 12},
			{Algorithm: AlgorithmDraft, DraftModel: m.small, NumSteps: 5},
			{Algorithm: AlgorithmDraft, DraftModel: m.small, TopK: 6, NumSteps: 4, NumDraftTokens: 20, PageSize: 4},
			{Algorithm: AlgorithmNGram, NGramMin: 1, NGramMax: 3, NumSteps: 5},
		} {
			t.Run(fmt.Sprintf("%s, top-k %d, page size %d, %d ranks", c.Algorithm, c.TopK, c.PageSize, ranks), func(t *testing.T) {
				c.Model, c.TPSize, c.MaxRunningRequests = m.target, ranks, 4
				var mu sync.Mutex
				e := run(t, c, 8, func(e *Engine, i int) {
					got := complete(t, e, requests[i])
					mu.Lock()
					defer mu.Unlock()
					w := want[i]
					if !slices.Equal(got.TokenIDs, w.TokenIDs) || got.Finish != w.Finish || !errors.Is(got.Err, w.Err) || !equalLogprobs(got.Logprobs, w.Logprobs) {
						t.Errorf("request %d %+v:\n got %v %s %v\nwant %v %s %v", i, requests[i], got.TokenIDs, got.Finish, got.Err, w.TokenIDs, w.Finish, w.Err)
					}
					if got.Err != nil && !errors.Is(got.Err, sampling.ErrNotFinite) {
						t.Errorf("request %d: %v", i, got.Err)
					}
				}, len(requests))
				eventually(t, "pages are held by nobody's request", func() bool { return e.Info().KVPagesTotal == e.Info().KVPagesFree })
			})
		}
	}
}
