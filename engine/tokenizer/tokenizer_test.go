package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/engine/fetch/builtin"
)

func gocode(t testing.TB) *Tokenizer {
	t.Helper()
	files, err := builtin.Open("gocode-7m")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestGolden(t *testing.T) {
	b, err := os.ReadFile("../model/testdata/golden/gocode.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Speculation []struct {
			Text       string
			PromptIDs  []int32 `json:"prompt_ids"`
			OutputIDs  []int32 `json:"output_ids"`
			OutputText string  `json:"output_text"`
		}
		Tokenizer []struct {
			Text           string
			IDs            []int32
			IDsWithSpecial []int32 `json:"ids_with_special"`
			Decoded        string
		}
	}
	if err := json.Unmarshal(b, &golden); err != nil {
		t.Fatal(err)
	}
	tok := gocode(t)
	if len(golden.Tokenizer) == 0 || len(golden.Speculation) == 0 {
		t.Fatal("the golden file is empty")
	}
	for _, c := range golden.Tokenizer {
		if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
			t.Errorf("%q: %v, want %v", c.Text, got, c.IDs)
		}
		if got := tok.Encode(c.Text, true); !slices.Equal(got, c.IDsWithSpecial) {
			t.Errorf("%q with special tokens: %v, want %v", c.Text, got, c.IDsWithSpecial)
		}
		if got := tok.Decode(c.IDs, false); got != c.Decoded {
			t.Errorf("%v decodes to %q, want %q", c.IDs, got, c.Decoded)
		}
	}
	for _, c := range golden.Speculation {
		if got := tok.Encode(c.Text, true); !slices.Equal(got, c.PromptIDs) {
			t.Errorf("%q: %v, want %v", c.Text, got, c.PromptIDs)
		}
		if got := tok.Decode(c.OutputIDs, true); got != c.OutputText {
			t.Errorf("output of %q decodes to %q, want %q", c.Text, got, c.OutputText)
		}
	}
}

// The reference is the Rust implementation; see testdata/make_reference.py.
func TestReference(t *testing.T) {
	b, err := os.ReadFile("testdata/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var reference struct {
		Encode, Decode []struct {
			Text string
			IDs  []int32
		}
	}
	if err := json.Unmarshal(b, &reference); err != nil {
		t.Fatal(err)
	}
	tok := gocode(t)
	for _, c := range reference.Encode {
		if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
			t.Errorf("%q: %v, want %v", c.Text, got, c.IDs)
		}
	}
	for _, c := range reference.Decode {
		if got := tok.Decode(c.IDs, false); got != c.Text {
			t.Errorf("%v: %q, want %q", c.IDs, got, c.Text)
		}
	}
	if len(reference.Encode) < 500 || len(reference.Decode) < 200 {
		t.Errorf("%d and %d cases", len(reference.Encode), len(reference.Decode))
	}
}

// alphabet mixes what the split patterns tell apart.
var alphabet = []rune("aZé本'sSſtTrReEvVlLdDmM  \t\n\r\u00a0\u30000١9½Ⅷ.,<>|_🙂\u200d\u0301")

func randomText(rng *rand.Rand) string {
	r := make([]rune, rng.IntN(40))
	for i := range r {
		r[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(r)
}

// The scanner gives the pieces of the pattern it stands for.
func TestScannerEqualsThePattern(t *testing.T) {
	byPattern, err := regexpSplitter(llama3Pattern)
	if err != nil {
		t.Fatal(err)
	}
	scanner, err := newSplitter(llama3Pattern)
	if err != nil {
		t.Fatal(err)
	}
	collect := func(s splitter, text string) (pieces []string) {
		s(text, func(p string) { pieces = append(pieces, p) })
		return pieces
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 30000 {
		// The reference folds the long s to s in contractions, as the scanner
		// does; the pattern engine here does not.
		text := strings.ReplaceAll(randomText(rng), "ſ", "s")
		got, want := collect(scanner, text), collect(byPattern, text)
		if !slices.Equal(got, want) {
			t.Fatalf("%q: pieces %q, want %q", text, got, want)
		}
		if strings.Join(got, "") != text {
			t.Fatalf("%q: the pieces are not the text: %q", text, got)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	tok := gocode(t)
	rng := rand.New(rand.NewPCG(2, 2))
	for range 20000 {
		text := randomText(rng)
		if got := tok.Decode(tok.Encode(text, false), false); got != text {
			t.Fatalf("%q comes back as %q", text, got)
		}
	}
	if got := tok.Decode(tok.Encode("a\xffb\xc3", false), false); got != "a\uFFFDb\uFFFD" {
		t.Errorf("bytes that are not UTF-8 come back as %q", got)
	}
}

// What a stream gives, put together, is the decoded whole, and never broken.
func TestStreamEqualsDecode(t *testing.T) {
	tok := gocode(t)
	rng := rand.New(rand.NewPCG(3, 3))
	for range 5000 {
		ids := make([]int32, rng.IntN(30))
		for i := range ids {
			ids[i] = rng.Int32N(300) // mostly single bytes: broken code points
			if rng.IntN(10) == 0 {
				ids[i] = rng.Int32N(6000) - 1000 // some without a token
			}
		}
		skip := rng.IntN(2) == 0
		d := tok.NewDecoder(skip)
		var text strings.Builder
		for _, id := range ids {
			part := d.Push(id)
			if !utf8.ValidString(part) {
				t.Fatalf("%v: a part is %q", ids, part)
			}
			text.WriteString(part)
		}
		text.WriteString(d.Flush())
		if want := tok.Decode(ids, skip); text.String() != want {
			t.Fatalf("%v: stream %q, whole %q", ids, text.String(), want)
		}
	}
}

// One U+FFFD stands for each longest beginning of a code point. (The examples
// are those of table 3-8 and beside it in the Unicode standard.)
func TestMaximalSubparts(t *testing.T) {
	tok := gocode(t)
	for in, want := range map[string]string{
		"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41": strings.Repeat("\uFFFD", 8) + "A",
		"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41": strings.Repeat("\uFFFD", 8) + "A",
		"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42": strings.Repeat("\uFFFD", 5) + "A\uFFFD\uFFFDB",
		"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41": strings.Repeat("\uFFFD", 4) + "A",
		"\xe6\x97":                             "\uFFFD",
	} {
		var ids []int32
		for i := range len(in) {
			ids = append(ids, tok.unit[in[i]])
		}
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("% x decodes to %q, want %q", in, got, want)
		}
	}
}

func TestSpecialTokens(t *testing.T) {
	tok := gocode(t)
	if id, ok := tok.TokenID("<|eot_id|>"); !ok || id != 4 || !tok.IsSpecial(id) {
		t.Errorf("<|eot_id|> is %d, %v", id, ok)
	}
	if got := tok.Decode([]int32{0, 69, 4, 70}, true); got != "ab" {
		t.Errorf("without special tokens: %q", got)
	}
	if tok.IsSpecial(69) || tok.IsSpecial(-1) || tok.IsSpecial(1<<30) {
		t.Error("an ordinary or unknown id is special")
	}
	if got := tok.TokenBytes(69); string(got) != "a" || tok.TokenBytes(-1) != nil || tok.TokenBytes(1<<30) != nil {
		t.Errorf("bytes of token 69: %q", got)
	}
	if tok.VocabSize() != 4096 {
		t.Errorf("%d ids", tok.VocabSize())
	}
	added := newAddedTokens([]addedToken{{"<a>", 1}, {"<a><b>", 2}, {"[x]", 3}})
	for text, want := range map[string][2]int32{"zz<a><b>": {2, 2}, "<<a>": {1, 1}, "[x]<a>": {0, 3}, "[<a": {3, 0}, "": {0, 0}} {
		if at, token := added.find(text); int32(at) != want[0] || token.id != want[1] {
			t.Errorf("%q: token %d at %d, want %v", text, token.id, at, want)
		}
	}
}

// small is a tokenizer.json that is accepted.
func small() map[string]any {
	vocab := map[string]int{}
	for r, b := range byteOf {
		vocab[string(r)] = int(b)
	}
	vocab["ab"], vocab["abc"] = 256, 257
	return map[string]any{
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{"a b", []string{"ab", "c"}}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"added_tokens":  []any{map[string]any{"id": 258, "content": "<s>", "special": true}},
	}
}

func load(t *testing.T, f map[string]any) (*Tokenizer, error) {
	t.Helper()
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return Load(fstest.MapFS{"tokenizer.json": &fstest.MapFile{Data: b}})
}

func TestBothSpellingsOfMerges(t *testing.T) {
	tok, err := load(t, small())
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abcab<s>b", false); !slices.Equal(got, []int32{257, 256, 258, 'b'}) {
		t.Errorf("got %v", got)
	}
}

func TestRefusals(t *testing.T) {
	model := func(key string, value any) func(map[string]any) {
		return func(f map[string]any) { f["model"].(map[string]any)[key] = value }
	}
	vocab := func(token string, id any) func(map[string]any) {
		return func(f map[string]any) {
			v := map[string]any{}
			for k, i := range f["model"].(map[string]any)["vocab"].(map[string]int) {
				v[k] = i
			}
			v[token] = id
			f["model"].(map[string]any)["vocab"] = v
		}
	}
	part := func(name string, value any) func(map[string]any) {
		return func(f map[string]any) { f[name] = value }
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		says   string
	}{
		"type":             {model("type", "Unigram"), `model type "Unigram"`},
		"byte fallback":    {model("byte_fallback", true), "byte_fallback"},
		"dropout":          {model("dropout", 0.1), "dropout is 0.1"},
		"merge words":      {model("merges", []string{"a b c"}), "not two tokens"},
		"merge numbers":    {model("merges", []any{1}), "not a pair"},
		"merge of unknown": {model("merges", []string{"b c"}), `token "bc" is not in model.vocab`},
		"negative id":      {vocab("x1", -1), "allowed here is 0 to"},
		"huge id":          {vocab("x1", 1<<40), "allowed here is 0 to"},
		"id twice":         {vocab("x1", 256), "id 256 has two tokens"},
		"fraction":         {vocab("x1", 1.5), "cannot unmarshal"},
		"normalizer":       {part("normalizer", map[string]any{"type": "NFC"}), "normalizer NFC"},
		"pre-tokenizer":    {part("pre_tokenizer", map[string]any{"type": "Metaspace"}), "Metaspace is not supported"},
		"none":             {part("pre_tokenizer", nil), "null is not supported"},
		"prefix space":     {part("pre_tokenizer", map[string]any{"type": "ByteLevel", "add_prefix_space": true}), "add_prefix_space"},
		"pattern": {part("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "("}, "behavior": "Isolated"},
			map[string]any{"type": "ByteLevel", "use_regex": false}}}), `pattern "("`},
		"behavior": {part("pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "a"}, "behavior": "Removed"},
			map[string]any{"type": "ByteLevel", "use_regex": false}}}), `behavior "Removed"`},
		"decoder":   {part("decoder", map[string]any{"type": "Metaspace"}), "decoder Metaspace"},
		"processor": {part("post_processor", map[string]any{"type": "RobertaProcessing"}), "RobertaProcessing is not supported"},
		"template": {part("post_processor", map[string]any{"type": "TemplateProcessing", "single": []any{
			map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}, map[string]any{"Sequence": map[string]any{}}}}), "not in special_tokens"},
		"empty added": {part("added_tokens", []any{map[string]any{"id": 1, "content": ""}}), "is empty"},
		"added strip": {part("added_tokens", []any{map[string]any{"id": 1, "content": "x", "lstrip": true}}), "lstrip"},
	} {
		f := small()
		c.change(f)
		_, err := load(t, f)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line saying %q", name, err, c.says)
		}
	}
	f := small()
	delete(f["model"].(map[string]any)["vocab"].(map[string]int), "a")
	f["model"].(map[string]any)["merges"] = []string{}
	if _, err := load(t, f); err == nil || !strings.Contains(err.Error(), "no token for byte 0x61") {
		t.Errorf("a missing byte: %v", err)
	}
	if _, err := Load(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no tokenizer: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	b, _ := json.Marshal(small())
	f.Add(b)
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":99999999999},"merges":[]}}`))
	f.Add([]byte(strings.Repeat(`{"model":`, 20000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		tok, err := parse(b)
		if err != nil {
			return
		}
		tok.Decode(tok.Encode("abc <s> é\n", true), true)
	})
}

func FuzzRoundTrip(f *testing.F) {
	tok := gocode(f)
	f.Add("func main() {\r\n\tfmt.Println(\"hi\")\r\n}\r\n")
	f.Add("don't I'LL we've ½Ⅷ٣ 🙂👩‍👩")
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text, false)
		if want := strings.ToValidUTF8(text, "\uFFFD"); tok.Decode(ids, false) != want {
			t.Errorf("%q comes back as %q", text, tok.Decode(ids, false))
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := gocode(b)
	text, err := os.ReadFile("tokenizer.go")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(string(text), false)
	}
}
