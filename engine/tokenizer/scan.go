package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

func isLetter(r rune) bool {
	if r < utf8.RuneSelf {
		return (r|0x20) >= 'a' && (r|0x20) <= 'z'
	}
	return unicode.IsLetter(r)
}

func isNumber(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= '0' && r <= '9'
	}
	return unicode.IsNumber(r)
}

func isNewline(r rune) bool { return r == '\r' || r == '\n' }

// run is the length of the longest beginning of s whose code points are all in
// class, at most most of them.
func run(s string, most int, class func(rune) bool) int {
	i := 0
	for i < len(s) && most > 0 {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !class(r) {
			break
		}
		i += n
		most--
	}
	return i
}

const noLimit = int(^uint(0) >> 1)

// scanLlama3 is llama3Pattern's match, or qwen2Pattern's, which differs in the
// number of digits in a piece. The alternatives are tried in order.
func scanLlama3(s string, digits int) int {
	if n := contraction(s); n > 0 {
		return n
	}
	// [^\r\n\p{L}\p{N}]?\p{L}+
	r, n := utf8.DecodeRuneInString(s)
	if isLetter(r) {
		return run(s, noLimit, isLetter)
	}
	if !isNewline(r) && !isNumber(r) {
		if letters := run(s[n:], noLimit, isLetter); letters > 0 {
			return n + letters
		}
	}
	if n := run(s, digits, isNumber); n > 0 {
		return n
	}
	//  ?[^\s\p{L}\p{N}]+[\r\n]*
	space := 0
	if r == ' ' {
		space = 1
	}
	if n := run(s[space:], noLimit, isOther); n > 0 {
		n += space
		return n + run(s[n:], noLimit, isNewline)
	}
	return scanSpaces(s)
}

func isOther(r rune) bool { return !unicode.IsSpace(r) && !isLetter(r) && !isNumber(r) }

// scanSpaces is \s*[\r\n]+|\s+(?!\S)|\s+ at the beginning of s: up to the last
// newline of the spaces; otherwise all at the end of the text; otherwise all
// but the last, which goes with what follows, unless there is only one.
func scanSpaces(s string) int {
	n := run(s, noLimit, unicode.IsSpace)
	if last := strings.LastIndexAny(s[:n], "\r\n"); last >= 0 {
		return last + 1
	}
	return butLast(s, n)
}

// butLast is \s+(?!\S)|\s+ for the n bytes of spaces that s begins with.
func butLast(s string, n int) int {
	if n == len(s) {
		return n
	}
	_, width := utf8.DecodeLastRuneInString(s[:n])
	if n > width {
		return n - width
	}
	return n
}

// contraction is the length of (?i:'s|'t|'re|'ve|'m|'ll|'d) at the beginning of s, or 0.
func contraction(s string) int {
	if s[0] != '\'' {
		return 0
	}
	r, n := utf8.DecodeRuneInString(s[1:])
	switch r {
	case 's', 'S', 't', 'T', 'm', 'M', 'd', 'D', 'ſ': // the long s folds to s
		return 1 + n
	}
	if len(s) >= 3 {
		switch strings.ToLower(s[1:3]) {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

// scanGPT2 is gpt2Pattern's match.
func scanGPT2(s string) int {
	for _, c := range [...]string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(s, c) {
			return len(c)
		}
	}
	space := 0
	if s[0] == ' ' {
		space = 1
	}
	for _, class := range [...]func(rune) bool{isLetter, isNumber, isOther} {
		if n := run(s[space:], noLimit, class); n > 0 {
			return space + n
		}
	}
	return butLast(s, run(s, noLimit, unicode.IsSpace))
}
