package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// The patterns of o200k (GPT-4o, gpt-oss) and of Kimi K2, in whose words small
// letters follow capitals. In Kimi's, Han characters are pieces of their own.
const (
	o200kPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	kimiPattern = `[\p{Han}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// cased is what the two patterns differ in.
type cased struct {
	han   bool // Han characters are apart
	slash bool // "/" may follow signs, as line ends do
}

// upper is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}].
func (c cased) upper(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'A' && r <= 'Z'
	}
	return unicode.In(r, unicode.Lu, unicode.Lt, unicode.Lm, unicode.Lo, unicode.M) && !c.isHan(r)
}

// lower is [\p{Ll}\p{Lm}\p{Lo}\p{M}].
func (c cased) lower(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= 'a' && r <= 'z'
	}
	return unicode.In(r, unicode.Ll, unicode.Lm, unicode.Lo, unicode.M) && !c.isHan(r)
}

func (c cased) isHan(r rune) bool { return c.han && unicode.Is(unicode.Han, r) }

// scan is the pattern's match at the beginning of s. The alternatives are tried
// in order, each with and then without what may be before a word.
func (c cased) scan(s string) int {
	if c.han {
		if n := run(s, noLimit, c.isHan); n > 0 {
			return n
		}
	}
	r, n := utf8.DecodeRuneInString(s)
	before := 0
	if !isNewline(r) && !isLetter(r) && !isNumber(r) {
		before = n
	}
	for _, word := range [...]func(string) int{c.word, c.capitals} {
		for _, from := range [...]int{before, 0} {
			if length := word(s[from:]); length > 0 {
				end := from + length
				if end < len(s) {
					end += contraction(s[end:])
				}
				return end
			}
			if before == 0 {
				break
			}
		}
	}
	if n := run(s, 3, isNumber); n > 0 {
		return n
	}
	space := 0
	if r == ' ' {
		space = 1
	}
	if n := run(s[space:], noLimit, isOther); n > 0 {
		n += space
		return n + run(s[n:], noLimit, func(r rune) bool { return isNewline(r) || c.slash && r == '/' })
	}
	return scanSpaces(s)
}

// word is upper*lower+ at the beginning of s, or 0. Where no lower follows the
// uppers, these give back up to the last one that is a lower too.
func (c cased) word(s string) int {
	n := run(s, noLimit, c.upper)
	if lowers := run(s[n:], noLimit, c.lower); lowers > 0 {
		return n + lowers
	}
	for n > 0 {
		r, width := utf8.DecodeLastRuneInString(s[:n])
		if c.lower(r) {
			break
		}
		n -= width
	}
	return n
}

// capitals is upper+lower* at the beginning of s, or 0.
func (c cased) capitals(s string) int {
	n := run(s, noLimit, c.upper)
	if n == 0 {
		return 0
	}
	return n + run(s[n:], noLimit, c.lower)
}
