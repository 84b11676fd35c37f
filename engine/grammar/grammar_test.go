package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// tokens is a vocabulary of a test: a token each, and one that is special.
type tokens []string

const special = "<special>"

func (t tokens) VocabSize() int                  { return len(t) }
func (t tokens) TokenBytes(id int32) []byte      { return []byte(t[id]) }
func (t tokens) FirstTokenBytes(id int32) []byte { return []byte(t[id]) }
func (t tokens) IsSpecial(id int32) bool         { return t[id] == special }

// bytewise has a token for each byte.
func bytewise() tokens {
	t := make(tokens, 256)
	for b := range t {
		t[b] = string([]byte{byte(b)})
	}
	return t
}

var single = NewVocabulary(bytewise())

func compile(t testing.TB, v *Vocabulary, s Source) *Grammar {
	t.Helper()
	g, err := Compile(v, s)
	if err != nil {
		t.Fatalf("%s: %v", s.Key(), err)
	}
	return g
}

// takes tells whether a text is of the grammar.
func takes(t testing.TB, g *Grammar, text string) bool {
	t.Helper()
	s, ok, err := g.Start(), true, error(nil)
	for i := 0; i < len(text) && ok; i++ {
		s, ok, err = s.read([]byte{text[i]})
		if err != nil {
			t.Fatal(err)
		}
	}
	return ok && s.Accepting()
}

// write makes a text of the grammar by chance: at most steps bytes at will, and
// then on until it may end.
func write(t testing.TB, g *Grammar, rng *rand.Rand, steps int) string {
	t.Helper()
	var text []byte
	s := g.Start()
	for i := 0; ; i++ {
		if s.Complete() || s.Accepting() && (i >= steps || rng.IntN(8) == 0) {
			return string(text)
		}
		if i > steps+4000 {
			return "" // no end in sight
		}
		m, err := s.Mask()
		if err != nil {
			t.Fatal(err)
		}
		var can []int32
		for id := range int32(256) {
			if m.Has(id) {
				can = append(can, id)
			}
		}
		if len(can) == 0 {
			t.Fatalf("nothing may follow %q", text)
		}
		id := can[rng.IntN(len(can))]
		if i >= steps { // towards the end: brackets and quotes before all else
			closing := []int32{'}', ']', '"'}
			if m.Has('x') { // in a string
				closing = []int32{'"'}
			}
			for _, c := range closing {
				if m.Has(c) {
					id = c
					break
				}
			}
		}
		var ok bool
		if s, ok, err = s.Next(id); !ok || err != nil {
			t.Fatalf("%q is in the mask after %q, but not allowed: %v", id, text, err)
		}
		text = append(text, byte(id))
	}
}

func TestRegex(t *testing.T) {
	patterns := []string{
		``, `a`, `abc`, `a|b`, `a*`, `(ab)*`, `a+b?`, `[a-c]{2,4}`, `[^a]`, `.`, `(?s).`, `(a|ab)(c|bcd)(d*)`, `(a*)*b`, `(?i)straße|K`,
		`^a$`, `^(a|b)$`, `^a|b$`, `\d+(\.\d+)?`, `\w+@\w+`, `[α-ω]+`, `\p{Greek}\p{Lu}`, `[^\x00-\x7f]`, `é|e|\x{1F600}`, `a{0}`, `(a?){5}a{5}`,
		`[[:^alpha:]]x`, `\x{10FFFF}|\x{FFFF}|\x{800}`, `(|a)b`, `[\x{D000}-\x{E000}]`, `(?:a|b|)*c`, `\Qa.b\E`,
		`(a?){2,4}b`, `((ab)?){3}`, `(a??){3,}c`, `((?:a|bc)?){0,2}d`, `((a?){2}b?){2}`,
	}
	alphabet := []rune("abcdéeßsKkαωΑx.1@\n \x00\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0001F600\U0010FFFF")
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range patterns {
		g := compile(t, single, Regex(p))
		re := regexp.MustCompile(`\A(?:` + p + `)\z`)
		matched := 0
		for i := range 3000 {
			var text string
			if i%3 == 0 {
				text = write(t, g, rng, rng.IntN(8))
			} else {
				for range rng.IntN(7) {
					text += string(alphabet[rng.IntN(len(alphabet))])
				}
			}
			want := re.MatchString(text)
			if want {
				matched++
			}
			if got := takes(t, g, text); got != want {
				t.Errorf("%s on %q is %t, want %t", p, text, got, want)
			}
		}
		if matched == 0 {
			t.Errorf("%s matched none of the texts", p)
		}
		for _, broken := range []string{"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"} {
			if takes(t, g, broken) {
				t.Errorf("%s takes %q, which is not UTF-8", p, broken)
			}
		}
	}
}

// Repeating what may be left out must not lead from each repetition to all that
// follow it: compiling would take seconds.
func TestRepeatedOptionsAreSmall(t *testing.T) {
	for _, pattern := range []string{`(a?){500}a{500}`, `(?:(a?)){1000}`, `(\w?){300}x`, `(a?){1,600}`} {
		edges := 0
		for _, n := range compile(t, single, Regex(pattern)).automaton.nodes {
			edges += len(n.edges)
		}
		if edges > 3000 {
			t.Errorf("%s: %d transitions", pattern, edges)
		}
	}
}

func TestRegexRefuses(t *testing.T) {
	for _, c := range []struct{ pattern, says string }{
		{`(`, "missing closing"}, {`a{2000}`, "invalid repeat count"}, {`(?=a)`, "invalid or unsupported Perl syntax"}, {`\bword\b`, `\b is not supported`},
		{`a^b`, "^ where it begins"}, {`(a$)b`, "$ where it ends"}, {`(?m)^a`, "not supported"}, {`\1`, "invalid escape"},
		{`[^\x00-\x{10FFFF}]`, "no text at all"}, {strings.Repeat("(", 2000) + strings.Repeat(")", 2000), "nests too deeply"},
		{strings.Repeat(`(a{0,30}b){0,30}`, 50), "too large"}, {strings.Repeat("(a?){900}", 30), "too large"},
	} {
		if _, err := Compile(single, Regex(c.pattern)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", quote(c.pattern), err, c.says)
		}
	}
}

func TestChoice(t *testing.T) {
	texts := []string{"yes", "no", "yesterday", "né", "", "yes", "nö"}
	g := compile(t, single, Choice(texts...))
	for _, text := range append([]string{"ye", "n", "yest", "x", "yesterdayy", "n\xc3"}, texts...) {
		want := strings.Contains("|yes|no|yesterday|né||nö|", "|"+text+"|")
		if got := takes(t, g, text); got != want {
			t.Errorf("%q is %t, want %t", text, got, want)
		}
	}
	if _, err := Compile(single, Choice()); err == nil {
		t.Error("no texts are taken for a grammar")
	}
	var many []string
	for i := range 3000 {
		many = append(many, strings.Repeat("a", i%50)+fmt.Sprint(i))
	}
	g = compile(t, single, Choice(many...))
	for _, text := range many {
		if !takes(t, g, text) || takes(t, g, text+"x") {
			t.Errorf("wrong about %q", text)
		}
	}
}

// The grammar's objects are JSON's with white space as it is usually written.
func TestJSONObject(t *testing.T) {
	g := compile(t, single, JSONObject())
	rng := rand.New(rand.NewPCG(3, 4))
	deep := strings.Repeat(`{"a":[`, 500) + strings.Repeat(`]}`, 500)
	texts := []string{`{}`, `{ }`, ` {"a": [1, -0.5e+3,true,null, {} ] }`, `{"a" :1}`, `{"a":1 ,"b":2}`, `{"a":  1}`, "{\r\n\t\"a\": 1\n}", `{"a":1,}`, `{"a"}`, `{,}`, `[]`, `1`, ``, `{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":+1}`,
		`{"\u00e9\ud83d\ude00\n":"\/"}`, `{"a":"` + "\n" + `"}`, `{"a":"\x"}`, `{"a":tru}`, `{"a":1}}`, "{\"a\":\"\xff\"}", deep, deep[1:], deep + "}", `{"a":{"a":1}`}
	for range 3000 {
		text := write(t, g, rng, rng.IntN(60))
		texts = append(texts, text)
		b := []byte(text)
		if len(b) > 0 {
			b[rng.IntN(len(b))] = "{}[]\",:\\0e-.u \xc3"[rng.IntN(15)]
			texts = append(texts, string(b))
		}
	}
	valid := 0
	for _, text := range texts {
		trimmed := strings.TrimLeft(text, " \t\r\n")
		want := json.Valid([]byte(text)) && strings.HasPrefix(trimmed, "{") && strings.HasSuffix(text, "}") && bytes.Equal([]byte(text), bytes.ToValidUTF8([]byte(text), nil))
		want = want && usually(text)
		if want && loneSurrogate.MatchString(text) { // not text, though Go takes it
			continue
		}
		if want {
			valid++
		}
		if got := takes(t, g, text); got != want {
			t.Errorf("%.200q is %t, want %t", text, got, want)
		}
	}
	if valid < 1000 {
		t.Errorf("only %d texts are valid", valid)
	}
}

var (
	jsonString = regexp.MustCompile(`"(\\.|[^"\\])*"`)
	space      = regexp.MustCompile(`[ \t\r\n]+`)
	indent     = regexp.MustCompile(`^( |\r?\n[ \t]{0,64})$`)
)

// usually tells whether the white space of a JSON text is as it is usually written.
func usually(text string) bool {
	text = jsonString.ReplaceAllString(text, `""`)
	for _, at := range space.FindAllStringIndex(text, -1) {
		run, colon := text[at[0]:at[1]], at[0] > 0 && text[at[0]-1] == ':'
		if !indent.MatchString(run) || colon && run != " " || at[1] < len(text) && strings.Contains(",:", text[at[1]:at[1]+1]) {
			return false
		}
	}
	return true
}

var loneSurrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

func TestUntil(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	for _, mark := range []string{"</think>", "a", "aab", "abab", "aabaaab", "éé", "日本日", "ababac"} {
		g := compile(t, single, Until(mark))
		letters := append([]rune(mark), 'a', 'b', 'é', '<', '日')
		whole := 0
		for range 4000 {
			text := ""
			for range rng.IntN(9) {
				text += string(letters[rng.IntN(len(letters))])
			}
			if rng.IntN(2) == 0 {
				text += mark
			}
			want := strings.HasSuffix(text, mark) && strings.Index(text, mark) == len(text)-len(mark)
			if want {
				whole++
			}
			if got := takes(t, g, text); got != want {
				t.Fatalf("%q until %q is %t, want %t", text, mark, got, want)
			}
		}
		if whole < 100 {
			t.Errorf("%q: only %d texts end with it", mark, whole)
		}
	}
	if g := compile(t, single, Concat(Until("</x>"), JSONObject())); !takes(t, g, `a {} <</x> {"</x>":1}`) || takes(t, g, `a</x>b</x>{}`) {
		t.Error("what comes after the mark is not told from what comes before")
	}
}
