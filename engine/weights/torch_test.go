package weights

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/fault"
)

// goldens are what testdata/make_torch.py says is in its files.
type goldens map[string]map[string]struct {
	DType string
	Shape []int
	Data  string
}

func readGoldens(t testing.TB) goldens {
	t.Helper()
	b, err := os.ReadFile("testdata/torch/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var g goldens
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// torchFolder is a folder with one of the files as its pytorch_model.bin.
func torchFolder(t testing.TB, file string) fstest.MapFS {
	t.Helper()
	b, err := os.ReadFile("testdata/torch/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{torchSingle: {Data: b}}
}

// TestTorch compares files that torch wrote with what torch had in memory,
// whole, by rows, by columns and by parts.
func TestTorch(t *testing.T) {
	all := readGoldens(t)
	folders := map[string]fs.FS{"sharded": os.DirFS("testdata/torch")}
	all["sharded"] = all["pytorch_model-00001-of-00002.bin"]
	for name, x := range all["pytorch_model-00002-of-00002.bin"] {
		all["sharded"][name] = x
	}
	for name := range all {
		if name != "sharded" && !strings.HasPrefix(name, "pytorch_model-") {
			folders[name] = torchFolder(t, name)
		}
	}
	for name, fsys := range folders {
		t.Run(name, func(t *testing.T) {
			s, err := Open(fsys, name)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if len(s.Infos()) != len(all[name]) || len(all[name]) == 0 {
				t.Fatalf("%d tensors, want %d", len(s.Infos()), len(all[name]))
			}
			for _, info := range s.Infos() {
				want, ok := all[name][info.Name]
				data, err := hex.DecodeString(want.Data)
				if err != nil {
					t.Fatal(err)
				}
				if !ok || info.DType.String() != want.DType || fmt.Sprint(info.Shape) != fmt.Sprint(want.Shape) {
					t.Fatalf("%s: %s %v; want %s %v", info.Name, info.DType, info.Shape, want.DType, want.Shape)
				}
				rows, cols := info.rowsCols()
				size := info.DType.Size()
				for r := range rows + 1 {
					for n := range rows - r + 1 {
						for c := range cols + 1 {
							for m := range cols - c + 1 {
								sel := Slice{r, n, c, m}
								var part []byte
								for i := r; i < r+n; i++ {
									part = append(part, data[(i*cols+c)*size:(i*cols+c+m)*size]...)
								}
								got := make([]byte, len(part))
								if err := s.Read(info.Name, sel, got); err != nil {
									t.Fatal(err)
								}
								if !bytes.Equal(got, part) {
									t.Fatalf("%s: %+v is %x, want %x", info.Name, sel, got, part)
								}
							}
						}
					}
				}
			}
		})
	}
}

// A strided matrix whose rows and columns do not fit the buffer.
func TestLargeStrides(t *testing.T) {
	const rows, cols = 3, 700_000
	data := make([]byte, 2*rows*cols)
	for i := range rows * cols {
		binary.LittleEndian.PutUint16(data[2*i:], uint16(i*31+i>>16))
	}
	for name, stride := range map[string][2]int{"transposed": {1, rows}, "every other column": {cols, 2}, "far apart": {1, rows * 200_000}} {
		var r, c int
		switch name {
		case "transposed":
			r, c = rows, cols
		case "every other column":
			r, c = rows, cols/2
		default:
			r, c = 5, 3
		}
		p := tensorPickle("w", "HalfStorage", rows*cols, 0, []int{r, c}, stride[:])
		s, err := Open(fstest.MapFS{torchSingle: {Data: archive(t, p, data)}}, "m")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := make([]byte, 2*r*c)
		if err := s.Read("w", Slice{0, r, 0, c}, got); err != nil {
			t.Fatal(err)
		}
		for i := range r {
			for j := range c {
				at := 2 * (i*stride[0] + j*stride[1])
				if !bytes.Equal(got[2*(i*c+j):2*(i*c+j)+2], data[at:at+2]) {
					t.Fatalf("%s: element (%d, %d) is wrong", name, i, j)
				}
			}
		}
		s.Close()
	}
}

func TestWhichFilesCount(t *testing.T) {
	torch, _ := os.ReadFile("testdata/torch/state_dict.bin")
	safe, _ := model(t, Info{Name: "w", DType: U8, Shape: []int{3}})
	both := fstest.MapFS{singleFile: safe[singleFile], torchSingle: {Data: torch}}
	s, err := Open(both, "m")
	if err != nil || len(s.Infos()) != 1 || s.Infos()[0].File != singleFile {
		t.Errorf("a folder with both gives %v, %v; want safetensors", s, err)
	}
	delete(both, singleFile)
	both[indexFile] = &fstest.MapFile{Data: []byte(`{"weight_map":{"w":"part.safetensors"}}`)}
	both["part.safetensors"] = safe[singleFile]
	if s, err := Open(both, "m"); err != nil || s.Infos()[0].File != "part.safetensors" {
		t.Errorf("a folder with a safetensors index and a torch file gives %v, %v; want the first", s, err)
	}
	index := fstest.MapFS{torchIndex: {Data: []byte(`{"weight_map":{"w":"part.safetensors"}}`)}}
	if _, err := Open(index, "m"); err == nil || !strings.Contains(err.Error(), torchIndex+`: weight_map: tensor "w": "part.safetensors" is not the name of a .bin file`) {
		t.Errorf("a torch index that names safetensors gives %v", err)
	}
	index[torchIndex].Data = []byte(`{"weight_map":{"w":"part.bin"}}`)
	if _, err := Open(index, "m"); fault.ReasonOf(err) != fault.ModelNotFound || !strings.Contains(err.Error(), "part.bin is missing, though "+torchIndex+" names it") {
		t.Errorf("a torch index of a missing file gives %v", err)
	}
	if _, err := Open(fstest.MapFS{}, "m"); fault.ReasonOf(err) != fault.ModelNotFound || !strings.Contains(err.Error(), torchSingle) {
		t.Errorf("an empty folder gives %v", err)
	}
}

// archive is a file of torch with that pickle and one storage, "0".
func archive(t testing.TB, pickle string, data []byte) []byte {
	return zipped(t, zip.Store, "m/data.pkl", pickle, "m/byteorder", "little", "m/data/0", string(data))
}

// zipped is a zip archive of names and contents in turn.
func zipped(t testing.TB, method uint16, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		w, err := z.CreateHeader(&zip.FileHeader{Name: files[i], Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Pieces of pickles.

func pstr(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func pint(n int) string {
	return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

func pints(n []int) string {
	s := "("
	for _, v := range n {
		s += pint(v)
	}
	return s + "t"
}

func pglobal(name string) string {
	at := strings.LastIndex(name, ".")
	return "c" + name[:at] + "\n" + name[at+1:] + "\n"
}

func pstorage(class, key string, n int) string {
	return "(" + pstr("storage") + pglobal(class) + pstr(key) + pstr("cpu") + pint(n) + "tQ"
}

func ptensor(storage string, offset int, size, stride []int) string {
	return pglobal("torch._utils._rebuild_tensor_v2") + "(" + storage + pint(offset) + pints(size) + pints(stride) + "\x89" + pglobal("collections.OrderedDict") + ")RtR"
}

func pdict(items ...string) string { return "\x80\x02}(" + strings.Join(items, "") + "u." }

// tensorPickle is a pickle of one tensor in the storage "0".
func tensorPickle(name, class string, n, offset int, size, stride []int) string {
	return pdict(pstr(name), ptensor(pstorage("torch."+class, "0", n), offset, size, stride))
}

func TestMalformedTorchFilesAreRefused(t *testing.T) {
	tensor := func(class string, n, offset int, size, stride []int) string {
		return tensorPickle("w", class, n, offset, size, stride)
	}
	sound := tensor("FloatStorage", 6, 0, []int{2, 3}, []int{3, 1})
	ok := ptensor(pstorage("torch.FloatStorage", "0", 6), 0, []int{6}, []int{1})
	const max = math.MaxInt64
	for name, c := range map[string]struct{ pickle, says string }{
		"sound":                   {sound, ""},
		"sound, of values stored": {"\x80\x02}q\x00(" + pstr("a") + "q\x01" + ok + "r\x02\x01\x00\x00" + pstr("b") + "j\x02\x01\x00\x00u.", ""},

		// What would run programs in Python.
		"os.system":              {"\x80\x02cos\nsystem\n(" + pstr("true") + "tR.", `the pickle asks for "os.system", and only tensors`},
		"os.system in a dict":    {pdict(pstr("w"), "cposix\nsystem\n("+pstr("true")+"tR"), `the pickle asks for "posix.system"`},
		"eval, by the stack":     {"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", `the pickle asks for "builtins.eval"`},
		"another of torch":       {"\x80\x02ctorch.hub\nload\n.", `the pickle asks for "torch.hub.load"`},
		"dotted name":            {"\x80\x04\x8c\x05torch\x8c\x10serialization.os\x93.", `the pickle asks for "torch.serialization.os"`},
		"a name with newlines":   {"\x80\x04\x8c\x05a\nb\nc\x8c\x01d\x93.", `asks for "a\nb\nc.d"`},
		"a storage class called": {pdict(pstr("w"), pglobal("torch.FloatStorage")+")R"), "something is called that is no function for making tensors"},
		"a string called":        {pdict(pstr("w"), pstr("f")+")R"), "something is called that is no function"},
		"a made thing called":    {pdict(pstr("w"), pglobal("collections.OrderedDict")+")R)R"), "something is called that is no function"},
		"INST":                   {"\x80\x02(ios\nsystem\n.", "operation 0x69 is not one that a file of tensors needs"},
		"OBJ":                    {"\x80\x02(cos\nsystem\no.", "os.system"},
		"NEWOBJ":                 {pdict(pstr("w"), pglobal("collections.OrderedDict")+")\x81"), "operation 0x81"},
		"EXT1":                   {"\x80\x02\x82\x01.", "operation 0x82"},
		"persistent by text":     {"\x80\x02P0\n.", "operation 0x50"},
		"build a tensor":         {pdict(pstr("w"), ok+"}b"), "the state of an object is set"},
		"build with a tuple":     {"\x80\x02})b.", "the state of an object is set"},
		"dict with arguments":    {pdict(pstr("w"), pglobal("collections.OrderedDict")+"()tR"), "made with arguments"},

		// Damage.
		"empty":                {"", "the pickle is cut short"},
		"cut in a string":      {sound[:len(sound)-3], "the pickle is cut short"},
		"a long string":        {"\x80\x02X\xff\xff\xff\x7fabc", "the pickle is cut short"},
		"a very long string":   {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "the pickle is cut short"},
		"no UTF-8":             {"\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"},
		"stack empty":          {"\x80\x02.", "0 values left"},
		"two values":           {"\x80\x02NN.", "2 values left"},
		"bytes behind":         {sound + "N", "1 bytes to come"},
		"a mark left":          {"\x80\x02}(.", "the pickle ends"},
		"no mark":              {"\x80\x02t.", "wants a mark"},
		"below the mark":       {"\x80\x02NN(\x86.", "wants more values than there are"},
		"stored nothing":       {"\x80\x02q\x00.", "wants more values"},
		"not stored":           {"\x80\x02h\x07.", "value 7 was not stored"},
		"protocol 0":           {"\x80\x00N.", "pickle protocol 0: supported are 2 to 5"},
		"long integer":         {"\x80\x02\x8a\x0900000000000.", "an integer of 9 bytes"},
		"name without end":     {"\x80\x02c" + strings.Repeat("x", 5000), "does not end within 256 bytes"},
		"key a number":         {pdict("K\x01", ok), "a key of a dictionary is no string"},
		"odd items":            {pdict(pstr("a")), "has no value"},
		"items to a tuple":     {"\x80\x02)" + pstr("a") + "Ns.", "no list or dictionary"},
		"a dict to a list":     {"\x80\x02]" + pstr("a") + "Ns.", "no list or dictionary"},
		"no dict":              {"\x80\x02].", "no dictionary of tensors"},
		"a number":             {pdict(pstr("step"), "K\x05"), `"step" is no tensor`},
		"a dict in the dict":   {pdict(pstr("model"), "}"), `"model" is no tensor`},
		"itself":               {"\x80\x02}q\x00" + pstr("a") + "h\x00s.", `"a" is no tensor`},
		"twice":                {pdict(pstr("a"), ok, pstr("a"), ok), `tensor "a" is there twice`},
		"persistent id":        {"\x80\x02NQ.", "no storage of torch"},
		"another persistent":   {"\x80\x02((NNNNttQ.", "no storage of torch"},
		"storage of no class":  {pdict(pstr("w"), "("+pstr("storage")+"N"+pstr("0")+pstr("cpu")+pint(6)+"tQ"), "another form than"},
		"tensor of no storage": {pdict(pstr("w"), ptensor("N", 0, []int{1}, []int{1})), "made of other arguments"},
		"too few arguments":    {pdict(pstr("w"), pglobal("torch._utils._rebuild_tensor_v2")+")R"), "made of 0 arguments"},
		"parameter of nothing": {pdict(pstr("w"), pglobal("torch._utils._rebuild_parameter")+")R"), "a parameter is made of something else"},
		"bytes without a type": {pdict(pstr("w"), ptensor(pstorage("torch.UntypedStorage", "0", 24), 0, []int{6}, []int{1})), "without a type"},

		// Places.
		"another storage":     {pdict(pstr("w"), ptensor(pstorage("torch.FloatStorage", "1", 6), 0, []int{6}, []int{1})), "is not in the archive"},
		"a storage outside":   {pdict(pstr("w"), ptensor(pstorage("torch.FloatStorage", "../data.pkl", 6), 0, []int{6}, []int{1})), "is not in the archive"},
		"storage too long":    {tensor("FloatStorage", 7, 0, []int{2}, []int{1}), "its storage is said to have 7 elements of 4 bytes, but the archive has 24"},
		"storage much longer": {tensor("FloatStorage", max/4+8, 0, []int{2}, []int{1}), "its storage is said to have"},
		"negative storage":    {tensor("FloatStorage", -6, 0, []int{2}, []int{1}), "its storage is said to have -6"},
		"other class":         {tensor("DoubleStorage", 6, 0, []int{2}, []int{1}), "6 elements of 8 bytes"},
		"negative size":       {tensor("FloatStorage", 6, 0, []int{-1}, []int{1}), "a dimension is -1"},
		"size too large":      {tensor("FloatStorage", 6, 0, []int{7}, []int{1}), "7 elements in a storage that has 6"},
		"sizes overflow":      {tensor("FloatStorage", 6, 0, []int{1 << 40, 1 << 40}, []int{1, 1}), "more elements than can be addressed"},
		"sizes and a zero":    {tensor("FloatStorage", 6, 0, []int{1 << 40, 0, 1 << 40}, []int{1, 1, 1}), "more elements than can be addressed"},
		"offset":              {tensor("FloatStorage", 6, 5, []int{2}, []int{1}), "2 elements in a storage that has 1"},
		"offset beyond":       {tensor("FloatStorage", 6, 7, []int{0}, []int{1}), "begins at element 7 of a storage of 6"},
		"offset negative":     {tensor("FloatStorage", 6, -1, []int{2}, []int{1}), "begins at element -1"},
		"offset overflows":    {tensor("FloatStorage", 6, max, []int{2}, []int{1}), "begins at element"},
		"stride beyond":       {tensor("FloatStorage", 6, 0, []int{2, 3}, []int{4, 1}), "dimension 1 has 3 elements with a stride of 1"},
		"stride overflows":    {tensor("FloatStorage", 6, 0, []int{3, 2}, []int{max / 2, max / 2}), "dimension 0 has 3 elements with a stride"},
		"stride negative":     {tensor("FloatStorage", 6, 5, []int{1, 1}, []int{-1, -1}), ""},
		"strides negative":    {tensor("FloatStorage", 6, 3, []int{3}, []int{-1}), "with a stride of -1"},
		"expanded":            {tensor("FloatStorage", 6, 0, []int{2, 3}, []int{0, 1}), "with a stride of 0"},
		"few strides":         {tensor("FloatStorage", 6, 0, []int{2, 3}, []int{1}), "2 dimensions and 1 strides"},
		"many dimensions":     {tensor("FloatStorage", 6, 0, make([]int, 65), make([]int, 65)), "65 dimensions"},
		"strided cube":        {tensor("FloatStorage", 6, 0, []int{1, 3, 2}, []int{6, 1, 3}), "supported for vectors and matrices"},
	} {
		s, err := Open(fstest.MapFS{torchSingle: {Data: archive(t, c.pickle, make([]byte, 24))}}, "m")
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				s.Close()
			}
			continue
		}
		if err == nil || fault.ReasonOf(err) != fault.WeightsMismatch || !strings.HasPrefix(err.Error(), "m: pytorch_model.bin: ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line saying %q", name, err, c.says)
		}
	}
}

func TestMalformedArchivesAreRefused(t *testing.T) {
	sound := tensorPickle("w", "FloatStorage", 6, 0, []int{6}, []int{1})
	data := string(make([]byte, 24))
	whole := archive(t, sound, []byte(data))
	long := bytes.Clone(whole)
	at := bytes.LastIndex(long, []byte("PK\x01\x02")) // the storage's entry in the directory
	binary.LittleEndian.PutUint32(long[at+20:], 1<<30)
	binary.LittleEndian.PutUint32(long[at+24:], 1<<30)
	coded := bytes.Clone(whole) // said to be compressed, to as many bytes
	binary.LittleEndian.PutUint16(coded[at+10:], zip.Deflate)
	legacy, _ := os.ReadFile("testdata/torch/legacy.bin")
	for name, c := range map[string]struct {
		file []byte
		says string
	}{
		"no zip":         {[]byte("not an archive, but long enough"), "no zip archive of torch"},
		"empty":          {nil, "no zip archive of torch"},
		"cut short":      {whole[:len(whole)-30], "no zip archive of torch"},
		"older format":   {legacy, "from before version 1.6"},
		"LFS":            {[]byte("version https://git-lfs.github.com/spec/v1\noid x\n"), "git lfs pull"},
		"no pickle":      {zipped(t, zip.Store, "m/data/0", data), "no data.pkl"},
		"deeper pickle":  {zipped(t, zip.Store, "m/n/data.pkl", sound), "no data.pkl"},
		"two pickles":    {zipped(t, zip.Store, "m/data.pkl", sound, "n/data.pkl", sound), "more than one data.pkl"},
		"entries twice":  {zipped(t, zip.Store, "m/data.pkl", sound, "m/data/0", data, "m/data/0", data), `"m/data/0" twice`},
		"big-endian":     {zipped(t, zip.Store, "m/data.pkl", sound, "m/byteorder", "big", "m/data/0", data), `byte order is "big"`},
		"compressed":     {zipped(t, zip.Deflate, "m/data.pkl", sound, "m/data/0", data), "is compressed or encrypted"},
		"coded":          {coded, "is compressed or encrypted"},
		"storage beyond": {long, "reaches beyond the file's end"},
		"no storage":     {zipped(t, zip.Store, "m/data.pkl", sound), "is not in the archive"},
	} {
		_, err := Open(fstest.MapFS{torchSingle: {Data: c.file}}, "m")
		if err == nil || fault.ReasonOf(err) != fault.WeightsMismatch || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line saying %q", name, err, c.says)
		}
	}
}

// Small pickles must not make much, however they nest, repeat or announce.
func TestPickleBombs(t *testing.T) {
	nested := strings.Repeat("]", 200_000) + strings.Repeat("a", 199_999)
	doubled := "\x80\x02)"
	for range 5000 { // a tuple of two of the last, 5000 times: 2^5000 leaves
		doubled += "q\x00h\x00\x86"
	}
	for name, c := range map[string]struct{ pickle, says string }{
		"nested lists":     {"\x80\x02" + nested + ".", "no dictionary of tensors"},
		"doubled tuples":   {doubled + ".", "no dictionary of tensors"},
		"marks":            {"\x80\x02" + strings.Repeat("(", maxValues+10), "makes more than 8388608 values"},
		"values":           {"\x80\x02" + strings.Repeat("N", maxValues+10), "makes more than 8388608 values"},
		"values thrown":    {"\x80\x02" + strings.Repeat("N0", maxValues+10) + "}.", "makes more than 8388608 values"},
		"far memory":       {"\x80\x02Nr\xff\xff\xff\xff.", "no dictionary of tensors"},
		"announced string": {"\x80\x02X\xff\xff\xff\xff.", "cut short"},
	} {
		pickle := c.pickle
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := unpickle([]byte(pickle))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want an error that says %q", name, err, c.says)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 100*uint64(len(pickle))+1<<20 {
			t.Errorf("%s of %d bytes allocates %d", name, len(pickle), grown)
		}
	}
}

func FuzzUnpickle(f *testing.F) {
	ok := ptensor(pstorage("torch.FloatStorage", "0", 6), 0, []int{6}, []int{1})
	f.Add([]byte(tensorPickle("w", "FloatStorage", 6, 0, []int{2, 3}, []int{3, 1})))
	f.Add([]byte(pdict(pstr("a"), ok, pstr("b"), "K\x05")))
	f.Add([]byte("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05torch\x8c\x08bfloat16\x93\x94h\x00."))
	f.Add([]byte("\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR."))
	f.Add([]byte("\x80\x02}q\x00(h\x00h\x00tq\x01}b."))
	for _, name := range []string{"state_dict.bin", "kinds.bin", "newer-protocol5.bin"} {
		b, err := os.ReadFile("testdata/torch/" + name)
		if err != nil {
			f.Fatal(err)
		}
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range z.File {
			if strings.HasSuffix(e.Name, "data.pkl") {
				pickle, err := readEntry(bytes.NewReader(b), int64(len(b)), e, 1<<20)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(pickle)
			}
		}
	}
	f.Fuzz(func(t *testing.T, pickle []byte) {
		pairs, err := unpickle(pickle)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		const length = 1000
		for _, p := range pairs {
			value, ok := p.value.(*pickleTensor)
			if !ok {
				continue
			}
			x, err := value.place(p.key, func(string) (int64, int64, error) { return 64, length, nil })
			if err != nil {
				continue
			}
			// Each element must lie within the storage.
			rows, cols := x.rowsCols()
			rs, cs := x.rowStride, x.colStride
			if rs == 0 && cs == 0 {
				rs, cs = cols, 1
			}
			if x.Elements() == 0 {
				continue
			}
			last := x.offset + int64((rows-1)*rs+(cols-1)*cs+1)*int64(x.DType.Size())
			if x.offset < 64 || last > 64+length || x.Bytes() > length {
				t.Fatalf("%q: %+v at %d to %d of a storage of %d", p.key, x, x.offset, last, length)
			}
		}
	})
}

func FuzzTorch(f *testing.F) {
	for _, name := range []string{"state_dict.bin", "newer-protocol4.bin", "legacy.bin"} {
		b, err := os.ReadFile("testdata/torch/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(archive(f, tensorPickle("w", "FloatStorage", 6, 0, []int{3, 2}, []int{1, 3}), make([]byte, 24)))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := Open(fstest.MapFS{torchSingle: {Data: file}}, "m")
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		defer s.Close()
		for _, info := range s.Infos() {
			if info.Bytes() > int64(len(file)) {
				t.Fatalf("%q has %d bytes of a file of %d", info.Name, info.Bytes(), len(file))
			}
			if err := s.Read(info.Name, Whole(info), make([]byte, info.Bytes())); err != nil {
				t.Fatal(err)
			}
		}
	})
}
