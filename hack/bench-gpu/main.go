//go:build linux

// Command bench-gpu measures the engine on the GPU that is there, with made-up
// weights of real models' shapes. It measures what the card can do first, and
// gives each figure as a share of that too. "bench-gpu multi" measures ranks on
// several GPUs, "bench-gpu long" decoding at long contexts. "bench-gpu session" runs
// the checks of the device and the benchmarks that are due, in fourteen minutes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine/collective"
	"github.com/outrider-dev/outrider/engine/compute"
	"github.com/outrider-dev/outrider/engine/compute/cuda"
	"github.com/outrider-dev/outrider/engine/model"
)

// row is one figure.
type row struct {
	Shape  string  `json:"shape"`
	Format string  `json:"format"`
	What   string  `json:"what"`
	Ms     float64 `json:"ms"`        // as the host sees it, from call to result
	Device float64 `json:"device_ms"` // repeated without the host; 0 if it was not recorded
	Floor  float64 `json:"floor_ms"`
	Bound  string  `json:"bound"` // by what the floor is

	Weights float64 `json:"weights_ms"` // to read the weights once as they lie in their file, and nothing else
}

func main() {
	if len(os.Args) > 1 {
		if f := map[string]func([]string) error{"multi": multi, "long": long, "session": session}[os.Args[1]]; f != nil {
			if err := f(os.Args[2:]); err != nil {
				fmt.Fprintf(os.Stderr, "bench-gpu %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	names := flag.String("shapes", "llama-3.1-8b", "shapes, separated by commas: "+strings.Join(shapeNames(), ", "))
	formats := flag.String("formats", "bf16", "weight formats, separated by commas: "+strings.Join(weightFormats, ", "))
	what := flag.String("what", "decode,verify,cycle,batch,prefill", "what to measure")
	out := flag.String("json", "", "file for the figures")
	issue := flag.Bool("issue", false, "issue each pass instead of repeating recordings, and have one of each profiled (ncu --profile-from-start off)")
	rows := flag.String("products", "", "measure products alone instead, of these numbers of rows, separated by commas")
	flag.Parse()
	if err := run(strings.Split(*names, ","), strings.Split(*formats, ","), *what, *rows, *out, *issue); err != nil {
		fmt.Fprintln(os.Stderr, "bench-gpu:", err)
		os.Exit(1)
	}
}

func shapeNames() []string {
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	return names
}

// weightFormats are those of a model's linear layers.
var weightFormats = []string{"bf16", "fp16", "fp8", "int4"}

func unknownFormat(name string) error {
	return fmt.Errorf("-formats: %q is none: known are %s", name, strings.Join(weightFormats, ", "))
}

func run(names, formats []string, what, products, out string, issue bool) error {
	var rows []row
	for _, format := range formats {
		if !slices.Contains(weightFormats, format) {
			return unknownFormat(format)
		}
	}
	for _, name := range names {
		found := false
		for _, s := range shapes {
			if s.name != name {
				continue
			}
			found = true
			if products != "" {
				if err := measureProducts(s, formats, products); err != nil {
					return err
				}
				continue
			}
			for _, format := range formats {
				lim := model.Limits{Pages: pool}
				if strings.Contains(what, "tree") {
					lim.Tops = treeTopK // the head may draft trees
				}
				b, err := load(s, format, issue, lim)
				if err != nil {
					return err
				}
				err = b.all(what)
				b.ranks.Close()
				rows = append(rows, b.rows...)
				if err != nil {
					return err
				}
			}
		}
		if !found {
			return fmt.Errorf("shape %q: known are %s", name, strings.Join(shapeNames(), ", "))
		}
	}
	if out == "" {
		return nil
	}
	j, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(j, '\n'), 0o600)
}

const (
	pageSize  = 16
	chunk     = 8192
	maxLogits = 512
	treeTopK  = 4
	pool      = 64 * (contextLength + 64) / pageSize
)

// load makes a model of a shape on the GPU. lim says how large its cache is, and
// whether it is of float8.
func load(s shape, format string, issue bool, lim model.Limits) (*bench, error) {
	b := &bench{shape: s, format: format, issue: issue}
	lim.MaxRows, lim.MaxLogits, lim.MaxDrafts, lim.PageSize, lim.Kept = chunk, maxLogits, maxLogits, pageSize, 1
	target, head := s.target(format), s.head()
	config, err := model.ReadConfig(target, s.name)
	if err != nil {
		return nil, err
	}
	draft, err := model.ReadEagle3Config(head, s.name+" head", config)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	b.ranks, err = model.Load(context.Background(), model.Spec{
		Target: model.Source{Name: s.name, Files: target}, Config: config,
		Draft: model.Source{Name: s.name + " head", Files: head}, DraftConfig: draft, Ranks: 1,
		Plan: func(int64, int) (model.Limits, error) { return lim, nil },
		NewDevice: func(comm collective.Communicator) (compute.Device, error) {
			d, err := cuda.New(comm, cuda.Options{NoGraphs: issue})
			b.device = d
			return d, err
		},
	})
	if err != nil {
		return nil, err
	}
	loaded := time.Since(start)
	if err := b.ranks.Build(); err != nil {
		return nil, err
	}
	if b.rates, err = b.device.Measure(); err != nil {
		return nil, err
	}
	fmt.Printf("%s, %s, on %s: reads %.2f TB/s, multiplies %.0f TFLOP/s; loaded in %.1f s\n",
		s.name, format, b.device.Name(), b.rates.Read/1e12, b.rates.Product/1e12, loaded.Seconds())
	return b, nil
}
