package weights

import (
	"archive/zip"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// readTorch reads the names and places of the tensors in a file of torch.save
// of size bytes and returns them by their offset. The format: a zip archive
// with NAME/data.pkl, a pickle that builds the tensors, and the bytes of each
// storage, uncompressed, as NAME/data/KEY (torch/serialization.py). They stay
// in the file and are read from there.
func readTorch(r io.ReaderAt, size int64) ([]tensor, error) {
	if err := checkTorch(r, size); err != nil {
		return nil, err
	}
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("no zip archive of torch, or cut short (%w): fetch the file again", err)
	}
	entries := map[string]*zip.File{}
	root := ""
	for _, f := range archive.File {
		if entries[f.Name] != nil {
			return nil, fmt.Errorf("the archive has %s twice", quote(f.Name))
		}
		entries[f.Name] = f
		if dir, ok := strings.CutSuffix(f.Name, "/data.pkl"); ok && !strings.Contains(dir, "/") {
			if root != "" {
				return nil, errors.New("the archive has more than one data.pkl: it is no file of torch.save")
			}
			root = dir
		}
	}
	if root == "" {
		return nil, errors.New("the archive has no data.pkl: it is no file of torch.save")
	}
	if order := entries[root+"/byteorder"]; order != nil {
		b, err := readEntry(r, size, order, 16)
		if err != nil {
			return nil, err
		}
		if string(b) != "little" {
			return nil, fmt.Errorf("the byte order is %s: supported is \"little\"", quote(string(b)))
		}
	}
	pickle, err := readEntry(r, size, entries[root+"/data.pkl"], maxHeader)
	if err != nil {
		return nil, err
	}
	pairs, err := unpickle(pickle)
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	var tensors []tensor
	seen := map[string]bool{}
	for _, p := range pairs {
		if seen[p.key] {
			return nil, fmt.Errorf("data.pkl: tensor %s is there twice", quote(p.key))
		}
		seen[p.key] = true
		value, ok := p.value.(*pickleTensor)
		if !ok {
			return nil, fmt.Errorf("data.pkl: %s is no tensor: save the model's state_dict() alone", quote(p.key))
		}
		t, err := value.place(p.key, func(key string) (int64, int64, error) {
			return place(size, entries[root+"/data/"+key], key)
		})
		if err != nil {
			return nil, fmt.Errorf("data.pkl: tensor %s: %w", quote(p.key), err)
		}
		tensors = append(tensors, t)
	}
	slices.SortStableFunc(tensors, func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.Name, b.Name))
	})
	return tensors, nil
}

// checkTorch recognises what is often there in place of a file of torch.save.
func checkTorch(r io.ReaderAt, size int64) error {
	prefix := make([]byte, min(max(size, 0), int64(len(lfsPointer))))
	if err := readFull(r, prefix, 0); err != nil {
		return err
	}
	switch {
	case bytes.Equal(prefix, lfsPointer):
		return errors.New("the file is a Git LFS pointer, not the weights: run git lfs pull in the model's folder")
	case bytes.HasPrefix(prefix, []byte{0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46}):
		return errors.New("the file is in torch's format from before version 1.6: load and save it with a newer torch, or convert it to safetensors")
	}
	return nil
}

// place is where the entry of a storage lies in a file of size bytes.
func place(size int64, f *zip.File, key string) (offset, length int64, err error) {
	if f == nil {
		return 0, 0, fmt.Errorf("its storage data/%.100s is not in the archive: fetch the file again", quote(key))
	}
	if f.Method != zip.Store || f.Flags&1 != 0 || f.CompressedSize64 != f.UncompressedSize64 {
		return 0, 0, fmt.Errorf("%s is compressed or encrypted in the archive: torch stores it as it is", quote(f.Name))
	}
	offset, err = f.DataOffset()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", quote(f.Name), err)
	}
	if f.UncompressedSize64 > math.MaxInt64 || offset < 0 || offset > size || int64(f.UncompressedSize64) > size-offset {
		return 0, 0, fmt.Errorf("%s reaches beyond the file's end: the file is cut short, fetch it again", quote(f.Name))
	}
	return offset, int64(f.UncompressedSize64), nil
}

// readEntry reads a whole entry of at most most bytes.
func readEntry(r io.ReaderAt, size int64, f *zip.File, most int64) ([]byte, error) {
	offset, length, err := place(size, f, "")
	if err != nil {
		return nil, err
	}
	if length > most {
		return nil, fmt.Errorf("%s has %d bytes: at most %d are allowed", quote(f.Name), length, most)
	}
	b := make([]byte, length)
	return b, readFull(r, b, offset)
}

// maxDims is the most dimensions of a tensor.
const maxDims = 64

// place checks a tensor against its storage, whose offset and length in bytes
// find tells.
func (p *pickleTensor) place(name string, find func(key string) (offset, length int64, err error)) (tensor, error) {
	t := tensor{Info: Info{Name: name, DType: p.dtype}}
	if len(p.size) != len(p.stride) || len(p.size) > maxDims {
		return t, fmt.Errorf("it has %d dimensions and %d strides: equal numbers up to %d are allowed", len(p.size), len(p.stride), maxDims)
	}
	offset, length, err := find(p.storage.key)
	if err != nil {
		return t, err
	}
	width := 1
	if p.storage.dtype != 0 {
		width = p.storage.dtype.Size()
	}
	if p.storage.elements < 0 || p.storage.elements > length || p.storage.elements*int64(width) != length {
		return t, fmt.Errorf("its storage is said to have %d elements of %d bytes, but the archive has %d bytes of it", p.storage.elements, width, length)
	}
	for _, n := range p.size {
		if n < 0 || n > math.MaxInt {
			return t, fmt.Errorf("a dimension is %d: allowed is 0 or more", n)
		}
		t.Shape = append(t.Shape, int(n))
	}
	if !fits(t.Shape, p.dtype.Size()) {
		return t, fmt.Errorf("shape %s has more elements than can be addressed", short(t.Shape))
	}
	room := length / int64(p.dtype.Size()) // elements of the storage
	if p.offset < 0 || p.offset > room {
		return t, fmt.Errorf("it begins at element %d of a storage of %d", p.offset, room)
	}
	if err := p.reach(t.Elements(), room-p.offset); err != nil {
		return t, err
	}
	t.offset = offset + p.offset*int64(p.dtype.Size())
	return t, p.setStrides(&t)
}

// reach checks that the last of n elements lies within room, and that they are
// no more than that, so that a small file is no large tensor.
func (p *pickleTensor) reach(n int, room int64) error {
	if n == 0 {
		return nil
	}
	if int64(n) > room {
		return fmt.Errorf("it has %d elements in a storage that has %d for it: save it with .contiguous()", n, room)
	}
	last := int64(0)
	for i, size := range p.size {
		if size == 1 {
			continue
		}
		stride := p.stride[i]
		if stride < 1 || (size-1) > (room-1-last)/stride {
			return fmt.Errorf("dimension %d has %d elements with a stride of %d: that must be 1 or more, and the last element within the storage: save it with .contiguous()", i, size, stride)
		}
		last += (size - 1) * stride
	}
	return nil
}

// setStrides sets t's strides if its elements are not in order without gaps.
func (p *pickleTensor) setStrides(t *tensor) error {
	if t.Elements() == 0 {
		return nil
	}
	next, contiguous := int64(1), true
	for i := len(p.size) - 1; i >= 0; i-- {
		if p.size[i] != 1 {
			contiguous = contiguous && p.stride[i] == next
			next *= p.size[i]
		}
	}
	if contiguous {
		return nil
	}
	if len(p.size) > 2 {
		return fmt.Errorf("shape %s has strides, which are supported for vectors and matrices: save it with .contiguous()", short(t.Shape))
	}
	t.rowStride, t.colStride = 1, 1 // for dimensions of 1, whatever the file says
	if p.size[0] > 1 {
		t.rowStride = int(p.stride[0])
	}
	if len(p.size) > 1 && p.size[1] > 1 {
		t.colStride = int(p.stride[1])
	}
	return nil
}
