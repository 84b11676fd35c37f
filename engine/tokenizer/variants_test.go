package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

// variant is a file of testdata/variants: a tokenizer.json and what the Rust
// reference makes of texts and ids with it; see testdata/make_variants.py.
type variant struct {
	Tokenizer json.RawMessage
	Encode    []struct {
		Text             string
		IDs, Special     []int32
		Decoded, Skipped string
	}
	Decode []struct {
		IDs           []int32
		Text, Skipped string
	}
}

func readVariant(t testing.TB, name string) variant {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var v variant
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func TestVariants(t *testing.T) {
	names, err := filepath.Glob("testdata/variants/*.json")
	if err != nil || len(names) < 20 {
		t.Fatalf("%d variants, %v", len(names), err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".json"), func(t *testing.T) {
			v := readVariant(t, name)
			tok, err := Load(fstest.MapFS{"tokenizer.json": {Data: v.Tokenizer}})
			if err != nil {
				t.Fatal(err)
			}
			if len(v.Encode) < 100 || len(v.Decode) < 50 {
				t.Fatalf("%d and %d cases", len(v.Encode), len(v.Decode))
			}
			for _, c := range v.Encode {
				if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
					t.Errorf("%q: %v, want %v", c.Text, got, c.IDs)
				}
				if got := tok.Encode(c.Text, true); !slices.Equal(got, c.Special) {
					t.Errorf("%q with special tokens: %v, want %v", c.Text, got, c.Special)
				}
				check(t, tok, c.IDs, false, c.Decoded)
				check(t, tok, c.IDs, true, c.Skipped)
			}
			for _, c := range v.Decode {
				check(t, tok, c.IDs, false, c.Text)
				check(t, tok, c.IDs, true, c.Skipped)
			}
		})
	}
}

// check compares a decoding, as a whole and as a stream, with the reference's.
func check(t *testing.T, tok *Tokenizer, ids []int32, skip bool, want string) {
	t.Helper()
	if got := tok.Decode(ids, skip); got != want {
		t.Errorf("%v decodes to %q, want %q (skip special: %v)", ids, got, want, skip)
	}
	if got := stream(t, tok, ids, skip); got != want {
		t.Errorf("%v streams as %q, want %q (skip special: %v)", ids, got, want, skip)
	}
}

// The bytes of tokens, put together, are the text that they are decoded to.
func TestTokenBytesAreTheText(t *testing.T) {
	names, err := filepath.Glob("testdata/variants/*.json")
	if err != nil {
		t.Fatal(err)
	}
	differ := 0
	for _, name := range names {
		tok, err := Load(fstest.MapFS{"tokenizer.json": {Data: readVariant(t, name).Tokenizer}})
		if err != nil {
			t.Fatal(err)
		}
		plain := func(id int32) bool { return !tok.IsSpecial(id) && len(tok.TokenBytes(id)) > 0 }
		for id := range int32(tok.VocabSize()) {
			first := tok.FirstTokenBytes(id)
			if !plain(id) || len(first) == 0 { // a token that is lost is none to begin with
				continue
			}
			if string(first) != string(tok.TokenBytes(id)) {
				differ++
			}
			next := (id*7 + 3) % int32(tok.VocabSize())
			if !plain(next) {
				continue
			}
			want := string(first) + string(tok.TokenBytes(next))
			if got := tok.Decode([]int32{id, next}, true); utf8.ValidString(want) && got != want {
				t.Fatalf("%s: tokens %d and %d are decoded to %q, their bytes are %q", name, id, next, got, want)
			}
		}
		if tok.FirstTokenBytes(-1) != nil || tok.FirstTokenBytes(int32(tok.VocabSize())) != nil {
			t.Errorf("%s: a token that there is not has bytes", name)
		}
	}
	if differ == 0 {
		t.Error("no variant drops a space: the test shows nothing")
	}
}
