//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/model"
)

var arms = map[string]cuda.Joining{"auto": cuda.AsMeasured, "nccl": cuda.ByNCCL, "none": cuda.Unjoined}

// steps measures passes by batch, rows and arm.
func (r *report) steps(o multiOptions) error {
	s, err := o.shapeOf()
	if err != nil {
		return err
	}
	ranks, all, err := loadRanks(s, o)
	if err != nil {
		return err
	}
	r.Links = ranks.Links()
	if err := fillContexts(ranks, o); err != nil {
		return err
	}
	for _, arm := range strings.Split(o.arms, ",") {
		j, ok := arms[arm]
		if !ok {
			return fmt.Errorf("-arms %q: known are auto, nccl and none", arm)
		}
		if o.ranks > 1 {
			all.each(func(d *cuda.Device) { d.Rejoin(j) })
		}
		for _, batch := range o.batches {
			for _, n := range o.rows {
				t, err := stepOf(ranks, all, o, batch, n, j != cuda.Unjoined)
				if err != nil {
					return err
				}
				t.Shape, t.Layers, t.Arm = s.name, s.layers, arm
				r.Steps = append(r.Steps, t)
				fmt.Printf("%-5s batch %2d, %d rows each: %8.3f ms; the recording alone %8.3f ms\n", arm, batch, n, t.Ms, t.Device)
			}
		}
	}
	ranks.Close()
	return nil
}

// tableOf is the block table of sequence i.
func (o multiOptions) tableOf(i int) []int32 {
	n := pagesOf(o.context)
	t := make([]int32, n)
	for k := range t {
		t[k] = int32(i*n + k)
	}
	return t
}

// fillContexts computes every sequence's context, so that the cache holds real numbers.
func fillContexts(ranks *model.Ranks, o multiOptions) error {
	most := 0
	for _, b := range o.batches {
		most = max(most, b)
	}
	for first := 0; first < most; {
		var r compute.Rows
		for ; first < most && r.Len()+o.context <= chunk; first++ {
			seq := r.AddSequence(o.tableOf(first), 0)
			for p := range o.context {
				r.Add(seq, int32(1000+p*7+first), int32(p), pageSize)
			}
		}
		if err := ranks.Forward(&r, []int32{0}); err != nil {
			return err
		}
	}
	return nil
}

// stepOf measures a pass of batch sequences with n rows each and its tokens.
func stepOf(ranks *model.Ranks, all gpus, o multiOptions, batch, n int, valid bool) (stepTime, error) {
	var r compute.Rows
	var want []int32
	for i := range batch {
		seq := r.AddSequence(o.tableOf(i), 0)
		for p := range n {
			want = append(want, int32(r.Len()))
			r.Add(seq, int32(100+i+p), int32(o.context+p), pageSize)
		}
	}
	ms, err := median(20, func() error {
		if err := ranks.Forward(&r, want); err != nil {
			return err
		}
		for i := range want {
			if _, ok := ranks.Best(i); !ok && valid {
				return fmt.Errorf("batch %d, %d rows: row %d has no best token", batch, n, i)
			}
		}
		return nil
	})
	t := stepTime{Batch: batch, Rows: n, Ms: ms}
	if err != nil {
		return t, err
	}
	var mu sync.Mutex
	var slowest time.Duration
	all.each(func(d *cuda.Device) {
		took := d.Repeat(20)
		mu.Lock()
		defer mu.Unlock()
		slowest = max(slowest, took)
	})
	t.Device = slowest.Seconds() * 1e3
	return t, ranks.Err()
}

// writeFolders writes a made-up model and its head to disk, for the engine.
func writeFolders(o multiOptions) error {
	s, err := o.shapeOf()
	if err != nil {
		return err
	}
	for name, f := range map[string]*files{"target": s.target("bf16"), "head": s.head()} {
		dir := filepath.Join(o.dir, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), f.config, 0o600); err != nil {
			return err
		}
		if err := f.write(filepath.Join(dir, "model.safetensors")); err != nil {
			return err
		}
	}
	return nil
}

// write makes a real file of model.safetensors.
func (f *files) write(path string) error {
	from, err := f.Open("model.safetensors")
	if err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	block := make([]byte, 16<<20)
	for {
		n, err := from.Read(block)
		if n == 0 {
			break // an error other than the end would be a file that is too short, which its reader refuses
		}
		if _, werr := to.Write(block[:n]); werr != nil {
			_ = to.Close() // the first error is the one to tell
			return werr
		}
		if err != nil {
			break
		}
	}
	return to.Close()
}
