package dl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingLibrary(t *testing.T) {
	_, err := Open("the driver of doors", "libdoors.so.2", "libdoors.so.1")
	var missing *MissingError
	if !errors.As(err, &missing) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%v: want one line of a MissingError", err)
	}
	for _, want := range []string{"libdoors.so.2 or libdoors.so.1 cannot be opened", "install the driver of doors", PathVariable} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

// A library without the functions of its newer versions is told apart from one
// that is not there.
func TestOldLibrary(t *testing.T) {
	lib, err := Open("a C library", "libc.so.6")
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	var known, unknown uintptr
	if err := lib.Symbols(map[string]*uintptr{"getpid": &known}); err != nil || int(Call(known)) != os.Getpid() {
		t.Errorf("getpid: %v", err)
	}
	err = lib.Symbols(map[string]*uintptr{"function_of_the_future": &unknown})
	if err == nil || !strings.Contains(err.Error(), "libc.so.6 has no function_of_the_future: it is too old") {
		t.Errorf("%v: want what is missing, and that the library is too old", err)
	}
}

// The folders of the variable come first, then the loader's own, then the usual ones.
func TestWhereLibrariesAreLookedFor(t *testing.T) {
	first, env := t.TempDir(), t.TempDir()
	pip := filepath.Join(env, "lib", "python3.12", "site-packages", "nvidia", "nvrtc", "lib")
	if err := os.MkdirAll(pip, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{first, pip} {
		if err := os.WriteFile(filepath.Join(dir, "libdoors.so.1"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(PathVariable, "relative:"+first)
	t.Setenv("VIRTUAL_ENV", env)
	want := []string{filepath.Join(first, "libdoors.so.1"), "libdoors.so.1", filepath.Join(pip, "libdoors.so.1")}
	if got := candidates([]string{"libdoors.so.1"}); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("looked for %v, want %v", got, want)
	}
}
