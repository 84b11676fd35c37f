package chat

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// quoted is the value of the string literal that s begins with, by Python's
// rules, and its length; 0 if it has no end.
func quoted(s string) (value string, n int) {
	var b strings.Builder
	for i := 1; i < len(s); {
		switch c := s[i]; {
		case c == s[0]:
			return b.String(), i + 1
		case c != '\\':
			b.WriteByte(c)
			i++
		default:
			if i+1 >= len(s) {
				return "", 0
			}
			i += escape(s[i:], &b)
		}
	}
	return "", 0
}

// escapes are those of one letter.
var escapes = map[byte]string{
	'\n': "", '\\': `\`, '\'': "'", '"': `"`, 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// escape writes what the escape sequence at the begin of s stands for and
// returns its length. An unknown one stands for itself.
func escape(s string, b *strings.Builder) int {
	if text, ok := escapes[s[1]]; ok {
		b.WriteString(text)
		return 2
	}
	digits, base := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[1]], 16
	begin := 2
	if s[1] >= '0' && s[1] <= '7' {
		begin, base = 1, 8
		for digits = 1; digits < 3 && 1+digits < len(s) && s[1+digits] >= '0' && s[1+digits] <= '7'; digits++ {
		}
	}
	if digits > 0 && begin+digits <= len(s) {
		if code, err := strconv.ParseUint(s[begin:begin+digits], base, 32); err == nil && utf8.ValidRune(rune(code)) {
			b.WriteRune(rune(code))
			return begin + digits
		}
	}
	b.WriteString(s[:2])
	return 2
}

// literal writes a string for the library, which knows these escapes alone.
func literal(b *strings.Builder, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '\n':
			b.WriteString(`\n`)
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
}
