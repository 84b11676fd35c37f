package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/outrider-dev/outrider/engine/fault"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	maxIndex   = maxHeader // bytes of an index file
)

// Set is every tensor of a model folder. Its methods may be called at once
// from several goroutines.
type Set struct {
	name   string
	files  []file
	infos  []Info
	byName map[string]int
}

// file is one open safetensors file.
type file struct {
	name   string
	reader io.ReaderAt
	closer io.Closer
}

// Open opens the weights of a model folder, called name in errors:
// model.safetensors, or the files that model.safetensors.index.json names. The
// files of fsys must implement io.ReaderAt, as those of os.DirFS and embed.FS
// do. Errors have the reasons ModelNotFound and WeightsMismatch.
func Open(fsys fs.FS, name string) (*Set, error) {
	s := &Set{name: name, byName: map[string]int{}}
	shards, index, err := shardNames(fsys)
	if err == nil {
		err = s.open(fsys, shards, index)
	}
	if err != nil {
		s.Close()
		reason := fault.WeightsMismatch
		if errors.Is(err, errNoWeights) {
			reason = fault.ModelNotFound
		}
		return nil, fault.Errorf(reason, "%s: %w", name, err)
	}
	return s, nil
}

var errNoWeights = errors.New("has neither " + singleFile + " nor " + indexFile + ": give a model folder in Hugging Face layout")

// shardNames lists the files in order, and the index from tensors to files if
// there is one.
func shardNames(fsys fs.FS) (shards []string, index map[string]string, err error) {
	info, err := fs.Stat(fsys, indexFile)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := fs.Stat(fsys, singleFile); errors.Is(err, fs.ErrNotExist) {
			return nil, nil, errNoWeights
		}
		return []string{singleFile}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if info.Size() > maxIndex {
		return nil, nil, fmt.Errorf("%s has %d bytes: allowed are %d", indexFile, info.Size(), maxIndex)
	}
	b, err := fs.ReadFile(fsys, indexFile)
	if err != nil {
		return nil, nil, err
	}
	var raw struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	if len(raw.WeightMap) == 0 {
		return nil, nil, fmt.Errorf("%s: weight_map is missing or empty", indexFile)
	}
	seen := map[string]bool{}
	for tensor, shard := range raw.WeightMap {
		if !fs.ValidPath(shard) || shard == "." {
			return nil, nil, fmt.Errorf("%s: tensor %s is in file %s: allowed are paths within the folder", indexFile, quote(tensor), quote(shard))
		}
		if !seen[shard] {
			seen[shard] = true
			shards = append(shards, shard)
		}
	}
	slices.Sort(shards)
	return shards, raw.WeightMap, nil
}

func (s *Set) open(fsys fs.FS, shards []string, index map[string]string) error {
	for i, shard := range shards {
		infos, err := s.openShard(fsys, shard)
		if err != nil {
			return fmt.Errorf("%s: %w", shard, err)
		}
		for _, info := range infos {
			if index != nil && index[info.Name] != shard {
				return fmt.Errorf("%s: tensor %s is not in this file by %s", shard, quote(info.Name), indexFile)
			}
			info.File, info.Shard = shard, i
			s.byName[info.Name] = len(s.infos)
			s.infos = append(s.infos, info)
		}
	}
	for tensor, shard := range index {
		if _, ok := s.byName[tensor]; !ok {
			return fmt.Errorf("%s: tensor %s is missing, which %s says is there", shard, quote(tensor), indexFile)
		}
	}
	return nil
}

// openShard opens a file and reads its header.
func (s *Set) openShard(fsys fs.FS, name string) ([]Info, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	reader, ok := f.(io.ReaderAt)
	s.files = append(s.files, file{name, reader, f})
	if !ok {
		return nil, errors.New("this kind of file system does not read at an offset: give a local folder")
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return readHeader(reader, info.Size())
}

// Close closes the files.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.closer.Close())
	}
	s.files = nil
	return errors.Join(errs...)
}

// Infos are all tensors, by file and then by place in it.
func (s *Set) Infos() []Info { return s.infos }

// Lookup finds a tensor.
func (s *Set) Lookup(name string) (Info, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Info{}, false
	}
	return s.infos[i], true
}

// Bytes is the size of all tensors.
func (s *Set) Bytes() int64 {
	var n int64
	for _, info := range s.infos {
		n += info.Bytes()
	}
	return n
}

// Shards is the number of files.
func (s *Set) Shards() int { return len(s.files) }
