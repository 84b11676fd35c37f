package render

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/outrider-dev/outrider/hack/chart/generate"
)

func TestGeneratedFilesAreUpToDate(t *testing.T) {
	want, err := generate.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) < 7 {
		t.Errorf("only %d generated files", len(want))
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s is not what hack/generate.sh makes (%v): run it", name, err)
		}
	}
}
