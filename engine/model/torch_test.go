package model

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/outrider-dev/outrider/engine/weights"
)

// torchFile is a file as torch.save writes it, of a folder's tensors.
func torchFile(t *testing.T, s *weights.Set) []byte {
	t.Helper()
	classes := map[weights.DType]string{weights.BF16: "BFloat16Storage", weights.F16: "HalfStorage", weights.F32: "FloatStorage"}
	text := func(s string) string {
		return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
	}
	number := func(n int) string { return "J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, data []byte) {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	pickle := "\x80\x02}("
	for i, info := range s.Infos() {
		data := make([]byte, info.Bytes())
		if err := s.Read(info.Name, weights.Whole(info), data); err != nil {
			t.Fatal(err)
		}
		add(fmt.Sprintf("m/data/%d", i), data)
		size, strides := "(", make([]string, len(info.Shape))
		stride := 1
		for d := len(info.Shape) - 1; d >= 0; d-- {
			strides[d] = number(stride)
			stride *= info.Shape[d]
		}
		for _, n := range info.Shape {
			size += number(n)
		}
		pickle += text(info.Name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + classes[info.DType] + "\n" +
			text(fmt.Sprint(i)) + text("cpu") + number(info.Elements()) + "tQ" + number(0) + size + "t(" + strings.Join(strides, "") + "t\x89NtR"
	}
	add("m/data.pkl", []byte(pickle+"u."))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A model gives the same bits from a file of torch as from safetensors.
func TestTorchFilesGiveTheSameModel(t *testing.T) {
	source, config, golden := readFixture(t, "qwen2")
	set, err := weights.Open(source.Files, source.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	configFile, err := os.ReadFile(filepath.Join("testdata", "fixtures", "qwen2", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	torch := Source{"torch", fstest.MapFS{"config.json": {Data: configFile}, "pytorch_model.bin": {Data: torchFile(t, set)}}}
	tokens := golden.Cases[2].IDs
	for _, ranks := range []int{1, 2} {
		a, b := loadFixture(t, source, config, ranks), loadFixture(t, torch, config, ranks)
		pass(t, a, tokens, 0)
		pass(t, b, tokens, 0)
		for i := range tokens {
			if !slices.Equal(a.Logits(i), b.Logits(i)) {
				t.Fatalf("%d ranks: logits of position %d differ", ranks, i)
			}
		}
	}
}
