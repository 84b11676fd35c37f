//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// files is a model folder of config.json and model.safetensors. The tensors'
// values are repeated from a table of random ones when they are read, so that
// shapes of any size need no disk.
type files struct {
	config  []byte
	entries map[string]entry
	parts   []extent
	size    int64 // of the values
	header  []byte
}

type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// extent is a tensor's values, which repeat a table.
type extent struct {
	from  int64
	table []byte
}

func newFiles(config string) *files {
	return &files{config: []byte(config), entries: map[string]entry{}}
}

// Tables of values. Their lengths are no multiple of a row, so that rows differ.
var (
	weightTable = values(func(r *rand.Rand) []byte { return bf16(float32(r.NormFloat64() * 0.02)) })
	halfTable   = values(func(r *rand.Rand) []byte { return fp16(float32(r.NormFloat64() * 0.02)) })
	oneTable    = bf16(1)
	scaleTable  = bf16(0.004)
	smallTable  = bf16(0.0002)
	codeTable   = values(func(r *rand.Rand) []byte { return []byte{byte(r.Uint32())} })
	float8Table = values(func(r *rand.Rand) []byte {
		b := byte(r.Uint32())
		if b&0x7f == 0x7f {
			b--
		}
		return []byte{b}
	})
	zeroTable = make([]byte, 8)
)

func values(f func(r *rand.Rand) []byte) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	var b []byte
	for len(b) < 1<<22+2*977 {
		b = append(b, f(r)...)
	}
	return b
}

func bf16(x float32) []byte {
	return binary.LittleEndian.AppendUint16(nil, uint16(math.Float32bits(x)>>16))
}

// fp16 cuts a number of moderate size to float16; one below 2^-14 becomes zero.
func fp16(x float32) []byte {
	bits := math.Float32bits(x)
	h := uint16(bits >> 16 & 0x8000)
	if e := int(bits>>23&0xff) - 127 + 15; e > 0 {
		h |= uint16(e)<<10 | uint16(bits>>13&0x3ff)
	}
	return binary.LittleEndian.AppendUint16(nil, h)
}

func (f *files) add(name, dtype string, size int64, values []byte, shape ...int) {
	for _, n := range shape {
		size *= int64(n)
	}
	f.entries[name] = entry{dtype, shape, [2]int64{f.size, f.size + size}}
	f.parts = append(f.parts, extent{f.size, values})
	f.size += size
}

func (f *files) ones(name string, n int)               { f.add(name, "BF16", 2, oneTable, n) }
func (f *files) numbers(name string, out, in int)      { f.add(name, "BF16", 2, weightTable, out, in) }
func (f *files) zeros(name, dtype string, size, n int) { f.add(name, dtype, int64(size), zeroTable, n) }

// plain adds a matrix of a model whose linear layers have a format: of that, unless it is
// of codes.
func (f *files) plain(name string, out, in int, format string) {
	if format == "fp16" {
		f.add(name, "F16", 2, halfTable, out, in)
		return
	}
	f.numbers(name, out, in)
}

// linear adds the weight of a linear layer in a format.
func (f *files) linear(name string, out, in int, format string) {
	switch format {
	case "fp8":
		f.add(name+".weight", "F8_E4M3", 1, float8Table, out, in)
		f.add(name+".weight_scale_inv", "BF16", 2, smallTable, (out+127)/128, (in+127)/128)
	case "int4":
		f.add(name+".weight_packed", "I32", 4, codeTable, out, in/8)
		f.add(name+".weight_scale", "BF16", 2, scaleTable, out, in/128)
		shape := binary.LittleEndian.AppendUint64(nil, uint64(out))
		f.add(name+".weight_shape", "I64", 8, binary.LittleEndian.AppendUint64(shape, uint64(in)), 2)
	default:
		f.plain(name+".weight", out, in, format)
	}
}

// Open implements fs.FS.
func (f *files) Open(name string) (fs.File, error) {
	switch name {
	case "config.json":
		return &file{name: name, size: int64(len(f.config)), at: bytes.NewReader(f.config)}, nil
	case "model.safetensors":
		if f.header == nil {
			h, err := json.Marshal(f.entries)
			if err != nil {
				return nil, err
			}
			f.header = append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...)
		}
		return &file{name: name, size: int64(len(f.header)) + f.size, at: f}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadAt implements io.ReaderAt for model.safetensors.
func (f *files) ReadAt(p []byte, offset int64) (int, error) {
	n := 0
	if offset < int64(len(f.header)) {
		n = copy(p, f.header[offset:])
	}
	for n < len(p) {
		at := offset + int64(n) - int64(len(f.header))
		if at >= f.size {
			return n, io.EOF
		}
		k := sort.Search(len(f.parts), func(i int) bool { return f.parts[i].from > at }) - 1
		end := f.size
		if k+1 < len(f.parts) {
			end = f.parts[k+1].from
		}
		t := f.parts[k].table
		skip := (at - f.parts[k].from) % int64(len(t))
		n += copy(p[n:min(len(p), n+int(end-at))], t[skip:])
	}
	return n, nil
}

type file struct {
	name string
	size int64
	at   io.ReaderAt
	next int64
}

func (f *file) Stat() (fs.FileInfo, error)                 { return info{f.name, f.size}, nil }
func (f *file) Close() error                               { return nil }
func (f *file) ReadAt(p []byte, offset int64) (int, error) { return f.at.ReadAt(p, offset) }
func (f *file) Read(p []byte) (int, error) {
	n, err := f.at.ReadAt(p[:min(int64(len(p)), f.size-f.next)], f.next)
	f.next += int64(n)
	if n == 0 && err == nil && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

type info struct {
	name string
	size int64
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return 0o444 }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
