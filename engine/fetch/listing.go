package fetch

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Bounds of what a listing may say.
const (
	maxFiles = 100_000
	maxName  = 512
	maxSize  = 1 << 46 // bytes of a file: 64 TiB
	maxSmall = 1 << 30 // bytes of a file that is no weights
)

// file is one file of a remote folder.
type file struct {
	name   string // slash-separated, below the folder
	size   int64
	sha256 string // hexadecimal; empty where the source has none
	blob   string // git's hash of the content, likewise
	tag    string // what names the content to the source, likewise
}

// listing is a remote folder at one version.
type listing struct {
	version string // a file name, never that of other content
	files   []file
}

// Weights, in the order in which the engine looks for them: the only file, or
// else the index that names the files.
var weightFiles = [][2]string{
	{"model.safetensors", "model.safetensors.index.json"},
	{"pytorch_model.bin", "pytorch_model.bin.index.json"},
}

// smallFile tells the files at the top of a folder that describe a model.
func smallFile(name string) bool {
	switch path.Ext(name) {
	case ".json", ".jinja":
		return true
	}
	return name == "tiktoken.model"
}

// usable tells whether a name may become a file's in the cache: a plain path
// without hidden parts, which the cache keeps for itself.
func usable(name string) bool {
	if !fs.ValidPath(name) || name == "." || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '\\' || r == 0x7f }) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || len(part) > 200 || strings.HasSuffix(part, partSuffix) {
			return false
		}
	}
	return true
}

// check refuses a listing that no honest source gives. Names that are not
// usable are left out: nothing asks for them.
func (l *listing) check() error {
	if len(l.files) > maxFiles {
		return fmt.Errorf("it lists %d files: allowed are %d", len(l.files), maxFiles)
	}
	l.files = slices.DeleteFunc(l.files, func(f file) bool { return !usable(f.name) })
	slices.SortFunc(l.files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	for i, f := range l.files {
		if f.size < 0 || f.size > maxSize || smallFile(f.name) && f.size > maxSmall {
			return fmt.Errorf("it lists %q with %d bytes: allowed are 0 to %d, and %d for what is no weights", f.name, f.size, int64(maxSize), int64(maxSmall))
		}
		if i > 0 && l.files[i-1].name == f.name {
			return fmt.Errorf("it lists %q twice", f.name)
		}
	}
	return nil
}

func (l *listing) find(name string) (file, bool) {
	i, ok := slices.BinarySearchFunc(l.files, name, func(f file, name string) int { return strings.Compare(f.name, name) })
	if !ok {
		return file{}, false
	}
	return l.files[i], true
}

// small are the files that describe the model.
func (l *listing) small() []file {
	var small []file
	for _, f := range l.files {
		if !strings.Contains(f.name, "/") && smallFile(f.name) {
			small = append(small, f)
		}
	}
	return small
}

// weights are the files of weights that the engine reads: one format of those
// there are. read gives an index.
func (l *listing) weights(read func(name string) ([]byte, error)) ([]file, error) {
	for _, names := range weightFiles {
		if f, ok := l.find(names[0]); ok {
			return []file{f}, nil
		}
		if _, ok := l.find(names[1]); !ok {
			continue
		}
		b, err := read(names[1])
		if err != nil {
			return nil, err
		}
		return l.indexed(names[1], path.Ext(names[0]), b)
	}
	return nil, fault.Errorf(fault.ModelNotFound, "no weights: it has none of %s, %s, %s and %s; weights of other formats must be converted to safetensors",
		weightFiles[0][0], weightFiles[0][1], weightFiles[1][0], weightFiles[1][1])
}

// indexed are the files that an index names.
func (l *listing) indexed(index, ext string, b []byte) ([]file, error) {
	var content struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &content); err != nil {
		return nil, fault.Errorf(fault.WeightsMismatch, "%s: %w", index, err)
	}
	names := map[string]bool{}
	for _, name := range content.WeightMap {
		names[name] = true
	}
	var files []file
	for _, f := range l.files {
		if names[f.name] && path.Ext(f.name) == ext {
			files = append(files, f)
			delete(names, f.name)
		}
	}
	for name := range names {
		return nil, fault.Errorf(fault.ModelNotFound, "%s names the file %.200q, which there is not among the %s files", index, name, ext)
	}
	return files, nil
}
