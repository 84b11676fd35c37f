//go:build linux

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/drawtest"
	"github.com/outrider-dev/outrider/internal/seed"
)

// spoil makes what is found there nonsense.
func spoil(results []drawResult) {
	for i := range results {
		r := &results[i]
		r.token, r.tops, r.mass, r.logit = 12345, 7, ^uint64(0), float32(math.NaN())
		for k := range r.ids {
			r.ids[k] = -5
		}
	}
}

// sameTops compares the tops of a row with those that they should be.
func sameTops(got, want compute.Tops) bool {
	return slices.Equal(got.IDs, want.IDs) && slices.Equal(got.Logits, want.Logits) && got.Mass == want.Mass && got.Highest == want.Highest
}

// Draws of every kind are those of the definition, to the last bit, and the logits
// are as before; of vocabularies of one block and of many, more rows than a launch
// takes, rows without numbers among them.
func TestDraw(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, c := range []struct{ vocab, rows, trials int }{{50, 150, 20}, {1000, 20, 20}, {4099, 9, 30}, {32000, 4, 20}, {128256, 3, 15}} {
		x := d.NewSums(c.rows, c.vocab)
		for trial := range c.trials {
			rows := 1 + rng.IntN(c.rows)
			logits := make([]float32, 0, c.rows*c.vocab)
			for range c.rows {
				logits = append(logits, drawtest.Logits(rng, c.vocab)...)
			}
			if rng.IntN(4) == 0 {
				logits[rng.IntN(rows)*c.vocab+rng.IntN(c.vocab)] = []float32{float32(math.NaN()), float32(math.Inf(1))}[rng.IntN(2)]
			}
			put(d, x, logits)
			d.ArgMax(x, c.vocab, c.rows)
			var all []compute.Draw
			for _, row := range rng.Perm(c.rows)[:rows] {
				all = append(all, drawtest.Random(rng, row, c.vocab))
			}
			spoil(d.drawing.turns[1-d.drawing.turn].results)
			d.Draw(x, c.vocab, all)
			for i := range all {
				row := logits[all[i].Row*c.vocab : (all[i].Row+1)*c.vocab]
				want, wantOK := drawtest.By(row, &all[i])
				got, ok := d.Drawn(i)
				if enough := all[i].Tops < 0 || compute.Mass(compute.NewDecay(1).At(want.Highest-last(want.Logits, want.Highest))) > 0 && len(want.IDs) == all[i].Tops; wantOK && !enough {
					continue // some tops have no weight: the host finds them
				}
				if ok != wantOK || ok && (got.Token != want.Token || got.Logit != want.Logit || all[i].Tops >= 0 && !sameTops(got.Tops, want.Tops)) {
					t.Fatalf("vocabulary %d, trial %d, draw %d (%s): %+v, %t; want %+v, %t", c.vocab, trial, i, about(&all[i]), got, ok, want, wantOK)
				}
			}
			for i := range c.rows {
				if got := d.Floats(x, i); !sameBits(got, logits[i*c.vocab:(i+1)*c.vocab]) {
					t.Fatalf("vocabulary %d, trial %d: row %d was changed", c.vocab, trial, i)
				}
			}
		}
	}
	if _, ok := d.Drawn(10_000); ok {
		t.Error("a draw that was not asked for is there")
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}

// last is the last of some logits, or other without any.
func last(logits []float32, other float32) float32 {
	if len(logits) == 0 {
		return other
	}
	return logits[len(logits)-1]
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

// about is a draw without its lists.
func about(d *compute.Draw) string {
	c := *d
	c.Edits, c.Allowed = nil, nil
	return fmt.Sprintf("%+v, %d edits, form %t", c, len(d.Edits), d.Allowed != nil)
}

// Where more logits are equal than a block puts in order, the host is asked; a
// draw that needs no order is none of these.
func TestDrawOfEqualLogits(t *testing.T) {
	d := gpu(t, nil)
	const vocab = 9000
	x := d.NewSums(4, vocab)
	logits := make([]float32, 4*vocab)
	put(d, x, logits)
	d.ArgMax(x, vocab, 4)
	one := compute.Draw{Decay: compute.NewDecay(1), TopP: 1 << compute.ShareBits, Uniform: 1 << (compute.ShareBits - 1), Tops: -1}
	few, some, tops := one, one, one
	few.Row, few.TopK = 1, 5
	some.Row, some.TopP = 2, 1<<(compute.ShareBits-1)
	tops.Row, tops.Tops = 3, 5
	d.Draw(x, vocab, []compute.Draw{one, few, some, tops})
	if got, ok := d.Drawn(0); !ok || got.Token != vocab/2 {
		t.Errorf("drew %d, %t of %d equal ones, want the middle", got.Token, ok, vocab)
	}
	for i := 1; i < 4; i++ {
		if got, ok := d.Drawn(i); ok {
			t.Errorf("draw %d gave %+v: which of equal ones stay cannot be told", i, got)
		}
	}
	d.FindTops(x, vocab, 4, 3)
	if got, ok := d.TopsOf(x, 2); ok {
		t.Errorf("the best of equal ones are %+v", got)
	}
	// What was left unfinished must not count for the next.
	rng := seed.Numbers(t)
	row := normalLogits(rng, vocab)
	put(d, x, slices.Repeat(row, 4))
	d.ArgMax(x, vocab, 4)
	d.Draw(x, vocab, []compute.Draw{one, few, some, tops})
	for i, draw := range []compute.Draw{one, few, some, tops} {
		want, _ := drawtest.By(row, &draw)
		if got, ok := d.Drawn(i); !ok || got.Token != want.Token {
			t.Errorf("draw %d after those: %+v, %t, want %+v", i, got, ok, want)
		}
	}
}

// Logits so close together that a part of a bin holds more than a block puts in
// order are told apart all the same.
func TestDrawOfCloseLogits(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const vocab, rows = 100_000, 4
	x := d.NewSums(rows, vocab)
	logits := make([]float32, rows*vocab)
	for i := range logits {
		logits[i] = 1 - float32(rng.IntN(1<<13))/(1<<24) // neighbours, each some dozen times
	}
	put(d, x, logits)
	d.ArgMax(x, vocab, rows)
	draws := make([]compute.Draw, rows)
	for i := range draws {
		draws[i] = compute.Draw{Row: i, Decay: compute.NewDecay(2), TopP: 1 << compute.ShareBits, Uniform: rng.Uint64() >> (64 - compute.ShareBits), Tops: compute.MaxTops}
		if i%2 == 0 {
			draws[i].TopK = 1 + rng.IntN(vocab)
		}
		if i > 0 {
			draws[i].TopP = rng.Uint64() >> (64 - compute.ShareBits)
		}
	}
	d.Draw(x, vocab, draws)
	for i := range draws {
		want, _ := drawtest.By(logits[i*vocab:(i+1)*vocab], &draws[i])
		if got, ok := d.Drawn(i); !ok || got.Token != want.Token || got.Logit != want.Logit || !sameTops(got.Tops, want.Tops) {
			t.Errorf("draw %d (%s): %+v, %t, want %+v", i, about(&draws[i]), got, ok, want)
		}
	}
}

// The tops of all rows; issued, recorded and repeated.
func TestFindTops(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	for _, c := range []struct{ vocab, rows, n int }{{50, 130, 4}, {4099, 5, 20}, {32000, 8, 8}} {
		x := d.NewSums(c.rows, c.vocab)
		for trial := range 5 {
			logits := make([]float32, 0, c.rows*c.vocab)
			for range c.rows {
				logits = append(logits, normalLogits(rng, c.vocab)...)
			}
			none := rng.IntN(c.rows)
			logits[none*c.vocab+3] = float32(math.NaN())
			put(d, x, logits)
			spoil(x.(*tensor).tops.results)
			var r compute.Rows
			for range c.rows {
				r.Add(r.AddSequence([]int32{0}, 0), 0, 0, 16)
			}
			d.Run(compute.Pass{Kind: 20 + c.n, Rows: &r}, func(r *compute.Rows, _ [2][]int32) {
				d.ArgMax(x, c.vocab, c.rows)
				d.FindTops(x, c.vocab, c.rows, c.n)
			})
			for i := range c.rows {
				got, ok := d.TopsOf(x, i)
				if i == none {
					if ok {
						t.Fatalf("a row with a NaN has tops %+v", got)
					}
					continue
				}
				if want := drawtest.TopsOf(logits[i*c.vocab:(i+1)*c.vocab], c.n); !ok || !sameTops(got, want) {
					t.Fatalf("vocabulary %d, trial %d, row %d: %+v, %t, want %+v", c.vocab, trial, i, got, ok, want)
				}
			}
		}
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}

// normalLogits have no two tokens so far apart that one has no weight.
func normalLogits(rng *rand.Rand, n int) []float32 {
	x := normals(rng, n)
	for i := range x {
		if i%17 == 0 {
			x[i] = x[rng.IntN(n)]
		}
	}
	return x
}

// Passes that take their tokens from the one before them: from draws and from the
// best ones, recorded too; and a mark keeps what a pass gave.
func TestTakeAndMark(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const vocab, cols, rows = 300, 16, 5
	table, values := plain(t, d, compute.BF16, vocab, cols, normals(rng, vocab*cols))
	x, y := d.NewSums(rows, vocab), d.NewTensor(rows, cols)
	one := func() (logits []float32, draws []compute.Draw) {
		for range rows {
			logits = append(logits, drawtest.Logits(rng, vocab)...)
		}
		put(d, x, logits)
		d.ArgMax(x, vocab, rows)
		for _, row := range rng.Perm(rows)[:3] {
			draws = append(draws, drawtest.Random(rng, row, vocab))
		}
		d.Draw(x, vocab, draws)
		return logits, draws
	}
	for trial := range 12 {
		logits, draws := one()
		d.Mark(x, rows)
		var r compute.Rows
		var from []int32
		for range rows {
			r.Add(r.AddSequence([]int32{0}, 0), 0, 0, 16)
			from = append(from, int32(rng.IntN(len(draws)+rows))-rows)
		}
		poison(d, y)
		d.Run(compute.Pass{Kind: 31, Rows: &r, Lists: [2][]int32{from, nil}}, func(r *compute.Rows, lists [2][]int32) {
			d.Take(x, lists[0])
			d.Embed(y, table, 0, r)
		})
		one() // what comes next is not what the mark keeps
		d.Await()
		token := func(row int) int32 {
			id, ok := d.Marked(row)
			if want := drawtest.TopsOf(logits[row*vocab:(row+1)*vocab], 1).IDs[0]; !ok || id != want {
				t.Fatalf("trial %d, row %d: the mark has %d, %t, want %d", trial, row, id, ok, want)
			}
			return id
		}
		for i, k := range from {
			var want int32
			if k < 0 {
				want = token(int(-1 - k))
			} else {
				drawn, wantOK := drawtest.By(logits[draws[k].Row*vocab:(draws[k].Row+1)*vocab], &draws[k])
				if got, ok := d.MarkedDrawn(int(k)); ok && (!wantOK || got.Token != drawn.Token) {
					t.Fatalf("trial %d, draw %d: the mark has %+v, want %+v, %t", trial, k, got, drawn, wantOK)
				}
				want = drawn.Token
			}
			if !slices.Equal(d.Floats(y, i), values[int(want)*cols:int(want+1)*cols]) {
				t.Fatalf("trial %d: row %d did not take token %d, from %d", trial, i, want, k)
			}
		}
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}
