package speculation

import (
	"math"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// recorder is a head that proposes token+1, whose draft ids are half the
// target's, and that keeps what it was asked.
type recorder struct {
	passes []pass
	logits [][]float32
	nan    int32 // token after which logits are no numbers
}

type pass struct {
	tokens, positions, slots []int32
	features, want, from     []int32
	kept                     []int32
	starts                   []int32
}

func (r *recorder) record(rows *compute.Rows, p pass, outputs []int32) {
	p.tokens, p.positions, p.slots = slices.Clone(rows.Tokens), slices.Clone(rows.Positions), slices.Clone(rows.Slots)
	p.starts = slices.Clone(rows.Starts)
	r.passes = append(r.passes, p)
	r.logits = nil
	for _, i := range outputs {
		l := make([]float32, 50)
		l[(rows.Tokens[i]+1)/2] = 1
		if rows.Tokens[i] == r.nan {
			l[0] = float32(math.NaN())
		}
		r.logits = append(r.logits, l)
	}
}

func (r *recorder) Extend(rows *compute.Rows, features, want []int32) error {
	r.record(rows, pass{features: slices.Clone(features), want: slices.Clone(want)}, want)
	return nil
}

func (r *recorder) Step(rows *compute.Rows, from []int32) error {
	all := make([]int32, rows.Len())
	for i := range all {
		all[i] = int32(i)
	}
	r.record(rows, pass{from: slices.Clone(from)}, all)
	return nil
}

func (r *recorder) Keep(slots, rows []int32) error {
	r.passes = append(r.passes, pass{kept: slices.Clone(slots), features: slices.Clone(rows)})
	return nil
}

func (r *recorder) CatchUp(rows *compute.Rows, slots []int32) error {
	r.record(rows, pass{kept: slices.Clone(slots)}, nil)
	return nil
}

func (r *recorder) DraftLogits(i int) []float32 { return r.logits[i] }
func (r *recorder) TargetID(draft int32) int32  { return 2*draft + 1 }

func TestEagle3Passes(t *testing.T) {
	head := &recorder{nan: 90}
	e := NewEagle3(head, Shape{TopK: 1}, 4, 4, 64)
	seqs := []Sequence{
		// A prompt of which a part is done: its state is kept in step, no draft.
		{Tokens: []int32{1, 2, 3, 4, 5}, Table: []int32{0, 1, 2}, Row: 0, From: 0, Count: 2},
		// After a verify that settled two tokens: positions 3 and 4 of six tokens.
		{Tokens: []int32{1, 2, 3, 10, 11, 12}, Table: []int32{3, 4, 5}, Row: 2, From: 3, Count: 2, Depth: 3},
		{Tokens: []int32{7, 8, 20}, Table: []int32{6, 7}, Row: 6, From: 1, Count: 1, Depth: 1},
		{Tokens: []int32{9, 90}, Table: []int32{8}, Row: 7, From: 0, Count: 1, Depth: 3},
	}
	for i := range seqs {
		seqs[i].State = &State{Next: seqs[i].From}
	}
	if err := e.Draft(seqs, false); err != nil {
		t.Fatal(err)
	}
	want := []pass{
		{tokens: []int32{2, 3, 11, 12, 20, 90}, positions: []int32{0, 1, 3, 4, 1, 0}, slots: []int32{0, 1, 15, 16, 25, 32},
			features: []int32{0, 1, 2, 3, 6, 7}, want: []int32{3, 4, 5}},
		{tokens: []int32{13}, positions: []int32{5}, slots: []int32{17}, from: []int32{0}},
		{tokens: []int32{15}, positions: []int32{6}, slots: []int32{18}, from: []int32{0}},
	}
	if len(head.passes) != len(want) {
		t.Fatalf("%d passes, want %d: %+v", len(head.passes), len(want), head.passes)
	}
	for i, w := range want {
		g := head.passes[i]
		for _, c := range []struct {
			name      string
			got, want []int32
		}{{"tokens", g.tokens, w.tokens}, {"positions", g.positions, w.positions}, {"slots", g.slots, w.slots},
			{"features", g.features, w.features}, {"want", g.want, w.want}, {"from", g.from, w.from}} {
			if !slices.Equal(c.got, c.want) {
				t.Errorf("pass %d: %s %v, want %v", i, c.name, c.got, c.want)
			}
		}
	}
	for i, w := range [][]int32{nil, {13, 15, 17}, {21}, nil} {
		if !slices.Equal(seqs[i].Draft, w) {
			t.Errorf("sequence %d drafts %v, want %v", i, seqs[i].Draft, w)
		}
	}
}

// Plain decoding only keeps features; on the way back the head catches up with
// those, as far as they reach.
func TestEagle3CatchesUp(t *testing.T) {
	tokens := make([]int32, 400)
	for i := range tokens {
		tokens[i] = int32(i % 40)
	}
	table := make([]int32, 100)
	for i := range table {
		table[i] = int32(i)
	}
	for _, c := range []struct {
		name        string
		plain       int // positions decoded plainly after the first 10
		start, from int // what the head then has: from start on, caught up from from on
	}{
		{"within the window", 5, 0, 10},
		{"just the window", KeptWindow, 0, 10},
		{"longer", KeptWindow + 3, 13, 13},
	} {
		head := &recorder{nan: -1}
		e := NewEagle3(head, Shape{TopK: 1}, 4, 2, 64)
		state := new(State)
		seq := func(from, count, depth int) []Sequence {
			return []Sequence{{Tokens: tokens[:from+count+1], Table: table, From: from, Count: count, Depth: depth, State: state}}
		}
		if err := e.Draft(seq(0, 10, 1), false); err != nil {
			t.Fatal(err)
		}
		at := 10
		for range c.plain {
			if err := e.Draft(seq(at, 1, 0), true); err != nil {
				t.Fatal(err)
			}
			at++
		}
		for _, p := range head.passes[1:] {
			if p.tokens != nil {
				t.Fatalf("%s: plain decoding ran the head: %+v", c.name, p)
			}
		}
		head.passes = nil
		if err := e.Draft(seq(at, 1, 2), false); err != nil {
			t.Fatal(err)
		}
		var caught []int32
		for _, p := range head.passes {
			if p.kept == nil {
				break
			}
			if len(p.tokens) > 64 {
				t.Errorf("%s: a pass of %d rows", c.name, len(p.tokens))
			}
			for i, position := range p.positions {
				if p.tokens[i] != tokens[position+1] || p.kept[i] != position%KeptWindow || p.starts[0] != int32(c.start) {
					t.Errorf("%s: position %d carries token %d and slot %d, and begins at %d", c.name, position, p.tokens[i], p.kept[i], p.starts[0])
				}
			}
			caught = append(caught, p.positions...)
		}
		for i, position := range caught {
			if int(position) != c.from+i {
				t.Fatalf("%s: caught up %v, want from %d on", c.name, caught, c.from)
			}
		}
		if len(caught) != at-c.from || state.Start != c.start || state.Next != at+1 {
			t.Errorf("%s: caught up %d rows, state %+v; want %d and a start of %d", c.name, len(caught), *state, at-c.from, c.start)
		}
		e.Forget(state)
		if len(e.free) != 2 || *state != (State{}) {
			t.Errorf("%s: after the end %d slots are free, state %+v", c.name, len(e.free), *state)
		}
	}
}
