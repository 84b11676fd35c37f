//go:build unix

package fetch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Opening a pipe that nobody writes to would never end.
func TestPipesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "config.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.ReadFile(s.Files, "config.json"); err == nil || !strings.Contains(err.Error(), "it must be a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if b, err := fs.ReadFile(s.Files, "file"); string(b) != "x" {
		t.Errorf("a file: %q, %v", b, err)
	}
}
