package model

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
)

// fixture is a golden.json: reference outputs of a tiny model.
type fixture struct {
	Cases []struct {
		IDs               []int32   `json:"ids"`
		LastLogits        []float64 `json:"last_logits"`
		ArgmaxPerPosition []int32   `json:"argmax_per_position"`
		Greedy            []int32   `json:"greedy"`
		SmallestGreedyGap float64   `json:"smallest_greedy_gap"`
	} `json:"cases"`
}

// fixtures are those of dense models.
var fixtures = []string{"llama", "llama31-rope", "mistral-window", "qwen2", "qwen3", "llama-int4", "llama-fp8"}

func readFixture(t *testing.T, name string) (Source, *Config, fixture) {
	t.Helper()
	dir := filepath.Join("testdata", "fixtures", name)
	b, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	files := os.DirFS(dir)
	c, err := ReadConfig(files, name)
	if err != nil {
		t.Fatal(err)
	}
	return Source{name, files}, c, f
}

func loadFixture(t *testing.T, s Source, c *Config, ranks int) *Ranks {
	t.Helper()
	r, err := Load(context.Background(), fixtureSpec(s, c, ranks))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func fixtureSpec(s Source, c *Config, ranks int) Spec {
	return Spec{
		Target: s, Config: c, Ranks: ranks,
		Plan: func(int64, int) (Limits, error) {
			return Limits{MaxRows: 160, MaxLogits: 160, Pages: 40, PageSize: 8}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
	}
}

// pass runs tokens at the positions from on of one sequence and wants all logits.
func pass(t *testing.T, r *Ranks, tokens []int32, from int) {
	t.Helper()
	var rows compute.Rows
	table := make([]int32, 20) // pages in no order
	for i := range table {
		table[i] = int32((7*i + 3) % 40)
	}
	seq := rows.AddSequence(table, 0)
	var want []int32
	for i, id := range tokens {
		rows.Add(seq, id, int32(from+i), 8)
		want = append(want, int32(i))
	}
	if err := r.Forward(&rows, want); err != nil {
		t.Fatal(err)
	}
}

func best(logits []float32) int32 {
	return int32(slices.Index(logits, slices.Max(logits)))
}

// The reference is float32 with another order of summation: logits agree to
// rounding, tokens wherever the gap between the best two is above it.
func TestFixturesEqualTheReference(t *testing.T) {
	for _, name := range fixtures {
		source, config, golden := readFixture(t, name)
		for _, ranks := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/tp=%d", name, ranks), func(t *testing.T) {
				if err := config.CheckTP(ranks); err != nil {
					t.Fatal(err)
				}
				r := loadFixture(t, source, config, ranks)
				for i, c := range golden.Cases {
					pass(t, r, c.IDs, 0)
					var scale float64
					for _, v := range c.LastLogits {
						scale = max(scale, math.Abs(v))
					}
					last := r.Logits(len(c.IDs) - 1)
					if len(last) != len(c.LastLogits) {
						t.Fatalf("case %d: %d logits, want %d", i, len(last), len(c.LastLogits))
					}
					for id, want := range c.LastLogits {
						if math.Abs(float64(last[id])-want) > 1e-3*scale {
							t.Fatalf("case %d: logit %d is %v, want %v", i, id, last[id], want)
						}
					}
					for p, want := range c.ArgmaxPerPosition {
						logits := r.Logits(p)
						got := best(logits)
						if got != want && logits[got]-logits[want] > 1e-3 {
							t.Errorf("case %d: position %d predicts %d, want %d", i, p, got, want)
						}
					}
					tokens := slices.Clone(c.IDs)
					next := best(last)
					for step, want := range c.Greedy {
						if next != want {
							if c.SmallestGreedyGap < 1e-3 {
								break // rounding decides from here on
							}
							t.Fatalf("case %d: greedy token %d is %d, want %d", i, step, next, want)
						}
						tokens = append(tokens, next)
						pass(t, r, tokens[len(tokens)-1:], len(tokens)-1)
						next = best(r.Logits(0))
					}
				}
			})
		}
	}
}

// A prompt in chunks, or as a verify pass of several rows, must give the bits
// of one row at a time: exact speculation rests on it.
func TestPassesDoNotDependOnTheirRows(t *testing.T) {
	for _, name := range []string{"llama", "llama-int4", "llama-fp8"} {
		source, config, golden := readFixture(t, name)
		r := loadFixture(t, source, config, 2)
		tokens := golden.Cases[len(golden.Cases)-1].IDs
		var single [][]float32
		for i := range tokens {
			pass(t, r, tokens[i:i+1], i)
			single = append(single, slices.Clone(r.Logits(0)))
		}
		for _, size := range []int{2, 3, 5, len(tokens)} {
			for from := 0; from < len(tokens); from += size {
				chunk := tokens[from:min(from+size, len(tokens))]
				pass(t, r, chunk, from)
				for i := range chunk {
					if !slices.Equal(r.Logits(i), single[from+i]) {
						t.Fatalf("%s in chunks of %d: logits of position %d differ", name, size, from+i)
					}
				}
			}
		}
	}
}

// A rank that fails in a pass must not leave the others waiting for its sums.
func TestARanksFailureEndsThePass(t *testing.T) {
	source, config, _ := readFixture(t, "llama")
	r := loadFixture(t, source, config, 4)
	r.ranks[2].target = nil
	var rows compute.Rows
	rows.Add(rows.AddSequence([]int32{0}, 0), 1, 0, 8)
	done := make(chan error, 1)
	go func() { done <- r.Forward(&rows, []int32{0}) }()
	select {
	case err := <-done:
		if err == nil || !strings.HasPrefix(err.Error(), "rank 2 failed in a pass: ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("the pass ended with %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("ranks still wait for one that failed")
	}
	if err := r.Forward(&rows, []int32{0}); err == nil {
		t.Error("a pass after the fault succeeds")
	}
}
