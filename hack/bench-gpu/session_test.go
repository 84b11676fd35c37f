//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// scripts makes programs of a session of scripts, which write their name and arguments
// to a file before they do theirs.
func scripts(t *testing.T, does map[string]string) (bin, out string, ran func() []string) {
	t.Helper()
	bin, out = t.TempDir(), t.TempDir()
	list := filepath.Join(t.TempDir(), "ran")
	for _, name := range append(slices.Collect(maps.Keys(programs)), "python3") {
		text := fmt.Sprintf("#!/bin/sh\necho %s >>%s\necho \"said by %s: $*\"\n%s\n", name, list, name, does[name])
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return bin, out, func() []string {
		b, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(b))
	}
}

// here has the steps run where the test does.
func here(all []step) []step {
	for i := range all {
		all[i].dir = ""
	}
	return all
}

func TestSessionRunsChecksFirst(t *testing.T) {
	bin, out, ran := scripts(t, map[string]string{"soak.test": "echo for $SOAK on $SOAK_DEVICE"})
	var said bytes.Buffer
	all := here(steps("synthetic", "llama-3.1-8b"))
	if err := summary(&said, runSteps(context.Background(), &said, all, bin, out)); err != nil {
		t.Error(err)
	}
	if got, want := strings.Join(ran(), " "), "cuda.test model.test engine.test soak.test bench-gpu python3 bench bench bench"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
	if !strings.Contains(said.String(), "for 20s on cuda\n") {
		t.Errorf("the soak says %s", said.String())
	}
	checks := true
	for _, s := range all {
		if s.check && !checks {
			t.Errorf("%s is a check after what is measured", s.name)
		}
		checks = s.check
		b, err := os.ReadFile(filepath.Join(out, s.name+".log"))
		if err != nil || !strings.Contains(string(b), "said by "+s.program+": "+strings.Join(s.args, " ")) || !strings.Contains(said.String(), string(b)) {
			t.Errorf("%s: the log is %q, %v", s.name, b, err)
		}
		if figures := filepath.Join(out, s.name+".json"); (s.json != "") != strings.Contains(string(b), s.json+" "+figures) {
			t.Errorf("%s: the log is %q, and figures go to %s", s.name, b, figures)
		}
		if s.least > s.limit || s.limit == 0 {
			t.Errorf("%s takes %s at least and %s at most", s.name, s.least, s.limit)
		}
	}
}

// All steps together have their least time within the limit of a session.
func TestSessionFits(t *testing.T) {
	var least time.Duration
	for _, s := range steps("synthetic", "llama-3.1-8b") {
		least += max(s.least, s.limit*3/4)
	}
	if least > 14*time.Minute {
		t.Errorf("three quarters of the steps' limits are %s: a session has 14 minutes", least)
	}
}

func TestPassesStandBesidePyTorch(t *testing.T) {
	out := t.TempDir()
	for name, text := range map[string]string{
		"passes":  `[{"shape": "a", "format": "bf16", "what": "decode, batch 1", "ms": 2, "floor_ms": 1}, {"shape": "a", "format": "bf16", "what": "cycle", "ms": 3}, {"shape": "a", "format": "fp8", "what": "decode, batch 1", "ms": 1}]`,
		"pytorch": `[{"shape": "a", "format": "bf16", "what": "decode, batch 1", "ms": 3}, {"shape": "a", "format": "bf16", "what": "decode, batch 16", "ms": 3}]`,
	} {
		if err := os.WriteFile(filepath.Join(out, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	beside(&said, out)
	if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "decode, batch 1") || !strings.Contains(said.String(), "1.50 times as fast") {
		t.Errorf("%q", said.String())
	}
	said.Reset()
	beside(&said, t.TempDir())
	if said.Len() > 0 {
		t.Errorf("without figures %q", said.String())
	}
}

func TestAFailedCheckEndsASession(t *testing.T) {
	bin, out, ran := scripts(t, map[string]string{"model.test": "exit 3"})
	var said bytes.Buffer
	err := summary(&said, runSteps(context.Background(), &said, here(steps("gocode", "llama-3.2-1b")), bin, out))
	if got := strings.Join(ran(), " "); got != "cuda.test model.test" {
		t.Errorf("ran %s", got)
	}
	if err == nil || !strings.Contains(err.Error(), "check-models, check-engine, soak, passes, pytorch, idle, off, cells") || !strings.Contains(said.String(), "exit status 3") ||
		!strings.Contains(said.String(), "not run, since check-models failed") {
		t.Errorf("%v: %s", err, said.String())
	}
}

// A step that takes too long is ended with what it started, and the ones after it run;
// one that cannot end in time is not begun.
func TestSessionKeepsItsLimit(t *testing.T) {
	bin, out, ran := scripts(t, map[string]string{"bench": "sleep 1000 & wait"})
	all := []step{
		{name: "slow", program: "bench", limit: 3 * time.Second, json: "-json"}, // a shell starts in less
		{name: "quick", program: "bench-gpu", limit: time.Minute},
		{name: "late", program: "cuda.test", limit: 2 * time.Hour, least: time.Hour},
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var said bytes.Buffer
	done := runSteps(ctx, &said, all, bin, out)
	if done[0].ok || !strings.Contains(done[0].text, "longer than there was time for") || !done[1].ok || done[2].ok || !strings.Contains(done[2].text, "it takes 1h0m0s at least") {
		t.Errorf("%+v", done)
	}
	if got := strings.Join(ran(), " "); got != "bench bench-gpu" {
		t.Errorf("ran %s", got)
	}
}

// Who interrupts a session ends the step that runs with what it started, and no other
// one begins.
func TestAnInterruptEndsASession(t *testing.T) {
	child := filepath.Join(t.TempDir(), "child")
	ready := child + ".ready"
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	bin, out, ran := scripts(t, map[string]string{"bench": fmt.Sprintf("sleep 1000 & echo $! >%s; echo >%s; wait", child, ready)})
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	go func() {
		if _, err := os.ReadFile(ready); err != nil { // when the step writes to it
			t.Error(err)
		}
		interrupt()
	}()
	var said bytes.Buffer
	done := runSteps(ctx, &said, []step{{name: "long", program: "bench", limit: time.Hour}, {name: "next", program: "bench-gpu", limit: time.Hour}}, bin, out)
	if done[0].ok || done[0].text != "failed: it was interrupted" || done[1].ok || done[1].text != "not run, since the session was interrupted" {
		t.Errorf("%+v", done)
	}
	if got := strings.Join(ran(), " "); got != "bench" {
		t.Errorf("ran %s", got)
	}
	b, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); alive(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d, which the step started, goes on", pid)
		}
	}
}

// alive tells of a process whether it runs; one that nobody has waited for yet does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// A program that is there is run as it is, unless all are to be built anew; one that
// several steps run is built once.
func TestProgramsAreBuilt(t *testing.T) {
	bin, path := t.TempDir(), t.TempDir()
	list := filepath.Join(path, "built")
	text := fmt.Sprintf("#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\necho \"${2##*/}\" >>%s\n: >\"$2\"\n", list)
	if err := os.WriteFile(filepath.Join(path, "go"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path)
	for _, c := range []struct {
		anew bool
		want string
	}{
		{false, "cuda.test model.test engine.test soak.test bench-gpu bench"},
		{false, ""},
		{true, "cuda.test model.test engine.test soak.test bench-gpu bench"},
	} {
		if err := os.WriteFile(list, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := buildPrograms(t.Context(), bin, steps("synthetic", "llama-3.1-8b"), c.anew); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(list)
		if got := strings.Join(strings.Fields(string(b)), " "); err != nil || got != c.want {
			t.Errorf("anew %t: built %q, %v; want %q", c.anew, got, err, c.want)
		}
	}
}

func TestStepsAreChosen(t *testing.T) {
	all := steps("synthetic", "llama-3.1-8b")
	got, err := choose(all, "off,check-device")
	if err != nil || strings.Join(stepNames(got), " ") != "check-device off" {
		t.Errorf("%v, %v", stepNames(got), err)
	}
	if _, err := choose(all, "off,on"); err == nil || !strings.Contains(err.Error(), `-only "on": known are check-device`) {
		t.Error(err)
	}
}
