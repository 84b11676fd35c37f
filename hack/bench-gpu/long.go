//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/model"
)

// long measures decoding and verifying after long contexts, with caches of
// bfloat16 and of float8.
func long(args []string) error {
	f := flag.NewFlagSet("long", flag.ContinueOnError)
	name := f.String("shape", "llama-3.1-8b", "shape: one of "+strings.Join(shapeNames(), ", "))
	context := f.Int("context", 32768, "positions that each sequence has behind it")
	batches := f.String("batches", "1,16", "numbers of sequences, separated by commas, rising")
	caches := f.String("kv", "bf16,fp8", "number formats of the cache: bf16, fp8")
	out := f.String("json", "", "file for the figures")
	if err := f.Parse(args); err != nil {
		return err
	}
	var s shape
	for _, known := range shapes {
		if known.name == *name {
			s = known
		}
	}
	if s.name == "" {
		return fmt.Errorf("shape %q: known are %s", *name, strings.Join(shapeNames(), ", "))
	}
	l := lengths{context: (*context + chunk - 1) / chunk * chunk}
	for _, b := range strings.Split(*batches, ",") {
		n, err := strconv.Atoi(b)
		if err != nil || n < 1 {
			return fmt.Errorf("-batches %q: give numbers of sequences", *batches)
		}
		l.batches = append(l.batches, n)
	}
	var rows []row
	for _, cache := range strings.Split(*caches, ",") {
		got, err := l.measure(s, cache)
		rows = append(rows, got...)
		if err != nil {
			return err
		}
	}
	if *out == "" {
		return nil
	}
	j, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(j, '\n'), 0o600)
}

// lengths are what long measures.
type lengths struct {
	context int // a multiple of chunk
	batches []int
}

// pages is how many each sequence has.
func (l lengths) pages() int { return (l.context + 64) / pageSize }

func (l lengths) table(i int) []int32 {
	t := make([]int32, l.pages())
	for k := range t {
		t[k] = int32(i*len(t) + k)
	}
	return t
}

// measure is long with one kind of cache.
func (l lengths) measure(s shape, cache string) ([]row, error) {
	if cache != "bf16" && cache != "fp8" {
		return nil, fmt.Errorf("-kv %q: known are bf16 and fp8", cache)
	}
	most := l.batches[len(l.batches)-1]
	b, err := load(s, "bf16", false, model.Limits{Pages: most * l.pages(), Float8: cache == "fp8"})
	if err != nil {
		return nil, err
	}
	defer b.ranks.Close()
	// The cache gets real numbers, a chunk at a time, which sees only itself: what
	// a key is does not change how long it takes to read.
	for i := range most {
		for at := 0; at < l.context; at += chunk {
			var r compute.Rows
			for from := at; from < at+chunk; from += contextLength {
				seq := r.AddSequence(l.table(i), from)
				for p := range contextLength {
					r.Add(seq, int32(1000+p*7+i), int32(from+p), pageSize)
				}
			}
			if err := b.ranks.Forward(&r, []int32{0}); err != nil {
				return nil, err
			}
		}
	}
	for _, seqs := range l.batches {
		for _, n := range []int{1, 4} {
			if err := l.step(b, cache, seqs, n); err != nil {
				return b.rows, err
			}
		}
	}
	return b.rows, nil
}

// step measures a pass of n rows for each of seqs sequences.
func (l lengths) step(b *bench, cache string, seqs, n int) error {
	var r compute.Rows
	var want []int32
	for i := range seqs {
		seq := r.AddSequence(l.table(i), 0)
		for p := range n {
			want = append(want, int32(r.Len()))
			r.Add(seq, int32(100+i+p), int32(l.context+p), pageSize)
		}
	}
	what := fmt.Sprintf("%d rows, batch %d, context %d, cache %s", n, seqs, l.context, cache)
	ms, err := median(20, func() error {
		if err := b.ranks.Forward(&r, want); err != nil {
			return err
		}
		for i := range want {
			if _, ok := b.ranks.Best(i); !ok {
				return fmt.Errorf("%s: row %d has no best token", what, i)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	bytes := b.shape.stepBytes(b.format, 0, 0)
	if kept := b.shape.cacheBytes(seqs, l.context+n); cache == "fp8" {
		bytes += kept / 2
	} else {
		bytes += kept
	}
	b.note(what, ms, b.device.Repeat(10).Seconds()*1e3, bytes/b.rates.Read*1e3, 0)
	return b.device.Err()
}
