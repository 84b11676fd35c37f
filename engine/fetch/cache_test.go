package fetch

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder whose file is lost is not complete.
func TestCacheIsChecked(t *testing.T) {
	h := newFakeHub(t)
	dir := t.TempDir()
	opts, _ := h.options(dir)
	if _, err := Open(t.Context(), "hf://org/model@"+sha, opts); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "hf", "*", "*", sha, "config.json"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.Remove(found[0]); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), "hf://org/model@"+sha, opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
}
