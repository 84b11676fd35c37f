//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/model"
	"github.com/outrider-dev/outrider/engine/speculation"
)

// contextLength is the positions that each sequence has behind it.
const contextLength = 1024

// bench is one model and what was measured with it.
type bench struct {
	shape  shape
	format string
	ranks  *model.Ranks
	device *cuda.Device
	rates  cuda.Rates
	rows   []row
	issue  bool // passes are not recorded; one of each is for a profiler
}

// all measures what is asked for.
func (b *bench) all(what string) error {
	if err := b.fill(); err != nil {
		return err
	}
	for _, w := range strings.Split(what, ",") {
		var err error
		switch w {
		case "decode":
			err = b.step("decode, batch 1", 1, 1)
		case "verify":
			for _, rows := range []int{4, 8} {
				if err == nil {
					err = b.step(fmt.Sprintf("verify of %d, batch 1", rows), 1, rows)
				}
			}
		case "cycle":
			err = b.cycle()
		case "batch64":
			err = b.step("decode, batch 64", 64, 1)
		case "batch":
			for _, n := range []int{4, 16, 64} {
				if err == nil {
					err = b.step(fmt.Sprintf("decode, batch %d", n), n, 1)
				}
			}
			if err == nil {
				err = b.step("verify of 4, batch 64", 64, 4)
			}
		case "prefill":
			for _, n := range []int{2048, chunk} { // serve's chunks on a GPU, and a long prompt at once
				if err == nil {
					err = b.prefill(n)
				}
			}
		case "sample":
			err = b.samples()
		case "tree":
			err = b.trees()
		default:
			err = fmt.Errorf("-what %q: known are decode, verify, cycle, batch, prefill, sample, tree", w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// table is the block table of sequence i.
func table(i int) []int32 {
	const pages = (contextLength + 64) / pageSize
	t := make([]int32, pages)
	for k := range t {
		t[k] = int32(i*pages + k)
	}
	return t
}

// fill computes every sequence's context, so that the cache holds real numbers.
func (b *bench) fill() error {
	per := chunk / contextLength
	for first := 0; first < 64; first += per {
		var r compute.Rows
		for i := first; i < first+per; i++ {
			seq := r.AddSequence(table(i), 0)
			for p := range contextLength {
				r.Add(seq, int32(1000+p*7+i), int32(p), pageSize)
			}
		}
		if err := b.ranks.Forward(&r, []int32{0}); err != nil {
			return err
		}
	}
	return nil
}

// pass is the rows of seqs sequences with n tokens each after their contexts.
func pass(seqs, n int) (*compute.Rows, []int32) {
	var r compute.Rows
	var want []int32
	for i := range seqs {
		seq := r.AddSequence(table(i), 0)
		for p := range n {
			want = append(want, int32(r.Len()))
			r.Add(seq, int32(100+i+p), int32(contextLength+p), pageSize)
		}
	}
	return &r, want
}

// median runs f some times, after some that make and record what it needs, and bring the
// card to its clock.
func median(n int, f func() error) (float64, error) {
	var took []float64
	const least, warm = 3, 300 * time.Millisecond
	for i, begun := 0, time.Now(); len(took) < n; i++ {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		if i >= least && start.Sub(begun) > warm {
			took = append(took, time.Since(start).Seconds()*1e3)
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// step measures a pass of the target with its tokens.
func (b *bench) step(what string, seqs, n int) error {
	r, want := pass(seqs, n)
	run := func() error {
		if err := b.ranks.Forward(r, want); err != nil {
			return err
		}
		for i := range want {
			if _, ok := b.ranks.Best(i); !ok {
				return fmt.Errorf("%s: row %d has no best token", what, i)
			}
		}
		return nil
	}
	ms, err := median(30, run)
	if err == nil && b.issue {
		err = b.device.Profiled(run)
	}
	if err != nil {
		return err
	}
	bytes := b.shape.stepBytes(b.format, seqs, contextLength+n) / b.rates.Read * 1e3
	operations := (b.shape.operations(seqs*n) + 2*float64(seqs*n*b.shape.vocab*b.shape.hidden)) / b.rates.Product * 1e3
	b.note(what, ms, b.device.Repeat(20).Seconds()*1e3, bytes, operations)
	return b.device.Err()
}

// cycle measures what one step of an engine with a head does: verify 4 tokens,
// find theirs, bring the head up to date and draft 3 more.
func (b *bench) cycle() error {
	const steps = 3
	ms, err := b.cycles(speculation.Shape{TopK: 1, Nodes: steps}, steps, b.ranks)
	if err != nil {
		return err
	}
	bytes := b.shape.stepBytes(b.format, 1, contextLength) + b.shape.headBytes(true) + (steps-1)*b.shape.headBytes(false)
	b.note("cycle of 3 steps, batch 1", ms, 0, bytes/b.rates.Read*1e3, 0)
	return b.device.Err()
}

// cycles is the time of such a step with drafts of a shape, which head makes.
func (b *bench) cycles(shape speculation.Shape, steps int, head speculation.Head) (float64, error) {
	const accepted = 3
	drafter := speculation.NewEagle3(head, shape, pageSize, 1, chunk)
	r, want := pass(1, 1+shape.Nodes)
	tokens := make([]int32, contextLength+accepted+1)
	return median(30, func() error {
		if err := b.ranks.Forward(r, want); err != nil {
			return err
		}
		for i := range want {
			b.ranks.Best(i)
		}
		s := []speculation.Sequence{{Tokens: tokens, Table: table(0), From: contextLength, Count: accepted, Depth: steps, Room: 40,
			State: &speculation.State{Next: contextLength}}}
		if err := drafter.Draft(s, false); err != nil {
			return err
		}
		if len(s[0].Draft) != shape.Nodes {
			return fmt.Errorf("the head drafted %d tokens, not %d", len(s[0].Draft), shape.Nodes)
		}
		drafter.Forget(s[0].State)
		return nil
	})
}

// prefill measures a prompt of n tokens in one pass.
func (b *bench) prefill(n int) error {
	var r compute.Rows
	pages := make([]int32, n/pageSize)
	for k := range pages {
		pages[k] = int32(k)
	}
	seq := r.AddSequence(pages, 0)
	for p := range n {
		r.Add(seq, int32(500+p), int32(p), pageSize)
	}
	ms, err := median(5, func() error { return b.ranks.Forward(&r, []int32{int32(n - 1)}) })
	if err != nil {
		return err
	}
	b.note(fmt.Sprintf("prefill of %d", n), ms, 0, 0, b.shape.operations(n)/b.rates.Product*1e3)
	return nil
}

// note keeps and prints a figure.
func (b *bench) note(what string, ms, device, bytes, operations float64) {
	n := row{Shape: b.shape.name, Format: b.format, What: what, Ms: ms, Device: device, Floor: bytes, Bound: "bytes", Weights: b.shape.weightBytes(b.format) / b.rates.Read * 1e3}
	if operations > bytes {
		n.Floor, n.Bound = operations, "operations"
	}
	b.rows = append(b.rows, n)
	recorded := ""
	if device > 0 {
		recorded = fmt.Sprintf("; the recording alone %.3f ms (%.1f %%)", device, 100*n.Floor/device)
	}
	if n.Bound == "bytes" {
		recorded += fmt.Sprintf("; the weights alone %.3f ms (%.1f %%)", n.Weights, 100*n.Weights/ms)
	}
	fmt.Printf("%-13s %-5s %-26s %8.3f ms, %5.1f %% of the floor of %.3f ms (%s)%s\n", n.Shape, n.Format, what, ms, 100*n.Floor/ms, n.Floor, n.Bound, recorded)
}
