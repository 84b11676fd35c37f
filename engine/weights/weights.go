// Package weights reads the tensors of a model folder, whole or in part, from
// files of safetensors or torch that it does not trust.
package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
)

// Names of the files in a model folder, those of safetensors and of torch.
const (
	singleFile  = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
	torchSingle = "pytorch_model.bin"
	torchIndex  = "pytorch_model.bin.index.json"
)

// Info describes a stored tensor.
type Info struct {
	Name  string
	DType DType
	Shape []int  // not to be changed; empty for a scalar
	File  string // its file's path in the folder
	Shard int    // index of that file among the folder's, in order of their names
}

// Elements is the number of elements: the product of Shape.
func (i Info) Elements() int {
	n := 1
	for _, d := range i.Shape {
		n *= d
	}
	return n
}

// Bytes is the size of the stored elements in bytes.
func (i Info) Bytes() int64 { return int64(i.Elements()) * int64(i.DType.Size()) }

// rowsCols is the tensor's shape as a matrix; see Slice.
func (i Info) rowsCols() (rows, cols int) {
	if len(i.Shape) == 0 {
		return 1, 1
	}
	cols = 1
	for _, d := range i.Shape[1:] {
		cols *= d
	}
	return i.Shape[0], cols
}

// A Set is every tensor of a model folder. Its methods may be called at the
// same time, except Close.
type Set struct {
	name    string // of the folder, for errors
	index   string // name of the index file, or empty
	shards  []shard
	tensors []tensor       // by shard, then offset
	byName  map[string]int // index in tensors
	bytes   int64
}

// A shard is an open file of a Set.
type shard struct {
	path   string
	file   fs.File
	reader io.ReaderAt
}

// Open opens the files of a folder: model.safetensors, or else the files that
// model.safetensors.index.json names; or else the same of torch,
// pytorch_model.bin or the files that pytorch_model.bin.index.json names. It
// reads and checks their headers, or pickles, and no data; name is what to call
// the folder in errors. The files of fsys must implement io.ReaderAt, as those
// of os.DirFS and embed.FS do.
//
// Errors have the reasons ModelNotFound (a file is not there), Unauthorized
// (no permission), FetchFailed (reading failed) and WeightsMismatch (a file is
// damaged, or of a kind that is not supported).
func Open(fsys fs.FS, name string) (*Set, error) {
	s := &Set{name: name, byName: map[string]int{}}
	files, index, err := s.files(fsys)
	if err == nil {
		err = s.open(fsys, files, index)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// files are the files to open, in order, and the index, which maps a tensor's
// name to its file; it is nil without an index.
func (s *Set) files(fsys fs.FS) (files []string, index map[string]string, err error) {
	for _, names := range [][2]string{{singleFile, indexFile}, {torchSingle, torchIndex}} {
		_, err = fs.Stat(fsys, names[0])
		if err == nil {
			return names[:1], nil, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, s.ioError(names[0], err)
		}
		f, err := fsys.Open(names[1])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, s.ioError(names[1], err)
		}
		defer f.Close()
		s.index = names[1]
		return s.indexed(f, path.Ext(names[0]))
	}
	return nil, nil, fault.Errorf(fault.ModelNotFound, "%s: no weights: the folder has none of %s, %s, %s and %s; weights of other formats must be converted to safetensors", s.name, singleFile, indexFile, torchSingle, torchIndex)
}

// indexed are the files that an index names, which all end in ext.
func (s *Set) indexed(f io.Reader, ext string) (files []string, index map[string]string, err error) {
	data, err := io.ReadAll(io.LimitReader(f, maxHeader+1))
	if err != nil {
		return nil, nil, s.ioError(s.index, err)
	}
	index, err = parseIndex(data, ext)
	if err != nil {
		return nil, nil, s.mismatch(s.index, err)
	}
	seen := map[string]bool{}
	for _, file := range index {
		if !seen[file] {
			seen[file] = true
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files, index, nil
}

// parseIndex reads the weight_map of an index of files that end in ext.
func parseIndex(data []byte, ext string) (map[string]string, error) {
	if len(data) > maxHeader {
		return nil, fmt.Errorf("the file is longer than %d bytes", maxHeader)
	}
	var index map[string]string
	err := object(data, func(key string, value json.RawMessage) error {
		if key != "weight_map" {
			return nil
		}
		index = map[string]string{}
		return object(value, func(tensor string, value json.RawMessage) error {
			var file string
			if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &file) != nil {
				return fmt.Errorf("weight_map: tensor %s: the file's name is not a string", quote(tensor))
			}
			if len(file) > 255 || !fs.ValidPath(file) || strings.Contains(file, `\`) || path.Ext(file) != ext {
				return fmt.Errorf("weight_map: tensor %s: %s is not the name of a %s file in the model's folder", quote(tensor), quote(file), ext)
			}
			index[tensor] = file
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if len(index) == 0 {
		return nil, errors.New("weight_map is missing or empty: it must name each tensor's file")
	}
	return index, nil
}

// open opens the files and adds their tensors.
func (s *Set) open(fsys fs.FS, files []string, index map[string]string) error {
	for i, file := range files {
		tensors, err := s.openShard(fsys, file, index != nil)
		if err != nil {
			return err
		}
		for _, t := range tensors {
			t.File, t.Shard = file, i
			if want, ok := index[t.Name]; ok && want != file {
				continue // the index names the copy that counts
			}
			if other, ok := s.byName[t.Name]; ok {
				return s.mismatch(file, fmt.Errorf("tensor %s is in %s too, and %s does not say which one counts", quote(t.Name), s.tensors[other].File, s.index))
			}
			s.byName[t.Name] = len(s.tensors)
			s.tensors = append(s.tensors, t)
			s.bytes += t.Bytes()
		}
	}
	var missing []string
	for tensor := range index {
		if _, ok := s.byName[tensor]; !ok {
			missing = append(missing, tensor)
		}
	}
	if len(missing) > 0 {
		first := slices.Min(missing)
		return s.mismatch(index[first], fmt.Errorf("tensor %s is not in the file, though %s says so (%d such tensors in all): fetch the model again", quote(first), s.index, len(missing)))
	}
	return nil
}

// openShard opens a file and reads its header.
func (s *Set) openShard(fsys fs.FS, file string, indexed bool) ([]tensor, error) {
	f, err := fsys.Open(file)
	if indexed && errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Errorf(fault.ModelNotFound, "%s: %s is missing, though %s names it: fetch the model again", s.name, file, s.index)
	}
	if err != nil {
		return nil, s.ioError(file, err)
	}
	r, ok := f.(io.ReaderAt)
	s.shards = append(s.shards, shard{file, f, r}) // so that Close closes it
	stat, err := f.Stat()
	if err != nil {
		return nil, s.ioError(file, err)
	}
	if !stat.Mode().IsRegular() {
		return nil, s.mismatch(file, errors.New("not a file with weights: it must be a regular file"))
	}
	if !ok {
		return nil, fault.Errorf(fault.Unsupported, "%s: %s: this kind of file system cannot read from the middle of a file: copy the model to a folder on disk", s.name, file)
	}
	read := readHeader
	if path.Ext(file) == path.Ext(torchSingle) {
		read = readTorch
	}
	tensors, err := read(r, stat.Size())
	if err != nil {
		return nil, s.readError(file, err)
	}
	return tensors, nil
}

// mismatch is the error for a file whose content is wrong.
func (s *Set) mismatch(file string, err error) error {
	return fault.Errorf(fault.WeightsMismatch, "%s: %s: %w", s.name, file, err)
}

// ioError is the error for a file that cannot be opened or read.
func (s *Set) ioError(file string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err // the file is named already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fault.Errorf(fault.ModelNotFound, "%s: %s is not there: fetch the model again", s.name, file)
	case errors.Is(err, fs.ErrPermission):
		return fault.Errorf(fault.Unauthorized, "%s: %s: permission denied: make the file readable for the engine's user", s.name, file)
	}
	return fault.Errorf(fault.FetchFailed, "%s: %s: cannot be read: %w", s.name, file, err)
}

// readError tells an error of the file system from one of the content.
func (s *Set) readError(file string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return s.ioError(file, err)
	}
	return s.mismatch(file, err)
}

// Close closes the files. Nothing can be read afterwards.
func (s *Set) Close() error {
	var errs []error
	for _, sh := range s.shards {
		errs = append(errs, sh.file.Close())
	}
	s.shards = nil
	return errors.Join(errs...)
}

// Infos are the tensors by shard, then by offset in their file.
func (s *Set) Infos() []Info {
	infos := make([]Info, len(s.tensors))
	for i, t := range s.tensors {
		infos[i] = t.Info
	}
	return infos
}

// Lookup finds a tensor by its name.
func (s *Set) Lookup(name string) (Info, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Info{}, false
	}
	return s.tensors[i].Info, true
}

// Bytes is the size of all the tensors in bytes.
func (s *Set) Bytes() int64 { return s.bytes }

// Shards is the number of files.
func (s *Set) Shards() int { return len(s.shards) }
