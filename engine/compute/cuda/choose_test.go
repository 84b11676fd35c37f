//go:build linux

package cuda

import (
	"math"
	"slices"
	"testing"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/internal/seed"
)

// The best tokens of a pass are those of the next one's rows, and the host knows
// them all afterwards; issued, recorded and repeated.
func TestFollow(t *testing.T) {
	d, rng := gpu(t, nil), seed.Numbers(t)
	const outputs, vocab, cols = 7, 50, 16
	table, values := plain(t, d, compute.BF16, 200, cols, normals(rng, 200*cols))
	ids := make([]int32, vocab)
	for i, p := range rng.Perm(200)[:vocab] {
		ids[i] = int32(p)
	}
	x, y := d.NewSums(outputs, vocab), d.NewTensor(outputs, cols)
	for trial := range 6 {
		logits := normals(rng, outputs*vocab)
		none := rng.IntN(outputs)
		logits[none*vocab+rng.IntN(vocab)] = float32(math.NaN())
		put(d, x, logits)
		d.ArgMax(x, vocab, outputs)
		const rows, n = 3, 5
		var r compute.Rows
		seq := r.AddSequence([]int32{0}, 0)
		for p := range int32(rows) {
			r.Add(seq, 0, p, 16)
		}
		var keep, from []int32
		for i, p := range rng.Perm(outputs)[:n] {
			keep, from = append(keep, int32(10*trial+2*i)), append(from, int32(p))
		}
		poison(d, y)
		d.Run(compute.Pass{Kind: 9, Rows: &r, Lists: [2][]int32{keep, from}}, func(r *compute.Rows, lists [2][]int32) {
			d.Follow(x, ids, lists[0], lists[1])
			d.Embed(y, table, 0, r)
		})
		for i, p := range from {
			row := logits[int(p)*vocab : int(p+1)*vocab]
			token, ok := d.Followed(int(keep[i]))
			if int(p) == none {
				if ok {
					t.Fatalf("trial %d: a row with a NaN has token %d", trial, token)
				}
				continue
			}
			if want := ids[slices.Index(row, slices.Max(row))]; !ok || token != want {
				t.Fatalf("trial %d: output %d has token %d, %t, want %d", trial, p, token, ok, want)
			}
			if i < rows && !slices.Equal(d.Floats(y, i), values[int(token)*cols:int(token+1)*cols]) {
				t.Fatalf("trial %d: row %d is not that of token %d", trial, i, token)
			}
		}
	}
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
}
