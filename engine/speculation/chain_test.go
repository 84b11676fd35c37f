package speculation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// walker is a model whose outputs are numbers that depend on all that led to
// them. Some have no best token.
type walker struct {
	t       *testing.T
	chains  bool
	outputs []uint64
	kept    map[int32]int32
	steps   int
}

func blend(x uint64, with ...int32) uint64 {
	for _, v := range with {
		x = (x ^ uint64(uint32(v))) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return x
}

func (w *walker) Step(rows *compute.Rows, from []int32) error {
	w.steps++
	var next []uint64
	for i := range rows.Len() {
		next = append(next, blend(w.outputs[from[i]], rows.Tokens[i], rows.Positions[i], rows.Slots[i], rows.Starts[rows.Seqs[i]]))
	}
	w.outputs = next
	return nil
}

func (w *walker) DraftBest(i int) (int32, bool) {
	return int32(w.outputs[i] >> 8 % 100), w.outputs[i]%7 != 0
}

func (w *walker) DraftLogits(int) []float32 { return []float32{float32(math.NaN())} }

func (w *walker) TargetID(draft int32) int32 { return draft + 1000 }

func (w *walker) Chains() bool { return w.chains }

func (w *walker) Chain(rows *compute.Rows, keep, from []int32) error {
	if len(keep) != len(from) || rows.Len() > len(from) {
		w.t.Errorf("%d rows, %d to keep, from %d", rows.Len(), len(keep), len(from))
	}
	for i, k := range keep {
		token, ok := w.DraftBest(int(from[i]))
		if _, twice := w.kept[k]; twice {
			w.t.Errorf("number %d is kept twice", k)
		}
		if w.kept[k] = -1; ok {
			w.kept[k] = w.TargetID(token)
		}
		if i < rows.Len() {
			rows.Tokens[i] = max(w.kept[k], 0)
		}
	}
	return w.Step(rows, from)
}

func (w *walker) Chained(i int) (int32, bool) {
	token, ok := w.kept[int32(i)]
	if !ok {
		w.t.Errorf("number %d was not kept", i)
	}
	return token, ok && token >= 0
}

// A device that goes on by itself drafts what the host would step by step, with
// sequences of different depths and outputs without a best token.
func TestChainsAreWhatStepsAre(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for trial := range 500 {
		n := 1 + rng.IntN(6)
		var seqs []Sequence
		var active []int
		var outputs []uint64
		for i := range n {
			depth := rng.IntN(6)
			seqs = append(seqs, Sequence{Tokens: make([]int32, 20+rng.IntN(9)), Table: []int32{int32(2 * i), int32(2*i + 1), int32(40 + i)}, Depth: depth, State: &State{Start: rng.IntN(3)}})
			if depth > 0 {
				active, outputs = append(active, i), append(outputs, rng.Uint64())
			}
		}
		var got [2]string
		for k, chains := range []bool{false, true} {
			w := &walker{t: t, chains: chains, outputs: slices.Clone(outputs), kept: map[int32]int32{}}
			g := grower{model: w, shape: Shape{TopK: 1, Nodes: 8}, pageSize: 16, behind: 1}
			own := slices.Clone(seqs)
			if err := g.grow(own, active); err != nil {
				t.Fatal(err)
			}
			for _, s := range own {
				got[k] += fmt.Sprintln(s.Depth, s.Draft)
			}
			if chains && len(active) > 0 && w.steps == 0 && slices.MaxFunc(seqs, func(a, b Sequence) int { return a.Depth - b.Depth }).Depth > 1 {
				t.Fatalf("trial %d: no steps", trial)
			}
		}
		if got[0] != got[1] {
			t.Fatalf("trial %d: step by step\n%sin a chain\n%s", trial, got[0], got[1])
		}
	}
}
