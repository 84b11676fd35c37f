package grammar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Source is a grammar as it was asked for. Sources with the same Key are the same.
type Source struct {
	key  string
	make func(b *builder) (expr, error)
}

// Key tells sources apart.
func (s Source) Key() string { return s.key }

// keyOf makes a key of a kind and its parts, none of which can be taken for another.
func keyOf(kind string, parts ...string) string {
	var key strings.Builder
	key.WriteString(kind)
	for _, p := range parts {
		key.WriteString(strconv.Itoa(len(p)))
		key.WriteByte(':')
		key.WriteString(p)
	}
	return key.String()
}

// Text is one text.
func Text(s string) Source {
	return Source{keyOf("text", s), func(*builder) (expr, error) { return literal(s), nil }}
}

// Choice is one of the texts.
func Choice(texts ...string) Source {
	texts = slices.Clone(texts)
	return Source{keyOf("choice", texts...), func(*builder) (expr, error) {
		if len(texts) == 0 {
			return nil, errNothing
		}
		return choice(texts), nil
	}}
}

// Regex is the texts that a pattern in RE2 syntax matches as a whole.
func Regex(pattern string) Source {
	return Source{keyOf("regex", pattern), func(b *builder) (expr, error) {
		return regex(pattern, false, b.codePoint)
	}}
}

// JSONObject is any JSON object.
func JSONObject() Source {
	return Source{keyOf("object"), func(b *builder) (expr, error) { return concat(b.space(), b.object()), nil }}
}

// Schema is JSON that a JSON schema describes; see the package's schema for
// what is understood of it.
func Schema(schema json.RawMessage) Source {
	return Source{keyOf("schema", string(schema)), func(b *builder) (expr, error) {
		e, err := readSchema(b, schema)
		if err != nil {
			return nil, err
		}
		return concat(b.space(), e), nil
	}}
}

// Until is any text that ends with the first mark in it.
func Until(mark string) Source {
	return Source{keyOf("until", mark), func(b *builder) (expr, error) { return b.until([]rune(mark)), nil }}
}

// Concat is a text of each source, one after the other.
func Concat(all ...Source) Source {
	return combine("concat", all, concat)
}

// Either is a text of one of the sources.
func Either(all ...Source) Source {
	return combine("either", all, either)
}

// Repeat is least to most texts of a source; there is no most if that is negative.
func Repeat(s Source, least, most int) Source {
	return combine(fmt.Sprintf("repeat %d %d ", least, most), []Source{s}, func(all ...expr) expr { return repeat(all[0], least, most) })
}

func combine(kind string, all []Source, how func(...expr) expr) Source {
	keys := make([]string, len(all))
	for i, s := range all {
		keys[i] = s.key
	}
	all = slices.Clone(all)
	return Source{keyOf(kind, keys...), func(b *builder) (expr, error) {
		pieces := make([]expr, len(all))
		for i, s := range all {
			var err error
			if pieces[i], err = s.make(b); err != nil {
				return nil, err
			}
		}
		return how(pieces...), nil
	}}
}

// Compile makes the grammar of a source. The error says what of the source is
// wrong, or not supported.
func Compile(v *Vocabulary, s Source) (*Grammar, error) {
	b := newBuilder()
	b.simple("text", func() expr { return nothing }) // rule 0, replaced below
	e, err := s.make(b)
	if err != nil {
		return nil, err
	}
	b.rules[0].make = func() (expr, error) { return e, nil }
	a, err := b.finish(v.longest())
	if err != nil {
		return nil, err
	}
	g := newGrammar(v, a)
	if g.Start().s == nil {
		return nil, errTooMuchWork
	}
	if err := g.prepare(); err != nil {
		return nil, err
	}
	return g, nil
}
