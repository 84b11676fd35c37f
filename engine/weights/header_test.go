package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
)

// stored is a safetensors file of a header and data of n bytes.
func stored(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i*7+i>>8))
	}
	return b
}

func TestHeader(t *testing.T) {
	const entry = `"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]`
	for _, c := range []struct {
		name   string
		header string
		data   int
		want   string // part of the error; empty: the file is right
	}{
		{"one", `{"a":{` + entry + `}}`, 12, ""},
		{"none", `{}`, 0, ""},
		{"padded with spaces", `{"a":{` + entry + `}}     `, 12, ""},
		{"metadata", `{"__metadata__":{"format":"pt","n":"1"},"a":{` + entry + `}}`, 12, ""},
		{"unordered", `{"b":{"dtype":"U8","shape":[4],"data_offsets":[12,16]},"a":{` + entry + `}}`, 16, ""},
		{"scalar", `{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4, ""},
		{"empty", `{"a":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"b":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1, ""},
		{"empty last", `{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F64","shape":[3,0],"data_offsets":[1,1]}}`, 1, ""},
		{"unknown member", `{"a":{"later":{"x":[1]},` + entry + `}}`, 12, ""},

		{"not an object", `[1,2]`, 0, "does not begin with {"},
		{"begins with a space", ` {}`, 0, "does not begin with {"},
		{"no header", ``, 0, "does not begin with {"},
		{"cut JSON", `{"a":{` + entry, 12, "damaged"},
		{"cut JSON after a member", `{"a":{` + entry + `}`, 12, "ends early"},
		{"not JSON", `{a}`, 0, "damaged"},
		{"second object", `{"a":{` + entry + `}}{}`, 12, "something follows"},
		{"not UTF-8", "{\"a\xff\":{" + entry + `}}`, 12, "not UTF-8"},
		{"tensor twice", `{"a":{` + entry + `},"a":{` + entry + `}}`, 12, `"a" is there twice`},
		{"tensor twice, escaped", `{"a":{` + entry + `},"\u0061":{` + entry + `}}`, 12, `"a" is there twice`},
		{"member twice", `{"a":{"dtype":"U8",` + entry + `}}`, 12, `tensor "a": "dtype" is there twice`},
		{"metadata twice", `{"__metadata__":{"a":"b","a":"c"}}`, 0, `"a" is there twice`},
		{"metadata not strings", `{"__metadata__":{"a":1}}`, 0, `__metadata__: "a" is not a string`},
		{"metadata not an object", `{"__metadata__":"x"}`, 0, "not a JSON object"},
		{"entry not an object", `{"a":[1]}`, 0, `tensor "a": not a JSON object`},
		{"entry null", `{"a":null}`, 0, `tensor "a": not a JSON object`},
		{"no dtype", `{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1, "dtype is missing"},
		{"dtype number", `{"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}}`, 1, "dtype is not a string"},
		{"unknown dtype", `{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1, `tensor "a": dtype "F4" is not supported: supported are BF16, F16, F32`},
		{"lower-case dtype", `{"a":{"dtype":"bf16","shape":[1],"data_offsets":[0,2]}}`, 2, `dtype "bf16" is not supported`},
		{"no shape", `{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1, "shape is missing"},
		{"shape null", `{"a":{"dtype":"U8","shape":null,"data_offsets":[0,1]}}`, 1, "shape is not an array"},
		{"shape of strings", `{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, 1, "not a whole number"},
		{"negative dimension", `{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1, "shape: -1 is not a whole number"},
		{"fraction", `{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, 1, "shape: 1.0 is not a whole number"},
		{"huge dimension", `{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}}`, 1, "not a whole number"},
		{"product overflows to 0", `{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "more elements than can be addressed"},
		{"bytes overflow to 0", `{"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}}`, 0, "more elements than can be addressed"},
		{"overflow hidden by 0", `{"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "more elements than can be addressed"},
		{"no offsets", `{"a":{"dtype":"U8","shape":[1]}}`, 1, "data_offsets has 0 numbers"},
		{"one offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}`, 1, "data_offsets has 1 numbers"},
		{"three offsets", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}`, 1, "data_offsets has 3 numbers"},
		{"negative offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 1, "data_offsets: -1"},
		{"end before begin", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, 1, "the end comes before the begin"},
		{"size differs", `{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,4]}}`, 4, "shape [3] of U8 takes 3 bytes, but data_offsets [0, 4] are 4"},
		{"hole at the begin", `{"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}`, 4, "bytes 0 to 1 of the data"},
		{"hole", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3, "belong to no tensor"},
		{"overlap", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `tensor "b" begins at byte 1 of the data, inside tensor "a"`},
		{"same place", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, "inside tensor"},
		{"empty inside another", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 2, `tensor "b" begins at byte 1 of the data, inside`},
		{"data cut short", `{"a":{` + entry + `}}`, 11, `tensor "a" ends at byte 12 of the data, but there are only 11`},
		{"data too long", `{"a":{` + entry + `}}`, 13, "bytes 12 to 13 at the file's end belong to no tensor"},
		{"offset beyond everything", fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, math.MaxInt), 4, "cut short"},
		{"deep nesting", `{"a":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, 0, "damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := stored(c.header, c.data)
			_, err := readHeader(bytes.NewReader(b), int64(len(b)))
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && err == nil:
				t.Fatalf("no error; want one with %q", c.want)
			case c.want != "" && !strings.Contains(err.Error(), c.want):
				t.Fatalf("error %q; want one with %q", err, c.want)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Fatalf("error of several lines: %q", err)
			}
		})
	}
}

// TestHeaderLength covers files whose first bytes are not the length of the header.
func TestHeaderLength(t *testing.T) {
	length := func(n uint64, rest string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty file", nil, "0 bytes, too few"},
		{"7 bytes", []byte("1234567"), "7 bytes, too few"},
		{"length beyond the file", length(3, "{}"), "3 bytes, but only 2 follow"},
		{"length beyond the limit", length(maxHeader+1, "{}"), "at most 100000000 are allowed"},
		{"greatest length", length(math.MaxUint64, "{}"), "at most 100000000 are allowed"},
		{"limit of a short file", length(maxHeader, "{}"), "but only 2 follow"},
		{"Git LFS pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "git lfs pull"},
		{"pickle in a zip", []byte("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00"), "no safetensors file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readHeader(bytes.NewReader(c.file), int64(len(c.file)))
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("%d bytes of memory were taken for a file of %d", n, len(c.file))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v; want one with %q", err, c.want)
			}
		})
	}
}

// TestHeaderLongNames: what a file says must not make a message of many lines or megabytes.
func TestHeaderLongNames(t *testing.T) {
	long := strings.Repeat("x\\n", 100_000)
	for _, header := range []string{
		`{"` + long + `":{}}`,
		`{"a":{"dtype":"` + long + `"}}`,
		`{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 10_000) + `1],"data_offsets":[0,2]}}`,
		`{"a":{"dtype":"U8","shape":[` + strings.Repeat("9", 10_000) + `],"data_offsets":[0,2]}}`,
		`{"__metadata__":{"` + long + `":1}}`,
	} {
		b := stored(header, 2)
		_, err := readHeader(bytes.NewReader(b), int64(len(b)))
		if err == nil || len(err.Error()) > 1000 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s…: error %.200v; want a short one on one line", header, err)
		}
	}
}

// FuzzHeader feeds whole files. Whatever is accepted must tile the data exactly.
func FuzzHeader(f *testing.F) {
	f.Add(stored(`{"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}`, 12))
	f.Add(stored(`{"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8))
	f.Add(stored(`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Add(stored(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3))
	f.Add(stored(`{"a":{"dtype":"I64","shape":[-1],"data_offsets":[9223372036854775807,-8]}}`, 3))
	f.Add([]byte("version https://git-lfs.github.com/spec/v1\n"))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'})
	if b, err := os.ReadFile("../model/testdata/fixtures/llama/model.safetensors"); err == nil {
		n := 8 + binary.LittleEndian.Uint64(b)
		f.Add(b[:n])
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		tensors, err := readHeader(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		at := 8 + int64(binary.LittleEndian.Uint64(file))
		names := map[string]bool{}
		for _, x := range tensors {
			rows, cols := x.rowsCols()
			if x.offset != at || x.DType.Size() == 0 || names[x.Name] || rows*cols != x.Elements() {
				t.Fatalf("tensor %q: %+v at %d, want at %d", x.Name, x.Info, x.offset, at)
			}
			names[x.Name] = true
			at += x.Bytes()
		}
		if at != int64(len(file)) {
			t.Fatalf("tensors end at %d of %d bytes", at, len(file))
		}
	})
}
