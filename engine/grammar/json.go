package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"
)

// maxIndent is the most white space at the begin of a line of JSON.
const maxIndent = 64

// space is white space as it is written between parts of a JSON text, or none:
// a space, or a new line with its indent. More tells nobody anything, and a
// model can go on with it for ever.
func (b *builder) space() expr {
	return optional(b.simple("white space", func() expr {
		return either(literal(" "), concat(optional(literal("\r")), literal("\n"), repeat(oneByte(" \t"), 0, maxIndent)))
	}))
}

// colon is what stands between a name and its value.
func (b *builder) colon() expr { return concat(literal(":"), optional(literal(" "))) }

// comma is what stands between two members or items.
func (b *builder) comma() expr { return concat(literal(","), b.space()) }

// unescaped are the code points that stand for themselves in a JSON string.
var unescaped = []span{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, unicode.MaxRune}}

// character is one code point of a JSON string, also as an escape.
func (b *builder) character() expr {
	escape := b.simple("escape", func() expr {
		hex := func(set string, n int) expr { return concat(oneByte(set), repeat(oneByte(hexDigits), n, n)) }
		return concat(literal(`\`), either(
			oneByte(`"\/bfnrt`),
			concat(literal("u"), either(
				hex("0123456789abcefABCEF", 3),
				concat(oneByte("dD"), hex("01234567", 2)),
				concat(oneByte("dD"), hex("89abAB", 2), literal(`\u`), oneByte("dD"), hex("cdefCDEF", 2)), // a pair is one code point
			)),
		))
	})
	return either(b.codePoint(unescaped), escape)
}

const hexDigits = "0123456789abcdefABCDEF"

// str is any JSON string.
func (b *builder) str() expr {
	return b.simple("string", func() expr {
		return concat(literal(`"`), repeat(b.character(), 0, -1), literal(`"`))
	})
}

// inString is one of the code points as it stands in a JSON string: those that
// cannot stand for themselves in their shortest escape, the others as they are.
func (b *builder) inString(spans []span) expr {
	spans = normal(spans)
	all := []expr{b.codePoint(except(spans, except(normal(anyPoint), unescaped)))}
	for _, s := range spans {
		for c := s.lo; c <= min(s.hi, '\\'); c++ {
			if c < 0x20 || c == '"' || c == '\\' {
				all = append(all, literal(quoted(string(c))[1:len(quoted(string(c)))-1]))
			}
		}
	}
	return either(all...)
}

// quoted is a text as a JSON string.
func quoted(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(fmt.Sprintf("grammar: a string is not encoded: %v", err)) // it always is
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

const digits = "0123456789"

// fraction and exponent of a number, as far as it has them.
func scale() expr {
	return concat(
		optional(concat(literal("."), repeat(oneByte(digits), 1, -1))),
		optional(concat(oneByte("eE"), optional(oneByte("+-")), repeat(oneByte(digits), 1, -1))))
}

// natural is a whole number, 0 or more.
func natural() expr {
	return either(literal("0"), concat(byteRange('1', '9'), repeat(oneByte(digits), 0, -1)))
}

// integer is any whole number, without fraction and exponent.
func (b *builder) integer() expr {
	return b.simple("integer", func() expr { return concat(optional(literal("-")), natural()) })
}

// number is any JSON number.
func (b *builder) number() expr {
	return b.simple("number", func() expr { return concat(optional(literal("-")), natural(), scale()) })
}

// value is any JSON value.
func (b *builder) value() expr {
	return b.simple("value", func() expr {
		return either(b.object(), b.array(), b.str(), b.number(), choice([]string{"true", "false", "null"}))
	})
}

// object is any JSON object.
func (b *builder) object() expr {
	return b.simple("object", func() expr {
		return b.list("{", "}", concat(b.str(), b.colon(), b.value()), 0, -1)
	})
}

// array is any JSON array.
func (b *builder) array() expr {
	return b.simple("array", func() expr { return b.list("[", "]", b.value(), 0, -1) })
}

// list is between least and most items (any number, if that is negative) with
// commas between them, within brackets.
func (b *builder) list(open, close string, item expr, least, most int) expr {
	if most == 0 {
		return concat(literal(open), b.space(), literal(close))
	}
	further := -1
	if most > 0 {
		further = most - 1
	}
	some := concat(item, repeat(concat(b.comma(), item), max(least-1, 0), further))
	if least == 0 {
		return concat(literal(open), b.space(), optional(concat(some, b.space())), literal(close))
	}
	return concat(literal(open), b.space(), some, b.space(), literal(close))
}
