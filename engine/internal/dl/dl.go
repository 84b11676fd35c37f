// Package dl opens shared libraries at run time, without cgo, and calls their
// functions.
package dl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ebitengine/purego"
)

// PathVariable names folders, separated by colons, in which libraries are
// looked for before the loader's own.
const PathVariable = "OUTRIDER_CUDA_PATH"

// usual are folders in which CUDA's libraries lie where the loader does not know
// them; the last ones are pip's, of the system and of a virtual environment.
func usual() []string {
	folders := []string{"/usr/local/nvidia/lib64", "/usr/local/cuda/lib64", "/usr/lib/wsl/lib"}
	roots := []string{"/usr/local/lib", "/usr/lib"}
	if env := os.Getenv("VIRTUAL_ENV"); env != "" {
		roots = append([]string{filepath.Join(env, "lib")}, roots...)
	}
	for _, root := range roots {
		for _, packages := range []string{"site-packages", "dist-packages"} {
			found, err := filepath.Glob(filepath.Join(root, "python3*", packages, "nvidia", "*", "lib"))
			if err == nil { // the only error is of a root that is no pattern
				folders = append(folders, found...)
			}
		}
	}
	return folders
}

// Library is an opened shared library. It is never closed: a driver does not
// survive that.
type Library struct {
	Name   string // what was opened
	handle uintptr
}

// MissingError says which library could not be opened and what to install.
type MissingError struct {
	Names   []string // that were tried
	Install string   // what brings the library
	Cause   error    // of the last try
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s cannot be opened: install %s, or name its folder in %s: %v", strings.Join(e.Names, " or "), e.Install, PathVariable, e.Cause)
}

func (e *MissingError) Unwrap() error { return e.Cause }

// Open opens the first of names that there is.
func Open(install string, names ...string) (*Library, error) {
	var cause error
	for _, path := range candidates(names) {
		h, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			return &Library{Name: path, handle: h}, nil
		}
		// The bare name's error says what the loader found, so it is the one to show.
		if cause == nil || !filepath.IsAbs(path) {
			cause = err
		}
	}
	return nil, &MissingError{Names: names, Install: install, Cause: cause}
}

// candidates are the paths to try, in order.
func candidates(names []string) []string {
	var paths []string
	in := func(folder, name string) {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
			paths = append(paths, path)
		}
	}
	for _, name := range names {
		for _, folder := range filepath.SplitList(os.Getenv(PathVariable)) {
			in(folder, name)
		}
	}
	paths = append(paths, names...)
	folders := usual()
	for _, name := range names {
		for _, folder := range folders {
			in(folder, name)
		}
	}
	return paths
}

// Symbols sets each of the addresses to that of the function of its name.
func (l *Library) Symbols(addresses map[string]*uintptr) error {
	for name, to := range addresses {
		p, err := purego.Dlsym(l.handle, name)
		if err != nil {
			return fmt.Errorf("%s has no %s: it is too old: %w", l.Name, name, err)
		}
		*to = p
	}
	return nil
}

// Call calls a C function that takes and returns whole numbers and pointers.
// The result is the lower half of the return register: a status code.
//
//go:uintptrescapes
func Call(fn uintptr, args ...uintptr) int32 {
	r, _, _ := purego.SyscallN(fn, args...)
	return int32(r)
}

// Pointer is Call for a function that returns a pointer.
//
//go:uintptrescapes
func Pointer(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// CString is s as C has it, to be kept alive by the caller during the call.
func CString(s string) []byte { return append([]byte(s), 0) }

// GoString copies a C string of at most 4,096 bytes.
func GoString(p uintptr) string { return goString(p) }
