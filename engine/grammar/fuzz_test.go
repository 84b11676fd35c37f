package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"testing"
	"time"
	"unicode/utf8"
)

// slow is longer than a grammar may take to compile, whoever wrote it.
const slow = 10 * time.Second

// Whatever compiles says the same of a text as Go's own regular expressions.
func FuzzRegex(f *testing.F) {
	for _, p := range []string{`a|b*`, `(a?){5}a{5}`, `[^a]+é`, `\p{Greek}{1,3}`, `^(x|)$`, `(?i)k`, `.{0,30}`, `\b`, `(((`} {
		f.Add(p, "aab", uint64(1))
	}
	f.Fuzz(func(t *testing.T, pattern, text string, seed uint64) {
		begin := time.Now()
		g, err := Compile(single, Regex(pattern))
		if took := time.Since(begin); took > slow {
			t.Fatalf("it took %s", took)
		}
		if err != nil {
			return
		}
		re, err := syntax.Parse(pattern, regexFlags)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := regexp.Compile(`\A(?:` + re.String() + `)\z`)
		if err != nil {
			return // longer than Go takes
		}
		for _, s := range []string{text, write(t, g, rand.New(rand.NewPCG(seed, 0)), 20)} {
			if want := utf8.ValidString(s) && whole.MatchString(s); takes(t, g, s) != want {
				t.Errorf("%q on %q is %t, want %t", pattern, s, !want, want)
			}
		}
	})
}

// Whatever compiles writes JSON only, and no schema is too much.
func FuzzSchema(f *testing.F) {
	for _, c := range schemaCases {
		f.Add([]byte(c.schema), uint64(1))
	}
	f.Add([]byte(orderSchema), uint64(2))
	f.Add([]byte(`{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}},"$ref":"#/$defs/a"}`), uint64(3))
	f.Fuzz(func(t *testing.T, schema []byte, seed uint64) {
		begin := time.Now()
		g, err := Compile(single, Schema(schema))
		if took := time.Since(begin); took > slow {
			t.Fatalf("it took %s", took)
		}
		if err != nil {
			return
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			if text := write(t, g, rng, 40); text != "" && !json.Valid([]byte(text)) {
				t.Errorf("wrote %q", text)
			}
		}
	})
}
