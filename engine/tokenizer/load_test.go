package tokenizer

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"
)

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

// A change makes a tokenizer.json that is refused.
type change func(file map[string]any)

type refusal struct {
	change change
	says   string // part of the error
}

func refused(t *testing.T, cases map[string]refusal) {
	t.Helper()
	for name, c := range cases {
		f := small()
		c.change(f)
		_, err := load(t, f)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
			t.Errorf("%s: %v; want one line of tokenizer.json saying %q", name, err, c.says)
		}
	}
}

// part changes a member.
func part(name string, value any) change {
	return func(f map[string]any) { f[name] = value }
}

// withModel changes a member of the model.
func withModel(name string, value any) change {
	return func(f map[string]any) { f["model"].(map[string]any)[name] = value }
}

// withToken adds a token to the vocabulary.
func withToken(token string, id any) change {
	return func(f map[string]any) {
		v := map[string]any{}
		for k, i := range f["model"].(map[string]any)["vocab"].(map[string]int) {
			v[k] = i
		}
		v[token] = id
		f["model"].(map[string]any)["vocab"] = v
	}
}

// withAdded replaces the added tokens.
func withAdded(tokens ...any) change { return part("added_tokens", tokens) }

// typed is a component with the members of more, a name and a value each.
func typed(kind string, more ...any) map[string]any {
	m := map[string]any{"type": kind}
	for i := 0; i < len(more); i += 2 {
		m[more[i].(string)] = more[i+1]
	}
	return m
}

// sequence changes a component to a Sequence, whose member key has the values.
func sequence(name, key string, values ...any) change {
	return part(name, typed("Sequence", key, values))
}

func TestRefusedModel(t *testing.T) {
	refused(t, map[string]refusal{
		"type":             {withModel("type", "Unigram"), `model.type "Unigram" is not supported: supported is BPE`},
		"dropout":          {withModel("dropout", 0.1), "model.dropout is 0.1"},
		"prefix":           {withModel("continuing_subword_prefix", "##"), "continuing_subword_prefix"},
		"unknown token":    {withModel("unk_token", "nix"), `unk_token "nix" is not in model.vocab`},
		"merge words":      {withModel("merges", []string{"a b c"}), "not two tokens"},
		"merge numbers":    {withModel("merges", []any{1}), "not a pair"},
		"merge of unknown": {withModel("merges", []string{"b c"}), `merge 0 ("b" and "c"): token "bc" is not in model.vocab`},
		"negative id":      {withToken("x1", -1), "id -1: allowed here are 0 to"},
		"huge id":          {withToken("x1", 1<<40), "allowed here are 0 to"},
		"largest id":       {withToken("x1", 1<<31-1), "allowed here are 0 to"},
		"id twice":         {withToken("x1", 256), "id 256 has two tokens"},
		"fraction":         {withToken("x1", 1.5), "cannot unmarshal"},
	})
}

func TestRefusedNormalizer(t *testing.T) {
	refused(t, map[string]refusal{
		"normalizer":             {part("normalizer", typed("BertNormalizer")), `normalizer: "BertNormalizer" is not supported: supported are NFC,`},
		"normalizer in sequence": {sequence("normalizer", "normalizers", typed("NFC"), typed("Precompiled")), `normalizer: "Precompiled" is not supported`},
		"without a type":         {part("normalizer", map[string]any{}), "has no type"},
		"replace nothing":        {part("normalizer", typed("Replace", "pattern", map[string]any{"String": ""}, "content", "x")), "pattern must be"},
	})
}

func TestRefusedPreTokenizer(t *testing.T) {
	var nested any = typed("ByteLevel")
	for range 20 {
		nested = typed("Sequence", "pretokenizers", []any{nested})
	}
	refused(t, map[string]refusal{
		"pre-tokenizer":       {part("pre_tokenizer", typed("Whitespace")), `pre_tokenizer: "Whitespace" is not supported: supported are ByteLevel,`},
		"no pre-tokenizer":    {part("pre_tokenizer", nil), "model.unk_token is null"},
		"byte level first":    {sequence("pre_tokenizer", "pretokenizers", typed("ByteLevel"), typed("Digits")), "at the end only"},
		"sequence of nothing": {part("pre_tokenizer", typed("Sequence")), "pretokenizers is not a list"},
		"sequence with null":  {sequence("pre_tokenizer", "pretokenizers", nil), "has a null"},
		"nested":              {part("pre_tokenizer", nested), "within each other"},
		"pattern":             {part("pre_tokenizer", typed("Split", "pattern", map[string]any{"Regex": "("}, "behavior", "Isolated")), `pattern "(" is not supported`},
		"two patterns":        {part("pre_tokenizer", typed("Split", "pattern", map[string]any{"Regex": "a", "String": "a"}, "behavior", "Isolated")), "pattern must be"},
		"behavior":            {part("pre_tokenizer", typed("Split", "pattern", map[string]any{"Regex": "a"}, "behavior", "Torn")), `behavior "Torn" is not supported: supported are Isolated,`},
		"metaspace":           {part("pre_tokenizer", typed("Metaspace", "replacement", "")), `replacement "" must be one code point`},
		"metaspace scheme":    {part("pre_tokenizer", typed("Metaspace", "replacement", "_", "prepend_scheme", "last")), `prepend_scheme "last" is not supported`},
	})
}

func TestRefusedDecoder(t *testing.T) {
	refused(t, map[string]refusal{
		"decoder":             {part("decoder", typed("WordPiece")), `decoder: "WordPiece" is not supported: supported are ByteLevel,`},
		"no decoder":          {part("decoder", nil), `decoder: "null" is not supported`},
		"decoder's metaspace": {part("decoder", typed("Metaspace", "replacement", "ab")), "must be one code point"},
		"strip before fuse":   {sequence("decoder", "decoders", typed("Strip", "content", " ", "start", 1)), "after Fuse only"},
		"strip at the end":    {sequence("decoder", "decoders", typed("Fuse"), typed("Strip", "content", " ", "stop", 1)), "a stop of 0"},
		"strip of a word":     {sequence("decoder", "decoders", typed("Fuse"), typed("Strip", "content", "ab", "start", 1)), "one code point"},
		"after fuse":          {sequence("decoder", "decoders", typed("Fuse"), typed("ByteFallback")), "after Fuse only Strip"},
	})
}

func TestRefusedPostProcessor(t *testing.T) {
	refused(t, map[string]refusal{
		"processor":        {part("post_processor", typed("RobertaProcessing")), `post_processor: "RobertaProcessing" is not supported`},
		"template token":   {part("post_processor", typed("TemplateProcessing", "single", []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}})), "not in special_tokens"},
		"template id":      {part("post_processor", typed("TemplateProcessing", "single", []any{map[string]any{"SpecialToken": map[string]any{"id": "s"}}}, "special_tokens", map[string]any{"s": map[string]any{"ids": []int{1 << 30}}})), "allowed are 0 to 258"},
		"template of none": {part("post_processor", typed("TemplateProcessing", "single", []any{})), "does not have the text"},
		"template twice":   {part("post_processor", typed("TemplateProcessing", "single", []any{map[string]any{"Sequence": map[string]any{}}, map[string]any{"Sequence": map[string]any{}}})), "more than once"},
		"template part":    {part("post_processor", typed("TemplateProcessing", "single", []any{map[string]any{}})), "is not one of"},
	})
}

func TestRefusedAddedTokens(t *testing.T) {
	refused(t, map[string]refusal{
		"empty added":       {withAdded(map[string]any{"id": 1, "content": ""}), "added token 1 has no content"},
		"added id":          {withAdded(map[string]any{"id": -5, "content": "x1"}), "id -5: allowed here are"},
		"added differently": {withAdded(map[string]any{"id": 1, "content": "ab"}), `"ab" has the ids 256 and 1`},
		"added twice":       {withAdded(map[string]any{"id": 300, "content": "x1"}, map[string]any{"id": 301, "content": "x1"}), `"x1" has the ids 300 and 301`},
	})
}

func TestMissing(t *testing.T) {
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

// TestConfig covers which tokens are put around a text.
func TestConfig(t *testing.T) {
	f := small()
	f["added_tokens"] = []any{map[string]any{"id": 258, "content": "<s>", "special": true}, map[string]any{"id": 259, "content": "</s>", "special": true}}
	f["post_processor"] = map[string]any{"type": "TemplateProcessing",
		"single":         []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}, map[string]any{"Sequence": map[string]any{"id": "A"}}},
		"special_tokens": map[string]any{"<s>": map[string]any{"ids": []int{258}}}}
	b, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	for config, want := range map[string][]int32{
		"":                                       {258, 'x'},
		"{}":                                     {258, 'x'},
		`{"bos_token":"</s>","eos_token":"<s>"}`: {258, 'x'},
		`{"add_bos_token":null}`:                 {258, 'x'},
		`{"add_bos_token":false,"bos_token":"<s>"}`:                                                {'x'},
		`{"add_bos_token":true,"bos_token":"<s>"}`:                                                 {258, 'x'},
		`{"add_bos_token":true,"bos_token":null}`:                                                  {'x'},
		`{"add_bos_token":true,"bos_token":{"content":"</s>"}}`:                                    {259, 'x'},
		`{"add_eos_token":true,"eos_token":"</s>","bos_token":"<s>"}`:                              {'x', 259},
		`{"add_bos_token":true,"add_eos_token":true,"eos_token":"</s>","bos_token":"<s>","x":[1]}`: {258, 'x', 259},
	} {
		files := fstest.MapFS{"tokenizer.json": {Data: b}}
		if config != "" {
			files["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(config)}
		}
		tok, err := Load(files)
		if err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		if got := tok.Encode("x", true); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", config, got, want)
		}
		if got := tok.Encode("x", false); !slices.Equal(got, []int32{'x'}) {
			t.Errorf("%s: without special tokens: %v", config, got)
		}
	}
	for config, says := range map[string]string{
		`{`:                                        "unexpected end of JSON",
		`{"add_bos_token":1}`:                      "cannot unmarshal",
		`{"add_bos_token":true,"bos_token":7}`:     "bos_token must be a string",
		`{"add_eos_token":true,"eos_token":{}}`:    "eos_token must be a string",
		`{"add_eos_token":true,"eos_token":"<x>"}`: `eos_token "<x>" is not a token of tokenizer.json`,
	} {
		_, err := Load(fstest.MapFS{"tokenizer.json": {Data: b}, "tokenizer_config.json": {Data: []byte(config)}})
		if err == nil || !strings.HasPrefix(err.Error(), "tokenizer_config.json: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want an error of tokenizer_config.json saying %q", config, err, says)
		}
	}
}

// TestDuplicateMerges: the last of equal merges counts, as in the reference.
func TestDuplicateMerges(t *testing.T) {
	f := small()
	v := f["model"].(map[string]any)["vocab"].(map[string]int)
	v["bc"] = 259
	f["model"].(map[string]any)["merges"] = []string{"a b", "b c", "a b"}
	tok, err := load(t, f)
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("abc", false); !slices.Equal(got, []int32{'a', 259}) {
		t.Errorf("got %v, want a and bc", got)
	}
}

// TestSlowPattern: a pattern that backtracks without end must not stop the
// engine, nor change the text.
func TestSlowPattern(t *testing.T) {
	f := small()
	f["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
		map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `(a|aa)+(?=\d)(b|a+)+$`}, "behavior": "Isolated"},
		map[string]any{"type": "ByteLevel", "use_regex": false}}}
	tok, err := load(t, f)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a", 200) + "!"
	begin := time.Now()
	if got := tok.Decode(tok.Encode(text, false), false); got != text {
		t.Errorf("the text comes back as %q", got)
	}
	if d := time.Since(begin); d > 4*matchTimeout {
		t.Errorf("encoding took %v", d)
	}
}

func FuzzLoad(f *testing.F) {
	b, _ := json.Marshal(small())
	f.Add(b)
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":99999999999},"merges":[]}}`))
	f.Add([]byte(strings.Repeat(`{"model":`, 20000)))
	f.Add([]byte(`{"pre_tokenizer":` + strings.Repeat(`{"type":"Sequence","pretokenizers":[`, 3000) + strings.Repeat("]}", 3000) + `}`))
	files, err := filepath.Glob("testdata/variants/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no variants", err)
	}
	for _, name := range files {
		f.Add([]byte(readVariant(f, name).Tokenizer))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tok, err := parse(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of several lines: %q", err)
			}
			return
		}
		ids := tok.Encode("abc <s> é\n\xff 12", true)
		for _, id := range append(ids, -1, 1<<30) {
			tok.TokenBytes(id)
			tok.IsSpecial(id)
		}
		if text := tok.Decode(ids, true); !utf8.ValidString(text) {
			t.Fatalf("%v decodes to %q", ids, text)
		}
	})
}

// BenchmarkLoad reads a tokenizer of 4,096 tokens.
func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		gocode(b)
	}
}
