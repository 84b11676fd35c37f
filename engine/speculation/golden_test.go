package speculation_test

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cpu"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/engine/internal/golden"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/speculation"
)

const pageSize = 16

func load(t *testing.T, ranks int) *model.Ranks {
	t.Helper()
	open := func(name string) fs.FS {
		files, err := builtin.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	target, draft := open("gocode-7m"), open("gocode-7m-eagle3")
	c, err := model.ReadConfig(target, "target")
	if err != nil {
		t.Fatal(err)
	}
	d, err := model.ReadEagle3Config(draft, "draft", c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := model.Load(context.Background(), model.Spec{
		Target: model.Source{Name: "target", Files: target}, Config: c,
		Draft: model.Source{Name: "draft", Files: draft}, DraftConfig: d, Ranks: ranks,
		Plan: func(int64, int) (model.Limits, error) {
			return model.Limits{MaxRows: 64, MaxLogits: 64, MaxDrafts: 64, Pages: 64, PageSize: pageSize, Kept: speculation.KeptRows(1)}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) { return cpu.New(comm, 1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// watched is a head that keeps the distributions it drafted from.
type watched struct {
	*model.Ranks
	t     *testing.T
	probs []map[int32]float64 // by step
}

func (w *watched) record() {
	p := map[int32]float64{}
	logits := w.DraftLogits(0)
	var sum float64
	for _, v := range logits {
		sum += math.Exp(float64(v))
	}
	for i, v := range logits {
		p[w.TargetID(int32(i))] = math.Exp(float64(v)) / sum
	}
	w.probs = append(w.probs, p)
}

func (w *watched) Extend(rows *compute.Rows, features, want []int32) error {
	err := w.Ranks.Extend(rows, features, want)
	w.probs = nil
	w.record()
	return err
}

func (w *watched) Step(rows *compute.Rows, from []int32) error {
	err := w.Ranks.Step(rows, from)
	w.record()
	return err
}

func argmax(logits []float32) int32 { return int32(slices.Index(logits, slices.Max(logits))) }

// Every cycle of greedy chain speculation equals the reference: the drafts and
// their probabilities, how many were accepted, and the target's own token.
func TestCyclesEqualTheGoldenFile(t *testing.T) {
	g := golden.Read()
	for _, ranks := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("tp=%d", ranks), func(t *testing.T) {
			head := &watched{Ranks: load(t, ranks), t: t}
			for _, c := range g.Speculation {
				checkCycles(t, head, c)
			}
		})
	}
}

func checkCycles(t *testing.T, head *watched, c golden.Case) {
	drafter := speculation.NewEagle3(head, speculation.Shape{TopK: 1}, pageSize, 1, 64)
	table := make([]int32, 40)
	for i := range table {
		table[i] = int32((11*i + 5) % 64)
	}
	tokens, computed, state := slices.Clone(c.Prompt), 0, new(speculation.State)
	// pass runs the settled tokens that are not computed, and the draft.
	pass := func(draft []int32) (rows int) {
		var r compute.Rows
		seq := r.AddSequence(table, 0)
		var want []int32
		for p := computed; p < len(tokens)+len(draft); p++ {
			id := int32(0)
			if p < len(tokens) {
				id = tokens[p]
			} else {
				id = draft[p-len(tokens)]
			}
			if p >= len(tokens)-1 {
				want = append(want, int32(r.Len()))
			}
			r.Add(seq, id, int32(p), pageSize)
		}
		if err := head.Forward(&r, want); err != nil {
			t.Fatal(err)
		}
		return len(tokens) - computed
	}
	propose := func(from, count int) []int32 {
		s := []speculation.Sequence{{Tokens: tokens, Table: table, From: from, Count: count, Depth: c.Steps, State: state}}
		if err := drafter.Draft(s, false); err != nil {
			t.Fatal(err)
		}
		return s[0].Draft
	}
	count := pass(nil)
	for i, id := range c.TopLogits[0] {
		if got, want := head.Logits(0)[int(id)], c.TopLogits[1][i]; math.Abs(float64(got)-want) > 1e-3 {
			t.Fatalf("%q: logit of %v is %v, want %v", c.Text, id, got, want)
		}
	}
	tokens = append(tokens, argmax(head.Logits(0)))
	draft := propose(computed, count)
	computed += count
	for i, want := range c.Cycles {
		if !slices.Equal(draft, want.Draft) {
			t.Fatalf("%q, cycle %d: draft %v, want %v", c.Text, i, draft, want.Draft)
		}
		for step, top := range want.Top4 {
			for k, id := range top[0] {
				if got := head.probs[step][int32(id)]; math.Abs(got-top[1][k]) > 1e-3 {
					t.Fatalf("%q, cycle %d, step %d: token %v has probability %v, want %v", c.Text, i, step, id, got, top[1][k])
				}
			}
		}
		from := computed
		count := pass(draft)
		accepted := 0
		for accepted < len(draft) && argmax(head.Logits(accepted)) == draft[accepted] {
			accepted++
		}
		bonus := argmax(head.Logits(accepted))
		if accepted != want.Accepted || bonus != want.Bonus {
			t.Fatalf("%q, cycle %d: %d accepted and %d, want %d and %d", c.Text, i, accepted, bonus, want.Accepted, want.Bonus)
		}
		tokens = append(append(tokens, draft[:accepted]...), bonus)
		computed += count + accepted
		draft = propose(from, count+accepted)
	}
	if got := tokens[len(c.Prompt):]; !slices.Equal(got, c.Output[:len(got)]) {
		t.Fatalf("%q: text %v, want %v", c.Text, got, c.Output)
	}
}
