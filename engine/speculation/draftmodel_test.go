package speculation

import (
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
)

// pupil is a draft model that says token+1 after each token, and remembers which
// token each slot of its cache has. A row must find the text before it there.
type pupil struct {
	t       *testing.T
	texts   [][]int32 // what each sequence's rows may have before them, by first page
	cache   map[int32]int32
	rows    int // of the passes so far
	largest int
	outputs []int32
}

func (p *pupil) DraftForward(rows *compute.Rows, want []int32) error {
	for i, id := range rows.Tokens {
		p.cache[rows.Slots[i]] = id
	}
	for i, position := range rows.Positions {
		table := rows.Tables[rows.Seqs[i]]
		text := p.texts[table[0]/10]
		for q := range min(position+1, int32(len(text))) {
			if got, ok := p.cache[compute.Slot(table, q, 4)]; !ok || got != text[q] {
				p.t.Fatalf("the row of position %d finds token %d (%v) at position %d, where the text has %d", position, got, ok, q, text[q])
			}
		}
	}
	p.rows += rows.Len()
	p.largest = max(p.largest, rows.Len())
	p.outputs = p.outputs[:0]
	for _, i := range want {
		p.outputs = append(p.outputs, rows.Tokens[i])
	}
	return nil
}

func (p *pupil) DraftLogits(i int) []float32 {
	logits := make([]float32, 60)
	logits[p.outputs[i]+1] = 1
	return logits
}

// The cache has each settled token when it is needed, whatever was accepted and
// however long decoding was plain; what was accepted is not computed twice.
func TestDraftModelKeepsUp(t *testing.T) {
	const steps = 3
	p := &pupil{t: t, cache: map[int32]int32{}}
	d := NewDraftModel(p, Shape{TopK: 1}, 4, 10)
	table := make([]int32, 10)
	for i := range table {
		table[i] = int32(9 - i)
	}
	text, state := []int32{1, 2, 3, 4, 5, 6, 7}, new(State)
	p.texts = [][]int32{text}
	round := func(from, depth int, plain bool) []int32 {
		t.Helper()
		p.texts[0] = text
		s := []Sequence{{Tokens: text, Table: table, From: from, Count: len(text) - 1 - from, Depth: depth, Room: 20, State: state}}
		if err := d.Draft(s, plain); err != nil {
			t.Fatal(err)
		}
		return s[0].Draft
	}
	if got := round(0, steps, false); !slices.Equal(got, []int32{8, 9, 10}) || p.rows != 7+2 {
		t.Fatalf("drafts %v in %d rows", got, p.rows)
	}
	// All accepted: only the last draft token and the target's own are new.
	from := len(text) - 1
	text = append(text, 8, 9, 10, 20)
	p.rows = 0
	if got := round(from, steps, false); !slices.Equal(got, []int32{21, 22, 23}) || p.rows != 2+2 {
		t.Errorf("after all were accepted: drafts %v in %d rows, want 4", got, p.rows)
	}
	// One accepted, while decoding is plain now: the other entries are wrong.
	from = len(text) - 1
	text = append(text, 21, 40)
	p.rows = 0
	if got := round(from, 0, true); got != nil || p.rows != 0 {
		t.Errorf("plain decoding drafts %v in %d rows", got, p.rows)
	}
	for range 12 {
		from = len(text) - 1
		text = append(text, int32(len(text)))
		if round(from, 0, true); p.rows != 0 {
			t.Fatal("plain decoding runs the draft model")
		}
	}
	// Back: no more than fit into a pass, then the rest, and then drafts.
	from = len(text) - 1
	text = append(text, 33)
	if got := round(from, steps, false); got != nil || p.rows != 10 {
		t.Errorf("drafts %v in %d rows: it lacks more than a pass", got, p.rows)
	}
	from = len(text) - 1
	text = append(text, 34)
	if got := round(from, steps, false); !slices.Equal(got, []int32{35, 36, 37}) || p.largest > 10 {
		t.Errorf("drafts %v, passes of up to %d rows", got, p.largest)
	}
	d.Forget(state)
	if *state != (State{}) {
		t.Errorf("after the end the state is %+v", *state)
	}
}
