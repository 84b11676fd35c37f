package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/engine/fetch/builtin"
	"github.com/outrider-dev/outrider/engine/internal/golden"
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
	tok := gocode(t)
	for _, c := range golden.Read().Tokenizer {
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
	for _, c := range golden.Cases() {
		if got := tok.Encode(c.Text, true); !slices.Equal(got, c.Prompt) {
			t.Errorf("%q: %v, want %v", c.Text, got, c.Prompt)
		}
		if got := tok.Decode(c.Output, true); got != c.OutputText {
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
var alphabet = []rune("aZé本'sSſtTrReEvVlLdDmM  \t\n\r\u00a0\u30000١9½Ⅷ.,<>|_/ǅʰあ々〇⺀🙂\u200d\u0301")

func randomText(rng *rand.Rand) string {
	r := make([]rune, rng.IntN(40))
	for i := range r {
		r[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(r)
}

// The scanners give the pieces of the patterns that they stand for.
func TestScannersEqualTheirPatterns(t *testing.T) {
	for pattern := range scanners {
		// What .NET's expressions, and so the pattern engine, write otherwise.
		byPattern, err := regexpSpans(strings.ReplaceAll(pattern, `&&[^\p{Han}]]`, `-[\p{Han}]]`))
		if err != nil {
			t.Fatal(err)
		}
		byScanner, err := patternSpans(pattern)
		if err != nil {
			t.Fatal(err)
		}
		collect := func(of spans, text string) (pieces []string) {
			of(text, func(s span) { pieces = append(pieces, text[s.start:s.end]) })
			return pieces
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for range 8000 {
			// The reference folds the long s to s in contractions, as the scanner
			// does; the pattern engine here does not.
			text := strings.ReplaceAll(randomText(rng), "ſ", "s")
			got, want := collect(byScanner, text), collect(byPattern, text)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %q: pieces %q, want %q", pattern, text, got, want)
			}
			if strings.Join(got, "") != text {
				t.Fatalf("%s: %q: the pieces are not the text: %q", pattern, text, got)
			}
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
	for text, want := range map[string]string{
		"a\xffb\xc3":        "a\uFFFDb\uFFFD",
		"\xff\xfe":          "\uFFFD\uFFFD", // one each, as Python and Rust do
		"\xf0\x9f\x98 \xe2": "\uFFFD \uFFFD",
	} {
		if got := tok.Decode(tok.Encode(text, false), false); got != want {
			t.Errorf("%q, which is not UTF-8, comes back as %q, want %q", text, got, want)
		}
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
		if got, want := stream(t, tok, ids, skip), tok.Decode(ids, skip); got != want {
			t.Fatalf("%v: stream %q, whole %q", ids, got, want)
		}
	}
}

// stream decodes token by token, and checks that no code point is torn.
func stream(t *testing.T, tok *Tokenizer, ids []int32, skip bool) string {
	t.Helper()
	d := tok.NewDecoder(skip)
	var text []byte
	for _, id := range ids {
		from := len(text)
		text = d.Push(text, id)
		if part := text[from:]; !utf8.Valid(part) {
			t.Fatalf("%v: a part is %q", ids, part)
		}
		if len(d.tail) >= utf8.UTFMax {
			t.Fatalf("%v: %d bytes are held back", ids, len(d.tail))
		}
	}
	return string(d.Flush(text))
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
			ids = append(ids, tok.bytes[in[i]])
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
	added := newAddedTokens([]addedToken{{content: "<a>", id: 1}, {content: "<a><b>", id: 2}, {content: "[x]", id: 3}})
	for text, want := range map[string][2]int32{"zz<a><b>": {2, 2}, "<<a>": {1, 1}, "[x]<a>": {0, 3}, "[<a": {3, 0}, "": {0, 0}} {
		at, token := added.find(text, 0)
		if token == nil {
			token = &addedToken{}
		}
		if int32(at) != want[0] || token.id != want[1] {
			t.Errorf("%q: token %d at %d, want %v", text, token.id, at, want)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	tok := gocode(f)
	f.Add("func main() {\r\n\tfmt.Println(\"hi\")\r\n}\r\n")
	f.Add("<s>\xff\xfe a\xe2\x82b \xf0\x9f\x98")
	f.Add("don't I'LL we've ½Ⅷ٣ 🙂👩‍👩")
	f.Fuzz(func(t *testing.T, text string) {
		got, want := tok.Decode(tok.Encode(text, false), false), text
		if !utf8.ValidString(text) { // one replacement character or several for a run of wrong bytes
			got, want = collapse(got), collapse(strings.ToValidUTF8(text, "\uFFFD"))
		}
		if got != want {
			t.Errorf("%q comes back as %q", text, got)
		}
	})
}

// collapse makes one of replacement characters in a row.
func collapse(s string) string {
	for strings.Contains(s, "\uFFFD\uFFFD") {
		s = strings.ReplaceAll(s, "\uFFFD\uFFFD", "\uFFFD")
	}
	return s
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

// BenchmarkEncodeUnique encodes pieces that are not in the cache.
func BenchmarkEncodeUnique(b *testing.B) {
	tok := gocode(b)
	text := strings.Repeat("internationalisation", 500)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text, false)
	}
}

// BenchmarkPush decodes a token at the end of a short and of a long text: the
// cost must be the same.
func BenchmarkPush(b *testing.B) {
	tok := gocode(b)
	for _, before := range []int{10, 1_000_000} {
		b.Run(fmt.Sprint(before), func(b *testing.B) {
			d := tok.NewDecoder(true)
			var text []byte
			for i := range before {
				text = d.Push(text[:0], int32(5+i%4000))
			}
			i := int32(0)
			for b.Loop() {
				text = d.Push(text[:0], 5+i%4000)
				i++
			}
		})
	}
}

// BenchmarkPattern splits by a regular expression instead of a scanner.
func BenchmarkPattern(b *testing.B) {
	of, err := regexpSpans(llama3Pattern)
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("func main() { fmt.Println(\"it's\", 12345) }\n", 1000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		of(text, func(span) {})
	}
}

// TestConcurrent encodes on several goroutines more pieces than the cache
// holds; run with -race.
func TestConcurrent(t *testing.T) {
	tok := gocode(t)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range cacheEntries / 3 {
				text := fmt.Sprintf("x%dg", i*4+g)
				if got := tok.Decode(tok.Encode(text, false), false); got != text {
					t.Errorf("%q comes back as %q", text, got)
					return
				}
			}
		})
	}
	wg.Wait()
	if len(tok.cache) > cacheEntries {
		t.Errorf("the cache has %d entries; at most %d are allowed", len(tok.cache), cacheEntries)
	}
}
