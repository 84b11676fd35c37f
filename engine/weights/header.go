package weights

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxHeader is the longest header, and the longest index, that is read: the
// limit of the reference implementation.
const maxHeader = 100_000_000

// A tensor is an entry of a header.
type tensor struct {
	Info
	offset int64 // of its first byte in the file
	// Elements from one row, or column, to the next, of a vector or matrix whose
	// elements are not in order without gaps; otherwise 0.
	rowStride, colStride int
}

// lfsPointer begins the text file that Git leaves in place of a large file.
var lfsPointer = []byte("version https://git-lfs")

// readHeader reads and checks the header of a safetensors file of size bytes
// and returns its tensors by their offset. The format: 8 bytes, the header's
// length N, little-endian; N bytes of JSON, {"name": {"dtype": …, "shape": […],
// "data_offsets": [begin, end]}, …, "__metadata__": {string: string}}; the data,
// without gaps (github.com/huggingface/safetensors, README).
func readHeader(r io.ReaderAt, size int64) ([]tensor, error) {
	if size < 8 {
		return nil, fmt.Errorf("the file has %d bytes, too few for a safetensors file: fetch it again", size)
	}
	prefix := make([]byte, min(size, int64(len(lfsPointer))))
	if err := readFull(r, prefix, 0); err != nil {
		return nil, err
	}
	if bytes.Equal(prefix, lfsPointer) {
		return nil, errors.New("the file is a Git LFS pointer, not the weights: run git lfs pull in the model's folder")
	}
	n := binary.LittleEndian.Uint64(prefix)
	if n > maxHeader {
		return nil, fmt.Errorf("the header's length is given as %d bytes; at most %d are allowed: this is no safetensors file, or it is damaged", n, maxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("the header's length is given as %d bytes, but only %d follow: the file is cut short, fetch it again", n, size-8)
	}
	header := make([]byte, n)
	if err := readFull(r, header, 8); err != nil {
		return nil, err
	}
	tensors, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	data := size - 8 - int64(n)
	if err := checkLayout(tensors, data); err != nil {
		return nil, err
	}
	for i := range tensors {
		tensors[i].offset += 8 + int64(n)
	}
	return tensors, nil
}

// readFull fills dst from offset on.
func readFull(r io.ReaderAt, dst []byte, offset int64) error {
	n, err := r.ReadAt(dst, offset)
	switch {
	case n == len(dst):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("the file ends at byte %d, inside what was being read: was it changed meanwhile?", offset+int64(n))
	}
	return fmt.Errorf("reading at byte %d: %w", offset, err)
}

// parseHeader reads the JSON of a header; offsets are from the data's begin.
func parseHeader(header []byte) ([]tensor, error) {
	if !utf8.Valid(header) {
		return nil, errors.New("the header is not UTF-8: the file is damaged")
	}
	if len(header) == 0 || header[0] != '{' {
		return nil, errors.New("the header does not begin with {: this is no safetensors file, or it is damaged")
	}
	var tensors []tensor
	err := object(header, func(name string, value json.RawMessage) error {
		if name == "__metadata__" {
			return object(value, func(key string, value json.RawMessage) error {
				if len(value) == 0 || value[0] != '"' {
					return fmt.Errorf("__metadata__: %s is not a string", quote(key))
				}
				return nil
			})
		}
		t, err := parseTensor(name, value)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		tensors = append(tensors, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	return tensors, nil
}

// object calls f for each member of a JSON object, refusing a name that comes twice.
func object(data []byte, f func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil {
		return jsonError(err)
	} else if t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return jsonError(err)
		}
		name := t.(string) // the decoder takes nothing else here
		if seen[name] {
			return fmt.Errorf("%s is there twice", quote(name))
		}
		seen[name] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return jsonError(err)
		}
		if err := f(name, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows after the JSON object")
	}
	return nil
}

// quote is a name or value from a file for a message: one line, not too long.
func quote(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strconv.Quote(s)
}

// short is a shape for a message.
func short(shape []int) string {
	if len(shape) > 8 {
		return fmt.Sprintf("of %d dimensions", len(shape))
	}
	return fmt.Sprint(shape)
}

func jsonError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends early: the file is damaged")
	}
	return fmt.Errorf("%w: the file is damaged", err)
}

// parseTensor reads an entry. Members that the format does not know are passed
// over, as the reference does.
func parseTensor(name string, value json.RawMessage) (tensor, error) {
	t := tensor{Info: Info{Name: name}}
	var offsets []int
	var hasShape bool
	err := object(value, func(key string, value json.RawMessage) (err error) {
		switch key {
		case "dtype":
			var name string
			if json.Unmarshal(value, &name) != nil {
				return errors.New("dtype is not a string")
			}
			var ok bool
			if t.DType, ok = parseDType(name); !ok {
				return fmt.Errorf("dtype %s is not supported: supported are %s", quote(name), dtypeNames())
			}
		case "shape":
			hasShape = true
			t.Shape, err = naturals(key, value)
		case "data_offsets":
			offsets, err = naturals(key, value)
		}
		return err
	})
	switch {
	case err != nil:
		return t, err
	case t.DType == 0:
		return t, errors.New("dtype is missing")
	case !hasShape:
		return t, errors.New("shape is missing")
	case len(offsets) != 2:
		return t, fmt.Errorf("data_offsets has %d numbers: [begin, end] is wanted", len(offsets))
	case offsets[0] > offsets[1]:
		return t, fmt.Errorf("data_offsets [%d, %d]: the end comes before the begin", offsets[0], offsets[1])
	}
	if !fits(t.Shape, t.DType.Size()) {
		return t, fmt.Errorf("shape %s has more elements than can be addressed", short(t.Shape))
	}
	if have := int64(offsets[1] - offsets[0]); have != t.Bytes() {
		return t, fmt.Errorf("shape %s of %s takes %d bytes, but data_offsets [%d, %d] are %d", short(t.Shape), t.DType, t.Bytes(), offsets[0], offsets[1], have)
	}
	t.offset = int64(offsets[0])
	return t, nil
}

// naturals reads an array of integers from 0 to the greatest int.
func naturals(key string, value json.RawMessage) ([]int, error) {
	if len(value) == 0 || value[0] != '[' {
		return nil, fmt.Errorf("%s is not an array", key)
	}
	var raw []json.RawMessage
	if err := json.Unmarshal(value, &raw); err != nil {
		return nil, jsonError(err)
	}
	list := make([]int, len(raw))
	for i, r := range raw {
		n, err := strconv.Atoi(string(r))
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s: %.40s is not a whole number from 0 to %d", key, r, math.MaxInt)
		}
		list[i] = n
	}
	return list, nil
}

// fits tells whether a shape's elements, and those of any part of it, can be
// counted in bytes. Dimensions of 0 do not hide a product of the others that
// is too large.
func fits(shape []int, size int) bool {
	n := size
	for _, d := range shape {
		d = max(d, 1)
		if n > math.MaxInt/d {
			return false
		}
		n *= d
	}
	return true
}

// checkLayout sorts tensors by offset and checks that they cover the data of
// size bytes, each byte once.
func checkLayout(tensors []tensor, size int64) error {
	slices.SortFunc(tensors, func(a, b tensor) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.Bytes(), b.Bytes()), cmp.Compare(a.Name, b.Name))
	})
	var end int64
	for i, t := range tensors {
		switch {
		case t.offset < end:
			return fmt.Errorf("header: tensor %s begins at byte %d of the data, inside tensor %s, which ends at %d", quote(t.Name), t.offset, quote(tensors[i-1].Name), end)
		case t.offset > end:
			return fmt.Errorf("header: bytes %d to %d of the data, before tensor %s, belong to no tensor", end, t.offset, quote(t.Name))
		case t.Bytes() > size-t.offset:
			return fmt.Errorf("header: tensor %s ends at byte %d of the data, but there are only %d: the file is cut short, fetch it again", quote(t.Name), t.offset+t.Bytes(), size)
		}
		end = t.offset + t.Bytes()
	}
	if end != size {
		return fmt.Errorf("header: bytes %d to %d at the file's end belong to no tensor", end, size)
	}
	return nil
}
