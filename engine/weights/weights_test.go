package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

// TestModels compares every tensor of real files with a plain reading of them.
func TestModels(t *testing.T) {
	embedded, err := builtin.Open("gocode-7m")
	if err != nil {
		t.Fatal(err)
	}
	head, err := builtin.Open("gocode-7m-eagle3")
	if err != nil {
		t.Fatal(err)
	}
	for name, fsys := range map[string]fs.FS{
		"builtin":         embedded,
		"builtin eagle3":  head,
		"folder":          os.DirFS("../fetch/builtin/gocode-7m"),
		"fixture":         os.DirFS("../model/testdata/fixtures/llama"),
		"folder of embed": os.DirFS("../fetch/builtin/gocode-7m-eagle3"),
	} {
		t.Run(name, func(t *testing.T) {
			file, err := fs.ReadFile(fsys, "model.safetensors")
			if err != nil {
				t.Fatal(err)
			}
			n := binary.LittleEndian.Uint64(file)
			var header map[string]struct {
				DType   string
				Shape   []int
				Offsets [2]int `json:"data_offsets"`
			}
			if err := json.Unmarshal(file[8:8+n], &header); err != nil {
				t.Fatal(err)
			}
			delete(header, "__metadata__")

			s, err := Open(fsys, name)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			infos := s.Infos()
			if len(infos) != len(header) || s.Shards() != 1 || s.Bytes() != int64(len(file))-8-int64(n) {
				t.Fatalf("%d tensors, %d files, %d bytes; want %d, 1, %d", len(infos), s.Shards(), s.Bytes(), len(header), len(file)-8-int(n))
			}
			for _, info := range infos {
				want := header[info.Name]
				if info.DType.String() != want.DType || fmt.Sprint(info.Shape) != fmt.Sprint(want.Shape) {
					t.Errorf("%s: %s %v; want %s %v", info.Name, info.DType, info.Shape, want.DType, want.Shape)
				}
				got := make([]byte, info.Bytes())
				if err := s.Read(info.Name, Whole(info), got); err != nil {
					t.Fatal(err)
				}
				if data := file[8+n:]; !bytes.Equal(got, data[want.Offsets[0]:want.Offsets[1]]) {
					t.Errorf("%s: other bytes than the file's", info.Name)
				}
			}
		})
	}
}

// model is a folder of one file with the given tensors, their data ascending.
func model(t *testing.T, tensors ...Info) (fstest.MapFS, []byte) {
	t.Helper()
	var header strings.Builder
	offset := 0
	for i, x := range tensors {
		shape, _ := json.Marshal(x.Shape)
		fmt.Fprintf(&header, `%s%q:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, map[bool]string{true: ","}[i > 0], x.Name, x.DType, shape, offset, offset+int(x.Bytes()))
		offset += int(x.Bytes())
	}
	b := stored("{"+header.String()+"}", offset)
	return fstest.MapFS{singleFile: {Data: b}}, b[len(b)-offset:]
}

// TestParts reads parts of matrices of many widths, so that each way of
// reading (whole rows, row by row, through the buffer) is taken.
func TestParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shape := range [][]int{{1, 1}, {7, 5}, {3, 4, 6}, {2000, 300}, {5, 20_000}, {3, 300_000}, {9}, {}} {
		info := Info{Name: "w", DType: F16, Shape: shape}
		fsys, data := model(t, Info{Name: "before", DType: U8, Shape: []int{3}}, info)
		data = data[3:]
		s, err := Open(fsys, "m")
		if err != nil {
			t.Fatal(err)
		}
		rows, cols := info.rowsCols()
		for range 30 {
			var sel Slice
			sel.Row, sel.Col = rng.IntN(rows), rng.IntN(cols)
			sel.Rows, sel.Cols = rng.IntN(rows-sel.Row+1), rng.IntN(cols-sel.Col+1)
			if rng.IntN(3) == 0 {
				sel.Col, sel.Cols = 0, cols
			}
			var want []byte
			for r := sel.Row; r < sel.Row+sel.Rows; r++ {
				want = append(want, data[2*(r*cols+sel.Col):2*(r*cols+sel.Col+sel.Cols)]...)
			}
			got := make([]byte, len(want))
			if err := s.Read("w", sel, got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("shape %v: other bytes for %+v", shape, sel)
			}
			floats := make([]float32, len(want)/2)
			if err := s.ReadF32("w", sel, floats); err != nil {
				t.Fatal(err)
			}
			for i, f := range floats {
				if w := halfValue(binary.LittleEndian.Uint16(want[2*i:])); math.Float32bits(f) != math.Float32bits(w) && w == w {
					t.Fatalf("shape %v: %+v: element %d is %v; want %v", shape, sel, i, f, w)
				}
			}
		}
	}
}

// halfValue is a binary16 number by the definition of the format.
func halfValue(h uint16) float32 {
	exp, frac := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(1+frac/1024, exp-15)
	switch {
	case exp == 31 && frac == 0:
		v = math.Inf(1)
	case exp == 31:
		v = math.NaN()
	case exp == 0:
		v = math.Ldexp(frac/1024, -14)
	}
	if h>>15 == 1 {
		v = -v
	}
	return float32(v)
}

// TestConversions reads every bit pattern of the 16-bit types.
func TestConversions(t *testing.T) {
	header := `{"bf":{"dtype":"BF16","shape":[65536],"data_offsets":[0,131072]},` +
		`"h":{"dtype":"F16","shape":[65536],"data_offsets":[131072,262144]},` +
		`"f":{"dtype":"F32","shape":[3],"data_offsets":[262144,262156]},` +
		`"i":{"dtype":"I64","shape":[2],"data_offsets":[262156,262172]}}`
	b := stored(header, 0)
	for range 2 {
		for i := range 1 << 16 {
			b = binary.LittleEndian.AppendUint16(b, uint16(i))
		}
	}
	floats := []float32{1.5, float32(math.Inf(-1)), math.SmallestNonzeroFloat32}
	for _, f := range floats {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	b = binary.LittleEndian.AppendUint64(b, 1<<63)
	b = binary.LittleEndian.AppendUint64(b, 42)
	s, err := Open(fstest.MapFS{singleFile: {Data: b}}, "m")
	if err != nil {
		t.Fatal(err)
	}
	all := Slice{Rows: 1 << 16, Cols: 1}
	got, bits := make([]float32, 1<<16), make([]uint16, 1<<16)
	if err := errors.Join(s.ReadF32("bf", all, got), s.ReadBF16("bf", all, bits)); err != nil {
		t.Fatal(err)
	}
	for i, f := range got {
		if math.Float32bits(f) != uint32(i)<<16 || bits[i] != uint16(i) {
			t.Fatalf("BF16 %#04x: %v, bits %#04x", i, f, bits[i])
		}
	}
	if err := s.ReadF32("h", all, got); err != nil {
		t.Fatal(err)
	}
	for i, f := range got {
		want := halfValue(uint16(i))
		if math.Float32bits(f) != math.Float32bits(want) && !(f != f && want != want) {
			t.Fatalf("F16 %#04x: %v; want %v", i, f, want)
		}
	}
	if err := s.ReadF32("f", Slice{Rows: 3, Cols: 1}, got[:3]); err != nil || got[0] != floats[0] || got[1] != floats[1] || got[2] != floats[2] {
		t.Errorf("F32: %v, %v; want %v", got[:3], err, floats)
	}
	ints := make([]int64, 2)
	if err := s.ReadI64("i", Slice{Rows: 2, Cols: 1}, ints); err != nil || ints[0] != math.MinInt64 || ints[1] != 42 {
		t.Errorf("I64: %v, %v", ints, err)
	}
}

func TestReadErrors(t *testing.T) {
	fsys, _ := model(t, Info{Name: "w", DType: BF16, Shape: []int{4, 6}}, Info{Name: "i", DType: I32, Shape: []int{2}})
	s, err := Open(fsys, "folder")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"unknown tensor", s.Read("x", Slice{}, nil), `folder: tensor "x" is in none of the model's files`},
		{"row beyond", s.Read("w", Slice{4, 1, 0, 6}, make([]byte, 12)), "rows [4, +1) and columns [0, +6) are outside its 4 × 6"},
		{"negative row", s.Read("w", Slice{-1, 1, 0, 6}, make([]byte, 12)), "outside its 4 × 6"},
		{"negative rows", s.Read("w", Slice{1, -1, 0, 6}, nil), "outside its 4 × 6"},
		{"columns beyond", s.Read("w", Slice{0, 1, 1, 6}, make([]byte, 12)), "outside its 4 × 6"},
		{"overflow", s.Read("w", Slice{math.MaxInt, math.MaxInt, 0, 6}, nil), "outside its 4 × 6"},
		{"short buffer", s.Read("w", Slice{0, 2, 0, 6}, make([]byte, 23)), "2 × 6 elements of BF16 takes 24 bytes, not 23"},
		{"short floats", s.ReadF32("w", Slice{0, 2, 0, 6}, make([]float32, 11)), "has 12 elements, not 11"},
		{"I32 as float", s.ReadF32("i", Slice{0, 2, 0, 1}, make([]float32, 2)), `model.safetensors: tensor "i" is stored as I32; wanted is BF16, F16, F32`},
		{"I32 as BF16", s.ReadBF16("i", Slice{0, 2, 0, 1}, make([]uint16, 2)), "wanted is BF16"},
		{"BF16 as I64", s.ReadI64("w", Slice{0, 4, 0, 6}, make([]int64, 24)), "is stored as BF16; wanted is I64"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) || fault.ReasonOf(c.err) != fault.WeightsMismatch {
			t.Errorf("%s: %v (%s); want %q", c.name, c.err, fault.ReasonOf(c.err), c.want)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Read("w", Slice{0, 1, 0, 6}, make([]byte, 12)); err == nil {
		t.Error("reading from a closed set succeeds")
	}
}

// TestShards opens a folder with an index.
func TestShards(t *testing.T) {
	one := stored(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"c":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}`, 4)
	two := stored(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2)
	twoWithA := stored(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3)
	twoWithC := stored(`{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3)
	const index = `{"metadata":{"total_size":6},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}}`
	for _, c := range []struct {
		name   string
		index  string
		second []byte
		want   string
		reason fault.Reason
	}{
		{"right", index, two, "", ""},
		{"copy that the index does not name", index, twoWithA, "", ""},
		{"in two files", index, twoWithC, `m-2.safetensors: tensor "c" is in m-1.safetensors too`, fault.WeightsMismatch},
		{"shard missing", index, nil, "m-2.safetensors is missing, though model.safetensors.index.json names it", fault.ModelNotFound},
		{"shard damaged", index, two[:len(two)-1], `folder: m-2.safetensors: header: tensor "b" ends at byte 2`, fault.WeightsMismatch},
		{"tensor missing", `{"weight_map":{"a":"m-1.safetensors","z":"m-2.safetensors","b":"m-2.safetensors"}}`, two, `m-2.safetensors: tensor "z" is not in the file`, fault.WeightsMismatch},
		{"tensor in another file", `{"weight_map":{"a":"m-2.safetensors","b":"m-2.safetensors"}}`, two, `m-2.safetensors: tensor "a" is not in the file`, fault.WeightsMismatch},
		{"path out of the folder", `{"weight_map":{"a":"../m-1.safetensors"}}`, two, `"../m-1.safetensors" is not the name of a .safetensors file in the model's folder`, fault.WeightsMismatch},
		{"absolute path", `{"weight_map":{"a":"/m-1.safetensors"}}`, two, "is not the name of", fault.WeightsMismatch},
		{"dots inside", `{"weight_map":{"a":"x/../m-1.safetensors"}}`, two, "is not the name of", fault.WeightsMismatch},
		{"backslashes", `{"weight_map":{"a":"..\\m-1.safetensors"}}`, two, "is not the name of", fault.WeightsMismatch},
		{"other file", `{"weight_map":{"a":"config.json"}}`, two, "is not the name of", fault.WeightsMismatch},
		{"empty name", `{"weight_map":{"a":""}}`, two, "is not the name of", fault.WeightsMismatch},
		{"name not a string", `{"weight_map":{"a":["x"]}}`, two, `tensor "a": the file's name is not a string`, fault.WeightsMismatch},
		{"tensor twice", `{"weight_map":{"a":"m-1.safetensors","a":"m-2.safetensors"}}`, two, `"a" is there twice`, fault.WeightsMismatch},
		{"no weight_map", `{"metadata":{}}`, two, "weight_map is missing or empty", fault.WeightsMismatch},
		{"empty weight_map", `{"weight_map":{}}`, two, "weight_map is missing or empty", fault.WeightsMismatch},
		{"weight_map null", `{"weight_map":null}`, two, "not a JSON object", fault.WeightsMismatch},
		{"not JSON", `<html>`, two, "model.safetensors.index.json: ", fault.WeightsMismatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := fstest.MapFS{indexFile: {Data: []byte(c.index)}, "m-1.safetensors": {Data: one}}
			if c.second != nil {
				fsys["m-2.safetensors"] = &fstest.MapFile{Data: c.second}
			}
			s, err := Open(fsys, "folder")
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "folder: ") || fault.ReasonOf(err) != c.reason {
					t.Fatalf("%v (%s); want %q (%s)", err, fault.ReasonOf(err), c.want, c.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range s.Infos() {
				got = append(got, fmt.Sprint(i.Name, i.Shard, i.File, i.Shape))
			}
			want := []string{"a0m-1.safetensors[3]", "c0m-1.safetensors[1]", "b1m-2.safetensors[2]"}
			if fmt.Sprint(got) != fmt.Sprint(want) || s.Shards() != 2 || s.Bytes() != 6 {
				t.Errorf("%v, %d files, %d bytes; want %v, 2, 6", got, s.Shards(), s.Bytes(), want)
			}
			b := make([]byte, 2)
			if err := s.Read("b", Slice{0, 2, 0, 1}, b); err != nil || !bytes.Equal(b, two[len(two)-2:]) {
				t.Errorf("b: %v, %v", b, err)
			}
		})
	}
}

// FuzzIndex feeds indexes. Whatever is accepted names files within the folder only.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":6},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../m-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"x/./y.safetensors","a":1}}`))
	f.Add([]byte(strings.Repeat(`{"weight_map":`, 20000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		index, err := parseIndex(b, ".safetensors")
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		for tensor, file := range index {
			if strings.HasPrefix(file, "/") || slices.Contains(strings.Split(file, "/"), "..") || !strings.HasSuffix(file, ".safetensors") {
				t.Fatalf("tensor %q is in %q", tensor, file)
			}
		}
	})
}

// sequential hides ReadAt of the files of a file system.
type sequential struct{ fs.FS }

func (s sequential) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	return struct{ fs.File }{f}, err
}

// failing has a model.safetensors that fails with an error: to be opened, or to be read.
type failing struct {
	fstest.MapFS
	open, read error
}

func (f failing) Open(name string) (fs.File, error) {
	if f.open != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: f.open}
	}
	file, err := f.MapFS.Open(name)
	return failingFile{file, f.read}, err
}

type failingFile struct {
	fs.File
	err error
}

func (f failingFile) ReadAt(b []byte, at int64) (int, error) {
	if at > 100 {
		return 0, &fs.PathError{Op: "read", Path: "x", Err: f.err}
	}
	return f.File.(io.ReaderAt).ReadAt(b, at)
}

func TestOpenErrors(t *testing.T) {
	fsys, _ := model(t, Info{Name: "w", DType: F32, Shape: []int{100}})
	for _, c := range []struct {
		name   string
		fsys   fs.FS
		want   string
		reason fault.Reason
	}{
		{"empty folder", fstest.MapFS{}, "m: no weights: the folder has none of model.safetensors, model.safetensors.index.json, pytorch_model.bin and pytorch_model.bin.index.json", fault.ModelNotFound},
		{"no folder", os.DirFS(t.TempDir() + "/none"), "m: no weights", fault.ModelNotFound},
		{"folder of that name", fstest.MapFS{singleFile + "/x": {}}, "must be a regular file", fault.WeightsMismatch},
		{"sequential files", sequential{fsys}, "cannot read from the middle of a file", fault.Unsupported},
		{"no permission", failing{fsys, fs.ErrPermission, nil}, "model.safetensors: permission denied", fault.Unauthorized},
		{"broken disk", failing{fsys, errors.New("input/output error"), nil}, "model.safetensors: cannot be read: input/output error", fault.FetchFailed},
	} {
		_, err := Open(c.fsys, "m")
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v (%s); want %q (%s)", c.name, err, fault.ReasonOf(err), c.want, c.reason)
		}
	}
	s, err := Open(failing{fsys, nil, errors.New("input/output error")}, "m")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Read("w", Slice{50, 50, 0, 1}, make([]byte, 200))
	if err == nil || !strings.Contains(err.Error(), "input/output error") || fault.ReasonOf(err) != fault.FetchFailed {
		t.Errorf("a failing disk: %v (%s)", err, fault.ReasonOf(err))
	}
}

// TestTruncatedLater cuts a file after it was opened.
func TestTruncatedLater(t *testing.T) {
	fsys, _ := model(t, Info{Name: "w", DType: F32, Shape: []int{1000}})
	path := t.TempDir()
	if err := os.WriteFile(path+"/"+singleFile, fsys[singleFile].Data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(os.DirFS(path), "m")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Truncate(path+"/"+singleFile, 2000); err != nil {
		t.Fatal(err)
	}
	err = s.Read("w", Slice{0, 1000, 0, 1}, make([]byte, 4000))
	if err == nil || !strings.Contains(err.Error(), `m: model.safetensors: tensor "w": the file ends at byte 2000`) {
		t.Errorf("%v; want that the file ends at byte 2000", err)
	}
}

func TestConcurrentReads(t *testing.T) {
	s, err := Open(os.DirFS("../fetch/builtin/gocode-7m"), "m")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var wg sync.WaitGroup
	for rank := range 4 {
		wg.Go(func() {
			for _, info := range s.Infos() {
				sel := Whole(info)
				sel.Cols /= 4
				sel.Col = sel.Cols * rank
				if err := s.ReadF32(info.Name, sel, make([]float32, sel.Rows*sel.Cols)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestDTypes(t *testing.T) {
	for d := BF16; d <= F8E8M0; d++ {
		if got, ok := parseDType(d.String()); !ok || got != d || d.Size() < 1 {
			t.Errorf("%d: %s of %d bytes is read as %d", d, d, d.Size(), got)
		}
	}
	for _, d := range []DType{0, F8E8M0 + 1, 255} {
		if d.String() != "invalid" || d.Size() != 0 {
			t.Errorf("%d: %s of %d bytes", d, d, d.Size())
		}
	}
}

// BenchmarkReadColumns reads a half of each row, as one of two ranks does.
func BenchmarkReadColumns(b *testing.B) {
	s, err := Open(os.DirFS("../fetch/builtin/gocode-7m"), "m")
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	sel := Slice{Rows: 4096, Cols: 128}
	dst := make([]byte, sel.Rows*sel.Cols*2)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		if err := s.Read("model.embed_tokens.weight", sel, dst); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen reads and checks the headers of a model.
func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		s, err := Open(os.DirFS("../fetch/builtin/gocode-7m"), "m")
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}
