// Package kernels holds the device's CUDA C++ sources and makes machine code of
// them, for the card that is there, at start. What was made once is kept on disk.
package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/outrider-dev/outrider/engine/compute/cuda/nvrtc"
)

//go:embed *.cu *.cuh
var sources embed.FS

// Source is one file of kernels.
type Source struct {
	Name string
	Text string // complete: what all share is put before it
}

// Has tells whether the source has a kernel of that name: by its definition, or
// by the macro that makes it.
func (s Source) Has(name string) bool {
	return strings.Contains(s.Text, " "+name+"(const ") || strings.Contains(s.Text, "("+name+", ")
}

// Sources are all files, in a fixed order.
func Sources() []Source {
	read := func(name string) string {
		b, err := sources.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		return string(b)
	}
	common := read("ptx.cuh") + read("common.cuh")
	entries, err := sources.ReadDir(".")
	if err != nil {
		panic(err)
	}
	var all []Source
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".cu" {
			shared := common
			for _, of := range []struct{ header, prefix string }{{"attention", "attention"}, {"attention_few", "attention_few"}, {"quant", "quant"}, {"quant", "wide"}, {"wide", "wide"}} {
				if strings.HasPrefix(e.Name(), of.prefix) {
					shared += read(of.header + ".cuh")
				}
			}
			all = append(all, Source{e.Name(), shared + "#line 1 \"" + e.Name() + "\"\n" + read(e.Name())})
		}
	}
	return all
}

// Cache keeps machine code in a folder. The zero Cache keeps nothing.
type Cache struct {
	Folder string
	// Key names what the code depends on beside source and card: the compiler.
	// (Machine code for a card does not depend on the driver.)
	Key string
}

// DefaultFolder is where a cache lies unless told otherwise; empty if there is
// no place for one.
func DefaultFolder() string {
	base, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(base, "outrider", "kernels")
}

// Compile makes machine code of a source for an architecture ("sm_90"), or
// finds it in the cache. A cache that cannot be written is no error: the code
// is then made at each start.
func (c Cache) Compile(s Source, architecture string) ([]byte, error) {
	path := c.path(s, architecture)
	if path != "" {
		if b, err := os.ReadFile(path); err == nil {
			if code, ok := unwrap(b); ok {
				return code, nil
			}
		}
	}
	code, _, err := nvrtc.Compile(s.Name, s.Text, architecture)
	if err != nil {
		return nil, err
	}
	if path != "" {
		_ = c.write(path, code)
	}
	return code, nil
}

func (c Cache) path(s Source, architecture string) string {
	if c.Folder == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(architecture + "\x00" + c.Key + "\x00" + s.Text))
	return filepath.Join(c.Folder, fmt.Sprintf("%s-%s-%s.cubin", s.Name, architecture, hex.EncodeToString(sum[:12])))
}

// write puts a file in place whole, so that a reader never sees a part of it.
func (c Cache) write(path string, code []byte) error {
	if err := os.MkdirAll(c.Folder, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.Folder, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(wrap(code))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// wrap puts the code's own hash before it: a file that was damaged on the disk
// is made anew instead of run.
func wrap(code []byte) []byte {
	sum := sha256.Sum256(code)
	return append(sum[:], code...)
}

func unwrap(b []byte) (code []byte, ok bool) {
	if len(b) <= sha256.Size {
		return nil, false
	}
	code = b[sha256.Size:]
	return code, sha256.Sum256(code) == [sha256.Size]byte(b[:sha256.Size])
}

// architecture is what the compiler calls a compute capability. Of 9.0 it is the one
// with the instructions that no other card has (wgmma).
func architecture(major, minor int) string {
	if major == 9 && minor == 0 {
		return "sm_90a"
	}
	return fmt.Sprintf("sm_%d%d", major, minor)
}

// ForCapability makes machine code of all sources for a card of that compute
// capability, all at the same time. compiled, if not nil, hears of each that is
// ready, one after the other.
func ForCapability(major, minor int, folder string, compiled func(done, of int)) ([][]byte, error) {
	if err := nvrtc.Open(); err != nil {
		return nil, err
	}
	version, err := nvrtc.Version()
	if err != nil {
		return nil, err
	}
	if folder == "" {
		folder = DefaultFolder()
	}
	c := Cache{Folder: folder, Key: version}
	all := Sources()
	code, errs := make([][]byte, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for i, s := range all {
		wg.Go(func() {
			code[i], errs[i] = c.Compile(s, architecture(major, minor))
			mu.Lock()
			defer mu.Unlock()
			if done++; compiled != nil && errs[i] == nil {
				compiled(done, len(all))
			}
		})
	}
	wg.Wait()
	return code, errors.Join(errs...)
}
