package fetch

import (
	"path/filepath"
	"strings"
	"testing"
)

func FuzzHubListing(f *testing.F) {
	f.Add([]byte(`{"sha": "` + sha + `", "siblings": [{"rfilename": "config.json", "size": 3}, {"rfilename": "../x", "size": 1}]}`))
	f.Add([]byte(`{"sha": "` + sha + `", "siblings": [{"rfilename": "model.safetensors", "lfs": {"sha256": "` + sha + sha[:24] + `", "size": 9}}]}`))
	f.Add([]byte(`{"weight_map": {"a": "model.safetensors"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := parseHub(b)
		if err != nil || l.check() != nil {
			return
		}
		files := l.small()
		if w, err := l.weights(func(string) ([]byte, error) { return b, nil }); err == nil {
			files = append(files, w...)
		}
		root := filepath.Join("/cache", l.version)
		for _, f := range files {
			if p := filepath.Join(root, filepath.FromSlash(f.name)); !strings.HasPrefix(p, root+"/") || f.size < 0 || f.size > maxSize {
				t.Errorf("%q with %d bytes", f.name, f.size)
			}
		}
	})
}
