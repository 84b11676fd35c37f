package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// What OpenAI's tiktoken encodes; see testdata/make_tiktoken.py.
func TestTiktokenGoldens(t *testing.T) {
	kimi, err := Load(os.DirFS("testdata/tiktoken"))
	if err != nil {
		t.Fatal(err)
	}
	of, err := patternSpans(o200kPattern)
	if err != nil {
		t.Fatal(err)
	}
	o200k := &Tokenizer{
		vocabulary: kimi.vocabulary, merges: kimi.merges, ignore: true, added: kimi.added, addedNormalized: kimi.addedNormalized,
		split: newSplitter(of, "Isolated", false), cache: map[string][]int32{},
	}
	b, err := os.ReadFile("testdata/tiktoken/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct {
		Text        string
		Kimi, O200k []int32
	}
	if err := json.Unmarshal(b, &golden); err != nil || len(golden) < 150 {
		t.Fatalf("%v, %d goldens", err, len(golden))
	}
	for _, g := range golden {
		if got := kimi.Encode(g.Text, true); !slices.Equal(got, g.Kimi) {
			t.Errorf("kimi: %q: got %v: want %v", g.Text, got, g.Kimi)
		}
		if got := o200k.Encode(g.Text, false); !slices.Equal(got, g.O200k) {
			t.Errorf("o200k: %q: got %v: want %v", g.Text, got, g.O200k)
		}
		if got := kimi.Decode(g.Kimi, false); got != g.Text {
			t.Errorf("%q comes back as %q", g.Text, got)
		}
	}
	if id, ok := kimi.TokenID("<|im_end|>"); !ok || id != 602 || !kimi.IsSpecial(id) || kimi.VocabSize() != 600+kimiReserved {
		t.Errorf("<|im_end|> is %d, %t, of %d", id, ok, kimi.VocabSize())
	}
}

func TestWrongTiktoken(t *testing.T) {
	whole := fstest.MapFS{}
	for _, name := range []string{tiktokenFile, configFile} {
		b, err := os.ReadFile("testdata/tiktoken/" + name)
		if err != nil {
			t.Fatal(err)
		}
		whole[name] = &fstest.MapFile{Data: b}
	}
	model := string(whole[tiktokenFile].Data)
	for name, c := range map[string]struct{ file, text, message string }{
		"not base64":      {tiktokenFile, "! 0\n", "line 1"},
		"no rank":         {tiktokenFile, "AA==\n", "is not a token in base64 and its rank"},
		"a gap":           {tiktokenFile, "AA== 1\n", "line 1 has rank 1: ranks must go from 0 up"},
		"twice":           {tiktokenFile, model + "AA== 600\n", "line 601 has a token that an earlier one has"},
		"few bytes":       {tiktokenFile, "AA== 0\n", "there is no token for byte 0x01"},
		"no config":       {configFile, "", "needs a tokenizer_config.json beside it"},
		"config":          {configFile, "{", "tokenizer_config.json: "},
		"class":           {configFile, `{"tokenizer_class":"QWenTokenizer"}`, `tokenizer_class is "QWenTokenizer"`},
		"special outside": {configFile, `{"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{"5":{"content":"x"}}}`, "allowed here are 600 to 857"},
		"special twice":   {configFile, `{"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{"600":{"content":"x"},"601":{"content":"x"}}}`, "is there twice"},
	} {
		files := maps.Clone(whole)
		files[c.file] = &fstest.MapFile{Data: []byte(c.text)}
		if c.text == "" {
			delete(files, c.file)
		}
		if _, err := Load(files); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: got %v: want an error with %q", name, err, c.message)
		}
	}
}

func FuzzTiktoken(f *testing.F) {
	b, err := os.ReadFile("testdata/tiktoken/" + tiktokenFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(b), `{"tokenizer_class":"TikTokenTokenizer"}`, "hello")
	f.Fuzz(func(t *testing.T, model, config, text string) {
		tok, err := Load(fstest.MapFS{tiktokenFile: {Data: []byte(model)}, configFile: {Data: []byte(config)}})
		if err == nil {
			tok.Decode(tok.Encode(text, true), true)
		}
	})
}

// A token of a stream costs the same at 32,000 tokens as at 10.
func BenchmarkStreamDecode(b *testing.B) {
	tok := gocode(b)
	ids := tok.Encode(strings.Repeat("func main() { fmt.Println(\"größe 日本\") }\n", 40), false)
	for _, length := range []int{10, 1000, 32000} {
		b.Run(fmt.Sprintf("after %d", length), func(b *testing.B) {
			d := tok.NewDecoder(true)
			var text []byte
			for i := range length {
				text = d.Push(text[:0], ids[i%len(ids)])
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				text = d.Push(text[:0], ids[i%len(ids)])
			}
		})
	}
}
