//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/model"
)

// multiOptions are the flags of "bench-gpu multi".
type multiOptions struct {
	ranks           int
	shape           string
	layers, context int
	batches, rows   []int
	arms            string
	engine, dir     string
}

// report is the file of figures. A part of it that was not asked for is left out.
type report struct {
	Ranks int            `json:"ranks"`
	Links string         `json:"links,omitempty"`       // how they meet
	NCCL  []string       `json:"environment,omitempty"` // variables of NCCL in force
	Sums  []cuda.SumTime `json:"sums,omitempty"`
	Steps []stepTime     `json:"steps,omitempty"`
	Fault []faultTime    `json:"faults,omitempty"`
}

// stepTime is one pass of the target.
type stepTime struct {
	Shape  string  `json:"shape"`
	Layers int     `json:"layers"`
	Arm    string  `json:"arm"`
	Batch  int     `json:"batch"`
	Rows   int     `json:"rows"`      // of each sequence: 1 is plain decoding
	Ms     float64 `json:"ms"`        // as the host sees it
	Device float64 `json:"device_ms"` // repeated without the host; 0 if it was not recorded
}

// multi measures what is asked for of ranks on several GPUs. NCCL reads its
// settings once, so each set of them is a process of its own.
func multi(args []string) error {
	var o multiOptions
	f := flag.NewFlagSet("multi", flag.ContinueOnError)
	part := f.String("part", "sums", "sums (each way, by size), steps (passes of a made-up model), faults (how long the engine takes to end) or folder (write a made-up model)")
	f.IntVar(&o.ranks, "ranks", 2, "GPUs")
	f.StringVar(&o.shape, "shape", "llama-3.1-70b", "shape: "+strings.Join(shapeNames(), ", "))
	f.IntVar(&o.layers, "layers", 0, "layers of it; 0 for all")
	f.IntVar(&o.context, "context", contextLength, "positions behind each sequence")
	batches := f.String("batches", "1,16,64", "sequences")
	rows := f.String("rows", "1,3,4,6", "rows of each sequence")
	f.StringVar(&o.arms, "arms", "auto,nccl,none", "how the ranks are joined: auto (as measured at start), nccl, none (not at all: for the share of it)")
	f.StringVar(&o.engine, "engine", "", "outrider-engine, for faults")
	f.StringVar(&o.dir, "dir", "", "for folder: where; target and head are made in it")
	out := f.String("json", "", "file for the figures")
	if err := f.Parse(args); err != nil {
		return err
	}
	var err error
	if o.batches, err = counts(*batches); err != nil {
		return fmt.Errorf("-batches: %w", err)
	}
	if o.rows, err = counts(*rows); err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	r := report{Ranks: o.ranks, NCCL: collective.NCCLInForce(os.Environ())}
	switch *part {
	case "sums":
		err = r.sums(o)
	case "steps":
		err = r.steps(o)
	case "faults":
		err = r.faults(o)
	case "folder":
		err = writeFolders(o)
	default:
		err = fmt.Errorf("-part %q: known are sums, steps, faults, folder", *part)
	}
	if err != nil || *out == "" {
		return err
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(b, '\n'), 0o600)
}

// counts reads a list of whole numbers above 0.
func counts(list string) ([]int, error) {
	var all []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no list of whole numbers above 0", list)
		}
		all = append(all, n)
	}
	return all, nil
}

// shapeOf is the shape that is asked for, with as many layers.
func (o multiOptions) shapeOf() (shape, error) {
	for _, s := range shapes {
		if s.name == o.shape {
			if o.layers > 0 {
				s.layers = o.layers
			}
			return s, nil
		}
	}
	return shape{}, fmt.Errorf("-shape %q: known are %s", o.shape, strings.Join(shapeNames(), ", "))
}

// timeout bounds a wait for the other ranks.
const timeout = 20 * time.Second

// gpus are the devices of a group, by rank.
type gpus []*cuda.Device

// each has every device do f, all at once.
func (g gpus) each(f func(d *cuda.Device)) {
	var wg sync.WaitGroup
	for _, d := range g {
		wg.Go(func() { f(d) })
	}
	wg.Wait()
}

// sums opens a group, which measures its ways to sum.
func (r *report) sums(o multiOptions) error {
	group := cuda.NewGroup(o.ranks, cuda.GroupOptions{Timeout: timeout, Barred: collective.PeersBarred(os.LookupEnv)})
	all := make(gpus, o.ranks)
	errs := make([]error, o.ranks)
	var wg sync.WaitGroup
	for i, c := range collective.NewLocal(o.ranks, 1) {
		wg.Go(func() {
			d, err := cuda.New(c, cuda.Options{Ordinal: i, Group: group})
			if err != nil {
				c.Abort(err)
				errs[i] = err
				return
			}
			all[i] = d
			errs[i] = errors.Join(d.Join(), d.Build())
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.Links, r.Sums = all[0].Links(), group.SumTimes()
	fmt.Printf("%v %s\n", r.NCCL, r.Links)
	for _, s := range r.Sums {
		fmt.Printf("%8d bytes: NCCL %7.2f µs, push %7.2f, read %7.2f; norm %5.2f, push with norm %7.2f\n", s.Bytes, s.NCCL, s.Push, s.Read, s.Norm, s.Fused)
	}
	all.each((*cuda.Device).Wait)
	for _, d := range all {
		d.Close()
	}
	return nil
}

// loadRanks makes a model of a shape on the GPUs, without a head.
func loadRanks(s shape, o multiOptions) (*model.Ranks, gpus, error) {
	target := s.target("bf16")
	config, err := model.ReadConfig(target, s.name)
	if err != nil {
		return nil, nil, err
	}
	var group *cuda.Group
	if o.ranks > 1 {
		group = cuda.NewGroup(o.ranks, cuda.GroupOptions{Timeout: timeout, Barred: collective.PeersBarred(os.LookupEnv)})
	}
	all := make(gpus, o.ranks)
	start := time.Now()
	most := 0
	for _, b := range o.batches {
		most = max(most, b)
	}
	ranks, err := model.Load(context.Background(), model.Spec{
		Target: model.Source{Name: s.name, Files: target}, Config: config, Ranks: o.ranks,
		Plan: func(int64, int) (model.Limits, error) {
			return model.Limits{MaxRows: chunk, MaxLogits: maxLogits, Pages: most * pagesOf(o.context), PageSize: pageSize}, nil
		},
		NewDevice: func(comm collective.Communicator) (compute.Device, error) {
			d, err := cuda.New(comm, cuda.Options{Ordinal: comm.Rank(), Group: group})
			all[comm.Rank()] = d
			return d, err
		},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(ranks.Join(), ranks.Build()); err != nil {
		return nil, nil, err
	}
	fmt.Printf("%s, %d layers on %d × %s, loaded in %.1f s; %s\n", s.name, s.layers, o.ranks, all[0].Name(), time.Since(start).Seconds(), ranks.Links())
	return ranks, all, nil
}

// pagesOf is the pages of a sequence with some rows after its context.
func pagesOf(context int) int { return (context + 64) / pageSize }
