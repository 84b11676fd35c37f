//go:build linux

package emulation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// compiler is a g++ that makes empty libraries, and the calls of it.
func compiler(t *testing.T) (calls func() []string) {
	t.Helper()
	path := t.TempDir()
	list := filepath.Join(path, "calls")
	text := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%s\nwhile [ \"$1\" != -o ]; do shift; done\n: >\"$2\"\n", list)
	if err := os.WriteFile(filepath.Join(path, "g++"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path)
	return func() []string {
		b, err := os.ReadFile(list)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(list); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	}
}

// Libraries are built of what this version has, when one is missing or older than
// that: not of a source that an older version left, and anew if the flags change.
func TestBuild(t *testing.T) {
	calls := compiler(t)
	folder := t.TempDir()
	build := func() []string {
		t.Helper()
		if err := Build(t.Context(), folder); err != nil {
			t.Fatal(err)
		}
		return calls()
	}
	source := func(name string) string { return filepath.Join(folder, "source", name) }
	// old has all that was written be older than the libraries that are built next.
	old := func() {
		t.Helper()
		before := time.Now().Add(-time.Hour)
		err := filepath.Walk(source(""), func(path string, _ os.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return os.Chtimes(path, before, before)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(source(name), []byte("int left;"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	all := build()
	if len(all) != 5 || !strings.Contains(all[0], "-o "+filepath.Join(folder, first+".new ")) {
		t.Fatalf("compiled are %q: want all five, %s first", all, first)
	}
	for _, c := range all[1:] {
		if !strings.Contains(c, " "+filepath.Join(folder, first)+" ") {
			t.Errorf("%q is not linked with %s", c, first)
		}
	}
	old()
	if again := build(); again != nil {
		t.Errorf("compiled again are %q", again)
	}
	write(first + "/left.cpp")
	if again := build(); len(again) != 5 || strings.Contains(strings.Join(again, " "), "left.cpp") {
		t.Errorf("beside a source of another version compiled are %q", again)
	}
	old()
	write("flags")
	if again := build(); len(again) != 5 {
		t.Errorf("with other flags than before compiled are %q", again)
	}
	old()
	if err := os.Remove(filepath.Join(folder, "libnccl.so.2")); err != nil {
		t.Fatal(err)
	}
	if again := build(); len(again) != 1 || !strings.Contains(again[0], "collectives.cpp") {
		t.Errorf("for a library that is missing compiled are %q", again)
	}
}

func TestBuildWithoutACompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	const want = "emulation: no g++ on the PATH: install the package g++ (12 or newer)"
	if err := Build(t.Context(), t.TempDir()); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}
