package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxHeader is the format's own limit on the header (safetensors, MAX_HEADER_SIZE).
const maxHeader = 100_000_000

// readHeader reads the head of a safetensors file of total bytes: an 8-byte
// little-endian length N, N bytes of JSON that describe the tensors, then their
// data without holes. The tensors come in order of their data.
func readHeader(r io.ReaderAt, total int64) ([]Info, error) {
	var length [8]byte
	if total < 8 {
		return nil, fmt.Errorf("the file has %d bytes: a safetensors file begins with 8 bytes of header length", total)
	}
	if err := readFull(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader || int64(n) > total-8 {
		return nil, fmt.Errorf("the header is said to have %d bytes: allowed are %d, and the file has %d after its length", n, maxHeader, total-8)
	}
	header := make([]byte, n) // the file has as many
	if err := readFull(r, header, 8); err != nil {
		return nil, err
	}
	infos, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	return infos, place(infos, 8+int64(n), total)
}

func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading %d bytes at %d: %w", len(b), at, err)
}

// parseHeader decodes the JSON. It goes token by token, since a duplicate name,
// which json.Unmarshal lets pass, would hide a tensor.
func parseHeader(header []byte) ([]Info, error) {
	d := json.NewDecoder(bytes.NewReader(header))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("the header is not a JSON object")
	}
	var infos []Info
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("the header is not JSON: %w", err)
		}
		name := t.(string) // the decoder allows nothing else before a colon
		if seen[name] {
			return nil, fmt.Errorf("tensor %s is there twice", quote(name))
		}
		seen[name] = true
		if name == "__metadata__" {
			var metadata map[string]string
			if err := d.Decode(&metadata); err != nil {
				return nil, fmt.Errorf("__metadata__ must be an object of strings: %w", err)
			}
			continue
		}
		var raw rawTensor
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		info, err := raw.info(name)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		infos = append(infos, info)
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("the header's JSON object does not end")
	}
	if rest := bytes.TrimRight(header[d.InputOffset():], " \t\r\n\x00"); len(rest) > 0 {
		return nil, errors.New("the header has bytes after its JSON object: only spaces are allowed")
	}
	return infos, nil
}

// quote is a name for a message: one line, not too long.
func quote(name string) string {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	if s := strconv.Quote(name); s != `"`+name+`"` {
		return s
	}
	return name
}

// rawTensor is a tensor's entry in the header.
type rawTensor struct {
	DType   *string `json:"dtype"`
	Shape   *[]int  `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// info checks an entry; the offset is still that within the data.
func (r rawTensor) info(name string) (Info, error) {
	if r.DType == nil || r.Shape == nil || len(r.Offsets) != 2 {
		return Info{}, errors.New("an entry needs dtype, shape and two data_offsets")
	}
	d := slices.Index(dtypeNames[:], *r.DType)
	if d < 0 {
		return Info{}, fmt.Errorf("dtype %s is not supported: supported are %v", quote(*r.DType), dtypeNames)
	}
	info := Info{Name: name, DType: DType(d), Shape: *r.Shape, offset: r.Offsets[0]}
	want, ok := size(info.Shape, info.DType)
	if !ok {
		return Info{}, fmt.Errorf("shape %v is not possible: dimensions must be 0 or more, and the size must fit in 63 bits", short(info.Shape))
	}
	begin, end := r.Offsets[0], r.Offsets[1]
	if begin < 0 || end < begin || end-begin != want {
		return Info{}, fmt.Errorf("data_offsets are %d to %d, but shape %v of %s has %d bytes", begin, end, short(info.Shape), info.DType, want)
	}
	return info, nil
}

// short is a shape for a message.
func short(shape []int) []int { return shape[:min(len(shape), 8)] }

// place sorts the tensors by their data, checks that it fills the file from
// start to total without holes or overlaps, and makes the offsets the file's.
func place(infos []Info, start, total int64) error {
	slices.SortStableFunc(infos, func(a, b Info) int {
		if a.offset != b.offset {
			if a.offset < b.offset {
				return -1
			}
			return 1
		}
		return int(min(a.Bytes(), 1)) - int(min(b.Bytes(), 1)) // an empty one before the one it touches
	})
	at := int64(0)
	for i := range infos {
		info := &infos[i]
		if info.offset != at {
			return fmt.Errorf("tensor %s begins at %d, but the one before ends at %d: holes and overlaps are not allowed", quote(info.Name), info.offset, at)
		}
		if at += info.Bytes(); at > total-start {
			return fmt.Errorf("tensor %s ends at %d, but the file has %d bytes of data: it is cut off; fetch it again", quote(info.Name), at, total-start)
		}
		info.offset += start
	}
	if at != total-start {
		return fmt.Errorf("the tensors have %d bytes, but the file has %d bytes of data", at, total-start)
	}
	return nil
}
