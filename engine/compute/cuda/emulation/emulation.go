// Package emulation builds libraries that stand in for CUDA's on a machine without a
// GPU, for tests: the device's own kernels and all that the host does around them run
// unchanged, on processors. Nothing of the product imports it.
//
// What it shows: the kernels' arithmetic, indexing, masks and barriers; accesses beyond
// what was allocated; reads of what was never written; graphs, streams and the order of
// what is queued; blocks that meet in clusters or in memory, and GPUs that do. What it
// does not: speed; what the order of memory accesses on a GPU allows beyond the orders
// that were run; how tensor cores round within a sum; errors that only hardware makes.
package emulation

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Each folder is the sources of the library whose name it has.
//
//go:embed lib* include
var sources embed.FS

// first is the library that the others are linked with.
const first = "libcuda.so.1"

// flags of the compiler: AVX2, since a mask a lane at a time would be too slow.
// Some systems fortify by default, which takes a jump from one stack to another for a
// fault.
var flags = []string{"-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror", "-march=x86-64-v3", "-U_FORTIFY_SOURCE", "-fno-semantic-interposition", "-Wl,-Bsymbolic"}

// Build compiles every library into a folder, for OUTRIDER_CUDA_PATH to name, with the
// headers that kernels are compiled with. A library that is there and newer than the
// sources and the compiler's flags is left alone.
func Build(ctx context.Context, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if err := write(folder); err != nil {
		return err
	}
	entries, err := sources.ReadDir(".")
	if err != nil {
		return err
	}
	libraries := []string{first}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "lib") && e.Name() != first {
			libraries = append(libraries, e.Name())
		}
	}
	for _, l := range libraries {
		if err := compile(ctx, folder, l); err != nil {
			return err
		}
	}
	return nil
}

// write puts the sources and the flags into the folder; what is there already stays as
// it is.
func write(folder string) error {
	err := fs.WalkDir(sources, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(folder, "source", path)
		if e.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		b, err := sources.ReadFile(path)
		if err != nil {
			return err
		}
		return change(to, b)
	})
	if err != nil {
		return err
	}
	return change(filepath.Join(folder, "source", "flags"), []byte(strings.Join(flags, "\n")))
}

// change writes a file, unless that is what is in it.
func change(file string, b []byte) error {
	if old, err := os.ReadFile(file); err == nil && string(old) == string(b) {
		return nil
	}
	return os.WriteFile(file, b, 0o644)
}

// compile makes one library, unless it is newer than every source.
func compile(ctx context.Context, folder, library string) error {
	to := filepath.Join(folder, library)
	entries, err := sources.ReadDir(library)
	if err != nil {
		return err
	}
	var files []string // and none that an older version has left in the folder
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".cpp") {
			files = append(files, filepath.Join(folder, "source", library, e.Name()))
		}
	}
	if fresh, err := newer(to, filepath.Join(folder, "source")); err != nil || fresh {
		return err
	}
	args := append([]string{"-I" + filepath.Join(folder, "source", "include"), "-Wl,-soname," + library, "-Wl,-rpath,$ORIGIN", "-o", to + ".new"}, flags...)
	args = append(args, files...)
	if library != first {
		args = append(args, filepath.Join(folder, first))
	}
	cmd := exec.CommandContext(ctx, "g++", append(args, "-ldl")...)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("emulation: no g++ on the PATH: install the package g++ (12 or newer)")
	}
	if err != nil {
		return fmt.Errorf("emulation: %s does not compile: %w\n%s", library, err, out)
	}
	return os.Rename(to+".new", to)
}

// newer tells whether a file is newer than all in a folder.
func newer(file, folder string) (bool, error) {
	made, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	fresh := true
	err = filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil && !info.ModTime().Before(made.ModTime()) {
			fresh = false
		}
		return err
	})
	return fresh, err
}
