package fetch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ref    string
		reason fault.Reason // empty: it opens
		says   string
	}{
		{"builtin:gocode-7m", "", ""},
		{"builtin:gocode-7m-eagle3", "", ""},
		{"builtin:gocode-8m", fault.ModelNotFound, "builtin:gocode-7m"},
		{"builtin:", fault.ModelNotFound, "builtin:gocode-7m"},
		{"builtin:../fetch", fault.ModelNotFound, "builtin:gocode-7m"},
		{dir, "", ""},
		{dir + "/none", fault.ModelNotFound, "no such folder"},
		{file, fault.ModelNotFound, "is a file"},
		{file + "/below", fault.FetchFailed, "not a directory"},
		{"oci://host/model", fault.Unsupported, "oci://"},
		{"hf://", fault.InvalidConfig, "hf://OWNER/NAME"},
		{"hf://a/../b", fault.InvalidConfig, "hf://OWNER/NAME"},
		{"hf://a/b@", fault.InvalidConfig, "revision"},
		{"hf://a/b@../c", fault.InvalidConfig, "revision"},
	} {
		s, err := Open(t.Context(), c.ref, Options{})
		switch {
		case c.reason == "" && err != nil:
			t.Errorf("%s: %v", c.ref, err)
		case c.reason == "":
			if _, err := fs.ReadDir(s.Files, "."); err != nil || s.Name != c.ref {
				t.Errorf("%s: %q, %v", c.ref, s.Name, err)
			}
		case err == nil || fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v with reason %s; want %s saying %q", c.ref, err, fault.ReasonOf(err), c.reason, c.says)
		}
	}
}

func TestBuiltinHeadAndName(t *testing.T) {
	if d, ok := DefaultDraft("builtin:gocode-7m"); !ok || d != "builtin:gocode-7m-eagle3" {
		t.Errorf("draft of the builtin model: %q, %v", d, ok)
	}
	if d, ok := DefaultDraft("/models/x"); ok {
		t.Errorf("a folder has the draft %q", d)
	}
	for ref, want := range map[string]string{"builtin:gocode-7m": "gocode-7m", "/models/llama/": "llama", "a/b": "b", "hf://a/b": "b", "hf://a/b-1.5@refs/pr/1": "b-1.5"} {
		if got := ServedName(ref); got != want {
			t.Errorf("ServedName(%q) = %q, want %q", ref, got, want)
		}
	}
}
