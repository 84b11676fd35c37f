// Command bench measures the engine in this process: tokens in a second with
// plain decoding, with fixed draft depths and with the depth that the engine
// chooses, by number of streams, by context, and by acceptance, real or
// simulated. The arms take turns on the same engine under the same load, and
// their ratios within a round count, so that they hold on a machine that is
// faster or slower for a while.
//
//	go run ./hack/bench -suite cells -model gocode -accept real -streams 1,4,16
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/engine"
	"github.com/outrider-dev/outrider/engine/speculation"
)

var (
	suites   = flag.String("suite", "cells,off,crossover", "what to measure: cells (the arms by load), off (plain decoding against an engine without a draft), plain (its steps alone), idle (the device's time between passes), crossover (a load that rises and falls)")
	model    = flag.String("model", "gocode", "gocode (the bundled gocode-7m), synthetic (100 million parameters, bound by memory), or a model folder")
	head     = flag.String("draft-model", "", "the head of a model folder")
	accepts  = flag.String("accept", "real,0.05,0.4,0.7,0.9", "acceptance of a draft token: real, or a rate to simulate; a list makes a table for each")
	tp       = flag.Int("tp-size", 1, "ranks")
	steps    = flag.Int("steps", 3, "deepest draft")
	streams  = flag.String("streams", "1,2,4,8,16,32,64", "numbers of streams")
	contexts = flag.String("contexts", "16,600", "prompt lengths in tokens")
	answer   = flag.Int("answer", 128, "tokens of an answer")
	rounds   = flag.Int("rounds", 20, "turns of each arm at least; the median counts")
	cellTime = flag.Duration("cell", 0, "time of a cell at least, after its warm-up: as many rounds as fit")
	duration = flag.Duration("duration", 250*time.Millisecond, "length of a turn")
	warm     = flag.Duration("warm", 4*time.Second, "time that auto has before a cell is measured")
	minutes  = flag.Float64("minutes", 2, "length of the crossover")
	async    = flag.Bool("async-scheduling", true, "plain decoding on one GPU queues passes ahead of their tokens, as servers do unless it is false")
	brief    = flag.Bool("brief", false, "plain decoding, the deepest fixed and auto only")
	verbose  = flag.Bool("v", false, "print what the choice of the depth rests on after each cell")
	output   = flag.String("json", "", "file for the figures")
)

// results are the figures of a run.
type results struct {
	Command   []string    `json:"command"`
	Time      time.Time   `json:"time"`
	Device    string      `json:"device"`
	CPUs      int         `json:"cpus"`
	Cells     []cell      `json:"cells,omitempty"`
	Off       []offArm    `json:"off,omitempty"`
	Plain     []plainArm  `json:"plain,omitempty"`
	Idle      []idleArm   `json:"idle,omitempty"`
	Crossover []crossover `json:"crossover,omitempty"`
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	cfg := engine.Config{Model: "builtin:gocode-7m", TPSize: *tp, NumSteps: *steps, Mode: speculation.ModeAuto, AsyncScheduling: *async}
	switch *model {
	case "gocode":
	case "synthetic":
		dir, err := os.MkdirTemp("", "outrider-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if cfg.Model, cfg.DraftModel, err = memoryBound.synthesize(dir); err != nil {
			return err
		}
	default:
		cfg.Model, cfg.DraftModel = *model, *head
	}
	r := results{Command: os.Args, Time: time.Now().UTC(), CPUs: runtime.NumCPU()}
	for _, suite := range strings.Split(*suites, ",") {
		switch suite {
		case "cells":
			r.cells(cfg)
		case "off":
			r.offArms(cfg)
		case "plain":
			r.plainArms(cfg)
		case "idle":
			r.idleArms(cfg)
		case "crossover":
			r.crossovers(cfg)
		default:
			return fmt.Errorf("-suite is %q: allowed are cells, off, plain, idle and crossover", suite)
		}
	}
	r.save()
	return nil
}

// save writes the figures so far.
func (r *results) save() {
	if *output == "" {
		return
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = os.WriteFile(*output, append(b, '\n'), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// each calls f with an engine for each acceptance.
func (r *results) each(cfg engine.Config, f func(s *server, accept string)) {
	cfg.MaxRunningRequests = max(slices.Max(numbers(*streams)), fewestPrompts)
	for _, accept := range strings.Split(*accepts, ",") {
		cfg.SimulateAccept = accept
		if accept == "real" {
			cfg.SimulateAccept = ""
		}
		s := serve(cfg)
		r.Device = s.Info().Device
		f(s, accept)
		s.stop()
	}
}

func (r *results) cells(cfg engine.Config) {
	fmt.Println("Tokens in a second of plain decoding, the ratio of each arm to it, auto over the better of plain and the deepest fixed")
	printHeader()
	cfg.LearnInAuto = true
	r.each(cfg, func(s *server, accept string) {
		for _, context := range numbers(*contexts) {
			for _, n := range numbers(*streams) {
				c := s.measure(accept, n, context)
				c.print()
				r.Cells = append(r.Cells, c)
				r.save()
			}
		}
	})
}

func numbers(list string) (ns []int) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			log.Fatalf("%q is no list of whole numbers from 1 on", list)
		}
		ns = append(ns, n)
	}
	return ns
}
