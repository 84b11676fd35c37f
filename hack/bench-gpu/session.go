//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// step is a program of a session.
type step struct {
	name    string
	program string // in the folder of programs, or one of the system
	args    []string
	dir     string        // where it runs, below the repository's root
	limit   time.Duration // it is ended after that
	least   time.Duration // with less time left it is not begun
	check   bool          // if it fails nothing is measured
	json    string        // the flag that takes a file for figures; empty: it writes none
	env     []string      // beside the session's own
}

// programs are what a session runs, and how they are built.
var programs = map[string][]string{
	"cuda.test":   {"test", "-c", "-tags", "cuda", "./engine/compute/cuda"},
	"model.test":  {"test", "-c", "-tags", "cuda", "./engine/model"},
	"engine.test": {"test", "-c", "-tags", "cuda", "./engine"},
	"soak.test":   {"test", "-c", "-tags", "cuda,soak", "./engine/server"},
	"bench":       {"build", "-tags", "cuda", "./hack/bench"},
	"bench-gpu":   {"build", "./hack/bench-gpu"},
}

// steps are a session's, the checks first.
func steps(model, shape string) []step {
	check := func(name, program, dir, tests string, limit time.Duration) step {
		return step{name: name, program: program, dir: dir, limit: limit, least: limit / 2, check: true,
			args: []string{"-test.run", tests, "-test.v", "-test.timeout", limit.String()}}
	}
	bench := func(suite string, limit, least time.Duration, args ...string) step {
		return step{name: suite, program: "bench", limit: limit, least: least, json: "-json", args: append([]string{"-suite", suite, "-model", model}, args...)}
	}
	return []step{
		check("check-device", "cuda.test", "engine/compute/cuda", ".", 100*time.Second),
		check("check-models", "model.test", "engine/model", "OnGPU|CUDA", 40*time.Second),
		check("check-engine", "engine.test", "engine", "OnGPU|CUDA", 40*time.Second),
		{name: "soak", program: "soak.test", dir: "engine/server", limit: 50 * time.Second, least: 25 * time.Second,
			args: []string{"-test.run", "TestSoak", "-test.v"}, env: []string{"SOAK=20s", "SOAK_DEVICE=cuda"}},
		{name: "passes", program: "bench-gpu", limit: 60 * time.Second, least: 20 * time.Second, json: "-json", args: []string{"-shapes", shape, "-what", "decode,verify,cycle,batch"}},
		{name: "pytorch", program: "python3", limit: 200 * time.Second, least: 30 * time.Second, json: "-json", args: []string{"hack/bench-gpu/pytorch.py"}},
		bench("idle", 45*time.Second, 15*time.Second, "-accept", "0.7", "-streams", "1,8", "-contexts", "16", "-rounds", "9", "-duration", "300ms"),
		bench("off", 60*time.Second, 20*time.Second, "-rounds", "4", "-duration", "250ms"),
		bench("cells", 320*time.Second, 60*time.Second, "-brief", "-accept", "0.4,0.7,0.9", "-streams", "1,2,4,8,16,32,64,128", "-contexts", "16", "-rounds", "3", "-duration", "250ms", "-cell", "1s", "-warm", "2s"),
	}
}

// outcome is how a step ended.
type outcome struct {
	step step
	took time.Duration
	text string
	ok   bool
}

// session runs the checks, and then all that one card shall tell, within a limit:
// what a borrowed card is worth is its minutes.
func session(args []string) error {
	f := flag.NewFlagSet("session", flag.ContinueOnError)
	bin := f.String("bin", "bin/gpu", "folder of the programs; those that lack are built there, which takes Go; those that are there are run as they are")
	out := f.String("out", "bin/gpu/figures", "folder for the figures and the programs' output")
	limit := f.Duration("limit", 14*time.Minute, "time of the session, after building")
	only := f.String("only", "", "steps, separated by commas; without it all: "+strings.Join(stepNames(steps("", "")), ", "))
	model := f.String("model", "synthetic", "-model of hack/bench")
	shape := f.String("shape", "llama-3.1-8b", "shape of the passes")
	build := f.Bool("build", false, "build all of the programs anew, and end")
	if err := f.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(steps(*model, *shape), *only)
	if err != nil {
		return err
	}
	folder, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.MkdirAll(*out, 0o755)); err != nil {
		return err
	}
	// The steps are of process groups of their own, which the terminal's ^C does not reach.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := buildPrograms(ctx, folder, chosen, *build); err != nil || *build {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	done := runSteps(ctx, os.Stdout, chosen, folder, *out)
	beside(os.Stdout, *out)
	return summary(os.Stdout, done)
}

func stepNames(all []step) []string {
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	return names
}

// choose is the steps that are named, in their own order; all if none is.
func choose(all []step, only string) ([]step, error) {
	if only == "" {
		return all, nil
	}
	var chosen []step
	known := map[string]bool{}
	for _, s := range all {
		known[s.name] = true
		for _, name := range strings.Split(only, ",") {
			if name == s.name {
				chosen = append(chosen, s)
			}
		}
	}
	for _, name := range strings.Split(only, ",") {
		if !known[name] {
			return nil, fmt.Errorf("-only %q: known are %s", name, strings.Join(stepNames(all), ", "))
		}
	}
	return chosen, nil
}

// buildPrograms builds the programs of steps that a folder lacks, or anew all of them.
// Without cgo they run on any system with a dynamic loader.
func buildPrograms(ctx context.Context, folder string, all []step, anew bool) error {
	var names []string
	for _, s := range all {
		if programs[s.program] != nil && !slices.Contains(names, s.program) {
			names = append(names, s.program)
		}
	}
	for _, name := range names {
		to := filepath.Join(folder, name)
		if _, err := os.Stat(to); err == nil && !anew {
			continue
		}
		how := programs[name]
		args := append([]string{how[0], "-trimpath", "-ldflags", "-s -w", "-o", to}, how[1:]...)
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s cannot be built in %s: go %s: %w\n%s", name, folder, strings.Join(args, " "), err, b)
		}
	}
	return nil
}

// runSteps runs steps until ctx ends, one after the other; w hears what they say. The
// first check that fails is the last step, and so is the one that is interrupted.
func runSteps(ctx context.Context, w io.Writer, all []step, bin, out string) []outcome {
	var done []outcome
	failed := ""
	for _, s := range all {
		o := outcome{step: s}
		end, limited := ctx.Deadline()
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			o.text = "not run, since the session was interrupted"
		case failed != "":
			o.text = "not run, since " + failed + " failed"
		case limited && time.Until(end) < s.least:
			o.text = fmt.Sprintf("not run: %s were left, and it takes %s at least", time.Until(end).Round(time.Second), s.least)
		default:
			_, _ = fmt.Fprintf(w, "### %s: %s %s\n", s.name, s.program, strings.Join(s.args, " "))
			start := time.Now()
			err := s.run(ctx, w, bin, out)
			o.took, o.ok, o.text = time.Since(start).Round(100*time.Millisecond), err == nil, "done"
			if err != nil {
				o.text = "failed: " + err.Error()
			}
			if err != nil && s.check {
				failed = s.name
			}
		}
		done = append(done, o)
	}
	return done
}

// run runs a step, and keeps its output and figures in out.
func (s step) run(ctx context.Context, w io.Writer, bin, out string) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	file, err := os.Create(filepath.Join(out, s.name+".log"))
	if err != nil {
		return err
	}
	args := s.args
	if s.json != "" {
		figures, err := filepath.Abs(filepath.Join(out, s.name+".json"))
		if err != nil {
			return errors.Join(err, file.Close())
		}
		args = append(append([]string{}, args...), s.json, figures)
	}
	program := filepath.Join(bin, s.program)
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath(s.program); err != nil {
			return errors.Join(fmt.Errorf("%s is neither in %s nor in PATH: install it, or leave %s out with -only", s.program, bin, s.name), file.Close())
		}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, io.MultiWriter(file, w), io.MultiWriter(file, w)
	// What it started ends with it, and nothing that holds its output is waited for.
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Setpgid: true}, 5*time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		err = errors.New("it was interrupted")
	case ctx.Err() != nil:
		err = errors.New("it took longer than there was time for: its log has what it said")
	}
	return errors.Join(err, file.Close())
}

// beside prints the passes that PyTorch took too, if both were measured.
func beside(w io.Writer, out string) {
	read := func(name string) (rows []row) {
		if b, err := os.ReadFile(filepath.Join(out, name+".json")); err == nil {
			_ = json.Unmarshal(b, &rows) // what is no table has no rows
		}
		return rows
	}
	theirs := read("pytorch")
	for _, own := range read("passes") {
		for _, r := range theirs {
			if r.Shape == own.Shape && r.Format == own.Format && r.What == own.What && own.Ms > 0 {
				_, _ = fmt.Fprintf(w, "%-13s %-5s %-26s %8.3f ms, compiled PyTorch %8.3f ms: %.2f times as fast\n", own.Shape, own.Format, own.What, own.Ms, r.Ms, r.Ms/own.Ms)
			}
		}
	}
}

// summary says how steps ended. It is an error if one did not as it should.
func summary(w io.Writer, all []outcome) error {
	var bad []string
	for _, o := range all {
		if !o.ok {
			bad = append(bad, o.step.name)
		}
		if _, err := fmt.Fprintf(w, "%-14s %8s  %s\n", o.step.name, o.took, o.text); err != nil {
			return err
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("not all was measured: %s", strings.Join(bad, ", "))
	}
	return nil
}
