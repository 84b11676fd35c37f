package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// A splitter cuts text into the pieces that no merge crosses and gives each to
// yield. The pieces put together are the text.
type splitter func(text string, yield func(piece string))

// The patterns of known models that have a scanner of their own.
const (
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// matchTimeout bounds a pattern from a model's file on one text.
const matchTimeout = 5 * time.Second

// newSplitter is the splitter of a pattern whose matches, and what is between
// them, are pieces.
func newSplitter(pattern string) (splitter, error) {
	if pattern == llama3Pattern {
		return func(text string, yield func(string)) {
			for text != "" {
				n := scanLlama3(text)
				yield(text[:n])
				text = text[n:]
			}
		}, nil
	}
	return regexpSplitter(pattern)
}

func regexpSplitter(pattern string) (splitter, error) {
	re, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = matchTimeout
	return func(text string, yield func(string)) {
		runes := []rune(text) // matches are told in code points
		at := 0
		emit := func(to int) {
			if to > at {
				yield(string(runes[at:to]))
				at = to
			}
		}
		m, err := re.FindRunesMatch(runes)
		for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
			emit(m.Index)
			emit(m.Index + m.Length)
		}
		// A match that took too long leaves the rest in one piece: the tokens
		// still spell the text.
		emit(len(runes))
	}, nil
}

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

// scanLlama3 is the length of llama3Pattern's match at the beginning of s,
// which is not empty and valid UTF-8. The alternatives are tried in order.
func scanLlama3(s string) int {
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
	if digits := run(s, 3, isNumber); digits > 0 {
		return digits
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

// whole is the splitter of a tokenizer that does not split.
func whole(text string, yield func(string)) {
	if text != "" {
		yield(text)
	}
}

var errBehavior = errors.New(`supported is behavior "Isolated" without invert`)
